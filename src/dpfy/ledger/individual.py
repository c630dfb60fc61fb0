"""Groups of records with a sampling rate and a bound of their own.

Tests: tests/ledger/test_individual.py.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from typing import Any

from dpfy import _validate
from dpfy.errors import InvalidArgument, UnsupportedEvent
from dpfy.ledger.events import (
    Event,
    LaplaceSum,
    Poisson,
    Policy,
    RecordedQuery,
    Repeated,
    Sampled,
    SumQuery,
)
from dpfy.ledger.one_shot import (
    AboveThreshold,
    DiscreteGaussianSum,
    ExponentialChoice,
    ListedChoice,
    NoisyMax,
)

_ADDS_UP = 1e-6  # how far the declared shares may be from 1 in all

BOUNDS: dict[type[RecordedQuery], str] = {
    SumQuery: "l2_bound",
    LaplaceSum: "l1_bound",
    DiscreteGaussianSum: "l2_bound",
    ExponentialChoice: "sensitivity",
    ListedChoice: "sensitivity",
    NoisyMax: "sensitivity",
    AboveThreshold: "sensitivity",
}
"""The field that says how far one record moves a query, for each kind whose noise ignores it."""


@dataclass(frozen=True)
class Individual(Policy, tag="individual"):
    """Poisson sampling in which each public group of records has a rate and a bound of its own.

    A record of group g is included with probability ``rates[g]``, independently of all others, and
    moves every query by at most ``bounds[g]`` times what the query declares. A record of no group
    is never included. Privacy is accounted for each group by itself: there is no guarantee that
    holds for all of them but the weakest.

    Args:
        names: the names of the groups.
        rates: the inclusion probability of each group, in [0, 1].
        bounds: the bound of each group, above 0, as a multiple of the bound that queries declare.
        shares: the declared share of each group among the records, above 0; they add up to 1. They
            are public, and no part of the guarantee.

    Raises:
        InvalidArgument: if a number is out of its range, groups are missing or named twice, or the
            shares do not add up to 1.
    """

    names: tuple[str, ...]
    rates: tuple[float, ...]
    bounds: tuple[float, ...]
    shares: tuple[float, ...]

    def __post_init__(self) -> None:
        check_names(self.names)
        for field in ("rates", "bounds", "shares"):
            if len(getattr(self, field)) != len(self.names):
                raise InvalidArgument(
                    f"Expected one of {field} for each of the {len(self.names)} groups, got "
                    f"{len(getattr(self, field))}."
                )
        pairs = tuple(zip(self.names, self.rates, strict=True))
        rates = tuple(_validate.real(f"rate of group {name!r}", each, 0, 1) for name, each in pairs)
        object.__setattr__(self, "rates", rates)
        for field in ("bounds", "shares"):
            values = tuple(
                _validate.positive(f"{field[:-1]} of group {name!r}", each)
                for name, each in zip(self.names, getattr(self, field), strict=True)
            )
            object.__setattr__(self, field, values)
        check_shares(dict(zip(self.names, self.shares, strict=True)))

    @property
    def rate(self) -> float:  # type: ignore[override]
        """The expected fraction of the records in one step, by the declared shares."""
        return math.fsum(
            share * rate for share, rate in zip(self.shares, self.rates, strict=True)
        ) / math.fsum(self.shares)

    def number(self, name: str) -> int:
        """Return the position of a group.

        Raises:
            InvalidArgument: if there is no such group.
        """
        return self.names.index(_validate.choice("group", name, self.names))


def check_names(names: tuple[str, ...]) -> None:
    """Raise unless there is a group, and each has a name of its own."""
    wrong = [name for name in names if not isinstance(name, str) or not name]
    if not names or wrong or len(set(names)) != len(names):
        raise InvalidArgument(
            f"Expected groups with a name each, none of them twice, got {list(names)!r}."
        )


def check_shares(shares: dict[str, float]) -> None:
    """Raise unless the shares of all groups add up to 1."""
    total = math.fsum(shares.values())
    if abs(total - 1) > _ADDS_UP:
        listed = ", ".join(f"{name!r}: {share:g}" for name, share in shares.items())
        raise InvalidArgument(
            f"Expected the shares of all groups to add up to 1, got {total:g} ({listed}). They are "
            "public: declare what fraction of the records is in each group."
        )


@dataclass(frozen=True)
class FilteredPoisson(Policy, tag="filtered_poisson"):
    """Poisson sampling from the records whose own filter has room for the step.

    A record that has left takes no part in the arithmetic of the step either. One that has not is
    included with probability ``rate``, independently of all others, and moves the query by at most
    its stored bound, which is at most the bound that the query declares. Whether it has left, and
    its bound, follow from the record and from earlier outputs.

    Args:
        rate: inclusion probability of a record that has not left, in [0, 1].

    Raises:
        InvalidArgument: if the rate is out of its range.

    Reference: docs/proofs/individual-filter.md.
    """

    rate: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", _validate.real("rate", self.rate, 0, 1))


def scaled(query: RecordedQuery, factor: float) -> RecordedQuery:
    """Return a query as it is for records that move it by ``factor`` times what it declares.

    The noise stays what it is, and the bound is never rounded down.

    Args:
        query: the query.
        factor: the bound of the records, as a multiple of the declared one; at least 0.

    Returns:
        The query with their bound.

    Raises:
        UnsupportedEvent: if the factor is not 1, and no bound of the query can be scaled.

    >>> scaled(SumQuery(1.0, 2.0), 0.5)
    SumQuery(l2_bound=0.5, stddev=2.0, name='gradient')
    """
    if factor == 1:
        return query
    field = BOUNDS.get(type(query))
    if field is None:
        raise UnsupportedEvent(
            f"The query {query.tag!r} has no bound that groups could have multiples of, got "
            f"{factor!r} times it. Give all groups the bound 1 and rates of their own."
        )
    declared = getattr(query, field)
    product = declared * factor
    if math.isfinite(product) and Fraction(product) < Fraction(declared) * Fraction(factor):
        product = math.nextafter(product, math.inf)
    changed: dict[str, Any] = {field: product}
    return replace(query, **changed)  # type: ignore[type-var]


def group_policies(events: Iterable[Repeated]) -> tuple[Individual, ...]:
    """Return the different policies with groups that events draw by, nested events included."""
    different = {id(run.event): run.event for run in events}  # a ledger repeats the same objects
    found = (policy for event in different.values() for policy in _policies(event))
    return tuple(dict.fromkeys(found))


def group_names(events: Iterable[Repeated]) -> tuple[str, ...]:
    """Return the names of the groups that events declare; none where no event has groups.

    Raises:
        UnsupportedEvent: if two events have different groups.

    >>> group_names([Repeated(Sampled(Poisson(0.1), (SumQuery(1.0, 1.0),)), 1)])
    ()
    """
    found = [policy.names for policy in group_policies(events)]
    for names in found:
        if set(names) != set(found[0]):
            raise UnsupportedEvent(
                f"One event has the groups {', '.join(found[0])}, and another has "
                f"{', '.join(names)}. Records of a group have a guarantee only if every event "
                "with groups says how it treats them: use the same names throughout."
            )
    return found[0] if found else ()


def event_of_group(event: Event, name: str) -> Event:
    """Return an event as it is for a record of one group.

    The record is drawn with the group's rate and bounded by the group's bound; all others are held
    fixed, whatever theirs are. An event without groups is the same for every record.

    Args:
        event: the event.
        name: the name of the group.

    Returns:
        The event with Poisson samples of the group's rate in place of samples of groups.

    Raises:
        InvalidArgument: if the event has groups, and none of this name.
        UnsupportedEvent: if a query cannot have the group's bound.

    >>> groups = Individual(("strict", "open"), (0.1, 0.1), (0.5, 1.5), (0.5, 0.5))
    >>> event_of_group(Sampled(groups, (SumQuery(1.0, 2.0),)), "strict")
    Sampled(policy=Poisson(rate=0.1), queries=(SumQuery(l2_bound=0.5, stddev=2.0, ...),), ...)
    """
    if not any(_policies(event)):
        return event
    if isinstance(event, Sampled) and isinstance(event.policy, Individual):
        number = event.policy.number(name)
        return replace(
            event,
            policy=Poisson(event.policy.rates[number]),
            queries=tuple(scaled(query, event.policy.bounds[number]) for query in event.queries),
        )
    changed: dict[str, Any] = {
        field: tuple(event_of_group(each, name) for each in value)
        if isinstance(value, tuple)
        else event_of_group(value, name)
        for field, value in _fields(event)
        if any(isinstance(each, Event) for each in _each(value))
    }
    found: Event = replace(event, **changed)  # type: ignore[type-var]
    if any(_policies(found)):
        raise UnsupportedEvent(
            f"The event {event.tag!r} draws samples of groups in a way that no rule accounts."
        )
    return found


def _policies(fact: Event | Policy) -> Iterator[Individual]:
    """Yield the policies with groups in an event, and in the events that it holds."""
    if isinstance(fact, Individual):
        yield fact
    for _, value in _fields(fact):
        for each in _each(value):
            if isinstance(each, Event | Policy):
                yield from _policies(each)


def _fields(fact: Event | Policy) -> list[tuple[str, Any]]:
    return [(field.name, getattr(fact, field.name)) for field in fields(fact)]  # type: ignore[arg-type]


def _each(value: object) -> tuple[object, ...]:
    return value if isinstance(value, tuple) else (value,)
