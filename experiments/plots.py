"""Draws the results, and the noise behind them: accuracy over ε, accuracy as ε is spent, noise over
the rate, perplexity over steps.
"""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import dpfy
from experiments.cell import Cell, by_experiment
from experiments.configs import CELLS
from experiments.results import Entry, Place

_DELTA, _EPSILONS, _STEPS, _EPOCHS = 1e-5, (1.0, 2.0, 3.0), 200, 60
_RATES = (0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.33, 1.0)
_COLORS = ("#0072b2", "#c24e00", "#009e73")
_GREY = "#7a7a7a"
_PERPLEXITIES = (6, 8, 10, 15, 20, 25)
_STYLE: dict[Any, Any] = {
    "svg.hashsalt": "dpfy",
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.fontsize": "small",
}


def draw_accuracy(place: Place, path: Path, cells: Iterable[Cell] = CELLS) -> None:
    """Plot accuracy over ε, one panel for each experiment: what is to be reached, and every seed
    that has run.
    """
    by_name = by_experiment(cells)
    columns = min(3, len(by_name))
    with rc_context(_STYLE):
        rows = math.ceil(len(by_name) / columns)
        figure = Figure(figsize=(3.0 * columns, 2.7 * rows), layout="constrained")
        for number, (name, members) in enumerate(by_name.items(), start=1):
            _accuracy(figure.add_subplot(rows, columns, number), name, members, place)
        _save(figure, path)


def draw_spending(place: Place, path: Path, cells: Iterable[Cell] = CELLS) -> None:
    """Plot accuracy on the held-out split over the ε spent so far: of the best try with a cell's
    network and ε.

    As Dörmann et al. 2021, Figure 3; there on test records, here never.
    """
    selection = Place(place.root, validate=True)
    found = {
        name: [(cell, best) for cell in members if (best := _best_try(selection, cell)) is not None]
        for name, members in by_experiment(cells).items()
    }
    panels = {name: members for name, members in found.items() if members}
    with rc_context(_STYLE):
        columns = max(1, min(3, len(panels)))
        rows = max(1, math.ceil(len(panels) / columns))
        figure = Figure(figsize=(3.2 * columns, 2.9 * rows), layout="constrained")
        for number, (name, members) in enumerate(panels.items(), start=1):
            axes = figure.add_subplot(rows, columns, number)
            for (cell, entry), color in zip(members, _COLORS, strict=False):
                _, epsilon, accuracy = zip(*entry["config"]["runs"][0]["curve"], strict=True)
                axes.plot(epsilon, accuracy, color=color, label=f"planned for ε = {cell.epsilon:g}")
            axes.set(title=name, xlabel="ε spent so far", ylabel="accuracy on held-out records, %")
            axes.legend(loc="lower right")
        _save(figure, path)


def draw_noise(path: Path) -> None:
    """Plot the noise that an ε asks for over the sampling rate, by PLD: for equal epochs and for
    equal steps.

    On the left as Dörmann et al. 2021, Figure 2. On the right what a record's gradient meets: σ/q,
    the noise of a mean gradient, relative to that of full batches. Where the curve is flat a
    smaller sample costs no accuracy, and saves the time in proportion."""
    with rc_context(_STYLE):
        figure = Figure(figsize=(8.0, 3.2), layout="constrained")
        left, right = figure.subplots(1, 2)
        for epsilon, color in zip(_EPSILONS, _COLORS, strict=True):
            by_epochs = [
                noise_multiplier(rate, max(1, round(_EPOCHS / rate)), epsilon) for rate in _RATES
            ]
            left.plot(_RATES, by_epochs, "-o", markersize=3, color=color, label=f"ε = {epsilon:g}")
            by_steps = np.array([noise_multiplier(rate, _STEPS, epsilon) / rate for rate in _RATES])
            right.plot(
                _RATES,
                by_steps / by_steps[-1],
                "-o",
                markersize=3,
                color=color,
                label=f"ε = {epsilon:g}",
            )
        left.set(
            title=f"equal epochs ({_EPOCHS})",
            xlabel="sampling rate q",
            ylabel="noise multiplier σ",
            xscale="log",
            yscale="log",
        )
        right.set(
            title=f"equal steps ({_STEPS})",
            xlabel="sampling rate q",
            xscale="log",
            ylim=(0.9, 3.0),
            ylabel="σ/q, relative to full batches",
        )
        right.axhline(1.0, color=_GREY, linewidth=0.8, linestyle=":")
        for axes in (left, right):
            axes.legend()
        _save(figure, path)


def draw_perplexity(found: dict[str, Any], path: Path) -> None:
    """Plot the perplexity of a language model over its steps, one curve for each ε, between what
    frequencies alone reach.
    """
    with rc_context(_STYLE):
        figure = Figure(figsize=(5.0, 3.2), layout="constrained")
        axes = figure.add_subplot()
        for curve, color in zip(found["curves"], ("black", *_COLORS), strict=False):
            epsilon = curve["setting"]["epsilon"]
            label = "no privacy" if epsilon is None else f"ε = {epsilon:g}"
            axes.plot(*zip(*curve["curve"][1:], strict=True), color=color, label=label)
        for name, value in found["baselines"].items():
            axes.axhline(value, color=_GREY, linewidth=0.8, linestyle=":")
            axes.annotate(
                f"frequencies of {name}",
                (1.0, value),
                xycoords=("axes fraction", "data"),
                ha="right",
                va="top",
                color=_GREY,
                fontsize="small",
            )
        axes.set(xlabel="step", ylabel="perplexity of held-out characters", yscale="log")
        axes.set_yticks(_PERPLEXITIES, labels=map(str, _PERPLEXITIES))
        axes.minorticks_off()
        axes.legend()
        _save(figure, path)


def noise_multiplier(rate: float, steps: int, epsilon: float) -> float:
    """Return the noise that so many steps at a rate need for ε and δ = 1e-5.

    >>> 4.3 < noise_multiplier(rate=0.17, steps=303, epsilon=2.93) < 4.4
    True
    """
    plan = dpfy.dpsgd(rate=rate, divisor=1, steps=steps).calibrate(epsilon=epsilon, delta=_DELTA)
    assert plan.noise_multiplier is not None
    return plan.noise_multiplier


def _best_try(selection: Place, cell: Cell) -> Entry | None:
    same = [
        entry
        for entry in selection.read(cell.experiment)
        for config in (entry["config"],)
        if (config["epsilon"], config["network"]) == (cell.epsilon, cell.network)
    ]
    return max(same, key=lambda entry: max(entry["accuracy"]), default=None)


def _accuracy(axes: Axes, name: str, cells: Sequence[Cell], place: Place) -> None:
    targets = [(cell.epsilon, cell.target) for cell in cells if cell.target is not None]
    if targets:
        axes.plot(
            *zip(*targets, strict=True),
            "--o",
            color=_GREY,
            markerfacecolor="none",
            label="to reach",
        )
    points = [
        (entry["epsilon"], value)
        for cell in cells
        if (entry := place.find(cell))
        for value in entry["accuracy"]
    ]
    if points:
        axes.plot(*zip(*points, strict=True), "x", color=_COLORS[0], label="dpfy, every seed")
    else:
        axes.text(0.5, 0.05, "not run yet", transform=axes.transAxes, ha="center", color=_GREY)
    axes.set(title=name, xlabel="ε by PLD", ylabel="accuracy on test records, %")
    if targets or points:
        axes.legend(loc="lower right" if points else "upper left")


def _save(figure: Figure, path: Path) -> None:
    figure.savefig(path, metadata={"Date": None})
