"""Noisy marginals as they were released, and what public arithmetic makes of them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpfy.synthesis.cells import Codes, Floats, Pair

_KEPT = 3.0  # standard deviations of noise above which a cell is kept apart
_MOST_ROWS = 2.0**32  # that scores are exact for
STEP = 2.0**-10
"""The lattice of expected counts: distances of counts from them are summed without rounding."""


@dataclass(frozen=True)
class Measured:
    """One marginal as it was released.

    Args:
        columns: The numbers of its columns.
        noisy: The noisy counts, with an axis for each column.
        stddev: The standard deviation of the noise of each count.
    """

    columns: Pair
    noisy: Floats
    stddev: float


def estimated_total(measured: Sequence[Measured]) -> float:
    """Return the number of rows that noisy marginals tell, each weighed by its precision.

    >>> estimated_total([Measured((0,), np.array([3.0, 5.0]), 1.0)])
    8.0
    """
    weights = [1 / (each.stddev**2 * each.noisy.size) for each in measured]
    totals = [float(each.noisy.sum()) for each in measured]
    found = math.fsum(w * t for w, t in zip(weights, totals, strict=True)) / math.fsum(weights)
    return min(max(found, 1.0), _MOST_ROWS)


def on_lattice(expected: Floats) -> Codes:
    """Return expected counts in steps of the lattice, as whole numbers."""
    return np.rint(np.clip(np.nan_to_num(expected), 0, _MOST_ROWS) / STEP).astype(np.int64)


def distance(exact: Codes, expected: Floats) -> int:
    """Return the ℓ1 distance of exact counts from expected ones, in steps of the lattice.

    *Formal guarantee*: adding or removing a row moves it by at most 1/:data:`STEP` steps, as
    computed: all of it is whole numbers, of less than 2⁶³ for fewer than 2³² rows and cells.

    Args:
        exact: The exact counts.
        expected: What is expected, from released values alone.

    Returns:
        The distance, in steps.
    """
    return int(np.abs(exact * round(1 / STEP) - on_lattice(expected)).sum())


@dataclass(frozen=True)
class Merged:
    """The cells of a column, of which those that hardly stand out of the noise are one.

    Args:
        groups: The number of the group of each cell.
        shares: The share that each cell has in its group.
    """

    groups: Codes
    shares: Floats

    @classmethod
    def apart(cls, cells: int) -> "Merged":
        """Return groups of one cell each."""
        return cls(np.arange(cells), np.ones(cells))

    @classmethod
    def of(cls, one_way: Measured) -> "Merged":
        """Return the groups that follow from the noisy counts of one column.

        Cells below three standard deviations of the noise are one group, in which each has a share
        by its noisy count.
        """
        kept = one_way.noisy >= _KEPT * one_way.stddev
        if (~kept).sum() < 2:
            return cls.apart(kept.size)
        groups = np.where(kept, np.cumsum(kept) - 1, kept.sum())
        rest = np.where(kept, 0.0, np.maximum(one_way.noisy, 0.0))
        rest = rest / rest.sum() if rest.sum() > 0 else ~kept / (~kept).sum()
        return cls(groups, np.where(kept, 1.0, rest))

    @property
    def size(self) -> int:
        """The number of groups."""
        return int(self.groups.max()) + 1

    def merge(self, one_way: Measured) -> tuple[Floats, Floats]:
        """Return the noisy counts of the groups, and the number of cells in each."""
        return (
            np.bincount(self.groups, one_way.noisy, self.size).astype(np.float64),
            np.bincount(self.groups, minlength=self.size).astype(np.float64),
        )

    def split(self, groups: Codes, rng: np.random.Generator) -> Codes:
        """Return a cell for each group, drawn by the shares of its cells."""
        found = np.empty(len(groups), dtype=np.int64)
        for group in range(self.size):
            members, rows = np.flatnonzero(self.groups == group), groups == group
            shares = self.shares[members]
            found[rows] = rng.choice(members, int(rows.sum()), p=shares / shares.sum())
        return found
