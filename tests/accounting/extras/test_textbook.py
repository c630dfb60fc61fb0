"""Textbook theorems give the textbooks' numbers, and each generation claims less than the one
before.
"""

import math
from itertools import product

import pytest

from dpfy.accounting import account
from dpfy.accounting.extras.textbook import (
    EpsilonDelta,
    advanced,
    basic,
    compare,
    group,
    optimal,
    parallel,
)
from dpfy.errors import InvalidArgument
from dpfy.ledger.events import Poisson, Repeated, Sampled, SumQuery


def test_group_privacy_of_the_guide():
    # The guide, §2.2: (2, 1e-24) for one of k = 20 examples is (40, 4.7e-6) for all of them:
    # k·e^{kε}·δ.
    printed = group(EpsilonDelta(2.0, 1e-24), 20, simple=True)
    assert printed.epsilon == 40.0
    assert f"{printed.delta:.1e}" == "4.7e-06"
    tight = group(EpsilonDelta(2.0, 1e-24), 20)
    assert tight.epsilon == 40.0
    assert tight.delta == pytest.approx(1e-24 * sum(math.exp(2 * i) for i in range(20)))
    assert tight.delta < printed.delta


def test_group_privacy_is_the_chain_of_neighbours():
    # P ≤ e^ε·P' + δ, k times over: brute force of the recursion.
    epsilon, delta, total = 0.3, 1e-4, 0.0
    for _ in range(5):
        total = math.exp(epsilon) * total + delta
    assert group(EpsilonDelta(epsilon, delta), 5) == pytest.approx((1.5, total))
    assert group(EpsilonDelta(epsilon, delta), 1) == pytest.approx((epsilon, delta))
    assert group(EpsilonDelta(0.0, delta), 5).delta == pytest.approx(5 * delta)
    assert group(EpsilonDelta(1.0, 0.0), 5) == (5.0, 0.0)
    assert group(EpsilonDelta(500.0, 1e-5), 50).delta == 1.0  # no overflow


@pytest.mark.parametrize("times", [1, 2, 5])
@pytest.mark.parametrize("epsilon", [0.1, 1.0])
def test_optimal_composition_is_that_of_randomised_responses(times, epsilon):
    # Enumerate all answers of ``times`` randomised responses under both data sets.
    truth = math.exp(epsilon) / (1 + math.exp(epsilon))

    def probability(answers: tuple[int, ...], value: int) -> float:
        return math.prod(truth if answer == value else 1 - truth for answer in answers)

    for slack in (1e-6, 1e-3, 0.05):
        composed = optimal(EpsilonDelta(epsilon, 0.0), times, slack)
        delta = sum(
            max(0.0, probability(answers, 1) - math.exp(composed.epsilon) * probability(answers, 0))
            for answers in product((0, 1), repeat=times)
        )
        assert delta <= slack
        assert composed.epsilon == pytest.approx(0.0, abs=1e-9) or delta == pytest.approx(
            slack, rel=1e-4
        )
        assert composed.delta == pytest.approx(slack)


def test_optimal_composition_adds_the_failures():
    composed = optimal(EpsilonDelta(0.1, 1e-3), 10, 1e-2)
    assert composed.delta == pytest.approx(1 - (1 - 1e-3) ** 10 * (1 - 1e-2))
    assert optimal(EpsilonDelta(0.1, 1.0), 10, 1e-2).delta == 1.0


def test_advanced_composition_is_the_printed_formula():
    # The guide's Appendix B: ε·√(2k·ln(1/δ')) + k·ε·(e^ε − 1)/(e^ε + 1)
    epsilon, times, slack = 0.05, 400, 1e-6
    printed = epsilon * math.sqrt(2 * times * math.log(1 / slack)) + times * epsilon * (
        math.exp(epsilon) - 1
    ) / (math.exp(epsilon) + 1)
    assert advanced(EpsilonDelta(epsilon, 1e-9), times, slack) == pytest.approx(
        (printed, 4e-7 + slack)
    )
    assert advanced(EpsilonDelta(2.0, 0.0), 2, slack).epsilon == 4.0  # basic is better there
    assert advanced(EpsilonDelta(1.0, 0.0), 0, slack) == (0.0, slack)


@pytest.mark.parametrize("epsilon", [0.01, 0.2, 1.5])
@pytest.mark.parametrize("times", [1, 30, 2000])
def test_optimal_is_never_above_advanced(epsilon, times):
    claim = EpsilonDelta(epsilon, 0.0)
    assert optimal(claim, times, 1e-6).epsilon <= advanced(claim, times, 1e-6).epsilon * (1 + 1e-9)


def test_basic_adds_and_parallel_takes_the_worst():
    claims = [EpsilonDelta(1.0, 1e-6), EpsilonDelta(0.25, 1e-5), EpsilonDelta(2.0, 0.0)]
    assert basic(claims) == pytest.approx((3.25, 1.1e-5))
    assert parallel(claims) == (2.0, 1e-5)
    assert basic([]) == parallel([]) == (0.0, 0.0)


def test_each_generation_claims_less():
    rows = compare(rate=0.01, noise_multiplier=1.0, steps=1000, delta=1e-5)
    names = [
        "basic",
        "advanced",
        "optimal for (ε, δ)",
        "Rényi, 2016 conversion",
        "Rényi",
        "privacy loss distribution",
    ]
    assert list(rows) == names
    assert list(rows.values()) == sorted(rows.values(), reverse=True)
    run = Repeated(Sampled(Poisson(0.01), (SumQuery(1.0, 1.0),)), 1000)
    assert rows["privacy loss distribution"] == account(run).claim(1e-5)
    assert rows["basic"] == pytest.approx(1000 * account(Repeated(run.event, 1)).claim(1e-8))


@pytest.mark.parametrize(
    "claim", [EpsilonDelta(-1.0, 0.0), EpsilonDelta(1.0, 1.5), EpsilonDelta(math.nan, 0.0)]
)
def test_bad_claims_are_refused(claim):
    for theorem in (
        lambda: basic([claim]),
        lambda: parallel([claim]),
        lambda: advanced(claim, 2, 1e-5),
        lambda: optimal(claim, 2, 1e-5),
        lambda: group(claim, 2),
    ):
        with pytest.raises(InvalidArgument):
            theorem()
