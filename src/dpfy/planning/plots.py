"""Drawings of contours as PNG, SVG or PDF files."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpfy._extras import require
from dpfy.errors import InvalidArgument
from dpfy.planning.contours import BatchCurve, Contour

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ENDINGS = (".png", ".svg", ".pdf")
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "dpfy",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#d8dee4",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": "small",
}


def draw_contours(
    path: str | Path, contours: Sequence[Contour], *, delta: float, epochs: float
) -> Path:
    """Write the noise over rates for each ε, with the fitted c·√q, to a file.

    Reference: Dörmann et al. 2021, Figure 2.
    """

    def draw(axes: "Axes") -> None:
        for colour, line in zip(_cycle(len(contours)), contours, strict=True):
            axes.plot(line.rates, line.noise, color=colour, label=f"ε = {line.epsilon:g}")
            axes.plot(
                line.rates,
                line.root_law * np.sqrt(line.rates),
                "--",
                color=colour,
                linewidth=1,
                label=f"{line.root_law:.3g}·√q",
            )
        axes.set(
            xscale="log",
            yscale="log",
            xlabel="sampling rate q",
            ylabel="noise multiplier σ",
            title=f"{epochs:g} epochs, δ = {delta:g}",
        )

    return _written(path, draw)


def draw_batch_curves(
    path: str | Path, curves: Sequence[BatchCurve], *, delta: float, records: int, steps: int
) -> Path:
    """Write the noise in the mean gradient over batch sizes to a file.

    A point marks where returns diminish. Reference: Ponomareva et al. 2023, Figure 1.
    """

    def draw(axes: "Axes") -> None:
        for colour, curve in zip(_cycle(len(curves)), curves, strict=True):
            axes.plot(
                curve.batch_sizes, curve.noise_in_mean, color=colour, label=f"ε = {curve.epsilon:g}"
            )
            if curve.batch_sizes[0] <= curve.diminishing <= curve.batch_sizes[-1]:
                height = np.exp(
                    np.interp(
                        np.log(curve.diminishing),
                        np.log(curve.batch_sizes),
                        np.log(curve.noise_in_mean),
                    )
                )
                axes.plot([curve.diminishing], [height], "o", color=colour)
        axes.plot([], [], "ko", label="n·√(ε/T)")
        axes.set(
            xscale="log",
            yscale="log",
            xlabel="batch size B",
            ylabel="noise in the mean gradient, σC/B",
            title=f"{records:,} records, {steps:,} steps, δ = {delta:g}",
        )

    return _written(path, draw)


def check_ending(path: str | Path) -> Path:
    """Return the path if it ends in one of :data:`ENDINGS`."""
    if Path(path).suffix not in ENDINGS:
        raise InvalidArgument(f"Expected {str(path)!r} to end in {', '.join(ENDINGS)}.")
    return Path(path)


def _cycle(count: int) -> list[str]:
    return [_COLOURS[place % len(_COLOURS)] for place in range(count)]


@contextmanager
def new_figure(path: str | Path, size: tuple[float, float] = (6.0, 4.2)) -> "Iterator[Figure]":
    """Give an empty figure to draw into, and save it at the end; matplotlib is loaded only here."""
    target = check_ending(path)
    require("matplotlib", "report")
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(_SETTINGS):
        figure = Figure(figsize=size, layout="constrained")
        yield figure
        metadata = {"Date": None} if target.suffix == ".svg" else None
        figure.savefig(target, dpi=150, metadata=metadata)


def _written(path: str | Path, draw: Any) -> Path:
    """Draw into a new figure with a legend, and save it."""
    with new_figure(path) as figure:
        axes = figure.add_subplot()
        draw(axes)
        axes.legend()
    return Path(path)
