"""Small value types that all rooms share.

Tests: tests/accounting/test_guarantee.py, tests/plans/test_plan.py.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from dpfy import _validate
from dpfy.errors import InvalidArgument


class Unit(StrEnum):
    """The unit of privacy: one record, all that one user contributed, or the label of one record.

    Where labels are the unit, features and the number of records are public.
    """

    RECORD = "record"
    USER = "user"
    LABEL = "label"


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


@dataclass(frozen=True)
class GroupBudgets:
    """The ε that a plan promises not to exceed for each group of records, at one δ.

    Args:
        names: the names of the groups.
        epsilons: the ε of each group, finite and above 0.
        delta: in (0, 1).

    Raises:
        InvalidArgument: if a number is outside its range, or a group has no ε.

    >>> GroupBudgets(("strict", "open"), (1.0, 3.0), 1e-5).of("open")
    Budget(epsilon=3.0, delta=1e-05)
    """

    names: tuple[str, ...]
    epsilons: tuple[float, ...]
    delta: float

    def __post_init__(self) -> None:
        if len(self.names) != len(self.epsilons) or not self.names:
            raise InvalidArgument(
                f"Expected one epsilon for each group, got {len(self.names)} groups and "
                f"{len(self.epsilons)} epsilons."
            )
        for name, epsilon in zip(self.names, self.epsilons, strict=True):
            _validate.positive(f"epsilon of group {name!r}", epsilon)
        _validate.delta(self.delta)

    def of(self, name: str) -> Budget:
        """Return the budget of a group."""
        _validate.choice("group", name, self.names)
        return Budget(self.epsilons[self.names.index(name)], self.delta)
