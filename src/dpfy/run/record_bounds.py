"""Say how far each record may move a sum: the slot for budgets of single records.

Tests: tests/run/test_step.py.
"""

from typing import Protocol

from dpfy.mechanisms.clipping import Clipping


class RecordBounds(Protocol):
    """How the records of a chunk are bounded, given how the step bounds them all.

    *Assumes* of every implementation: what it returns bounds a record by at most what the step's
    event declares for it, and depends on no other record.
    """

    def clipping_for(self, clipping: Clipping, indices: tuple[int, ...]) -> Clipping:
        """Return the clipping of a chunk whose records have these indices in the data set."""


class UniformBounds:
    """Bound every record alike."""

    def clipping_for(self, clipping: Clipping, indices: tuple[int, ...]) -> Clipping:
        """Return the clipping of the step as it is."""
        return clipping
