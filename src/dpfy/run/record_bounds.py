"""Say how far each record may move a sum: the slot for budgets of single records.

Tests: tests/run/test_step.py, tests/run/test_idpsgd.py.
"""

from dataclasses import replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dpfy.ledger.individual import Individual
from dpfy.mechanisms.clipping import Clipping
from dpfy.mechanisms.gaussian_sum import GaussianSum


class RecordBounds(Protocol):
    """How the records of a chunk are bounded, given how the step bounds them all.

    *Assumes* of every implementation: what it returns bounds a record by at most what the step's
    event declares for it, and depends on no other record.
    """

    def clipping_for(self, clipping: Clipping, indices: tuple[int, ...]) -> Clipping:
        """Return the clipping of a chunk whose records have these indices in the data set."""

    def widen(self, mechanism: GaussianSum) -> GaussianSum:
        """Return the mechanism with the noise that these bounds need on top."""


class UniformBounds:
    """Bound every record alike."""

    def clipping_for(self, clipping: Clipping, indices: tuple[int, ...]) -> Clipping:
        """Return the clipping of the step as it is."""
        return clipping

    def widen(self, mechanism: GaussianSum) -> GaussianSum:
        """Return the mechanism as it is."""
        return mechanism


class GroupBounds:
    """Bound each record by its own group's multiple of the step's bound. Sensitive.

    *Formal guarantee*: a record of group g moves the sum by at most ``policy.bounds[g]`` times the
    step's bound, and by so much less than the noise as its event says, rounding included. A record
    of no group moves it by nothing.

    Args:
        policy: the groups and their bounds.
        numbers: the position in ``policy.names`` of the group of each record, or -1 for none.

    Proof: docs/proofs/individual.md.
    """

    def __init__(self, policy: Individual, numbers: npt.NDArray[np.int64]) -> None:
        self._policy, self._numbers = policy, numbers
        self._factors = np.array([*policy.bounds, 0.0])  # the last is that of number -1

    def __repr__(self) -> str:
        return "GroupBounds(sensitive)"

    def clipping_for(self, clipping: Clipping, indices: tuple[int, ...]) -> Clipping:
        """Return the clipping with the factor of each record's group."""
        factors = self._factors[self._numbers[np.array(indices, dtype=np.int64)]]
        return replace(clipping, factors=tuple(factors.tolist()))

    def widen(self, mechanism: GaussianSum) -> GaussianSum:
        """Return the mechanism with rounding in units of the smallest and the largest bound.

        Others' contributions are rounded in proportion to theirs, and the sum in proportion to
        none; a record of the smallest bound has to be hidden from both.
        """
        least, most = min(self._policy.bounds), max(self._policy.bounds)
        return replace(mechanism, rounding=mechanism.rounding * most, least=least)
