"""Draw docs/_static/accountants.svg."""

import math
from pathlib import Path

import matplotlib
from scipy.optimize import brentq

from dpfy.accounting import account
from dpfy.accounting.extras.textbook import EpsilonDelta, advanced
from dpfy.accounting.pld import closed_forms
from dpfy.ledger.events import Poisson, Repeated, Sampled, SumQuery

matplotlib.use("svg")
from matplotlib import pyplot as plt

RATE, NOISE, DELTA = 0.01, 1.0, 1e-5
STEP = Sampled(Poisson(RATE), (SumQuery(1.0, NOISE),))
STEPS = [10, 30, 100, 300, 1000, 3000, 10_000]
TARGET = Path(__file__).parents[1] / "_static" / "accountants.svg"


def central_limit(steps: int) -> float:
    """ε of the Gaussian that many steps converge to (Bu et al. 2020): an approximation, and here
    too small.
    """
    mu = RATE * math.sqrt(steps * math.expm1(1 / NOISE**2))
    return closed_forms.epsilon(mu, DELTA).upper


def strong(steps: int) -> float:
    part = DELTA / (2 * steps)
    return advanced(EpsilonDelta(account(STEP).claim(part), part), steps, DELTA / 2).epsilon


def draw_steps(axes: plt.Axes) -> None:
    axes.plot(
        STEPS,
        [strong(steps) for steps in STEPS],
        ":",
        color="#7a7a7a",
        label="advanced composition of (ε, δ)",
    )
    axes.plot(
        STEPS,
        [account(Repeated(STEP, steps), "rdp").claim(DELTA) for steps in STEPS],
        "--",
        color="#c24e00",
        label="RDP",
    )
    axes.plot(
        STEPS,
        [account(Repeated(STEP, steps)).claim(DELTA) for steps in STEPS],
        "-",
        color="#0072b2",
        label="PLD",
    )
    axes.plot(
        STEPS,
        [central_limit(steps) for steps in STEPS],
        "-.",
        color="#9b2f8f",
        label="GDP by central limit: not a bound",
    )
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="steps",
        ylabel=f"ε at δ = {DELTA:g}",
        title=f"rate {RATE:g}, noise {NOISE:g}",
    )
    axes.legend(frameon=False, fontsize="small")


def draw_tradeoff(axes: plt.Axes) -> None:
    steps = 1000
    guarantee = account(Repeated(STEP, steps))
    epsilon = guarantee.claim(DELTA)
    mu = float(brentq(lambda value: closed_forms.epsilon(value, DELTA).upper - epsilon, 0.01, 10))
    grid = [epsilon * part / 40 for part in range(1, 61)]
    axes.plot(
        grid,
        [account(Repeated(STEP, steps), "rdp").delta(value).upper for value in grid],
        "--",
        color="#c24e00",
        label="RDP",
    )
    axes.plot(
        grid, [guarantee.delta(value).upper for value in grid], "-", color="#0072b2", label="PLD"
    )
    axes.plot(
        grid,
        [closed_forms.delta(mu, value) for value in grid],
        "-.",
        color="#9b2f8f",
        label=f"{mu:.2f}-GDP, which meets PLD at δ = {DELTA:g}",
    )
    axes.set(yscale="log", xlabel="ε", ylabel="δ", title=f"the whole curve after {steps:,} steps")
    axes.legend(frameon=False, fontsize="small")


def main() -> None:
    matplotlib.rcParams.update({"svg.hashsalt": "dpfy", "svg.fonttype": "none", "font.size": 9})
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    draw_steps(left)
    draw_tradeoff(right)
    figure.savefig(TARGET, metadata={"Date": None})


if __name__ == "__main__":
    main()
