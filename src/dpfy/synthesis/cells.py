"""Divide the columns of a declared schema into cells, count rows in them, and draw from them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfy.errors import InvalidArgument
from dpfy.tabular.schema import Column, Schema
from dpfy.tabular.tables import columns_of

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]
_LARGEST_WHOLE = 2.0**53  # float64 holds all whole numbers up to it
Pair = tuple[int, ...]
"""The numbers of one, two or more columns, increasing."""


@dataclass(frozen=True)
class Cells:
    """The cells of one column: its categories and "other", or pieces of its bounds.

    Args:
        column: The declared column.
        bins: About the number of cells of a column of numbers: there are equally many between two
            of its knots.
        whole: Whether a column of numbers holds whole numbers.

    Raises:
        InvalidArgument: If a column of whole numbers has no whole number within its bounds, has
            bounds beyond ±2**53, or has categories.

    >>> Cells(Column("age", bounds=(0, 100), knots=(20,)), bins=4).edges
    array([  0.,  10.,  20.,  60., 100.])
    >>> Cells(Column("sex", categories=("F", "M"))).size
    3
    """

    column: Column
    bins: int = 32
    whole: bool = False

    def __post_init__(self) -> None:
        if self.whole and not self.column.is_number:
            raise InvalidArgument(
                f"Column {self.column.name!r} has categories, and no whole numbers. Leave it out "
                "of whole=."
            )
        if self.whole and max(-self.column.low, self.column.high) >= _LARGEST_WHOLE:
            raise InvalidArgument(
                f"The bounds {[self.column.low, self.column.high]} of column {self.column.name!r} "
                "reach beyond ±2**53, where float64 skips whole numbers. Leave it out of whole=, "
                "or declare other bounds."
            )
        if self.whole and math.ceil(self.column.low) > math.floor(self.column.high):
            raise InvalidArgument(
                f"The bounds {[self.column.low, self.column.high]} of column {self.column.name!r} "
                "hold no whole number. Leave it out of whole=, or declare other bounds."
            )

    @property
    def size(self) -> int:
        """The number of cells."""
        if self.column.categories is not None:
            return len(self.column.categories) + 1
        return len(self.edges) - 1

    @cached_property
    def edges(self) -> Floats:
        """The ends of the cells of a column of numbers; a cell holds its lower end.

        The last one also holds its upper end, unless the column holds whole numbers: these are
        below it.
        """
        places = [self.column.low, *self.column.knots, self.column.high]
        pieces = max(round(self.bins / (len(places) - 1)), 1)
        steps = np.arange(pieces * (len(places) - 1) + 1) / pieces
        edges = np.interp(steps, np.arange(len(places)), places)
        if self.whole:
            edges = np.unique(np.ceil(edges[:-1]))
            last = math.floor(self.column.high)
            edges = np.append(edges[edges <= last], last + 1.0)
        return edges

    def names(self) -> list[str]:
        """Return a name for each cell."""
        if self.column.categories is not None:
            return [*self.column.categories, "(other)"]
        ends = self.edges.tolist()
        if self.whole:
            return [
                f"{low:.0f}" if high - low == 1 else f"{low:.0f} to {high - 1:.0f}"
                for low, high in pairwise(ends)
            ]
        return [f"{low:.6g} to {high:.6g}" for low, high in pairwise(ends)]

    def codes(self, values: NDArray[Any]) -> Codes:
        """Return the cell of each value of a cleaned column."""
        if self.column.categories is not None:
            return np.asarray(values, dtype=np.int64)
        return np.searchsorted(self.edges[1:-1], values, side="right").astype(np.int64)

    def draw(self, codes: Codes, rng: np.random.Generator) -> NDArray[Any]:
        """Return a value for each cell: its category, or a number drawn uniformly from it.

        What is none of the categories becomes None.
        """
        if self.column.categories is not None:
            return np.array([*self.column.categories, None], dtype=object)[codes]
        low, high = self.edges[codes], self.edges[codes + 1]
        if self.whole:
            return rng.integers(low.astype(np.int64), high.astype(np.int64))
        return low + (high - low) * rng.random(len(codes))


@dataclass(frozen=True)
class Domain:
    """The cells of all columns, and the only way in which a table is read.

    Args:
        cells: The cells of each column.
    """

    cells: tuple[Cells, ...]

    @classmethod
    def of(cls, schema: Schema, bins: int, whole: Sequence[str]) -> "Domain":
        """Return the cells of a schema.

        Raises:
            InvalidArgument: If a column of whole numbers is named twice, or is none.
        """
        if len(set(whole)) < len(whole):
            raise InvalidArgument(f"Expected each column once in whole={list(whole)}.")
        for name in whole:
            schema[name]  # refuses names that it does not have
        return cls(tuple(Cells(each, bins, each.name in whole) for each in schema))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(each.column.name for each in self.cells)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of cells of each column."""
        return tuple(each.size for each in self.cells)

    def codes(self, table: Any) -> tuple[Codes, ...]:
        """Return the cell of each row of a table in every column; no cell of a row is refused."""
        schema = Schema(tuple(each.column for each in self.cells))
        found = columns_of(table, schema)
        return tuple(each.codes(found[each.column.name]) for each in self.cells)


def counts(codes: Sequence[Codes], sizes: Sequence[int], columns: Pair) -> Codes:
    """Return the number of rows in each cell of some columns together, as an array of counts.

    *Formal guarantee*: a row adds 1 to one entry, so that adding or removing it moves the counts
    by exactly 1 in ℓ1 and in ℓ2 norm.

    Args:
        codes: The cell of each row, for each column.
        sizes: The number of cells of each column.
        columns: The columns.

    Returns:
        The counts, with one axis for each of the columns.

    >>> counts([np.array([0, 1, 1]), np.array([2, 0, 0])], (2, 3), (0, 1))
    array([[0, 0, 1],
           [2, 0, 0]])
    """
    shape = tuple(sizes[each] for each in columns)
    place = np.zeros(len(codes[0]), dtype=np.int64)
    for each, size in zip(columns, shape, strict=True):
        place = place * size + codes[each]
    return np.bincount(place, minlength=math.prod(shape)).reshape(shape).astype(np.int64)
