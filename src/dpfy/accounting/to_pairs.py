"""From the facts of a ledger to what an accountant composes: dominating pairs, with counts.

Every step becomes one pair of distributions whose privacy loss bounds that of the step for all
neighbours. Steps with equal pairs are interchangeable under composition, so a run of any length is
a short table.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from dpfy.accounting.dominating_pairs import Pair, Pairs
from dpfy.accounting.rules import EVENT_RULES, NOISES, REASONS, RULES, Rule
from dpfy.errors import UnsupportedEvent
from dpfy.ledger.events import (
    Event,
    LaplaceSum,
    NonPrivate,
    RecordedQuery,
    Repeated,
    Sampled,
    SumQuery,
)
from dpfy.ledger.individual import Individual
from dpfy.ledger.streams import Row

# relative: the largest difference from a noise that is attained which still counts as attained
_ROUNDED = 1e-8


@dataclass(frozen=True)
class Canonical:
    """A run as accountants see it.

    Args:
        pairs: The dominating pairs and how often each is composed.
        steps: How many events there are.
        numerical_delta: The part of δ that the arithmetic of the noise uses up.
        non_private: Whether some event has no guarantee at all.
        failure: Bound on the probability that a sample was cut to its capacity, in any step.
        exact: Whether the rules of all steps are exact.
        attained: Pairs that some neighbouring data sets have, on which lower bounds rest.
    """

    pairs: Pairs
    steps: int
    numerical_delta: float
    non_private: bool
    failure: float = 0.0
    exact: bool = True
    attained: Pairs = ()

    @property
    def unprotected(self) -> float:
        """The chance that one record takes part in a step without any noise."""
        return -math.expm1(
            sum(
                times * _log_absent(pair.rate)
                for pair, times in self.pairs
                if pair.noise_multiplier == 0
            )
        )


def noise_multiplier(queries: Iterable[RecordedQuery]) -> float:
    """Collapse the queries on one sample to one noise multiplier z = (Σ (bound/stddev)²)^-½.

    It is never rounded up. The queries are one Gaussian sum of a concatenated vector after each is
    scaled by its noise (McMahan et al. 2018, §3). No noise on a positive bound gives 0; no positive
    bound gives ∞.

    >>> noise_multiplier([SumQuery(3.0, 5.0), SumQuery(4.0, 5.0)]) <= 1.0
    True
    """
    active = []
    for query in queries:
        if not isinstance(query, SumQuery):
            raise UnsupportedEvent(
                f"No rule for the query {query.tag!r}; expected sums with Gaussian noise."
            )
        if query.l2_bound > 0:
            active.append(query)
    if not active:
        return math.inf
    if any(query.stddev == 0 for query in active):
        return 0.0
    if len(active) == 1 and active[0].l2_bound == 1:
        return active[0].stddev
    signal = math.hypot(*(query.l2_bound / query.stddev for query in active))
    return (1 / signal if signal else math.inf) * (1 - 1e-15)


def canonical(envelope: Iterable[Repeated], method: str, relation: str) -> Canonical:
    """Return the pairs of a run, by the rules of ``method`` for ``relation``.

    *Formal guarantee*: the composition of the pairs dominates the composition of the events, up to
    the total ``numerical_delta`` and unless there is a ``failure``. *Assumes* that the list was
    fixed, or registered, before the first step.
    """
    table: Counter[Pair] = Counter()
    attained: Counter[Pair] = Counter()
    numerical, failure, non_private, exact = 0.0, 0.0, False, True
    counts = _counted(envelope)
    for event, times in _charged(counts, relation):
        if isinstance(event, NonPrivate):
            non_private = True
            continue
        found = _of_event(event, method, relation)
        exact = exact and found.exact
        numerical += times * event.numerical_delta
        _add(attained, found.attained, times)
        failure += times * found.failure if _add(table, found.pairs, times) else 0.0
    steps = sum(times for _, times in counts)
    return Canonical(
        tuple(sorted(table.items())),
        steps,
        numerical * (1 + 1e-9),
        non_private,
        min(1.0, failure * (1 + 1e-9)),
        exact,
        tuple(sorted(attained.items())),
    )


def _counted(envelope: Iterable[Repeated]) -> list[tuple[Event, int]]:
    """Return how often each event happens.

    A ledger repeats the same objects, so each is looked at once. Events that are paid for together
    are counted together wherever they are, also if they were read twice, run by run.
    """
    counts: dict[object, tuple[Event, int]] = {}
    named: dict[Event, set[str]] = {}
    for run in envelope:
        key: object = id(run.event)
        if run.event.at_most is not None:
            key = run.event, run.event.source
            named.setdefault(run.event, set()).add(run.event.source)
        event, times = counts.get(key, (run.event, 0))
        counts[key] = event, times + run.times
    if any("" in runs and len(runs) > 1 for runs in named.values()):
        raise UnsupportedEvent(
            "Rows that name no run come with equal rows that name one, and could be of that run "
            "or of another. Take all rows from Ledger.uses, also one that is still to come, or "
            "account each run as a Composed event."
        )
    return list(counts.values())


def _charged(counts: list[tuple[Event, int]], relation: str) -> Iterator[tuple[Event, int]]:
    """Yield what the events cost, as events that have rules."""
    for event, times in counts:
        if isinstance(event, Row) and event.policy is not None:
            reason = REASONS.get((type(event.policy), relation))
            if reason is not None:
                raise UnsupportedEvent(
                    f"No rule for rows of a stream with {event.policy.tag} sampling under "
                    f"{relation}: {reason}."
                )
        for run in event.charged(times):
            if run.times:
                yield run.event, run.times


def _add(table: Counter[Pair], pairs: Pairs, times: int) -> bool:
    """Add pairs to a table; False if none of them costs anything."""
    found = [
        (pair, often) for pair, often in pairs if pair.rate > 0 and pair.noise_multiplier < math.inf
    ]
    for pair, often in found:
        table[pair] += often * times
    return bool(found)


class _Found(NamedTuple):
    """The pairs of one event, and what its rule says about them."""

    pairs: Pairs
    failure: float
    exact: bool
    attained: Pairs


def _of_event(event: Event, method: str, relation: str) -> _Found:
    """Return the pairs of one event, or refuse it by name."""
    if event.adaptive:
        raise UnsupportedEvent(
            "An adaptive step was chosen from earlier outputs: only a filter may account it, not "
            f"{method} over the realised list."
        )
    if isinstance(event, Sampled) and isinstance(event.policy, Individual):
        raise UnsupportedEvent(
            "Groups of records with rates and bounds of their own have one guarantee each, and no "
            "single one. account(events) gives them; event_of_group(event, name) is what happens "
            f"to the records of one of the groups {', '.join(event.policy.names)}."
        )
    if isinstance(event, Sampled):
        rule, noise = _rule(event, method, relation)
        pair, beside = rule.pair(event.policy, noise), rule.beside(event.policy)
        pairs = ((pair, 1), *(beside if pair.noise_multiplier < math.inf else ()))
        attained = pairs if rule.exact else rule.attained(event.policy, noise)
        return _Found(
            pairs, rule.failure(event.policy), rule.exact or _alike(pairs, attained), attained
        )
    other = EVENT_RULES.get((method, type(event), relation))
    if other is None:
        known = sorted({key[0] for key in EVENT_RULES if key[1:] == (type(event), relation)})
        raise UnsupportedEvent(
            f"No {method} rule for the event {event.tag!r} under {relation}.{_instead(known)}"
        )
    pairs = other.pairs(event)
    attained = pairs if other.exact else other.attained(event)
    return _Found(pairs, other.failure(event), other.exact or _alike(pairs, attained), attained)


def _alike(pairs: Pairs, others: Pairs) -> bool:
    """Tell whether pairs are those of a mechanism, but for rounding of their noise."""
    return len(pairs) == len(others) and all(
        times == often
        and (pair.distribution is None or pair.distribution.attained is None)
        and replace(pair, noise_multiplier=other.noise_multiplier) == other
        and math.isclose(pair.noise_multiplier, other.noise_multiplier, rel_tol=_ROUNDED)
        for (pair, times), (other, often) in zip(pairs, others, strict=True)
    )


def _rule(event: Sampled, method: str, relation: str) -> tuple[Rule, float | RecordedQuery]:
    """Return the rule of one step, and the noise multiplier or query it is applied to."""
    kind, noise = _collapsed(event.queries)
    rule = RULES.get((method, type(event.policy), kind, relation))
    if rule is None:
        known = sorted({key[0] for key in RULES if key[1:] == (type(event.policy), kind, relation)})
        reason = REASONS.get((type(event.policy), relation)) or REASONS.get((kind, relation))
        raise UnsupportedEvent(
            f"No {method} rule for {event.policy.tag} sampling with {NOISES[kind]} noise under "
            f"{relation}{f': {reason}' if reason else ''}.{_instead(known)}"
        )
    return rule, noise


def _instead(known: list[str]) -> str:
    return f" Use method {' or '.join(map(repr, known))}." if known else ""


def _collapsed(
    queries: tuple[RecordedQuery, ...],
) -> tuple[type[RecordedQuery], float | RecordedQuery]:
    """Return the kind of query that those on a sample collapse to, and its noise over its bound.

    The noise is never rounded up. For a query that is no sum it is the query itself.
    """
    other = [
        query for query in queries if not isinstance(query, SumQuery) and type(query) in NOISES
    ]
    if not other:
        return SumQuery, noise_multiplier(queries)
    query = other[0]
    if len(queries) > 1:
        raise UnsupportedEvent(
            f"No rule for {NOISES[type(query)]} noise with {len(queries)} queries on one sample. "
            "Give each query with it a sample of its own."
        )
    if isinstance(query, LaplaceSum):
        return LaplaceSum, query.scale / query.l1_bound * (
            1 - 1e-15
        ) if query.l1_bound > 0 else math.inf
    return type(query), query


def _log_absent(rate: float) -> float:
    return math.log1p(-rate) if rate < 1 else -math.inf
