"""An individual filter charges a record what its own bound costs, and guarantees its limit."""

import math
from dataclasses import replace

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant
from scipy.integrate import quad
from scipy.stats import norm

import dpfy
from dpfy.accounting import (
    DominatedBy,
    GaussianFilter,
    IndividualFilter,
    RenyiFilter,
    ZcdpFilter,
    account,
    odometer,
)
from dpfy.accounting.filters import Filter
from dpfy.accounting.individual_filter import BUDGET
from dpfy.errors import BudgetExhausted, InvalidArgument, UnsupportedEvent
from dpfy.ledger import Header, Ledger
from dpfy.ledger.events import NonPrivate, Poisson, Repeated, Sampled, SumQuery
from dpfy.ledger.individual import FilteredPoisson
from dpfy.ledger.one_shot import RandomizedAnswer
from dpfy.mechanisms.query import ClippedSum
from dpfy.types import Relation

GAUSSIAN = IndividualFilter(GaussianFilter(mu=0.5), levels=8)
RENYI = IndividualFilter(RenyiFilter(2.0, 1e-5, (10.0,)), levels=8)


def step(rate=0.1, noise=1.0, **options):
    return Sampled(FilteredPoisson(rate), (SumQuery(1.0, noise),), **options)


def released(noise):
    """A release besides steps, which leaves no record out."""
    return Sampled(Poisson(1.0), (SumQuery(1.0, noise),), adaptive=True)


def moment(rate, mean, order, removed):
    """E_Q (P/Q)^order of a Poisson-sampled Gaussian, by quadrature, in one of two directions."""

    def value(x):
        with_it = (1 - rate) * norm.pdf(x) + rate * norm.pdf(x, loc=mean)
        top, below = (with_it, norm.pdf(x)) if removed else (norm.pdf(x), with_it)
        return below * math.exp(order * (math.log(top) - math.log(below)))

    return quad(value, -12, 12 + order * mean, limit=400)[0]


@pytest.mark.parametrize("rate", [0.02, 0.3])
@pytest.mark.parametrize("level", [1, 3, 8])
def test_costs_are_renyi_divergences_by_quadrature_in_both_directions(rate, level):
    order, noise, allowance = 6.0, 1.3, 0.01
    rule = IndividualFilter(RenyiFilter(8.0, 1e-5, (order,)), levels=8)
    share = level / 8 + allowance * (1 - level / 8)
    worse = max(moment(rate, share / noise, order, removed) for removed in (True, False))
    charged = rule.costs(step(rate, noise), allowance)[level] / BUDGET * float(rule.limit)
    expected = math.log(worse) / (order - 1)
    assert expected * (1 - 1e-6) <= charged <= expected * (1 + 1e-5)


@pytest.mark.parametrize("level", [4, 8])
def test_a_record_affords_as_many_steps_as_another_accountant_says(level):
    rate, noise, order, delta = 0.05, 2.0, 10.0, 1e-5
    afforded = BUDGET // RENYI.costs(step(rate, noise))[level]

    def epsilon(steps):
        own = dp_accounting.GaussianDpEvent(noise * 8 / level)
        accountant = RdpAccountant(orders=[order])
        accountant.compose(dp_accounting.PoissonSampledDpEvent(rate, own), steps)
        return accountant.get_epsilon(delta)

    assert epsilon(afforded) <= 2.0 * (1 + 1e-9) < epsilon(afforded + 1)


def test_a_full_batch_costs_the_squared_ratio_exactly():
    costs = GAUSSIAN.costs(step(1.0, 4.0))
    assert costs[0] == 0 and len(costs) == 9
    assert [cost / BUDGET for cost in costs] == pytest.approx(
        [(level / 8 / 4.0) ** 2 / 0.25 for level in range(9)], rel=1e-9
    )
    exact = IndividualFilter(GaussianFilter(mu=1.0), levels=8)
    assert BUDGET // exact.costs(step(1.0, 4.0))[8] == 16  # sixteen steps fill it, and fit


def test_the_allowance_is_charged_in_full_to_small_bounds_and_not_at_all_to_the_clip_bound():
    plain, widened = (GAUSSIAN.costs(step(1.0, 4.0), allowance) for allowance in (0.0, 0.125))
    assert widened[8] == plain[8]
    assert widened[1] / plain[1] == pytest.approx((1 + 0.125 * 7) ** 2, rel=1e-6)
    assert all(after >= before for before, after in zip(plain, widened, strict=True))


