"""The effect of one column in an additive model, and plots of such effects with their noise.

Tests: tests/estimators/test_boosting.py.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from dpfy._extras import require
from dpfy.estimators.declarations import Floats
from dpfy.tabular.schema import Column

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class FeatureFunction:
    """What the bins of one column add to the log odds; all of it was released.

    Args:
        column: The declared column.
        cuts: The numbers at which a new bin begins; None for categories.
        values: What each bin adds to the log odds; their mean over the rows is about 0.
        stddev: The standard deviation of the noise that was added to each value on the way. Later
            rounds correct a part of it, so that a band of this width errs on the safe side.
        counts: The noisy number of rows in each bin, at least 0.
    """

    column: Column
    cuts: Floats | None
    values: Floats
    stddev: Floats
    counts: Floats

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the bins: categories, or intervals with their left ends."""
        if self.cuts is None:
            return (*(self.column.categories or ()), "other")
        ends = [self.column.low, *self.cuts, self.column.high]
        return tuple(f"[{low:g}, {high:g})" for low, high in pairwise(ends))

    @property
    def importance(self) -> float:
        """The mean absolute value over the rows, which orders columns by their effect."""
        total = self.counts.sum()
        return float(np.abs(self.values) @ self.counts / total) if total > 0 else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the function as plain JSON values."""
        return {
            "bins": list(self.labels),
            "values": self.values.tolist(),
            "stddev": self.stddev.tolist(),
            "counts": self.counts.tolist(),
        }

    def plot(self, axes: "Axes") -> None:
        """Draw the function with a band of two standard deviations of its noise.

        Args:
            axes: The axes of matplotlib to draw into.
        """
        if self.cuts is None:
            places = np.arange(len(self.values))
            axes.barh(places, self.values, xerr=2 * self.stddev, color="#0072b2", alpha=0.8)
            axes.set_yticks(places, self.labels, fontsize=7, parse_math=False)
            axes.set_xlabel("log odds")
        else:
            ends = np.array([self.column.low, *self.cuts, self.column.high])
            values, band = (np.append(each, each[-1]) for each in (self.values, 2 * self.stddev))
            axes.step(ends, values, where="post", color="#0072b2")
            axes.fill_between(
                ends, values - band, values + band, step="post", alpha=0.25, color="#0072b2"
            )
            axes.set_ylabel("log odds")
        axes.set_title(self.column.name, fontsize=9, parse_math=False)


def plot_functions(functions: Sequence[FeatureFunction]) -> "Figure":
    """Draw several functions into one figure, three beside each other.

    Args:
        functions: The functions.

    Returns:
        The figure of matplotlib; save it with its ``savefig``.

    Raises:
        MissingExtra: If matplotlib is not installed; it comes with the extra ``report``.
    """
    require("matplotlib", "report")
    from matplotlib.figure import Figure

    across = min(3, max(len(functions), 1))
    down = math.ceil(len(functions) / across)
    figure = Figure(figsize=(4 * across, 3 * max(down, 1)), layout="constrained")
    for number, function in enumerate(functions, start=1):
        function.plot(figure.add_subplot(down, across, number))
    return figure
