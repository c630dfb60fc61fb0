"""Draw docs/_static/budget-curves.svg: ε over epochs as noise schedules spend it.

On the left as in Figure 10 of the review of adaptive DP-SGD (2024): MNIST in lots of 600, schedules
that begin at σ = 10 with the constants of Yu et al. 2019, and a fixed σ = 8. On the right the cells
of the experiments ``adaptive-review-*``, where every schedule is scaled to end at ε = 1."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import matplotlib

import dpfy
from experiments.configs.adaptive_review import CELLS
from experiments.methods import kind_of, make_plan

matplotlib.use("svg")
from matplotlib import pyplot as plt

TARGET = Path(__file__).parents[1] / "_static" / "budget-curves.svg"
DELTA, RECORDS, POINTS = 1e-5, 60_000, 20
COLORS = {"dp-sgd": "#0072b2", "time": "#c24e00", "exponential": "#3b8a3e", "polynomial": "#9b2f8f"}
Curve = tuple[list[float], list[float]]


def review() -> dict[str, dpfy.Plan]:
    """The plans of the review's Figure 10."""
    methods = {
        "dp-sgd": (8.0, None),
        "time": (10.0, "time:0.05"),
        "exponential": (10.0, "exponential:0.01"),
        "polynomial": (10.0, "polynomial:3:100:0.2"),
    }  # the last number is σ_end/σ0
    return {
        name: dpfy.dpsgd(
            records=RECORDS,
            batch_size=600,
            epochs=100,
            noise_multiplier=noise,
            noise_schedule=schedule,
        )
        for name, (noise, schedule) in methods.items()
    }


def cells() -> dict[str, dpfy.Plan]:
    """The plans of our cells with fixed and with scheduled noise."""
    return {
        kind: make_plan(cell, RECORDS).calibrate(epsilon=cell.epsilon, delta=cell.delta)
        for cell in CELLS
        if cell.data == "mnist" and (kind := kind_of(cell.method)) in COLORS
    }


def spent(plan: dpfy.Plan) -> Curve:
    """Epochs, and the ε of all steps up to there."""
    steps = [max(1, round(plan.steps * part / POINTS)) for part in range(1, POINTS + 1)]
    return (
        [step * plan.rate for step in steps],
        [dpfy.account(replace(plan, steps=step).envelope).claim(DELTA) for step in steps],
    )


def main() -> None:
    """Draw both panels."""
    plt.rcParams.update({"svg.hashsalt": "dpfy", "svg.fonttype": "none", "font.size": 9})
    figure, axes = plt.subplots(1, 2, figsize=(8.5, 3.3), layout="constrained")
    panels: tuple[tuple[str, Callable[[], dict[str, dpfy.Plan]]], ...] = (
        ("noise as in the review: σ from 10, or 8", review),
        ("our cells: all end at ε = 1", cells),
    )
    for panel, (title, plans) in zip(axes, panels, strict=True):
        for name, plan in plans().items():
            panel.plot(
                *spent(plan), color=COLORS[name], label="fixed noise" if name == "dp-sgd" else name
            )
        panel.set(
            title=title,
            xlabel="epoch",
            ylabel=f"ε spent, δ = {DELTA:g}",
            ylim=(0, None),
            xlim=(0, None),
        )
        panel.legend(frameon=False, fontsize="small")
    figure.savefig(TARGET, metadata={"Date": None})


if __name__ == "__main__":
    main()
