"""What correlated noise remembers of earlier rows: bands, decaying sums, or the nodes of a tree.

Fresh noise Z is in whole steps of its lattice. A history turns row t of it into ξ_t, the row that
is added to the sums, so that Cξ = Z for a lower triangular strategy C with a unit diagonal, up to
rounding. ``roundings`` says what that rounding adds to the sensitivity of a sum, in steps per
coordinate: docs/proofs/streams.md, lemma 7.

Tests: tests/noise/test_correlated.py.
"""

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from dpfy import _validate
from dpfy.errors import InvalidArgument
from dpfy.noise.native.correlation import LARGEST, Ring, correlation_for
from dpfy.noise.rejection_table import Floats

LARGEST_SCALE = 2.0**30
"""The largest standard deviation of fresh noise, in steps, that a history has room for."""

_REACH = 40.0  # standard deviations; noise is beyond them with probability 1e-348
_LARGEST_SPREAD = 2.0**10


class History(Protocol):
    """What is remembered of earlier rows. Sensitive: with it, noise could be told from sums."""

    @property
    def roundings(self) -> float:
        """How many steps per coordinate rounding adds to the sensitivity of a sum."""

    def correlate(self, noise: Floats, row: int) -> float:
        """Turn fresh noise into a row, counted from 1, in place, and remember what it implies.

        Returns:
            The standard deviation of the row over that of fresh noise.
        """

    def forget(self) -> None:
        """Drop all earlier rows: the next one is fresh noise."""


class Bands:
    """Rows of a Toeplitz matrix with a band: row t takes the last b − 1 rows off fresh noise.

    They are kept in 32 bits, in units of which 2³¹ reach forty standard deviations.

    Args:
        coefficients: A column of C from the diagonal, which is 1, downwards.
        steps: The number of rows, at least 1.

    Raises:
        InvalidArgument: If the diagonal is not 1, or if the noise would grow without bound.

    >>> Bands([1.0, 0.5], steps=100).roundings
    33.0...
    """

    def __init__(self, coefficients: Sequence[float], steps: int) -> None:
        if not len(coefficients) or coefficients[0] != 1:
            raise InvalidArgument(
                f"Expected coefficients that begin with 1, got {[*coefficients][:1]}. Divide all "
                "of them by the first one, which must be positive."
            )
        self._past = np.array(coefficients[1:], dtype=np.float64)
        self._spreads = _norms(_inverse(self._past, _validate.count("steps", steps)))
        self._unit = _power_of_two(_REACH * LARGEST_SCALE * max(self._spreads) / LARGEST)
        self._ring: Ring | None = None
        self._age = 0

    @property
    def roundings(self) -> float:
        """See :class:`History`."""
        if not len(self._past):
            return 0.0
        band, total = len(self._past) + 1, float(np.abs(self._past).sum())
        kept = self._unit * (1 if min(self._past) >= 0 else 2)
        return kept + math.sqrt(band - 1) * (1 + band * 2.0**-21 * total * self._unit)

    def correlate(self, noise: Floats, row: int) -> float:
        """See :class:`History`."""
        spread = self._spreads[min(self._age, len(self._spreads) - 1)]
        if len(self._past):
            if self._ring is None:
                self._ring = np.empty((len(self._past), len(noise)), dtype=np.int32)
            size, kept = len(self._past), min(self._age, len(self._past))
            rows = (self._age - 1 - np.arange(kept)) % size
            correlation_for(len(noise)).bands(
                noise, self._past[:kept], rows, self._ring, self._age % size, self._unit
            )
        self._age += 1
        return float(spread)

    def forget(self) -> None:
        """See :class:`History`."""
        self._ring, self._age = None, 0


