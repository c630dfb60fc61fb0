"""Small value types that all rooms share.

Tests: tests/accounting/test_guarantee.py, tests/plans/test_plan.py.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from dpfy import _validate


class Unit(StrEnum):
    """The unit of privacy: one record, or everything that one user contributed."""

    RECORD = "record"
    USER = "user"


class Relation(StrEnum):
    """The relation that makes two data sets neighbours."""

    ADD_OR_REMOVE_ONE = "add_or_remove_one"
    REPLACE_ONE = "replace_one"
    ZERO_OUT = "zero_out"


class Interval(NamedTuple):
    """A certified bracket of a privacy parameter; ``upper`` is the value that may be claimed.

    Args:
        lower: certified lower bound.
        upper: certified upper bound.

    >>> Interval(0.9, 1.0).upper
    1.0
    """

    lower: float
    upper: float


@dataclass(frozen=True)
class Budget:
    """The (ε, δ) that a plan promises not to exceed.

    Args:
        epsilon: finite and above 0.
        delta: in (0, 1).

    Raises:
        InvalidArgument: if ``epsilon`` or ``delta`` is outside its range.
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        _validate.epsilon(self.epsilon)
        _validate.delta(self.delta)
