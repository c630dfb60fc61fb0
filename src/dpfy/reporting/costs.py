"""The cost of the recorded steps: every number of a report, computed once.

Tests: tests/reporting/test_document.py.
"""

import contextlib
import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Self

from dpfy import _validate
from dpfy.accounting import (
    DominatedBy,
    Filter,
    FilterGuarantee,
    GroupFilterGuarantee,
    GroupGuarantee,
    Guarantee,
    Reading,
    account,
    odometer,
)
from dpfy.accounting.to_pairs import Canonical
from dpfy.errors import UnsupportedEvent
from dpfy.ledger import Ledger
from dpfy.ledger.events import Envelope, Event, NonPrivate, Poisson, Policy, Repeated, Sampled
from dpfy.ledger.individual import Individual
from dpfy.ledger.streams import Row, SampledStream
from dpfy.reporting.attacks import Attacks
from dpfy.reporting.groups import GroupCost, group_costs
from dpfy.reporting.numbers import finite
from dpfy.reporting.record import LedgerRecord
from dpfy.types import Interval, Relation, Unit

METHODS = ("pld", "rdp")
_POINTS = 10
_MEASURED = 16


class Scope(StrEnum):
    """The list of steps that a number is for.

    ``FILTER`` stands for every list that the declared filter would admit. ``ONE_TRIAL`` is one run
    of a search, as if its settings had been fixed in advance: for comparison, not to be claimed.
    """

    REGISTERED = "registered"
    RESERVED = "reserved"
    WITHOUT_SAMPLING = "without_sampling"
    FILTER = "filter"
    ONE_TRIAL = "one_trial"


@dataclass(frozen=True)
class Claim:
    """The ε of one list of steps by one method.

    ``interval`` is None where no rule applies, and ``note`` says why.
    """

    scope: Scope
    method: str
    steps: int
    interval: Interval | None
    note: str = ""

    @property
    def finite(self) -> bool:
        """Whether there is a number to claim."""
        return self.interval is not None and math.isfinite(self.interval.upper)

    def to_json(self) -> dict[str, Any]:
        """Return the claim as plain JSON values; ``why_null`` says why there is no number."""
        interval = self.interval
        missing = (
            None
            if self.finite
            else self.note
            if interval is None
            else f"ε is infinite: {self.note}"
        )
        return {
            "scope": str(self.scope),
            "method": self.method,
            "steps": self.steps,
            "note": self.note or None,
            "epsilon": finite(interval.upper) if interval else None,
            "epsilon_lower": finite(interval.lower) if interval else None,
            "why_null": missing,
        }


