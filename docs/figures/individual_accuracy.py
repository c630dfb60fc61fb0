"""Draw docs/_static/individual-accuracy.svg: what IDP-SGD spends on each group, and reaches.

On the left as in Figures 13 and 14 of the review of adaptive DP-SGD (2024): ε of each group over
epochs in case 1, by sampling rates and by clip bounds per group. On the right its Figure 15 and
Table 10 from experiments/results: accuracy on the test records of CIFAR-10 in the three cases,
beside DP-SGD with everybody at the strictest ε and at the mean."""

from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import matplotlib

import dpfy
import experiments
from experiments.configs import cells_of
from experiments.individual import NAMES
from experiments.methods import make_plan
from experiments.results import Place

matplotlib.use("svg")
from matplotlib import pyplot as plt

TARGET = Path(__file__).parents[1] / "_static" / "individual-accuracy.svg"
DELTA, RECORDS, POINTS = 1e-5, 50_000, 8
COLORS = dict(zip(NAMES, ("#0072b2", "#3b8a3e", "#c24e00"), strict=True))
BARS = {"strictest": "#9a9a9a", "sample": "#0072b2", "scale": "#c24e00", "mean": "#d9d9d9"}
WORDS = {"strictest": "all at the strictest ε", "mean": "all at the mean ε"}


def spent(plan: dpfy.Plan) -> tuple[list[float], dict[str, list[float]]]:
    """Epochs, and the ε of each group for all steps up to there."""
    steps = [max(1, round(plan.steps * part / POINTS)) for part in range(1, POINTS + 1)]
    found = [dpfy.account(replace(plan, steps=step).envelope).epsilon(DELTA) for step in steps]
    curves = {name: [each.groups[name].upper for each in found] for name in NAMES}
    return [step * plan.rate for step in steps], curves


def accuracy(name: str) -> float:
    """The mean accuracy of an experiment with one cell, in percent."""
    (cell,) = cells_of(f"idpsgd-cifar-10-{name}")
    entry = Place(Path(experiments.__file__).parent).find(cell)
    assert entry is not None
    return mean(entry["accuracy"])


def draw_budgets(axes: Any, method: str) -> None:
    """Draw what each group has spent of its budget."""
    (cell,) = cells_of(f"idpsgd-cifar-10-1-{method}")
    epochs, curves = spent(make_plan(cell, RECORDS))
    for name, curve in curves.items():
        axes.plot(epochs, curve, color=COLORS[name], label=name)
    axes.set(title=f"spent, by “{method}”", xlabel="epochs", ylabel="ε", ylim=(0, None))


def draw_accuracies(axes: Any) -> None:
    """Draw one bar for each way to train, in each case."""
    for place, (kind, color) in enumerate(BARS.items()):
        heights = [accuracy(kind if kind == "strictest" else f"{case}-{kind}") for case in "123"]
        at = [number + (place - 1.5) / 5 for number in range(3)]
        axes.bar(at, heights, 0.19, color=color, label=WORDS.get(kind, f"IDP-SGD, {kind}"))
    axes.set(title="CIFAR-10, test records", xticks=range(3), ylabel="right, %", ylim=(60, 76))
    axes.set_xticklabels([f"case {case}" for case in "123"])


def main() -> None:
    """Draw the figure."""
    plt.rcParams.update({"svg.hashsalt": "dpfy", "svg.fonttype": "none", "font.size": 9})
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
    for each, method in zip(axes, ("sample", "scale"), strict=False):
        draw_budgets(each, method)
    draw_accuracies(axes[2])
    axes[0].legend(frameon=False)
    axes[2].legend(frameon=False, fontsize="small", ncols=2)
    for each in axes:
        each.spines[["top", "right"]].set_visible(False)
    figure.savefig(TARGET, metadata={"Date": None})


if __name__ == "__main__":
    main()
