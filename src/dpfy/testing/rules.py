"""Laws that every accounting rule has to satisfy, whatever its method computes.

Tests: tests/accounting/test_rules.py.
"""

import json
import math
from collections.abc import Callable

from dpfy.accounting import account
from dpfy.ledger.events import Event, Policy, RecordedQuery, Repeated, Sampled, SumQuery
from dpfy.types import Interval, Relation

DELTA = 1e-5
_STEPS = 6
_NOISES = (0.4, 0.8, 1.6, 6.4)
_RELATIVE = 1e-9  # equal events are composed by the same arithmetic


def check_rule(
    method: str,
    policy: Policy,
    relation: Relation | str,
    delta: float = DELTA,
    query: Callable[[float, float], RecordedQuery] = SumQuery,
    scales: bool = True,
) -> None:
    """Assert the laws of composition and noise for one rule, on steps sampled by ``policy``.

    n equal events cost what one event repeated n times does; more noise never costs more, and more
    steps never cost less; no queries cost nothing; no noise costs ∞; the cost survives JSON;
    brackets are ordered; Gaussian sums on one sample cost what their collapsed noise does.

    Args:
        method: The accounting method.
        policy: The sampling policy of the steps.
        relation: The neighbouring relation.
        delta: The δ at which costs are compared.
        query: Makes a query from a bound and a noise.
        scales: Whether the cost of the query depends on the ratio of noise and bound alone.

    Raises:
        AssertionError: The rule violates a law.

    >>> from dpfy.ledger.events import Poisson
    >>> check_rule("rdp", Poisson(0.1), "add_or_remove_one")
    """

    def cost(*events: Event | Repeated) -> Interval:
        return account(events, method, relation).epsilon(delta)

    def step(noise: float, bound: float = 1.0) -> Sampled:
        return Sampled(policy, (query(bound, noise),))

    _check_composition(cost, step)
    _check_noise(cost, step)
    _check_nothing_and_everything(cost, step)
    assert query is not SumQuery or cost(Sampled(policy, ())) == Interval(0.0, 0.0), (
        "a step without queries costs"
    )
    event = (
        Sampled(policy, (SumQuery(3.0, 6.0), SumQuery(4.0, 8.0)))
        if query is SumQuery
        else step(6.0, bound=3.0)
    )
    again = account(json.dumps([Repeated(event, _STEPS).to_json()]), method, relation).epsilon(
        delta
    )
    assert again == cost(Repeated(event, _STEPS)), "the cost changes when events go through JSON"
    if not scales:
        return
    single = cost(Repeated(step(math.sqrt(2) if query is SumQuery else 2.0), _STEPS)).upper
    assert math.isclose(again.upper, single, rel_tol=1e-6), (
        f"scaled queries cost {again.upper}, not {single}"
    )


def _check_composition(cost: Callable[..., Interval], step: Callable[[float], Sampled]) -> None:
    apart = cost(*(step(0.8) for _ in range(_STEPS))).upper
    together = cost(Repeated(step(0.8), _STEPS)).upper
    assert math.isclose(apart, together, rel_tol=_RELATIVE), (
        f"{_STEPS} events cost {apart}, repeated {together}"
    )
    mixed, ordered = (
        cost(step(0.8), step(1.6), step(0.8)).upper,
        cost(Repeated(step(0.8), 2), step(1.6)).upper,
    )
    assert math.isclose(mixed, ordered, rel_tol=_RELATIVE), (
        "the order of the events changes the cost"
    )
    costs = [cost(Repeated(step(0.8), times)).upper for times in (0, 1, 2, 10, 100)]
    assert costs == sorted(costs), f"more steps cost less: {costs}"


def _check_noise(cost: Callable[..., Interval], step: Callable[[float], Sampled]) -> None:
    brackets = [cost(Repeated(step(noise), _STEPS)) for noise in _NOISES]
    for bracket in brackets:
        assert 0 <= bracket.lower <= bracket.upper < math.inf, f"{bracket} is no bracket"
    uppers = [bracket.upper for bracket in brackets]
    assert uppers == sorted(uppers, reverse=True), f"more noise costs more: {uppers}"


def _check_nothing_and_everything(
    cost: Callable[..., Interval], step: Callable[..., Sampled]
) -> None:
    assert cost() == cost(step(1.0, bound=0.0)) == Interval(0.0, 0.0), "nothing costs"
    assert cost(step(0.0)).upper == math.inf, "a sum without noise has a finite cost"
