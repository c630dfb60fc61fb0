"""Private summaries of a table, all from one Gaussian vector."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import toeplitz
from sklearn.isotonic import isotonic_regression

from dpfy import _validate
from dpfy.errors import InvalidArgument
from dpfy.estimators.declarations import Features, Floats
from dpfy.estimators.fitting import (
    Declared,
    Fit,
    computed_bound,
    default_delta,
    gaussian,
    resolve_relation,
    summed,
)
from dpfy.estimators.reports import SUMS, count_ground
from dpfy.estimators.summary import ColumnSummary, Estimate, Summary
from dpfy.ledger import Ledger
from dpfy.ledger.grant import Booking
from dpfy.tabular.encoder import require_schema
from dpfy.tabular.schema import Column, Schema
from dpfy.tabular.tables import as_floats, columns_of, raw_columns, row_count

CELLS = 256
"""The least number of cells into which the bounds of a column of numbers are cut."""

MOST_BINS = 1000


@cache
def square_root(size: int) -> Floats:
    """Return the lower triangular matrix A for which A·A sums up: its lower triangle is all ones.

    Its diagonals are the coefficients of the power series of (1 − x)^(−1/2).
    """
    steps = np.arange(1, size)
    coefficients = np.concatenate([[1.0], np.cumprod((2 * steps - 1) / (2 * steps))])
    found: Floats = toeplitz(coefficients, np.zeros(size))
    found.flags.writeable = False
    return found


def describe(
    table: Any,
    schema: Schema,
    epsilon: float = 1.0,
    delta: float | str = "auto",
    *,
    quantiles: Sequence[float] = (0.25, 0.5, 0.75),
    bins: int = 10,
    ledger: Ledger | str | os.PathLike[str] | Booking | None = None,
    relation: str = "zero_out",
    records: int | None = None,
    insecure_test_key: int | bytes | None = None,
) -> Summary:
    """Summarise a table privately: counts, means, quantiles and histograms, for one budget.

    All numbers are computed from one noisy vector, in which every entry has the same noise. A row
    adds to it, for each column of categories, 1 to the count of its category; for each column of
    numbers, its value in units of half the bounds' width, and a column of a public matrix A for
    the cell of the bounds that it is in. Counts up to each cell are A times the noisy entries,
    since A·A sums up: their noise grows with the logarithm of the number of cells, where that of
    a sum of noisy counts grows with its root. Quantiles and histograms are read off these counts,
    so that more of them cost nothing.

    There are 256 or a few more cells for each column of numbers, equally many between two of its
    knots. So declare a knot where many values are close together.

    *Formal guarantee*: (``epsilon``, ``delta``)-differential privacy for setting one row to zero,
    or for adding or removing one, of the summary and of the noisy vector (docs/proofs/describe.md,
    Theorem 1). A row moves the vector by at most the root of the sum over columns of 1 for
    categories, and of 1 + Σ A²ⱼ₁ ≈ 4 for numbers.

    *Assumes* that the schema is public.

    Args:
        table: The table, as :func:`~dpfy.tabular.columns_of` takes it.
        schema: The declared columns. Numbers outside of their bounds count as the nearer bound;
            cells that hold no number are counted as missing.
        epsilon: The ε of the summary, above 0.
        delta: The δ of the summary; "auto" is the smaller of 1e-5 and n^-1.1.
        quantiles: The quantiles of columns of numbers, each between 0 and 1.
        bins: About the number of bins of histograms of numbers, at most 1000: knots are ends of
            bins, and there are equally many bins between them. A bin holds its lower end; the last
            one holds both.
        ledger: An open ledger, the path of one, or None for one in memory.
        relation: "zero_out", which makes the number of rows public, or "add_or_remove_one".
        records: The declared number of rows, where the true one is private.
        insecure_test_key: A key that makes the noise reproducible, and the summary not private.

    Returns:
        The summary; each number has the standard error of its noise.

    Raises:
        InvalidArgument: If a declaration is out of its range, or if the table lacks a column.
        BudgetExhausted: If the ledger does not admit the summary; no row was read.

    Reference: Fichtenberger, Henzinger & Upadhyay 2023, for the matrix.

    >>> schema = Schema((Column("age", bounds=(0, 100)), Column("sex", categories=("F", "M"))))
    >>> ages = np.arange(10_000) % 80
    >>> summary = describe({"age": ages, "sex": ["F", "M"] * 5000}, schema, epsilon=1.0)
    >>> abs(summary["age"].mean.value - 39.5) < 1, abs(summary["sex"].histogram["F"].value) > 4900
    (True, True)
    """
    bins = int(_validate.real("bins", _validate.count("bins", bins), 1, MOST_BINS))
    wanted = _quantiles(quantiles)
    layouts = [_layout(column, bins) for column in require_schema(schema)]
    neighbours, public = resolve_relation(relation, records, row_count(table, schema.names))
    declared = Declared(
        "describe",
        {"schema": schema.to_json(), "quantiles": list(wanted), "bins": bins},
        public,
        _validate.epsilon(epsilon),
        default_delta(public) if delta == "auto" else _validate.delta(delta),
        neighbours,
        (*SUMS, count_ground(neighbours, public), Features(schema=schema).ground),
    )
    exact = math.sqrt(sum(each.squared_bound for each in layouts))
    bound = computed_bound(exact, public, sum(each.width for each in layouts))
    with Fit(
        declared, lambda noise: [gaussian("summary", bound, noise)], ledger, insecure_test_key
    ) as fit:
        noisy = fit.release(
            fit.planned[0], lambda: summary_sum(raw_columns(table, schema.names), layouts)
        )
    ends = np.cumsum([each.width for each in layouts])[:-1]
    stddev = fit.noise_multiplier * bound
    return Summary(
        tuple(
            each.read(part, stddev, wanted)
            for each, part in zip(layouts, np.split(noisy, ends), strict=True)
        ),
        public,
        fit.guarantee,
        declared.delta,
        declared.parameters,
        fit.ledger if ledger is None else ledger,
    )


def summary_sum(columns: dict[str, NDArray[Any]], layouts: "Sequence[Layout]") -> Floats:
    """Return the exact vector that is released with noise: one part for each column, in order."""

    def block(*raw: NDArray[Any]) -> Floats:
        return np.concatenate([each.sums(part) for each, part in zip(layouts, raw, strict=True)])

    total: Floats = summed(block, *(columns[each.column.name] for each in layouts))
    return total


def _quantiles(quantiles: object) -> tuple[float, ...]:
    if isinstance(quantiles, str) or not isinstance(quantiles, Sequence | np.ndarray):
        raise InvalidArgument(
            f"Expected quantiles={quantiles!r} to list numbers between 0 and 1, as (0.25, 0.5)."
        )
    return tuple(
        _validate.real("quantiles", each, 0, 1, open_low=True, open_high=True) for each in quantiles
    )


@dataclass(frozen=True)
class Categories:
    """The part of a column of categories: the counts of the categories, and of "other"."""

    column: Column

    squared_bound = 1.0

    @property
    def width(self) -> int:
        """The number of entries."""
        return len(self.column.categories or ()) + 1

    def sums(self, raw: NDArray[Any]) -> Floats:
        """Return what the cells of some rows add up to."""
        codes = columns_of({self.column.name: raw}, Schema((self.column,)))[self.column.name]
        return np.bincount(codes, minlength=self.width).astype(np.float64)

    def read(self, noisy: Floats, stddev: float, quantiles: tuple[float, ...]) -> ColumnSummary:
        """Return the summary that follows from the noisy entries."""
        counts = [Estimate(value, stddev) for value in noisy.tolist()]
        known = Estimate(float(noisy[:-1].sum()), stddev * math.sqrt(len(noisy) - 1))
        names = self.column.categories or ()
        return ColumnSummary(
            self.column.name, known, counts[-1], dict(zip(names, counts[:-1], strict=True))
        )


@dataclass(frozen=True)
class Numbers:
    """The part of a column of numbers: missing cells, the sum, and cells through the matrix."""

    column: Column
    bins: int

    @cached_property
    def squared_bound(self) -> float:
        """The most that a row adds, squared: its value in units, and the first column of A."""
        return 1.0 + float(self.root[:, 0] @ self.root[:, 0])

    @property
    def width(self) -> int:
        """The number of entries."""
        return len(self.root) + 2

    @cached_property
    def root(self) -> Floats:
        """The matrix A for as many cells as there are."""
        return square_root(len(self.edges) - 1)

    @cached_property
    def edges(self) -> Floats:
        """The ends of the cells: equally many in each bin."""
        places = [self.column.low, *self.column.knots, self.column.high]
        pieces = math.prod(self._shape)
        steps = np.arange(pieces * (len(places) - 1) + 1) / pieces
        return np.asarray(np.interp(steps, np.arange(len(places)), places))

    @property
    def _shape(self) -> tuple[int, int]:
        """The number of bins between two knots, and of cells in a bin."""
        stretches = len(self.column.knots) + 1
        bins = max(round(self.bins / stretches), 1)
        return bins, -(-CELLS // (bins * stretches))

    @property
    def _range(self) -> float:
        return self.column.high - self.column.low

    def sums(self, raw: NDArray[Any]) -> Floats:
        """Return what the cells of some rows add up to."""
        numbers = as_floats(raw)
        known = np.isfinite(numbers)
        x = np.clip(numbers[known], self.column.low, self.column.high)
        cells = np.searchsorted(self.edges[1:-1], x, side="right")
        counts = np.bincount(cells, minlength=len(self.root))
        units = np.clip(2 * ((x - self.column.low) / self._range) - 1, -1, 1)
        return np.concatenate([[len(raw) - len(x), units.sum()], self.root @ counts])

    def read(self, noisy: Floats, stddev: float, quantiles: tuple[float, ...]) -> ColumnSummary:
        """Return the summary that follows from the noisy entries."""
        up_to = np.concatenate([[0.0], self.root @ noisy[2:]])
        noise = np.concatenate([np.zeros((1, len(self.root))), stddev * self.root])  # of these
        count = Estimate(float(up_to[-1]), float(np.linalg.norm(noise[-1])))
        return ColumnSummary(
            self.column.name,
            count,
            Estimate(float(noisy[0]), stddev),
            self._histogram(up_to, noise),
            self._mean(float(noisy[1]), stddev, count),
            {each: self._quantile(each, up_to, noise) for each in quantiles},
        )

    def _histogram(self, up_to: Floats, noise: Floats) -> dict[str, Estimate]:
        cuts = slice(None, None, self._shape[1])
        ends = self.edges[cuts].tolist()
        digits = next((each for each in (6, 12) if _differ(ends, each)), 17)
        names = [f"{low:.{digits}g} to {high:.{digits}g}" for low, high in pairwise(ends)]
        errors = np.linalg.norm(np.diff(noise[cuts], axis=0), axis=1)
        found = zip(np.diff(up_to[cuts]).tolist(), errors.tolist(), strict=True)
        return dict(zip(names, (Estimate(*each) for each in found), strict=True))

    def _mean(self, total: float, stddev: float, count: Estimate) -> Estimate:
        """Return the mean, by the noisy count, with the error of a quotient to first order."""
        rows = max(count.value, 1.0)
        units = min(max(total / rows, -1.0), 1.0)
        error = math.hypot(stddev, units * count.error) / rows
        value = self.column.low + (units + 1) / 2 * self._range
        return Estimate(value, min(error / 2, 1.0) * self._range)

    def _quantile(self, share: float, up_to: Floats, noise: Floats) -> Estimate:
        """Return a quantile, and half the distance of the values one standard error of rank away.

        The error is at least half the width of a cell, inside of which values are not told apart.
        """
        rising = isotonic_regression(up_to, y_min=0.0)
        target = share * rising[-1]
        value = float(np.interp(target, rising, self.edges))
        cell = min(int(np.searchsorted(self.edges, value, side="right")), len(self.root))
        rank_error = np.linalg.norm(noise[cell] - share * noise[-1])
        low, high = np.interp([target - rank_error, target + rank_error], rising, self.edges)
        width = self.edges[cell] - self.edges[cell - 1]
        return Estimate(value, float(max(high - low, width)) / 2)


Layout = Categories | Numbers


def _layout(column: Column, bins: int) -> Layout:
    return Numbers(column, bins) if column.is_number else Categories(column)


def _differ(numbers: Sequence[float], digits: int) -> bool:
    """Whether all numbers differ from each other in so few digits."""
    return len({f"{each:.{digits}g}" for each in numbers}) == len(numbers)
