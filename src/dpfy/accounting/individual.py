"""One guarantee for each group of records, where groups differ in rate or clipping bound.

A step is accounted for a record by that record's own rate and bound; the other records are held
fixed, whatever theirs are. So a run has one guarantee per group, each of them as exact as if all
records were in that group.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from dpfy import _validate
from dpfy.accounting.calibrate import calibrate_noise, calibrate_rate
from dpfy.accounting.guarantee import Guarantee, account
from dpfy.accounting.solvers import brentq
from dpfy.accounting.sources import read_source
from dpfy.errors import InvalidArgument, UnsupportedEvent
from dpfy.ledger.events import (
    BallsInBins,
    Cyclic,
    Event,
    Poisson,
    Repeated,
    Sampled,
    Shuffled,
    TruncatedPoisson,
)
from dpfy.ledger.individual import Individual, scaled
from dpfy.types import Relation, Unit

# a record takes part, or does not, whatever becomes of others: no rule lets another stand in for it
_ALONE = (Poisson, TruncatedPoisson, Shuffled, Cyclic, BallsInBins)
_CLOSE = 1e-3  # of the logarithm of the noise: calibrated ends may lie that far within


@dataclass(frozen=True)
class Group:
    """The sampling rate and the clipping bound of a group of records.

    Args:
        rate: The sampling rate of the group, from 0 to 1; that of the events by default.
        bound: The clipping bound of the group as a share of the bound that events declare, at least
            0; 1 by default.

    Raises:
        InvalidArgument: ``rate`` or ``bound`` is out of range.

    >>> Group(rate=0.01)
    Group(rate=0.01, bound=1.0)
    """

    rate: float | None = None
    bound: float = 1.0

    def __post_init__(self) -> None:
        if self.rate is not None:
            object.__setattr__(self, "rate", _validate.real("rate", self.rate, 0, 1))
        object.__setattr__(
            self, "bound", _validate.real("bound", self.bound, 0, math.inf, open_high=True)
        )


def account_groups(
    source: object,
    groups: Mapping[str, Group],
    method: str = "pld",
    relation: Relation | str | None = None,
    unit: Unit | str | None = None,
) -> dict[str, Guarantee]:
    """Return the guarantee of each group for the same run.

    *Formal guarantee*: for neighbours that differ in a record of the named group the released
    values have that group's guarantee.

    *Assumes* that which group a record is in is public, or independent of the data; Poisson samples
    that draw the records of a group at its rate, queries that hold them to its bound, and events
    fixed in advance. Under replace-one both records are of the group.

    Args:
        source: A ledger or its path, a plan, an event, or a list of events.
        groups: The groups by name.
        method: "pld" (the default) or "rdp".
        relation: The neighbouring relation; by default what the source declares.
        unit: The unit of privacy; by default what the source declares.

    Returns:
        The guarantee of each group, by name.

    Raises:
        UnsupportedEvent: The source has a filter, or groups of its own; an event is no sampled
            step; a query has no bound to scale; or a group has a rate where samples are not
            Poisson, or a bound where one record may take the place of another.

    Reference: Boenisch, Mühl, Dziedzic, Rinberg & Papernot 2023 (individualised DP-SGD).

    >>> from dpfy.ledger.events import SumQuery
    >>> step = Repeated(Sampled(Poisson(0.01), (SumQuery(1.0, 1.0),)), 100)
    >>> groups = {"cautious": Group(rate=0.002), "open": Group()}
    >>> cautious, open_ = account_groups(step, groups).values()
    >>> cautious.claim(1e-5) < 0.5 * open_.claim(1e-5)
    True
    """
    facts = read_source(source)
    if facts.filter is not None:
        raise UnsupportedEvent(
            "A filter guarantees its limit to every record, and nothing less to a group. Account "
            "groups from events that were fixed in advance."
        )
    relation, unit = (
        facts.relation if relation is None else relation,
        facts.unit if unit is None else unit,
    )
    return {
        name: account(
            [Repeated(_of_group(run.event, group), run.times) for run in facts.events],
            method,
            relation,
            unit,
        )
        for name, group in groups.items()
    }


def calibrate_group_rates(
    *,
    epsilons: Sequence[float],
    shares: Sequence[float],
    delta: float,
    rate: float,
    steps: int,
    relation: Relation | str = Relation.ADD_OR_REMOVE_ONE,
    method: str = "pld",
) -> tuple[float, tuple[float, ...]]:
    """Return the noise multiplier and the groups' rates that give each group its own ε.

    *Formal guarantee*: the claim of every group at its rate is at most its ε.

    Args:
        epsilons: The ε of each group, above 0.
        shares: The size of each group relative to the others, above 0.
        delta: δ, between 0 and 1, both excluded.
        rate: The sampling rate on average over all records, from 0 to 1.
        steps: The number of steps, at least 0.
        relation: The neighbouring relation; adding or removing one record by default.
        method: "pld" (the default) or "rdp".

    Returns:
        The noise multiplier, and the sampling rate of each group.

    Raises:
        InvalidArgument: An argument is out of range, there is not one share for each ε, or no noise
            reaches the budgets.

    Reference: Boenisch et al. 2023, Algorithm 2 (Sample).
    """
    weights = _weights(epsilons, shares)

    @lru_cache(maxsize=64)
    def rates(log_noise: float) -> tuple[float, ...]:
        return tuple(
            calibrate_rate(
                epsilon=epsilon,
                delta=delta,
                noise_multiplier=math.exp(log_noise),
                steps=steps,
                relation=relation,
                method=method,
            )
            for epsilon in epsilons
        )

    # At the noise for the least cautious alone, the mean rate is too small; at that for the most
    # cautious, too large.
    low, high = (
        math.log(
            calibrate_noise(
                epsilon=epsilon,
                delta=delta,
                rate=rate,
                steps=steps,
                relation=relation,
                method=method,
            )
        )
        for epsilon in (max(epsilons), min(epsilons))
    )
    found = (
        float(
            brentq(
                lambda at: math.log(_mean(weights, rates(at)) / rate),
                low - _CLOSE,
                high + _CLOSE,
                xtol=_CLOSE / 10,
            )
        )
        if high > low
        else high
    )
    return math.exp(found), rates(found)


def calibrate_group_bounds(
    *,
    epsilons: Sequence[float],
    shares: Sequence[float],
    delta: float,
    rate: float,
    steps: int,
    relation: Relation | str = Relation.ADD_OR_REMOVE_ONE,
    method: str = "pld",
) -> tuple[float, tuple[float, ...]]:
    """Return the noise and the groups' clipping bounds that give each group its own ε.

    Noise and bounds are relative to the mean bound of all records.

    *Formal guarantee*: the claim of every group at its bound is at most its ε.

    Args:
        epsilons: The ε of each group, above 0.
        shares: The size of each group relative to the others, above 0.
        delta: δ, between 0 and 1, both excluded.
        rate: The sampling rate of all records, from 0 to 1.
        steps: The number of steps, at least 0.
        relation: The neighbouring relation; adding or removing one record by default.
        method: "pld" (the default) or "rdp".

    Returns:
        The standard deviation of the noise, and the bound of each group.

    Raises:
        InvalidArgument: An argument is out of range, there is not one share for each ε, or no noise
            reaches the budgets.

    Reference: Boenisch et al. 2023, Algorithm 3 (Scale); here the mean bound stays what it was.
    """
    weights = _weights(epsilons, shares)
    noises = [
        calibrate_noise(
            epsilon=epsilon, delta=delta, rate=rate, steps=steps, relation=relation, method=method
        )
        for epsilon in epsilons
    ]
    noise = 1 / math.fsum(weight / each for weight, each in zip(weights, noises, strict=True))
    return noise, tuple(noise / each for each in noises)


def _of_group(event: Event, group: Group) -> Event:
    """Return the step as it is for a record of the group."""
    if not isinstance(event, Sampled):
        raise UnsupportedEvent(f"Groups are accounted for sampled steps, not for {event.tag!r}.")
    if isinstance(event.policy, Individual):
        raise UnsupportedEvent(
            f"The events name groups of their own: {', '.join(event.policy.names)}. "
            "account(source).groups has their guarantees."
        )
    if group.rate is not None and not isinstance(event.policy, Poisson):
        raise UnsupportedEvent(
            f"Only Poisson samples draw each record at a rate of its own, not {event.policy.tag}. "
            "Give the group a bound instead."
        )
    if group.bound != 1 and not isinstance(event.policy, _ALONE):
        raise UnsupportedEvent(
            f"With {event.policy.tag} sampling a record takes the place of others, whose bounds "
            "are not the group's, so a smaller bound of the group alone proves nothing. Draw "
            "Poisson samples, or leave the bound out."
        )
    policy = event.policy if group.rate is None else Poisson(group.rate)
    queries = tuple(scaled(query, group.bound) for query in event.queries)
    return replace(event, policy=policy, queries=queries)


def _weights(epsilons: Sequence[float], shares: Sequence[float]) -> list[float]:
    if len(epsilons) != len(shares) or not epsilons:
        raise InvalidArgument(
            f"Expected one share for each epsilon, got {len(epsilons)} and {len(shares)}."
        )
    total = math.fsum(_validate.positive("share", share) for share in shares)
    return [share / total for share in shares]


def _mean(weights: Sequence[float], values: Sequence[float]) -> float:
    return math.fsum(weight * value for weight, value in zip(weights, values, strict=True))
