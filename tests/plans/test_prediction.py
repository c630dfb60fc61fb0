"""What private predictions cost, and how many a budget buys."""

import math

import pytest
from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant
from scipy.stats import norm

from dpfy.errors import InvalidArgument
from dpfy.ledger.events import SumQuery
from dpfy.plans.prediction import PredictionPlan, affordable
from dpfy.types import Relation

VOTES = {"parts": 250, "noise": 40.0, "epsilon": 2.6, "delta": 1e-5, "classes": 10}


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the ε of μ-GDP (Balle & Wang 2018), by bisection on its closed form."""
    low, high = 0.0, 100.0
    while high - low > 1e-10:
        middle = (low + high) / 2
        found = norm.cdf(mu / 2 - middle / mu) - math.exp(middle) * norm.cdf(-mu / 2 - middle / mu)
        low, high = (middle, high) if found > delta else (low, middle)
    return high


@pytest.mark.parametrize(
    ("settings", "square"),
    [
        ({}, 2 / 40**2),
        ({"threshold": 200, "check_noise": 150.0}, 2 / 40**2 + 1 / 150**2),
        ({"classes": None, "bounds": (-2.0, 1.0)}, (3 / 40) ** 2),
    ],
)
def test_budget_buys_as_many_answers_as_the_closed_form(settings, square):
    # μ² adds up: a √2, a check or a range that is forgotten would buy more.
    plan = PredictionPlan(**{**VOTES, **settings})
    assert gaussian_epsilon(math.sqrt(plan.answers * square), 1e-5) <= 2.6
    assert gaussian_epsilon(math.sqrt((plan.answers + 2) * square), 1e-5) > 2.6


def test_answers_cost_what_another_library_says():
    plan = PredictionPlan(**VOTES)
    other = PLDAccountant()
    event = GaussianDpEvent(40 / math.sqrt(2))
    other.compose(SelfComposedDpEvent(event, plan.answers))
    assert 2.58 < other.get_epsilon(1e-5) < 2.6005  # which is rounded up, too


def test_claim_of_the_filter_is_within_the_budget():
    plan = PredictionPlan(**VOTES)
    assert 2.599 < plan.filter.profile("pld", plan.relation, 1e-3).epsilon(1e-5).upper <= 2.6


def test_replacing_a_record_costs_four_times_as_much():
    # It changes two teachers: a quarter of the answers.
    plan = PredictionPlan(**VOTES, relation=Relation.REPLACE_ONE)
    assert plan.answers == PredictionPlan(**VOTES).answers // 4


def test_events_follow_outputs_and_have_the_bounds_of_the_proof():
    plan = PredictionPlan(**VOTES, threshold=200, check_noise=150)
    assert plan.answer.queries == (SumQuery(math.sqrt(2), 40.0, "votes"),)
    assert plan.check.queries == (SumQuery(1.0, 150.0, "most_votes"),)
    assert plan.price.queries == (*plan.check.queries, *plan.answer.queries)
    assert all(event.adaptive for event in (plan.answer, plan.check, plan.price))


def test_price_is_what_check_and_answer_cost_together():
    plan = PredictionPlan(**VOTES, threshold=200, check_noise=150)
    guard = plan.filter.guard()
    guard.record(plan.price, 10)
    together = guard.used
    apart = plan.filter.guard()
    for event in (plan.check, plan.answer):
        apart.record(event, 10)
    assert together == pytest.approx(apart.used, rel=1e-12)


def test_header_declares_the_filter_and_the_plan():
    header = PredictionPlan(**VOTES, shape=(64,), unit="user").header()
    assert header.filter is not None and header.unit == "user"
    assert PredictionPlan.from_json(header.plan).shape == (64,)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"threshold": 200, "check_noise": 150, "shape": (28, 28)},
        {"classes": None, "bounds": (0, 1)},
    ],
)
def test_plan_survives_json(settings):
    plan = PredictionPlan(**{**VOTES, **settings})
    assert PredictionPlan.from_json(plan.to_json()) == plan


def test_affordable_is_exact():
    plan = PredictionPlan(**VOTES)
    guard = plan.filter.guard()
    guard.record(plan.answer, plan.answers - 3)
    found = [affordable(guard, plan.answer, most) for most in (0, 1, 2, 3, 4, 99)]
    assert found == [0, 1, 2, 3, 3, 3]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"classes": None}, "classes=, the number"),
        ({"bounds": (0, 1)}, "classes=, the number"),
        ({"classes": 1}, "classes=1"),
        ({"noise": 0.0}, "noise=0.0"),
        ({"noise": math.nan}, "noise=nan"),
        ({"threshold": 200}, "together"),
        ({"check_noise": 9.0}, "together"),
        ({"threshold": 251, "check_noise": 9.0}, "threshold=251"),
        ({"classes": None, "bounds": (0, 1), "threshold": 1, "check_noise": 9.0}, "about votes"),
        ({"classes": None, "bounds": (1, 1)}, "high=1"),
        ({"classes": None, "bounds": (0, math.inf)}, "high=inf"),
        ({"classes": None, "bounds": (0, 5e-324)}, "high - low"),
        ({"classes": None, "bounds": 3}, "two numbers"),
        ({"shape": (0,)}, "shape=0"),
        ({"epsilon": -1}, "epsilon=-1"),
        ({"relation": "none"}, "relation='none'"),
    ],
)
def test_bad_declarations_are_refused(settings, text):
    with pytest.raises(InvalidArgument, match=text):
        PredictionPlan(**{**VOTES, **settings})


def test_plan_of_something_else_is_refused():
    with pytest.raises(InvalidArgument, match="something else"):
        PredictionPlan.from_json({"steps": 3})
