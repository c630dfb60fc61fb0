"""What :func:`~dpfy.estimators.describe` returns: noisy numbers with their standard errors.

Tests: tests/estimators/test_description.py.
"""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from dpfy.accounting import Guarantee
from dpfy.errors import InvalidArgument
from dpfy.estimators.reports import write_report
from dpfy.ledger import Ledger
from dpfy.ledger.grant import Booking
from dpfy.reporting.notebook import framed

_HEADER = ("column", "statistic", "value", "± noise")


@dataclass(frozen=True)
class Estimate:
    """A number with noise.

    Args:
        value: The noisy number; a count may be below zero, so that sums of counts have no bias.
        error: The standard error that the noise gives it, which is public. That rows are a sample
            of something larger is not in it.

    >>> print(Estimate(1234.5678, 12.3))
    1235 ± 12
    """

    value: float
    error: float

    def __str__(self) -> str:
        """Return value and error, rounded to the second digit of the error."""
        value, error = self.rounded()
        return f"{value} ± {error}"

    def rounded(self) -> tuple[str, str]:
        """Return value and error as texts, rounded to the second digit of the error."""
        if not self.error > 0:
            return f"{self.value:g}", f"{self.error:g}"
        digits = max(1 - math.floor(math.log10(self.error)), 0)
        return f"{self.value:.{digits}f}", f"{self.error:.{digits}f}"


@dataclass(frozen=True)
class ColumnSummary:
    """The summary of one column.

    Args:
        name: The name of the column.
        count: The number of rows with a number, or with a declared category.
        missing: The number of rows without: cells that hold no number, or another category.
        histogram: The number of rows in each bin, or of each category.
        mean: The mean, for a column of numbers.
        quantiles: The quantiles, for a column of numbers.
    """

    name: str
    count: Estimate
    missing: Estimate
    histogram: Mapping[str, Estimate]
    mean: Estimate | None = None
    quantiles: Mapping[float, Estimate] = field(default_factory=dict)

    def statistics(self) -> dict[str, Estimate]:
        """Return all numbers by what they are, such as ``mean`` and ``25 %``."""
        return {
            "count": self.count,
            "missing" if self.mean is not None else "other": self.missing,
            **({} if self.mean is None else {"mean": self.mean}),
            **{f"{100 * share:g} %": each for share, each in self.quantiles.items()},
            **{f"rows: {name}": each for name, each in self.histogram.items()},
        }


@dataclass(frozen=True)
class Summary:
    """A private summary of a table.

    Args:
        columns: The summaries of the columns, in the order of the schema.
        records: The public number of rows.
        guarantee: The guarantee of this summary alone, whatever else is on its ledger.
        delta: The δ of the summary.
        parameters: What was asked, as plain JSON values.
        ledger: The ledger, or the path of one.
    """

    columns: tuple[ColumnSummary, ...]
    records: int
    guarantee: Guarantee = field(repr=False)
    delta: float
    parameters: Mapping[str, Any] = field(repr=False)
    ledger: Ledger | str | os.PathLike[str] | Booking = field(repr=False, compare=False)

    def __getitem__(self, name: str) -> ColumnSummary:
        """Return the summary of a column.

        Raises:
            InvalidArgument: If the summary has no such column.
        """
        for each in self.columns:
            if each.name == name:
                return each
        known = ", ".join(each.name for each in self.columns)
        raise InvalidArgument(f"Expected a column of the summary, got {name!r}. It has {known}.")

    def to_rows(self) -> list[dict[str, Any]]:
        """Return one row for each number, as ``pandas.DataFrame`` takes them."""
        return [
            {"column": each.name, "statistic": name, "value": found.value, "error": found.error}
            for each in self.columns
            for name, found in each.statistics().items()
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the summary as plain JSON values."""
        return {
            "epsilon": self.guarantee.claim(self.delta),
            "delta": self.delta,
            "private": self.guarantee.source.private,
            "records": self.records,
            "rows": self.to_rows(),
        }

    def __str__(self) -> str:
        """Return a table of all numbers, and the guarantee below it."""
        table = [_HEADER, *self._cells()]
        widths = [max(len(row[place]) for row in table) for place in range(len(_HEADER))]
        lines = [
            f"{row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]:>{widths[2]}}  "
            f"{row[3]:>{widths[3]}}"
            for row in table
        ]
        return "\n".join([*lines, "", self._claim()])

    def _repr_html_(self) -> str:
        """Return the plot and the table for a notebook."""
        from dpfy.estimators.plots import drawn_in_place

        def row(cells: tuple[str, ...], tag: str) -> str:
            inner = "".join(f"<{tag}>{escape(each)}</{tag}>" for each in cells)
            return f"<tr>{inner}</tr>"

        body = "".join(row(each, "td") for each in self._cells())
        numbers = f"<table>{row(_HEADER, 'th')}{body}</table>"
        return framed(f"<p>{escape(self._claim())}</p>", drawn_in_place(self.plot), numbers)

    def report(self, folder: str | os.PathLike[str]) -> tuple[Path, ...]:
        """Write the privacy report, the numbers and their plot into a folder.

        Args:
            folder: The folder; it is created if it does not exist.

        Returns:
            The paths of the report in Markdown, JSON and HTML, of ``summary.json`` and of
            ``summary.svg``.
        """
        released = "the summary and the noisy vector that all of its numbers were computed from"
        written = write_report(
            folder, self.ledger, self.delta, "describe", self.parameters, released
        )
        numbers = Path(folder) / "summary.json"
        numbers.write_text(json.dumps(self.to_json(), indent=2) + "\n", encoding="utf-8")
        return (*written, numbers, self.plot(Path(folder) / "summary.svg"))

    def plot(self, path: str | os.PathLike[str]) -> Path:
        """Draw the histograms of all columns with their noise into a file.

        Args:
            path: The file, ``.png``, ``.svg`` or ``.pdf``.

        Returns:
            The path.

        Raises:
            MissingExtra: If matplotlib is not installed: the extra ``report``.
        """
        from dpfy.estimators.plots import draw_histograms

        return draw_histograms(self, path)

    def _cells(self) -> list[tuple[str, ...]]:
        return [
            (each.name, name, *found.rounded())
            for each in self.columns
            for name, found in each.statistics().items()
        ]

    def _claim(self) -> str:
        epsilon = math.ceil(self.guarantee.claim(self.delta) * 1e4) / 1e4
        note = "" if self.guarantee.source.private else " NOT PRIVATE: drawn with a test key."
        return f"({epsilon:.4f}, {self.delta:.2g})-differential privacy for all of it.{note}"
