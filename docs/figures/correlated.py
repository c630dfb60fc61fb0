"""Draw docs/_static/correlated.svg: the noise that correlated noise and DP-SGD leave in weights."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib

from dpfy.planning import NoiseComparison, compare_correlated

matplotlib.use("svg")
from matplotlib import pyplot as plt

STATIC = Path(__file__).parents[1] / "_static"
DELTA, EPSILONS = 1e-5, (1.0, 4.0, 8.0)
RUNS = ((50_000, 5_000, 25), (50_000, 2_000, 8))  # records, batch size, epochs
LINES = (
    ("dpsgd", "cyclic", "DP-SGD, fixed order", "#d55e00", "o-"),
    ("blt", "cyclic", "2 buffers, fixed order", "#cc79a7", "s-"),
    ("banded", "cyclic", "best bands, fixed order", "#009e73", "^-"),
    ("dpsgd", "poisson", "DP-SGD, Poisson", "#7a7a7a", "o--"),
    ("banded", "cyclic_poisson", "best bands, cyclic Poisson", "#0072b2", "^--"),
)


def least(found: NoiseComparison, method: str, sampling: str) -> float:
    return min(
        choice.rmse
        for choice in found.choices
        if (choice.method, choice.sampling) == (method, sampling)
    )


def compare(records: int, batch_size: int, epochs: int, epsilon: float) -> NoiseComparison:
    return compare_correlated(
        records=records,
        batch_size=batch_size,
        epochs=epochs,
        epsilon=epsilon,
        delta=DELTA,
        buffers=2,
    )


def draw_budgets(axes: plt.Axes, records: int, batch_size: int, epochs: int) -> None:
    found = [compare(records, batch_size, epochs, epsilon) for epsilon in EPSILONS]
    for method, sampling, label, colour, style in LINES:
        errors = [least(each, method, sampling) for each in found]
        axes.plot(EPSILONS, errors, style, color=colour, markersize=4, label=label)
        print(found[0].steps, label, [f"{error:.3g}" for error in errors])
    axes.set(
        xscale="log",
        yscale="log",
        xlabel=f"ε at δ = {DELTA:g}",
        title=f"{found[0].steps} steps, {epochs} epochs",
    )
    label_axes(axes, EPSILONS)


def draw_bands(axes: plt.Axes) -> None:
    for epsilon, colour in zip(EPSILONS, ("#0072b2", "#009e73", "#d55e00"), strict=True):
        found = compare(100_000, 1_000, 20, epsilon)
        drawn = [(1, least(found, "dpsgd", "poisson"))] + [
            (choice.size, choice.rmse)
            for choice in found.choices
            if choice.sampling == "cyclic_poisson"
        ]
        axes.plot(
            *zip(*drawn, strict=True), "o-", color=colour, markersize=4, label=f"ε = {epsilon:g}"
        )
        print(found.steps, epsilon, [f"{bands}: {error:.3g}" for bands, error in drawn])
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="bands, with cyclic Poisson samples; 1 is DP-SGD",
        title="2000 steps, 20 epochs",
    )
    label_axes(axes, (1, 2, 4, 8, 16, 32, 64))
    axes.legend(frameon=False, fontsize="small")


def label_axes(axes: plt.Axes, places: Sequence[float]) -> None:
    axes.set_xticks(places, [f"{place:g}" for place in places])
    low, high = axes.get_ylim()
    errors = [error for error in (5, 10, 20, 50, 100, 200) if low <= error <= high]
    axes.set_yticks(errors, [f"{error}" for error in errors])
    axes.minorticks_off()


def main() -> None:
    matplotlib.rcParams.update({"svg.hashsalt": "dpfy", "svg.fonttype": "none", "font.size": 9})
    figure, places = plt.subplots(1, 3, figsize=(11, 3.8), layout="constrained")
    for axes, run in zip(places, RUNS, strict=False):
        draw_budgets(axes, *run)
    draw_bands(places[2])
    places[0].set_ylabel("noise in each weight (RMSE, clip bounds)")
    places[1].legend(frameon=False, fontsize="small")
    figure.savefig(STATIC / "correlated.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
