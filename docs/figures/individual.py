"""Draw docs/_static/individual.svg: who gets what when groups of records have budgets of their own.

Three groups of 50,000 records, as in the review of adaptive DP-SGD (2024), section 6.2, case 1. On
the left the rate or the clip bound of each group, over the mean; on the right the ε that each group
has spent as steps go on, as in the review's Figures 13 and 14."""

from dataclasses import replace
from pathlib import Path

import matplotlib

import dpfy

matplotlib.use("svg")
from matplotlib import pyplot as plt

TARGET = Path(__file__).parents[1] / "_static" / "individual.svg"
GROUPS = {"strict": (1.0, 0.34), "usual": (2.0, 0.43), "open": (3.0, 0.23)}
RECORDS, BATCH, STEPS, DELTA, POINTS = 50_000, 1024, 1465, 1e-5, 12
COLORS = {"strict": "#0072b2", "usual": "#3b8a3e", "open": "#c24e00"}
LINES = {"sample": "-", "scale": "--"}


def planned(method: str) -> dpfy.Plan:
    """The calibrated plan of a method."""
    return dpfy.idpsgd(
        records=RECORDS,
        batch_size=BATCH,
        steps=STEPS,
        groups=GROUPS,
        method=method,
        delta=DELTA,
    )


def spent(plan: dpfy.Plan) -> tuple[list[int], dict[str, list[float]]]:
    """Numbers of steps, and the ε of every group up to there."""
    steps = [max(1, round(plan.steps * part / POINTS)) for part in range(1, POINTS + 1)]
    found = [dpfy.account(replace(plan, steps=step).envelope).groups for step in steps]
    return steps, {name: [each[name].claim(DELTA) for each in found] for name in GROUPS}


def main() -> None:
    """Draw both halves."""
    plt.rcParams.update({"svg.hashsalt": "dpfy", "svg.fonttype": "none", "font.size": 9})
    plans = {method: planned(method) for method in LINES}
    figure, (shares, curves) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for place, name in enumerate(GROUPS):
        sample, scale = (plan.sampling for plan in plans.values())
        heights = sample.rates[place] * RECORDS / BATCH, scale.bounds[place]
        bars = shares.bar([place - 0.2, place + 0.2], heights, 0.36, color=COLORS[name])
        bars[1].set(alpha=0.5, hatch="//")
        for bar, height in zip(bars, heights, strict=True):
            middle = bar.get_x() + bar.get_width() / 2
            shares.annotate(f"{height:.2f}", (middle, height), ha="center", va="bottom", size=8)
    shares.axhline(1.0, color="#666666", linewidth=0.8)
    shares.set_xticks(range(3), [f"{n}\nε = {e:g}, {s:.0%}" for n, (e, s) in GROUPS.items()])
    shares.set(ylabel="over the mean", ylim=(0, 1.75))
    shares.set_title("Left bar: rate (sample). Right: clip bound (scale).", size=9)
    for method, plan in plans.items():
        steps, found = spent(plan)
        for name, epsilons in found.items():
            label = f"{name}, {method}"
            curves.plot(steps, epsilons, LINES[method], color=COLORS[name], label=label)
    curves.set(xlabel="steps", ylabel="ε at δ = 1e-5", xlim=(0, STEPS), ylim=(0, 3.2))
    curves.legend(frameon=False, fontsize=8)
    for axes in (shares, curves):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(TARGET, metadata={"Date": None})
    for method, plan in plans.items():
        print(method, plan.noise_multiplier, plan.sampling)


if __name__ == "__main__":
    main()
