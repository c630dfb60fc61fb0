import math

import pytest
from dp_accounting import dp_event
from dp_accounting.rdp.rdp_privacy_accountant import RdpAccountant
from hypothesis import given, strategies as st

from dpfy.accounting import GaussianFilter, RenyiFilter, ZcdpFilter, account
from dpfy.accounting.filters import step_cost
from dpfy.budgets.costs import (
    admits,
    cost_of,
    cost_of_event,
    epsilon_of,
    nothing,
    orders_of,
    planned_cost,
    plus,
)
from dpfy.budgets.declarations import Declaration
from dpfy.errors import BudgetExhausted, InvalidArgument, UnsupportedEvent
from dpfy.ledger.events import NonPrivate, Poisson, Repeated, Sampled, SumQuery
from dpfy.ledger.individual import Individual
from dpfy.types import Relation

ADD = Relation.ADD_OR_REMOVE_ONE
ORDERS = (2.0, 4.0, 32.0)
RELATIONS = (Relation.ADD_OR_REMOVE_ONE, Relation.ZERO_OUT)
UNITS = 2**80


def step(rate=0.1, noise=2.0, **options):
    return Sampled(Poisson(rate), (SumQuery(1.0, noise),), **options)


def test_a_full_batch_costs_what_the_textbook_says():
    """α/(2z²), rounded up: another constant, or rounding down, is a smaller cost."""
    cost = cost_of((Repeated(step(1.0, 3.0), 7),), ORDERS, ADD)
    for order, part in zip(ORDERS, cost[1:], strict=True):
        exact = 7 * order / 18
        assert exact <= part / UNITS <= exact * (1 + 1e-11)


@given(rate=st.floats(1e-4, 1.0), noise=st.floats(0.3, 50.0), relation=st.sampled_from(RELATIONS))
def test_costs_are_at_least_those_of_the_filter(rate, noise, relation):
    """The filter that admits steps one by one has costs of its own: an independent way."""
    event = step(rate, noise)
    reference = step_cost(RenyiFilter(100.0, 1e-6, ORDERS), event, relation)
    for mine, theirs in zip(cost_of_event(event, 1, ORDERS, relation)[1:], reference, strict=True):
        assert theirs <= mine / UNITS or mine >= 10**9 * UNITS
        assert mine / UNITS <= theirs * (1 + 1e-9)


@pytest.mark.parametrize(("rate", "noise"), [(0.01, 0.8), (0.1, 2.0), (0.5, 1.0), (1.0, 4.0)])
def test_costs_are_those_of_another_library(rate, noise):
    accountant = RdpAccountant([*ORDERS])
    sampled = dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(noise))
    accountant.compose(sampled, 10)
    cost = cost_of((Repeated(step(rate, noise), 10),), ORDERS, ADD)
    assert [part / UNITS for part in cost[1:]] == pytest.approx(list(accountant._rdp), rel=1e-6)


def test_a_relation_without_a_rule_is_refused():
    with pytest.raises(UnsupportedEvent, match="replace_one"):
        cost_of_event(step(), 1, ORDERS, Relation.REPLACE_ONE)


@given(times=st.lists(st.integers(1, 10**6), min_size=1, max_size=6))
def test_costs_add_up_exactly_in_any_order(times):
    parts = [cost_of((Repeated(step(), each),), ORDERS, ADD) for each in times]
    whole = cost_of(tuple(Repeated(step(), each) for each in times), ORDERS, ADD)
    total = nothing(ORDERS)
    for part in reversed(parts):
        total = plus(total, part)
    assert (
        total == whole == tuple(sum(times) * part for part in cost_of_event(step(), 1, ORDERS, ADD))
    )


def test_adaptive_steps_cost_what_fixed_ones_do():
    assert cost_of_event(step(adaptive=True), 3, ORDERS, ADD) == cost_of_event(
        step(), 3, ORDERS, ADD
    )


def test_no_budget_has_room_for_what_is_not_private():
    for event in (NonPrivate("looked"), step(1.0, 0.0)):
        with pytest.raises(InvalidArgument, match="private"):
            cost_of_event(event, 1, ORDERS, ADD)
    rule = RenyiFilter(1e6, 1e-6, ORDERS)
    assert not admits(rule, cost_of_event(step(1.0, 1e-9), 1, ORDERS, ADD), ORDERS)


def test_groups_cost_what_the_weakest_does():
    groups = Individual(("strict", "open"), (0.01, 0.1), (1.0, 1.0), (0.5, 0.5))
    event = Sampled(groups, (SumQuery(1.0, 2.0),))
    assert cost_of_event(event, 5, ORDERS, ADD) == cost_of_event(step(0.1), 5, ORDERS, ADD)


@pytest.mark.parametrize("noise", [0.8, 2.0, 10.0])
def test_what_the_filter_admits_is_within_epsilon_by_another_accountant(noise):
    rule = Declaration.make("x", unit="record", epsilon=3.0, delta=1e-5).filters[0]
    orders = orders_of((rule,))
    most = 0
    while admits(rule, cost_of((Repeated(step(noise=noise), most + 1),), orders, ADD), orders):
        most += 1
    if most:
        assert account(Repeated(step(noise=noise), most)).claim(1e-5) <= 3.0
    total = cost_of((Repeated(step(noise=noise), most),), orders, ADD)
    assert epsilon_of(total, orders, 1e-5) <= 3.0


def test_the_mass_is_limited_by_what_was_set_aside():
    rule = Declaration.make("x", unit="record", epsilon=3.0, delta=1e-5).filters[0]
    orders = orders_of((rule,))
    heavy = step(noise=100.0, numerical_delta=1e-9)
    assert admits(rule, cost_of((Repeated(heavy, 9),), orders, ADD), orders)
    assert not admits(rule, cost_of((Repeated(heavy, 11),), orders, ADD), orders)
    assert epsilon_of(cost_of((Repeated(heavy, 10**5),), orders, ADD), orders, 1e-5) == math.inf


@pytest.mark.parametrize(
    "rule", [GaussianFilter(1.0), ZcdpFilter(0.5), RenyiFilter(8.0, 1e-6, (4.0,))]
)
def test_what_is_kept_for_a_filter_pays_for_whatever_it_admits(rule):
    envelope = (Repeated(step(0.5, 4.0), 10),)
    kept = planned_cost(envelope, rule.to_json(), ORDERS, ADD)
    guard, spent, most = rule.guard(), nothing(ORDERS), 0
    while True:  # full batches, which the filters of zCDP fill exactly
        try:
            guard.admit(step(1.0, 4.0), 1)
        except BudgetExhausted:
            break
        guard.record(step(1.0, 4.0), 1)
        spent, most = plus(spent, cost_of_event(step(1.0, 4.0), 1, ORDERS, ADD)), most + 1
    place = 1 + ORDERS.index(4.0)
    assert most and spent[place] <= kept[place]


def test_a_filter_whose_cost_is_not_known_is_refused():
    with pytest.raises(UnsupportedEvent, match="does not say"):
        planned_cost((), RenyiFilter(1.0, 1e-6).to_json(), ORDERS, ADD)