@dataclass(frozen=True)
class Adjacency:
    """The ε of the same steps for another relation between neighbours.

    ``epsilon`` is None where no rule applies, and ``note`` says why.
    """

    relation: Relation
    epsilon: float | None
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the entry as plain JSON values."""
        number = None if self.epsilon is None else finite(self.epsilon)
        return {"relation": str(self.relation), "epsilon": number, "note": self.note or None}


@dataclass(frozen=True)
class Curve:
    """The claimed ε after several numbers of steps, by method."""

    steps: tuple[int, ...]
    epsilons: dict[str, tuple[float, ...]]

    def at(self, step: int, method: str) -> float:
        """Return the ε of the first point at or after ``step``: at least the claim there."""
        return self.epsilons[method][min(bisect_left(self.steps, step), len(self.steps) - 1)]

    def to_json(self) -> dict[str, Any]:
        """Return the points as plain JSON values."""
        return {
            "steps": list(self.steps),
            "epsilons": {
                method: [finite(value) for value in values]
                for method, values in self.epsilons.items()
            },
        }


@dataclass(frozen=True)
class Costs:
    """All numbers that are computed from the ledger at one δ.

    ``guess`` bounds how often an observer of every released value guesses a fair coin that decides
    whether one unit of privacy is in the data: (1 + δ(0))/2, where δ(0) bounds the total variation
    distance, or what ε implies if that is less.

    With a ``filter`` the claim is its limit, and no number follows the steps; ``reading`` says how
    far the run came. With ``groups`` every number besides theirs is that of the weakest one.
    """

    delta: float
    secret_key: bool
    numerical_delta: float
    claims: tuple[Claim, ...]
    headline: Claim
    without_sampling: Claim
    guess: float
    curve: Curve
    attacks: Attacks | None
    adjacency: tuple[Adjacency, ...] = ()
    filter: Filter | None = None
    reading: Reading | None = None
    groups: tuple[GroupCost, ...] = ()

    @classmethod
    def of(cls, ledger: Ledger, delta: float, measured: Iterable[int] = ()) -> Self:
        """Account for ``ledger`` at ``delta``.

        Args:
            ledger: the ledger.
            delta: the δ, in (0, 1).
            measured: steps at which the curve has points; they are thinned out if there are many.

        Returns:
            All numbers of a report.
        """
        _validate.delta(delta)
        guarantees, refusals = _guarantees(ledger)
        best = next(iter(guarantees.values()))
        if isinstance(best, FilterGuarantee | GroupFilterGuarantee):
            return cls._filtered(
                ledger,
                best,
                tuple(_filter_claim(each, delta) for each in guarantees.values()),
                delta,
            )
        claims = []
        for method in METHODS:
            if method in guarantees:
                claims += _claims(guarantees[method], delta)
            else:
                claims.append(Claim(Scope.RESERVED, method, 0, None, refusals[method]))
        headline = max((claim for claim in claims if claim.method == best.method), key=_upper)
        accounted = dict(_scopes(best))[headline.scope]
        return cls(
            delta=delta,
            secret_key=best.private,
            numerical_delta=accounted.numerical_delta,
            claims=(*claims, *_one_trial(ledger, best.relation, delta)),
            headline=headline,
            without_sampling=_without_sampling(accounted.source.events, accounted.relation, delta),
            guess=(1 + accounted.delta(0.0).upper) / 2,
            curve=_curve(ledger.uses, guarantees, delta, measured),
            attacks=_attacks(accounted, headline),
            adjacency=_adjacency(accounted, delta),
            groups=group_costs(accounted, delta),
        )

    @classmethod
    def _filtered(
        cls,
        ledger: Ledger,
        guarantee: FilterGuarantee | GroupFilterGuarantee,
        claims: tuple[Claim, ...],
        delta: float,
    ) -> Self:
        """Return the costs under a filter.

        There is no curve of ε over the steps: it would account for a list that was not fixed in
        advance.
        """
        return cls(
            delta=delta,
            secret_key=guarantee.private,
            numerical_delta=guarantee.numerical_delta,
            claims=claims,
            headline=claims[0],
            without_sampling=_filter_without_sampling(guarantee, claims[0], delta),
            guess=_filter_guess(guarantee, delta),
            curve=Curve((), {}),
            attacks=_attacks(guarantee, claims[0]),
            filter=guarantee.filter,
            reading=odometer(ledger, delta),
            groups=group_costs(guarantee, delta),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the numbers as plain JSON values."""
        return {
            "delta": self.delta,
            "numerical_delta": self.numerical_delta,
            "claims": [claim.to_json() for claim in self.claims],
            "without_sampling": self.without_sampling.to_json(),
            "curve": self.curve.to_json(),
            "odometer": _reading_json(self.reading),
            "adjacency": [each.to_json() for each in self.adjacency],
            "attacks": None if self.attacks is None else self.attacks.to_json(),
            # A report on records without groups stays as it was.
            **({"groups": [group.to_json() for group in self.groups]} if self.groups else {}),
        }


def _guarantees(ledger: Ledger) -> tuple[dict[str, Guarantee], dict[str, str]]:
    """Return the guarantee by every method that has rules, and why other methods have none."""
    guarantees: dict[str, Guarantee] = {}
    refusals: dict[str, str] = {}
    for method in METHODS:
        try:
            guarantee = account(ledger, method)
            # Most filters have one limit, whatever the method.
            guarantees[guarantee.method] = guarantee
        except UnsupportedEvent as error:
            refusals[method] = str(error)
    if not guarantees:
        raise UnsupportedEvent(refusals[METHODS[0]])
    return guarantees, refusals


def _scopes(guarantee: Guarantee) -> list[tuple[Scope, Guarantee]]:
    registered = guarantee.envelope
    first = [] if registered is None else [(Scope.REGISTERED, registered)]
    return [*first, (Scope.RESERVED, guarantee)]


def _claims(guarantee: Guarantee, delta: float) -> list[Claim]:
    """Return the claims in both scopes, computed once for a run that took all its steps."""
    reserved = _claim(Scope.RESERVED, guarantee, delta)
    registered = guarantee.envelope
    if registered is None:
        return [reserved]
    if _tables(registered) == _tables(guarantee):
        return [replace(reserved, scope=Scope.REGISTERED), reserved]
    return [_claim(Scope.REGISTERED, registered, delta), reserved]


def _tables(guarantee: Guarantee) -> list[Canonical]:
    """Return what is composed, for each group."""
    parts = guarantee.groups.values() if isinstance(guarantee, GroupGuarantee) else (guarantee,)
    return [part.canonical for part in parts]


def _claim(scope: Scope, guarantee: Guarantee, delta: float) -> Claim:
    return Claim(
        scope, guarantee.method, guarantee.steps, guarantee.epsilon(delta), guarantee.note(delta)
    )


def _one_trial(ledger: Ledger, relation: Relation, delta: float) -> list[Claim]:
    """Return what one trial of a search costs by itself; nothing without a search."""
    search, claims = LedgerRecord.of(ledger).search, []
    if search is not None and search.run is not None:
        for method in METHODS:
            with contextlib.suppress(UnsupportedEvent):
                claims.append(_claim(Scope.ONE_TRIAL, account(search.run, method, relation), delta))
    return claims


