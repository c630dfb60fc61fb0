"""Small value types that all rooms share.

Tests: tests/accounting/test_guarantee.py, tests/plans/test_plan.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, Self

from dpfy import _validate
from dpfy._notebook import html_of
from dpfy.errors import InvalidArgument


class Unit(StrEnum):
    """The unit of privacy: a record, all that a user contributed, a record's label, or a report.

    Where labels are the unit, features and the number of records are public. A report is what one
    person sends of a value that nobody else sees; who reports, and how often, is public.
    """

    RECORD = "record"
    USER = "user"
    LABEL = "label"
    REPORT = "report"


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

    def to_json(self) -> Any:
        """Return the interval as plain JSON values."""
        return list(self)

    def _repr_html_(self) -> str | None:
        return html_of(self)


class GroupInterval(Interval):
    """Certified brackets of a privacy parameter, one for each group of records.

    ``lower`` and ``upper`` bracket the weakest group's: ``upper`` is all that may be claimed for
    every record.

    Args:
        groups: the bracket of each group, by name; at least one.

    >>> found = GroupInterval({"strict": Interval(0.9, 1.0), "open": Interval(2.8, 3.0)})
    >>> found.upper, found.weakest, found.groups["strict"].upper
    (3.0, 'open', 1.0)
    """

    groups: Mapping[str, Interval]

    def __new__(cls, groups: Mapping[str, Interval]) -> Self:
        """Return the bracket of the weakest group, which knows those of all."""
        self = super().__new__(
            cls,
            max(each.lower for each in groups.values()),
            max(each.upper for each in groups.values()),
        )
        self.groups = dict(groups)
        return self

    @property
    def weakest(self) -> str:
        """The name of the group with the largest upper end; the first of equals."""
        return max(self.groups, key=lambda name: self.groups[name].upper)

    def to_json(self) -> Any:
        """Return the interval of each group as plain JSON values."""
        return {name: each.to_json() for name, each in self.groups.items()}

    def __repr__(self) -> str:
        return f"GroupInterval({dict(self.groups)!r})"

    def __getnewargs__(self) -> tuple[Mapping[str, Interval]]:  # type: ignore[override]
        return (self.groups,)


def interval_from_json(value: Any) -> Interval:
    """Return the interval, or the intervals of groups, that ``to_json`` wrote.

    >>> interval_from_json(GroupInterval({"strict": Interval(0.9, 1.0)}).to_json()).groups
    {'strict': Interval(lower=0.9, upper=1.0)}
    """
    if isinstance(value, Mapping):
        return GroupInterval({name: Interval(*each) for name, each in value.items()})
    return Interval(*value)


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

    def to_json(self) -> dict[str, Any]:
        """Return the budget as plain JSON values."""
        return {"epsilon": self.epsilon, "delta": self.delta}


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

    def to_json(self) -> dict[str, Any]:
        """Return the budgets as plain JSON values."""
        return {
            "names": list(self.names),  # in lists, because a ledger sorts the names of fields
            "epsilons": list(self.epsilons),
            "delta": self.delta,
        }


def budget_from_json(value: Mapping[str, Any]) -> Budget | GroupBudgets:
    """Return the budget, or the budgets of groups, that ``to_json`` wrote.

    Raises:
        InvalidArgument: if it is neither.

    >>> budget_from_json(GroupBudgets(("strict", "open"), (1.0, 3.0), 1e-5).to_json()).of("open")
    Budget(epsilon=3.0, delta=1e-05)
    """
    try:
        if set(value) == {"names", "epsilons", "delta"}:
            return GroupBudgets(tuple(value["names"]), tuple(value["epsilons"]), value["delta"])
        return Budget(**value)
    except TypeError:
        raise InvalidArgument(
            "Expected a budget of 'epsilon' and 'delta', or 'names', 'epsilons' and 'delta' of "
            "groups."
        ) from None