def test_a_step_that_nothing_pays_for_costs_more_than_the_budget():
    assert set(GAUSSIAN.costs(step(1.0, 0.0))[1:]) == {BUDGET + 1}
    assert GAUSSIAN.costs(step(1.0, 1e-3))[8] == BUDGET + 1
    assert GAUSSIAN.costs(step(0.0, 1.0))[1:] == (0,) * 8  # nobody is ever drawn


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0, 2.0])
def test_an_analyst_who_follows_the_first_output_does_not_exceed_the_limit(epsilon):
    """The bound of the second step may follow the output of the first: the analyst picks, for each
    output, the affordable level with the largest δ. A filter that forgot the first step would let
    the full bound pass.
    """
    noise = 4.0
    rule = IndividualFilter(GaussianFilter(mu=0.3), levels=8)
    costs = rule.costs(step(1.0, noise))
    first = 6
    affordable = [level for level in range(9) if costs[first] + costs[level] <= BUDGET]
    assert 0 < max(affordable) < 8
    mean = first / 8 / noise
    outputs = np.linspace(-9, 9 + mean, 20_001)
    losses = mean * outputs - mean**2 / 2

    def profile(mu, at):
        if mu == 0:
            return np.maximum(0.0, 1 - np.exp(at))
        return norm.cdf(mu / 2 - at / mu) - np.exp(at) * norm.cdf(-mu / 2 - at / mu)

    best = np.max([profile(level / 8 / noise, epsilon - losses) for level in affordable], axis=0)
    delta = np.trapezoid(norm.pdf(outputs, loc=mean) * best, outputs)
    limit = rule.profile("pld", Relation.ADD_OR_REMOVE_ONE, 1e-3).delta(epsilon).upper
    assert delta <= limit * (1 + 1e-6) + 1e-12
    too_much = np.trapezoid(
        norm.pdf(outputs, loc=mean) * profile(1 / noise, epsilon - losses), outputs
    )
    assert too_much > limit


def test_the_limit_is_that_of_the_filter_of_each_record():
    for rule in (RENYI, GAUSSIAN, IndividualFilter(ZcdpFilter(0.1))):
        opened = Ledger.in_memory(rule.guard(), Header(filter=rule.to_json()))
        with opened as ledger:
            for _ in range(3):
                ledger.reserve(step())
        found = account(ledger)
        assert found.epsilon(1e-5) == rule.each.profile("", Relation.ZERO_OUT, 1.0).epsilon(1e-5)
        assert found.method == "individual_filter" and found.steps == 3
    assert RENYI.profile("", Relation.ZERO_OUT, 1.0).epsilon(1e-5).upper == pytest.approx(2.0)


def test_steps_are_admitted_beyond_what_a_record_at_the_clip_bound_affords():
    guard = GAUSSIAN.guard()
    guard.admit(step(1.0, 1.0), 10**6)
    guard.record(step(1.0, 4.0), 2)
    assert guard.used == pytest.approx(0.5)
    guard.record(step(1.0, 4.0), 200)
    assert guard.used == 1.0
    guard.admit(step(1.0, 1.0), 1)


def test_a_reading_is_the_share_of_a_record_at_the_clip_bound():
    opened = Ledger.in_memory(GAUSSIAN.guard(), Header(filter=GAUSSIAN.to_json()))
    with opened as ledger:
        ledger.reserve(step(1.0, 4.0))
    assert odometer(ledger, 1e-5).used == pytest.approx(0.25)


@pytest.mark.parametrize(
    "event",
    [
        released(100.0),
        Sampled(Poisson(0.1), (SumQuery(1.0, 100.0),)),
        Sampled(FilteredPoisson(0.1), (SumQuery(1.0, 9.0), SumQuery(1.0, 9.0, "loss"))),
        Sampled(FilteredPoisson(0.1), (RandomizedAnswer(0.6),)),
        step(noise=9.0, numerical_delta=1e-9),
        NonPrivate("somebody looked"),
        step(noise=0.0),
    ],
    ids=lambda event: event.tag,
)
def test_what_leaves_no_record_out_is_refused(event):
    with pytest.raises((BudgetExhausted, UnsupportedEvent)):
        RENYI.guard().admit(event, 1)


def test_what_is_set_aside_pays_for_other_releases_and_is_missing_from_steps():
    rule = replace(GAUSSIAN, aside=0.5)  # of 0.25
    guard = rule.guard()
    guard.admit(released(4.0), 1)
    guard.record(released(4.0), 1)
    with pytest.raises(BudgetExhausted, match="exceed"):
        guard.admit(released(4.0), 2)
    guard.record(released(4.0), -1)
    guard.admit(step(1.0, 1.0), 1)
    with pytest.raises(BudgetExhausted):
        guard.admit(NonPrivate("somebody looked"), 1)
    full, half = (each.costs(step(1.0, 4.0))[8] for each in (GAUSSIAN, rule))
    assert half == pytest.approx(2 * full, rel=1e-9)


def test_a_ledger_without_the_filters_guard_has_no_guarantee():
    with Ledger.in_memory(None, Header(filter=GAUSSIAN.to_json())) as ledger:
        ledger.reserve(step(1.0, 4.0))
    with pytest.raises(UnsupportedEvent, match="guarded by"):
        account(ledger)


def test_replaced_records_have_no_guarantee():
    with pytest.raises(InvalidArgument, match="zero_out"):
        GAUSSIAN.guard(Relation.REPLACE_ONE)
    with pytest.raises(UnsupportedEvent, match="leaves at another step"):
        account(step(), relation="replace_one")


