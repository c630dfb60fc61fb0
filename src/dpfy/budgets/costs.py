"""Costs: what an envelope takes from the filter of a data set, in whole numbers that add up.

A cost is a vector: the mass that no order knows (a part of δ), then the Rényi divergence at each
order of a data set. All are rounded up to multiples of 2⁻⁸⁰, so that sums are exact whatever their
order, and the same on every machine that reads them back.
"""

import math
from collections import Counter
from fractions import Fraction
from functools import lru_cache
from typing import Any

from dpfy.accounting import rdp
from dpfy.accounting.filters import (
    DominatedBy,
    Filter,
    GaussianFilter,
    RenyiFilter,
    ZcdpFilter,
    as_fixed,
    renyi_epsilon,
)
from dpfy.accounting.grouped import events_of_group
from dpfy.accounting.to_pairs import canonical
from dpfy.errors import InvalidArgument, UnsupportedEvent
from dpfy.ledger.events import Envelope, Event, Repeated
from dpfy.ledger.individual import group_names
from dpfy.ledger.selection import Selected
from dpfy.types import Relation

Cost = tuple[int, ...]

_UNITS = 2**80
_MOST = 10.0**9  # of a divergence: no filter has room for it
# They only serve to say what was spent in terms of ε; the filter has orders of its own.
_READING = (1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0, 128.0)


def orders_of(filters: tuple[RenyiFilter, ...]) -> tuple[float, ...]:
    """Return the orders at which costs are kept for a data set with these filters."""
    return tuple(sorted({*_READING, *(order for rule in filters for order in rule.orders)}))


def nothing(orders: tuple[float, ...]) -> Cost:
    """Return the cost of reading nothing."""
    return (0,) * (1 + len(orders))


def plus(cost: Cost, other: Cost, sign: int = 1) -> Cost:
    """Return the sum of two costs, or their difference if ``sign`` is -1."""
    return tuple(mine + sign * theirs for mine, theirs in zip(cost, other, strict=True))


def cost_of(envelope: Envelope, orders: tuple[float, ...], relation: Relation) -> Cost:
    """Return an upper bound on what the events of an envelope cost together.

    *Formal guarantee*: whatever is released for the envelope or a part of it has, apart from the
    mass, at most these divergences, in both directions, for two neighbours by ``relation``; where
    groups of records have costs of their own, for a record of any group.

    Args:
        envelope: the events.
        orders: the Rényi orders.
        relation: the neighbouring relation.

    Returns:
        The mass and the divergence at each order.

    Raises:
        InvalidArgument: if an event has no protection.
        UnsupportedEvent: if an event has no Rényi rule.
    """
    counts: Counter[Event] = Counter()
    for run in envelope:
        counts[as_fixed(run.event)] += run.times
    total = nothing(orders)
    for event, times in counts.items():
        total = plus(total, cost_of_event(event, times, orders, relation))
    return total


def cost_of_event(event: Event, times: int, orders: tuple[float, ...], relation: Relation) -> Cost:
    """Return the cost of one event that happens so often; rows of a stream are paid together."""
    event = as_fixed(event)
    if event.at_most is not None:
        return _cost(event, times, orders, relation)
    return tuple(times * part for part in _cost(event, 1, orders, relation))


@lru_cache(maxsize=4096)
def _cost(event: Event, times: int, orders: tuple[float, ...], relation: Relation) -> Cost:
    run = (Repeated(event, times),)
    if names := group_names(run):
        groups = [cost_of(events_of_group(run, name), orders, relation) for name in names]
        return tuple(max(column) for column in zip(*groups, strict=True))
    found = canonical(run, RenyiFilter.rules, relation)
    if found.non_private or found.unprotected > 0:
        raise InvalidArgument(
            "Expected events that are private; no budget has room for one that is not."
        )
    divergences = (
        math.fsum(repeats * rdp.renyi_divergence(pair, order) for pair, repeats in found.pairs)
        for order in orders
    )
    return tuple(map(_units, (found.numerical_delta + found.failure, *divergences)))


def planned_cost(
    envelope: Envelope,
    filter: dict[str, Any] | None,
    orders: tuple[float, ...],
    relation: Relation,
) -> Cost:
    """Return what to keep for a plan: the cost of its events or, under a filter, of its limit.

    The steps of a plan under a filter are chosen as it runs, so this is what it may need. Whatever
    it is, the guard of its ledger admits no more.
    """
    if any(isinstance(run.event, Selected) for run in envelope):
        raise UnsupportedEvent(
            "A private selection that is interrupted is charged for all its trials, whose number "
            "is not known in advance, so that no book can keep budget for it. Search by "
            "composition, which costs one plan a trial, or reserve each trial."
        )
    cost = cost_of(envelope, orders, relation)
    if filter is None:
        return cost
    rule = Filter.from_json(filter)
    if isinstance(rule, GaussianFilter | ZcdpFilter):
        # Lemma 3: α·ρ at every order α
        rho = rule.limits[0] / (2 if isinstance(rule, GaussianFilter) else 1)
        return tuple(map(_units, (rule.set_aside, *(order * rho for order in orders))))
    if isinstance(rule, RenyiFilter):
        planned = cost_of(envelope, rule.orders, relation)[1:]
        if not any(planned):
            raise UnsupportedEvent(
                "A Rényi filter alone does not say how costs grow with the order. Reserve the plan "
                "that is under it."
            )
        room = max(
            Fraction(_units(limit), part or 1)
            for limit, part in zip(rule.limits, planned, strict=True)
        )
        return (_units(rule.set_aside), *(math.ceil(part * room) for part in cost[1:]))
    if isinstance(rule, DominatedBy):
        return cost_of(rule.envelope, orders, relation)
    raise UnsupportedEvent(
        f"A book keeps budget for plans under Rényi, zCDP, Gaussian and domination filters, got a "
        f"{rule.tag!r}. Reserve a plan with an envelope."
    )


def _units(value: float) -> int:
    """Return a part of a cost in whole units, rounded up."""
    return math.ceil(min(value * (1 + 1e-12), _MOST) * _UNITS)


def admits(rule: RenyiFilter, total: Cost, orders: tuple[float, ...]) -> bool:
    """Tell whether a filter has room for a total: its mass, and one of its orders.

    Reference: ``docs/proofs/filters.md``, Lemmas 2 and 5.
    """
    if total[0] > math.floor(rule.numerical_delta * _UNITS):
        return False
    return any(
        total[1 + orders.index(order)] <= math.floor(limit * _UNITS)
        for order, limit in zip(rule.orders, rule.limits, strict=True)
    )


def epsilon_of(total: Cost, orders: tuple[float, ...], delta: float) -> float:
    """Return ε at ``delta`` of what has this cost, had it been fixed in advance: a reading."""
    rest = delta - total[0] / _UNITS
    if not any(total):
        return 0.0
    if rest <= 0:
        return math.inf
    return max(
        0.0,
        min(
            renyi_epsilon(order, divergence / _UNITS, rest)
            for order, divergence in zip(orders, total[1:], strict=True)
        ),
    )
