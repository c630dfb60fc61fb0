"""Plots of what estimators release, with the noise that is in it.

Tests: tests/estimators/test_plots.py.
"""

import math
import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from dpfy import _validate
from dpfy.errors import MissingExtra
from dpfy.planning.plots import check_ending, new_figure
from dpfy.reporting.notebook import picture
from dpfy.tabular.encoder import Encoder

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


def plot_coefficients(model: Any, path: str | os.PathLike[str], most: int = 30) -> Path:
    """Draw the coefficients of a fitted linear model, with bars of their noise.

    A bar of noise is 1.96 standard deviations to each side, where the model has ``coef_noise_``: a
    coefficient whose bar reaches zero may be noise alone. All of it was released, so that the plot
    costs nothing.

    Args:
        model: A fitted linear model, such as :class:`~dpfy.estimators.LogisticRegression`.
        path: The file, ``.png``, ``.svg`` or ``.pdf``.
        most: The number of coefficients that are drawn, the largest ones, at least 1.

    Returns:
        The path.

    Raises:
        InvalidArgument: If the file has another ending, or ``most`` is out of its range.
        MissingExtra: If matplotlib is not installed.
    """
    from sklearn.utils.validation import check_is_fitted

    check_is_fitted(model, "coef_")
    target, most = check_ending(Path(path)), _validate.count("most", most)
    values = np.atleast_2d(model.coef_)
    noise = None if model.coef_noise_ is None else np.atleast_2d(model.coef_noise_)
    names = _coefficient_names(model, values.shape[1])
    titles = [str(each) for each in getattr(model, "classes_", ())][-len(values) :]
    height = 1.2 + 0.18 * min(most, len(names))
    with new_figure(target, (5.0 * len(values), height)) as figure:
        for place, row in enumerate(values):
            axes = figure.add_subplot(1, len(values), place + 1)
            order = np.argsort(-np.abs(row))[:most][::-1]
            band = None if noise is None else _BAND * noise[place, order]
            axes.barh(np.arange(len(order)), row[order], xerr=band, **_BARS)
            axes.set_yticks(
                np.arange(len(order)), [names[each] for each in order], fontsize=7, parse_math=False
            )
            axes.set_title(titles[place] if titles else "target", parse_math=False)
            axes.set_xlabel("coefficient")
    return target


def drawn_in_place(plot: Callable[[Path], object]) -> str:
    """Return the part of a notebook's card with a plot; nothing where matplotlib is missing.

    Args:
        plot: A function that draws into the file that it is given.

    Returns:
        The HTML.
    """
    with TemporaryDirectory() as folder:
        target = Path(folder) / "plot.svg"
        try:
            plot(target)
        except MissingExtra:
            return ""
        return picture(target.read_text(encoding="utf-8"))


def _coefficient_names(model: Any, width: int) -> list[str]:
    """Return the names of encoded numbers under a schema, of columns, or their positions."""
    schema = getattr(model, "schema", None)
    if schema is not None:
        return [str(each) for each in Encoder(schema).get_feature_names_out()]
    names = getattr(model, "feature_names_in_", None)
    return [f"x{place}" for place in range(width)] if names is None else list(map(str, names))


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
