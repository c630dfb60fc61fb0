"""Small values that every room shares."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from dpfy import _validate


class Unit(StrEnum):
    """Whose presence is protected: one record, or everything that one user contributed."""

    RECORD = "record"
    USER = "user"


class Relation(StrEnum):
    """When two data sets are neighbours."""

    ADD_OR_REMOVE_ONE = "add_or_remove_one"
    REPLACE_ONE = "replace_one"
    ZERO_OUT = "zero_out"


class Interval(NamedTuple):
    """A certified bracket of a privacy parameter; ``upper`` is what one may claim.

    >>> Interval(0.9, 1.0).upper
    1.0
    """

    lower: float
    upper: float


@dataclass(frozen=True)
class Budget:
    """The (ε, δ) that a plan promises not to exceed."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        _validate.epsilon(self.epsilon)
        _validate.delta(self.delta)