def _filter_claim(guarantee: Guarantee, delta: float) -> Claim:
    """Return the filter's limit, or a claim without one if the method has no rule for it."""
    try:
        return _claim(Scope.FILTER, guarantee, delta)
    except UnsupportedEvent as error:
        return Claim(Scope.FILTER, guarantee.method, guarantee.steps, None, str(error))


def _filter_without_sampling(
    guarantee: FilterGuarantee | GroupFilterGuarantee, claim: Claim, delta: float
) -> Claim:
    rule = guarantee.filter
    if isinstance(rule, DominatedBy):
        return _without_sampling(rule.envelope, guarantee.relation, delta)
    claim = replace(claim, scope=Scope.WITHOUT_SAMPLING)
    if rule.rewards_sampling:
        return replace(claim, interval=None, note=f"the limit of the {rule.title} counts on it")
    return claim


def _filter_guess(guarantee: Guarantee, delta: float) -> float:
    """Return the better of two bounds on a guess.

    δ(0) of a Rényi limit is coarse, and (e^ε + δ)/(e^ε + 1) follows from the claim.
    """
    claim = guarantee.claim(delta)
    return min(
        (1 + guarantee.delta(0.0).upper) / 2, 1 - (1 - delta) / (1 + math.exp(min(claim, 700.0)))
    )


def _attacks(guarantee: Guarantee, headline: Claim) -> Attacks | None:
    return Attacks.of(guarantee) if headline.finite else None


def _adjacency(guarantee: Guarantee, delta: float) -> tuple[Adjacency, ...]:
    """Return what the same steps cost for the other relations, by PLD; labels know no other."""
    found: list[Adjacency] = []
    if guarantee.unit is Unit.LABEL:
        return ()
    for relation in Relation:
        if relation is guarantee.relation:
            continue
        try:
            other = account(guarantee.source.events, "pld", relation)
            found.append(Adjacency(relation, other.claim(delta), other.note(delta)))
        except UnsupportedEvent as error:
            found.append(Adjacency(relation, None, str(error)))
    return tuple(found)


def _reading_json(reading: Reading | None) -> dict[str, Any] | None:
    if reading is None:
        return None
    return {**reading.to_json(), "if_fixed_in_advance": finite(reading.if_fixed_in_advance)}


def _upper(claim: Claim) -> float:
    return claim.interval.upper if claim.interval else math.inf


def _without_sampling(events: Envelope, relation: Relation, delta: float) -> Claim:
    """Return the claim for the same noise with every record in every step.

    It holds without any belief in amplification by sampling.
    """
    steps, why = sum(run.times for run in events), "the ledger has events that are made of others"
    if all(isinstance(run.event, Sampled | Row | NonPrivate) for run in events):
        full = [Repeated(_on_all(run.event), run.times) for run in events]
        try:
            return _claim(Scope.WITHOUT_SAMPLING, account(full, "pld", relation), delta)
        except UnsupportedEvent as error:
            why = str(error)
    return Claim(Scope.WITHOUT_SAMPLING, "pld", steps, None, why)


def _on_all(event: Event) -> Event:
    """Return the event with every record in each step that it could be drawn for."""
    if isinstance(event, Sampled):
        return replace(event, policy=_of_all(event.policy))
    if isinstance(event, Row) and isinstance(event.stream, SampledStream):
        return Row(event.stream.unsampled)
    return event


def _of_all(policy: Policy) -> Policy:
    """Return the policy that draws every record; groups keep their bounds."""
    if isinstance(policy, Individual):
        return replace(policy, rates=(1.0,) * len(policy.names))
    return Poisson(1.0)


def _curve(
    events: Envelope, guarantees: dict[str, Guarantee], delta: float, measured: Iterable[int]
) -> Curve:
    total = sum(run.times for run in events)
    # Denser at first, where ε grows like the root of the number of steps.
    regular = {math.ceil(total * (point / _POINTS) ** 2) for point in range(_POINTS + 1)}
    steps = sorted(regular | {min(step, total) for step in thinned(sorted(set(measured)))} | {0})
    return Curve(
        tuple(steps),
        {
            method: tuple(
                account(_prefix(events, step), method, guarantee.relation).claim(delta)
                for step in steps
            )
            for method, guarantee in guarantees.items()
        },
    )


def thinned(steps: Sequence[int]) -> tuple[int, ...]:
    """Keep at most 16 of the steps, evenly spaced and with the last one.

    >>> thinned(range(1, 101))[-3:], thinned([5, 9])
    ((88, 94, 100), (5, 9))
    """
    if len(steps) <= _MEASURED:
        return tuple(steps)
    return tuple(
        steps[round(len(steps) * part / _MEASURED) - 1] for part in range(1, _MEASURED + 1)
    )


def _prefix(events: Envelope, steps: int) -> Envelope:
    taken = []
    for run in events:
        times = min(run.times, steps)
        steps -= times
        taken.append(Repeated(run.event, times))
    return tuple(taken)
