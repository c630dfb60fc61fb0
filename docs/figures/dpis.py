"""Draw docs/_static/dpis.svg: Figure 1 of the paper on DPIS, its claim beside noise that is
accounted soundly.

The paper gives neither batches nor epochs nor norm sums: 17 epochs in batches of 512 are what makes
its DP-SGD need σ = 0.81 at ε = 4, and norm sums of half the greatest what makes its DPIS end near
0.42. Run this file after accounting or plans of DPIS changed; it prints the first and the last σ of
every curve."""

from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np
from scipy.special import gammaln, logsumexp

import dpfy
from dpfy.mechanisms.controllers import Schedule

matplotlib.use("svg")
from matplotlib import pyplot as plt

TARGET = Path(__file__).parents[1] / "_static" / "dpis.svg"
RECORDS, BATCH, EPOCHS, RATIO, FIRST_PHASE, DELTA = 60_000, 512, 17, 0.5, 0.8, 1e-5
PER_EPOCH = round(RECORDS / BATCH)
SIDE_NOISE = 0.02 * RECORDS  # of the released size and norm sums, as claimed
ORDERS = np.arange(2, 129)[:, None]
STYLES = {
    "DP-SGD, claimed": ("#666666", "--"),
    "DPIS, claimed": ("#c24e00", "--"),
    "DP-SGD": ("#0072b2", "-"),
    "DP-SGD, its noise falling alike": ("#0072b2", ":"),
    "DPIS": ("#3b8a3e", "-"),
    "DPIS, its noise falling alike": ("#3b8a3e", ":"),
}


def renyi(rate: float, noise: float) -> np.ndarray:
    """The Rényi divergences of one step at all orders, by the sum in Lemma 3.1 of the paper."""
    m = np.arange(ORDERS.max() + 1)[None, :]
    inside = np.minimum(m, ORDERS)
    terms = (
        gammaln(ORDERS + 1)
        - gammaln(inside + 1)
        - gammaln(ORDERS - inside + 1)
        + inside * np.log(rate)
        + (ORDERS - inside) * np.log1p(-rate)
        + (inside**2 - inside) / (2 * noise**2)
    )
    return logsumexp(np.where(m <= ORDERS, terms, -np.inf), axis=1) / (ORDERS[:, 0] - 1)


def epsilon(divergences: np.ndarray) -> float:
    """Equation 2 at its best order."""
    order = ORDERS[:, 0]
    return float((divergences + np.log1p(-1 / order) - np.log(DELTA * order) / (order - 1)).min())


def epoch(ratio: float, noise: float) -> np.ndarray:
    """An epoch of DPIS with a norm sum of ``ratio`` times the greatest; with 1 it is one of
    DP-SGD.
    """
    return PER_EPOCH * renyi(BATCH / (ratio * RECORDS), noise / ratio)


def least(allowed: Callable[[float], bool]) -> float:
    """The least noise that is allowed, to three digits more than are drawn."""
    low, high = 0.1, 20.0
    while high - low > 1e-5:
        middle = (low + high) / 2
        low, high = (low, middle) if allowed(middle) else (middle, high)
    return high


def claimed(target: float) -> list[float]:
    """The noise of every epoch as section 4.2 of the paper allots it.

    In the first phase later norm sums are taken to be the greatest possible, and then what the
    present one is."""
    order = ORDERS[:, 0]
    spent = order / (2 * SIDE_NOISE**2) + 2 * EPOCHS * renyi(BATCH / RECORDS, SIDE_NOISE)
    noises: list[float] = []
    for done in range(EPOCHS):
        later = 1.0 if done < FIRST_PHASE * EPOCHS else RATIO
        left, before = EPOCHS - done - 1, spent
        noises.append(
            least(
                lambda noise, left=left, later=later, before=before: (
                    epsilon(before + epoch(RATIO, noise) + left * epoch(later, noise)) <= target
                )
            )
        )
        spent = spent + epoch(RATIO, noises[-1])
    return noises


def accounted(plan: dpfy.Plan, target: float) -> list[float]:
    """The noise of every epoch over the clip bound, in the plan with the least of it by PLD."""
    plan = plan.calibrate(epsilon=target, delta=DELTA)
    steps = [1 + done * PER_EPOCH for done in range(EPOCHS)]
    ratio = (
        RATIO if plan.controllers else 1.0
    )  # the noise of dpis is over the norm of contributions
    return [plan.noise_at(step) * ratio for step in steps]


def curves(target: float) -> dict[str, list[float]]:
    """All that a panel shows."""
    common = {"records": RECORDS, "batch_size": BATCH, "steps": EPOCHS * PER_EPOCH}
    claim = claimed(target)
    alike = {
        "noise_schedule": Schedule(
            "as claimed", tuple(noise / claim[0] for noise in claim), PER_EPOCH
        )
    }
    plain = least(
        lambda noise: (
            epsilon(ORDERS[:, 0] / (2 * SIDE_NOISE**2) + EPOCHS * epoch(1.0, noise)) <= target
        )
    )
    plans = {
        "DP-SGD": dpfy.dpsgd(**common),
        "DP-SGD, its noise falling alike": dpfy.dpsgd(**common, **alike),
        "DPIS": dpfy.dpis(**common, ratio=RATIO),
        "DPIS, its noise falling alike": dpfy.dpis(**common, ratio=RATIO, **alike),
    }
    return {
        "DP-SGD, claimed": [plain] * EPOCHS,
        "DPIS, claimed": claim,
        **{name: accounted(plan, target) for name, plan in plans.items()},
    }


def main() -> None:
    """Draw a panel for each budget of the paper's figure."""
    plt.rcParams.update({"svg.hashsalt": "dpfy", "svg.fonttype": "none", "font.size": 9})
    figure, axes = plt.subplots(1, 3, figsize=(9, 3.6), layout="constrained")
    for panel, target in zip(axes, (0.5, 1.0, 4.0), strict=True):
        for name, noises in curves(target).items():
            color, line = STYLES[name]
            panel.step(
                range(EPOCHS + 1),
                [*noises, noises[-1]],
                line,
                where="post",
                color=color,
                label=name,
            )
            print(f"epsilon {target:g}, {name}: {noises[0]:.4f} to {noises[-1]:.4f}")
        panel.set(title=f"ε = {target:g}", xlabel="epoch", ylim=(0, None), xlim=(0, EPOCHS))
    axes[0].set_ylabel("noise over the clip bound")
    figure.legend(
        *axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False
    )
    figure.savefig(TARGET, metadata={"Date": None})


if __name__ == "__main__":
    main()
