"""Plots of what estimators release, with the noise that is in it.

Tests: tests/estimators/test_plots.py.
"""

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfy.planning.plots import check_ending, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from dpfy.estimators.summary import ColumnSummary, Summary

_COLUMNS = 3  # plots side by side
_MOST_BARS = 25
_BARS: dict[str, Any] = {"color": "#56b4e9", "ecolor": "#d55e00", "capsize": 2}
_BAND = 1.96
"""Noise is shown as this number of standard errors: what 95 % of draws stay within."""


def draw_histograms(summary: "Summary", path: str | os.PathLike[str]) -> Path:
    """Draw the histogram of each column of a summary, with bars of the noise.

    Args:
        summary: The summary.
        path: The file, ``.png``, ``.svg`` or ``.pdf``.

    Returns:
        The path.

    Raises:
        InvalidArgument: If the file has another ending.
        MissingExtra: If matplotlib is not installed.
    """
    target = check_ending(Path(path))
    across = min(_COLUMNS, len(summary.columns))
    down = math.ceil(len(summary.columns) / across)
    with new_figure(target, (4.0 * across, 3.0 * down)) as figure:
        for place, column in enumerate(summary.columns, start=1):
            _histogram(figure.add_subplot(down, across, place), column)
    return target


def _histogram(axes: "Axes", column: "ColumnSummary") -> None:
    """Draw one histogram; of many categories, the most frequent."""
    bars = list(column.histogram.items())
    if len(bars) > _MOST_BARS:
        bars = sorted(bars, key=lambda each: -each[1].value)[:_MOST_BARS]
    places = range(len(bars))
    axes.bar(
        places,
        [each.value for _, each in bars],
        yerr=[_BAND * each.error for _, each in bars],
        **_BARS,
    )
    axes.set_title(column.name, parse_math=False)
    axes.set_ylabel("rows")
    axes.set_xticks(places, [name for name, _ in bars], rotation=90, fontsize=6, parse_math=False)
