"""What one row of correlated noise rests on, and the loops that take it off fresh noise.

:mod:`~dpfy.noise.histories` decides which memory a row reads and writes. All is done coordinate by
coordinate, so that whoever adds noise to sums correlates it on the way, some coordinates at a time,
in any order, and each exactly once. For long vectors ``native/correlation.h`` does the same
operations in the same order on the same doubles.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpfy.noise.rejection_table import Floats

LARGEST = 2**31 - 1
"""The largest number that a band holds, in units."""

_PIECE = 2**13  # numbers that numpy works on in one go: they stay in the cache


@dataclass(frozen=True, eq=False, repr=False)
class Past(ABC):
    """What a row rests on. Sensitive: with it, noise could be told from sums.

    Args:
        spread: The standard deviation of the row over that of fresh noise.
    """

    spread: float

    def correlate(self, start: int, noise: Floats) -> None:
        """Turn fresh noise into a row in place, and remember what it implies.

        Args:
            start: The first coordinate.
            noise: Fresh noise of the coordinates from there on, in whole steps of the lattice.
        """
        for first in range(0, len(noise), _PIECE):
            fresh = noise[first : first + _PIECE]
            self._correlate(slice(start + first, start + first + len(fresh)), fresh)

    @abstractmethod
    def _correlate(self, part: slice, fresh: Floats) -> None:
        """Do it for so few coordinates that they stay in the cache."""


@dataclass(frozen=True, eq=False, repr=False)
class Band(Past):
    """Take Σ weight·row off fresh noise, and note the result.

    Args:
        weights: The weight of each row.
        rows: Earlier rows, in units of so many steps.
        target: Where the result is noted; it may be the memory of one of the rows.
        unit: The unit, a power of two.
    """

    weights: Floats
    rows: Sequence[npt.NDArray[np.int32]]
    target: npt.NDArray[np.int32]
    unit: float

    def _correlate(self, part: slice, fresh: Floats) -> None:
        total = np.zeros(len(fresh))
        for row, weight in zip(self.rows, self.weights, strict=True):
            total += weight * row[part]
        fresh -= np.rint(total * self.unit)
        self.target[part] = np.clip(np.rint(fresh / self.unit), -LARGEST, LARGEST)


@dataclass(frozen=True, eq=False, repr=False)
class Sums(Past):
    """Take Σ weight·sum off fresh noise, and put decay·sum plus the result into each sum.

    Args:
        weights: The weight of each sum.
        rows: The sums, in steps.
        decays: The factor by which each sum decays.
        limits: What no sum goes beyond.
    """

    weights: Floats
    rows: Sequence[Floats]
    decays: Floats
    limits: Floats

    def _correlate(self, part: slice, fresh: Floats) -> None:
        total = np.zeros(len(fresh))
        for row, weight in zip(self.rows, self.weights, strict=True):
            total += weight * row[part]
        fresh -= np.rint(total)
        for row, decay, limit in zip(self.rows, self.decays, self.limits, strict=True):
            past = row[part]
            past *= decay
            past += fresh
            np.clip(past, -limit, limit, out=past)


@dataclass(frozen=True, eq=False, repr=False)
class Nodes(Past):
    """Note fresh noise, and take nodes off it. All are whole numbers, and sums of them exact.

    Args:
        rows: The nodes, in steps.
        target: Where fresh noise is noted; it may be the memory of one of the nodes.
    """

    rows: Sequence[Floats]
    target: Floats

    def _correlate(self, part: slice, fresh: Floats) -> None:
        total = np.zeros(len(fresh))
        for row in self.rows:
            total += row[part]
        self.target[part] = fresh
        fresh -= total


Correlate = Callable[[Past, int, Floats], None]
"""A loop that does what :meth:`Past.correlate` does."""
