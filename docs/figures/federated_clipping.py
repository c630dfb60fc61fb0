"""Draw docs/_static/federated-clipping.svg: the clip bound by round, by our rule and Flower's."""

import math
from pathlib import Path

import matplotlib
import numpy as np
import torch
from torch import nn

import dpfy
from dpfy.federated import federate

matplotlib.use("svg")
from matplotlib import pyplot as plt

STATIC = Path(__file__).parents[1] / "_static"
CLIENTS, ROUNDS, SPREAD = 100, 60, 0.3  # norms are log-normal, with median 1
RATE, QUANTILE = 0.2, 0.5
STARTS = (0.1, 3.0)


def norms_of(chance: np.random.Generator) -> np.ndarray:
    return chance.lognormal(0, SPREAD, CLIENTS)


def ours(start: float) -> list[float]:
    """The bounds of the rounds of a server whose clients all answer."""
    chance, model = np.random.default_rng(1), nn.Linear(1, 1, bias=False)
    plan = dpfy.dpsgd(
        records=CLIENTS,
        batch_size=CLIENTS,
        steps=ROUNDS,
        clip=start,
        noise_multiplier=1.0,
        unit="user",
        controllers=[dpfy.QuantileClipping(QUANTILE, RATE)],
    )
    server = federate(
        model,
        torch.optim.SGD(model.parameters(), lr=0.0),
        plan,
        dpfy.Ledger.in_memory(),
        clients=range(CLIENTS),
        insecure_test_key=1,
    )
    bounds = []
    for cohort in server:
        for client, norm in zip(cohort.clients, norms_of(chance), strict=True):
            cohort.add(client, {"weight": torch.tensor([[norm]])})
        bounds.append(server.step(cohort).bounds["gradient"])
    return bounds


def flowers(start: float) -> list[float]:
    """The bounds by the rule of Flower 1.41: it counts the clients that were clipped."""
    chance, bound, bounds = np.random.default_rng(1), start, []
    for _ in range(ROUNDS):
        bounds.append(bound)
        clipped = np.sum(norms_of(chance) > bound)
        share = chance.normal(clipped, CLIENTS / 20) / CLIENTS
        bound *= math.exp(-RATE * (share - QUANTILE))
    return bounds


def main() -> None:
    matplotlib.rcParams.update({"svg.hashsalt": "dpfy", "svg.fonttype": "none", "font.size": 9})
    figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
    rounds = range(1, ROUNDS + 1)
    for rule, label, colour, style in (
        (ours, "dpfy", "#0072b2", "-"),
        (flowers, "Flower's rule", "#d55e00", "--"),
    ):
        for number, start in enumerate(STARTS):
            bounds = rule(start)
            axes.plot(rounds, bounds, style, color=colour, label=None if number else label)
            print(f"{label} from {start:g}: {bounds[-1]:.4g}")
    axes.axhline(1.0, color="#7a7a7a", linewidth=0.8)
    axes.annotate("median of the norms", (ROUNDS, 1.0), (0, 3), ha="right", va="bottom",
                  textcoords="offset points", fontsize=8, color="#4a4a4a")  # fmt: skip
    axes.set(yscale="log", xlabel="round", ylabel="clip bound")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(STATIC / "federated-clipping.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
