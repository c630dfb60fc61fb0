"""Draw docs/_static/planning-*.svg."""

from pathlib import Path

import matplotlib
import numpy as np

from dpfy.accounting import account
from dpfy.ledger.events import Poisson, Repeated, Sampled, SumQuery
from dpfy.planning import ScalingLaw, noise_over_batch, noise_over_rate
from dpfy.planning.plots import draw_batch_curves, draw_contours

matplotlib.use("svg")
from matplotlib import pyplot as plt

STATIC = Path(__file__).parents[1] / "_static"
RATE, NOISE, DELTA = 0.01, 1.0, 1e-5
STEPS = [10, 30, 100, 300, 1000, 3000, 10_000, 30_000]
RECORDS = 60_000


def spaced(low: float, high: float, count: int) -> list[float]:
    return [low, *np.geomspace(low, high, count)[1:-1].tolist(), high]


def exact(rate: float, steps: int) -> float:
    return account(Repeated(Sampled(Poisson(rate), (SumQuery(1.0, NOISE),)), steps)).claim(DELTA)


def draw_law(axes: plt.Axes) -> None:
    fitted, derived = (
        ScalingLaw.fitted(RATE, NOISE, DELTA, STEPS[3:]),
        ScalingLaw.appendix_b(RATE, DELTA),
    )
    axes.plot(
        STEPS, [exact(RATE, steps) for steps in STEPS], "-", color="#0072b2", label="exact (PLD)"
    )
    axes.plot(
        STEPS,
        [fitted.epsilon(RATE, NOISE, steps) for steps in STEPS],
        "--",
        color="#d55e00",
        label=f"fitted from 300 steps: A = {fitted.a:.2g}, B = {fitted.b:.2g}",
    )
    axes.plot(
        STEPS,
        [derived.epsilon(RATE, NOISE, steps) for steps in STEPS],
        ":",
        color="#7a7a7a",
        label=f"Appendix B: A = {derived.a:.2g}, B = {derived.b:.2g}",
    )
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="steps k",
        ylabel=f"ε at δ = {DELTA:g}",
        title=f"A·q√k/σ + B·kq²/σ², q = {RATE:g}, σ = {NOISE:g}",
    )
    axes.legend(frameon=False, fontsize="small")


def draw_epochs(axes: plt.Axes) -> None:
    epochs = [1, 2, 5, 10, 20, 40]
    for batch, colour in ((300, "#009e73"), (1200, "#0072b2"), (4800, "#d55e00")):
        costs = [exact(batch / RECORDS, round(count * RECORDS / batch)) for count in epochs]
        axes.plot(epochs, costs, "o-", markersize=3, color=colour, label=f"batches of {batch:,}")
    axes.set(
        xlabel="epochs, or tuning runs of one epoch",
        ylabel=f"ε at δ = {DELTA:g}",
        title=f"{RECORDS:,} records, σ = {NOISE:g}",
        ylim=(0, None),
    )
    axes.legend(frameon=False, fontsize="small")


def write_laws() -> None:
    matplotlib.rcParams.update({"svg.hashsalt": "dpfy", "svg.fonttype": "none", "font.size": 9})
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    draw_law(left)
    draw_epochs(right)
    figure.savefig(STATIC / "planning-law.svg", metadata={"Date": None})


def main() -> None:
    write_laws()
    rates = spaced(1e-3, 1.0, 10)
    draw_contours(
        STATIC / "planning-rates.svg",
        [
            noise_over_rate(epsilon, delta=DELTA, epochs=60, rates=rates)
            for epsilon in (1.0, 3.0, 8.0)
        ],
        delta=DELTA,
        epochs=60,
    )
    sizes = spaced(1e3, 1e7, 9)
    draw_batch_curves(
        STATIC / "planning-batches.svg",
        [
            noise_over_batch(epsilon, delta=1e-8, records=10**7, steps=10_000, batch_sizes=sizes)
            for epsilon in (0.25, 1.0, 4.0, 16.0)
        ],
        delta=1e-8,
        records=10**7,
        steps=10_000,
    )


if __name__ == "__main__":
    main()