class DecayingSums:
    """Rows of a buffered linear Toeplitz matrix, C_t = Σ scale·decayᵗ⁻¹ below a diagonal of 1.

    A sum for each decay, in float64, stands for all earlier rows.

    Args:
        decays: The factors by which earlier rows decay, from 0 to below 1.
        scales: The weight of each sum, as many.
        steps: The number of rows, at least 1.

    Raises:
        InvalidArgument: If numbers are out of their range, or if the noise would grow.

    >>> DecayingSums([0.9, 0.5], [0.2, 0.2], steps=100).roundings
    10.0...
    """

    def __init__(self, decays: Sequence[float], scales: Sequence[float], steps: int) -> None:
        if len(decays) != len(scales):
            raise InvalidArgument(
                f"Expected as many scales as decays, got {len(scales)} and {len(decays)}."
            )
        self._decays = np.array(
            [_validate.real("decays", each, 0, 1, open_high=True) for each in decays]
        )
        self._scales = np.array([_validate.real("scales", each, -1, 1) for each in scales])
        self._steps = _validate.count("steps", steps)
        rows, sums = _responses(self._decays, self._scales, steps)
        self._spreads = _norms(rows)
        self._limits = _REACH * LARGEST_SCALE * np.linalg.norm(sums, axis=0)
        self._sums: Floats | None = None
        self._age = 0

    @property
    def roundings(self) -> float:
        """See :class:`History`."""
        each = 2.0**-51 / (1 - self._decays) + (len(self._decays) + 1) * 2.0**-52
        return math.sqrt(self._steps) * (1 + float(np.abs(self._scales) @ (self._limits * each)))

    def correlate(self, noise: Floats, row: int) -> float:
        """See :class:`History`."""
        spread = self._spreads[min(self._age, len(self._spreads) - 1)]
        if self._sums is None:
            self._sums = np.zeros((len(self._decays), len(noise)))
        correlation_for(len(noise)).decaying(
            noise, self._decays, self._scales, self._limits, self._sums
        )
        self._age += 1
        return float(spread)

    def forget(self) -> None:
        """See :class:`History`."""
        self._sums, self._age = None, 0


class TreeNodes:
    """Rows of binary trees: row t replaces the nodes that end before it by the one that ends there.

    The noise of t rows together is that of the at most log₂ t + 1 nodes that make up their sum. All
    is exact.

    Args:
        restart: The number of rows after which a new tree begins; 0 means never.

    >>> nodes = TreeNodes()
    >>> [round(nodes.correlate(np.zeros(1), row) ** 2) for row in range(1, 9)]
    [1, 2, 1, 3, 1, 2, 1, 4]
    """

    roundings = 0.0

    def __init__(self, restart: int = 0) -> None:
        self._restart = _validate.count("restart", restart, minimum=0)
        self._nodes: dict[int, Floats] = {}

    def correlate(self, noise: Floats, row: int) -> float:
        """See :class:`History`."""
        place = (row - 1) % self._restart + 1 if self._restart else row
        if place == 1:
            self.forget()
        level = (place & -place).bit_length() - 1
        fresh = noise.copy()
        replaced = [self._nodes.pop(below) for below in range(level) if below in self._nodes]
        for node in replaced:
            noise -= node
        self._nodes[level] = fresh
        return math.sqrt(1 + len(replaced))

    def forget(self) -> None:
        """See :class:`History`."""
        self._nodes = {}


def _inverse(past: Floats, steps: int) -> Floats:
    """Return the first column of the inverse of a Toeplitz matrix with a unit diagonal."""
    found = np.zeros(steps + len(past))  # zeros before the first row
    found[len(past)] = 1
    backwards = past[::-1]
    with np.errstate(all="ignore"):  # what grows without bound is refused by its norm
        for row in range(len(past) + 1, len(found)):
            found[row] = -(backwards @ found[row - len(past) : row])
    return found[len(past) :]


def _responses(decays: Floats, scales: Floats, steps: int) -> tuple[Floats, Floats]:
    """Return what one unit of fresh noise adds to later rows, and to their sums [row, decay]."""
    rows, sums = np.zeros(steps), np.zeros((steps + 1, len(decays)))
    with np.errstate(all="ignore"):
        for row in range(steps):
            rows[row] = (row == 0) - scales @ sums[row]
            sums[row + 1] = decays * sums[row] + rows[row]
    return rows, sums


def _norms(column: Floats) -> Floats:
    """Return the norm of each row of the Toeplitz matrix of a column, unless they grow too far."""
    with np.errstate(all="ignore"):
        norms = np.sqrt(np.cumsum(column**2))
    if not norms[-1] <= _LARGEST_SPREAD:
        raise InvalidArgument(
            f"The noise of a row grows to more than {_LARGEST_SPREAD:.0f} times that of fresh "
            "noise: the inverse of this strategy has no bound. Take another strategy."
        )
    return norms


def _power_of_two(least: float) -> float:
    """Return the smallest power of two that is at least 1 and ``least``."""
    return 2.0 ** max(0, math.ceil(math.log2(least)))