def test_it_is_tuned_to_full_batches_exactly_and_to_samples_at_one_order():
    full = IndividualFilter.tuned(1.0, 1e-5, to=(Repeated(step(1.0, 9.0), 10),))
    claim = full.profile("", Relation.ZERO_OUT, 1.0).epsilon(1e-5).upper
    assert isinstance(full.each, GaussianFilter) and 0.999 < claim <= 1.0
    drawn = IndividualFilter.tuned(
        1.0, 1e-5, to=(Repeated(step(0.01, 1.0), 100),), levels=4, slack=2.0, aside=0.1
    )
    assert drawn.each == RenyiFilter.tuned(1.0, 1e-5, to=(Repeated(step(0.01, 1.0), 100),))
    assert (drawn.levels, drawn.slack, drawn.aside, drawn.refresh_epochs) == (4, 2.0, 0.1, 1)


def test_a_record_that_spent_less_has_a_smaller_reading():
    for rule in (RENYI, GAUSSIAN, replace(RENYI, aside=0.2)):
        readings = [rule.epsilon_of(units, 1e-5) for units in (0, BUDGET // 4, BUDGET)]
        assert readings[0] == 0 < readings[1] < readings[2]
        limit = rule.each.profile("", Relation.ZERO_OUT, 1.0).epsilon(1e-5).upper
        assert readings[2] <= limit * (1 + 1e-12)
    quarter = GAUSSIAN.epsilon_of(BUDGET // 4, 1e-5)
    assert quarter == pytest.approx(account(step(1.0, 4.0)).claim(1e-5), rel=1e-6)


@pytest.mark.parametrize("rule", [RENYI, replace(GAUSSIAN, aside=0.25, refresh_epochs=3)])
def test_it_is_read_back(rule):
    assert Filter.from_json(rule.to_json()) == rule


@pytest.mark.parametrize(
    "wrong",
    [
        {"each": RenyiFilter(2.0, 1e-5, (8.0, 16.0))},
        {"each": DominatedBy(())},
        {"each": GAUSSIAN},
        {"refresh_epochs": 0},
        {"slack": 0.9},
        {"slack": math.inf},
        {"levels": 0},
        {"levels": 10**6},
        {"aside": 1.0},
        {"aside": -0.1},
    ],
    ids=str,
)
def test_a_wrong_declaration_is_refused(wrong):
    with pytest.raises(InvalidArgument, match="Expected"):
        replace(GAUSSIAN, **wrong)


# Plans


def planned(**options):
    return dpfy.dpsgd(
        **{"records": 100, "batch_size": 10, "steps": 20, "noise_multiplier": 1.0, **options}
    )


def test_a_plan_under_it_draws_by_its_policy_and_is_read_back():
    plan = planned().under(GAUSSIAN)
    assert plan.event == step(0.1) and plan.rate == 0.1
    assert dpfy.Plan.from_json(plan.to_json()) == plan
    assert plan.under(GaussianFilter(1.0)) == planned().under(GaussianFilter(1.0))
    expected = account(step(1.0, 2.0)).claim(1e-5)
    assert dpfy.account(plan).claim(1e-5) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"relation": "replace_one"}, "another step"),
        ({"sampling": "shuffled", "relation": "zero_out"}, "got shuffled"),
        ({"unit": "user"}, "protects records"),
        ({"controllers": [dpfy.QuantileClipping(0.5)]}, "quantile"),
        ({"clip_schedule": "exponential:0.1"}, "clip_schedule"),
        (
            {
                "clip": [
                    ClippedSum(1.0, name="a", parameters=("a",)),
                    ClippedSum(1.0, name="b", parameters=("b",)),
                ]
            },
            "one stored",
        ),
        ({"microbatches": 4}, "microbatches"),
        ({"least_sample": 5.0}, "least_sample"),
        ({"statistics": [dpfy.Contributing()]}, "statistics"),
    ],
    ids=lambda it: next(iter(it)) if isinstance(it, dict) else "",
)
def test_what_has_no_proof_is_refused_with_the_reason(options, reason):
    with pytest.raises(InvalidArgument, match=reason):
        planned(**options).under(GAUSSIAN)


def test_importance_sampling_and_a_missing_filter_are_refused():
    dpis = dpfy.dpis(records=100, batch_size=10, steps=20, noise_multiplier=1.0)
    with pytest.raises(InvalidArgument, match="importance"):
        dpis.under(GAUSSIAN)
    with pytest.raises(InvalidArgument, match="Calibrate the noise of a plan first"):
        replace(planned().under(GAUSSIAN), filter=None)
    with pytest.raises(InvalidArgument, match="Calibrate"):
        planned().under(GAUSSIAN).calibrate(1.0, 1e-5)
    with pytest.raises(BudgetExhausted, match="without noise"):
        planned(noise_multiplier=0.0).under(GAUSSIAN).guard()
