"""The lower end of a bracket is what an attack attains: that of the pair only where the rule is
exact.
"""

import math

import numpy as np
import pytest

from dpfy.accounting import account, supported
from dpfy.cli._output import claims, sentence
from dpfy.ledger.composite_events import Composed, Parallel
from dpfy.ledger.events import (
    BallsInBins,
    FixedSize,
    Importance,
    Poisson,
    Repeated,
    Sampled,
    Shuffled,
    SumQuery,
)
from dpfy.ledger.one_shot import AboveThreshold, DiscreteGaussianSum, ExponentialChoice, NoisyMax
from dpfy.ledger.selection import NegativeBinomialTrials, Selected
from dpfy.ledger.streams import Columns, SampledStream, Stream, Toeplitz, Tree

ZERO, REPLACE, DELTA = "zero_out", "replace_one", 1e-5


def gauss(policy, noise=1.0):
    return Sampled(policy, (SumQuery(1.0, noise),))


def test_nobody_is_told_that_no_analysis_can_claim_less_where_the_rule_is_not_exact():
    """The best attack on FixedSize(1, 10) under zero-out that a search found has δ(0.2) = 0.026;
    the pair has 0.048.
    """
    assert not any(row.exact for row in supported() if row.policy in ("fixed_size", "shuffled"))
    for policy in (FixedSize(1, 10), Shuffled(1, 10)):
        said = sentence(claims(account(gauss(policy), relation=ZERO), delta=1e-3))
        assert (
            "no analysis can claim less" not in said
            and "a known attack rules out less than" in said
        )
    assert "no analysis can claim less than" in sentence(
        claims(account(gauss(Poisson(1.0))), delta=1e-3)
    )
    lower, upper = account(gauss(FixedSize(1, 10)), relation=ZERO).delta(0.2)
    assert 0.009 < lower <= 0.026 < 0.047 < upper


@pytest.mark.parametrize(
    ("event", "relation", "attack"),
    [
        (gauss(FixedSize(3, 30)), REPLACE, gauss(Poisson(0.1), 0.5)),  # all others opposed
        (gauss(FixedSize(3, 30)), ZERO, gauss(Poisson(0.1))),  # all others zero
        (gauss(Shuffled(2, 18)), ZERO, gauss(Poisson(1.0), 3.0)),  # the sum of nine batches
        (gauss(BallsInBins(9, 18)), REPLACE, gauss(Poisson(1.0), 1.5)),
        (
            gauss(Importance(0.1, 2.0**-10)),
            ZERO,
            gauss(Poisson(0.1)),
        ),  # without what moves other records' coins
        (
            SampledStream(Toeplitz((1.0,)), 5, 2.0, rate=0.1),
            ZERO,
            Repeated(gauss(Poisson(0.1), 2.0), 5),
        ),
        (
            Sampled(Poisson(1.0), (DiscreteGaussianSum(1, 2.0),)),
            REPLACE,
            Sampled(Poisson(1.0), (DiscreteGaussianSum(2, 2.0),)),
        ),
    ],
)
def test_lower_ends_are_those_of_an_attack(event, relation, attack):
    """Three times in a row: fails if the lower end is that of a pair which only dominates."""
    lower, upper = account(Repeated(event, 3), relation=relation).epsilon(DELTA)
    times = (
        Repeated(attack.event, 3 * attack.times)
        if isinstance(attack, Repeated)
        else Repeated(attack, 3)
    )
    known = account(times, relation="add_or_remove_one").epsilon(DELTA)
    assert lower == pytest.approx(known.lower, rel=2e-3) and lower <= known.upper * (
        1 + 1e-6
    ) <= upper * (1 + 1e-5)


@pytest.mark.parametrize(("relation", "gap"), [(ZERO, 0.5), (REPLACE, 1.0)])
def test_noisy_max_is_bounded_by_two_candidates(relation, gap):
    """Laplace noise, the milder of the two that the event may stand for: fails if a lower end is
    that of permute-and-flip, where the one behind wins with probability ½e^−gap, less often.
    """
    behind = 0.5 * math.exp(-gap) * (1 + gap / 2)
    draws = np.random.default_rng(5).laplace(size=(2, 400_000))
    assert np.mean(draws[0] - draws[1] > gap) == pytest.approx(
        behind, abs=5.5 * 0.5 / 400_000**0.5
    )  # 1 in 2e7
    for epsilon in (0.0, 0.2, 0.6):
        lower, upper = account(
            Sampled(Poisson(1.0), (NoisyMax(0.5, 1.0),)), relation=relation
        ).delta(epsilon)
        exact = max(1 - behind - math.exp(epsilon) * behind, 0.0)
        assert lower == pytest.approx(exact, rel=1e-6) and exact < upper
    sampled = account(Sampled(Poisson(0.3), (NoisyMax(0.5, 1.0),)), relation=relation).delta(0.0)
    assert (sampled.lower > 0) == (relation == ZERO) and sampled.lower < sampled.upper


@pytest.mark.parametrize("scale", [0.0, 1e-3, 0.1, 1e9])
def test_lower_ends_of_noisy_max_are_numbers_at_any_scale(scale):
    lower, upper = account(Sampled(Poisson(1.0), (NoisyMax(1.0, scale),))).epsilon(DELTA)
    assert 0 <= lower <= upper and (lower == math.inf) == (scale == 0)


def test_where_no_attack_is_known_nothing_is_said():
    for event in (
        Sampled(Poisson(1.0), (AboveThreshold(1.0, 2.0, 4.0),)),
        Selected(gauss(Poisson(1.0), 4.0), NegativeBinomialTrials.with_mean(5.0)),
    ):
        found = account(event)
        assert found.epsilon(DELTA).lower == 0 < found.claim(DELTA) and not found.exact


def test_streams_are_exact_where_the_worst_pattern_is_known():
    closed = account(Stream(Tree(), 64, 8.0, 4, 10), relation=ZERO)
    assert closed.exact and closed.epsilon(DELTA).lower == pytest.approx(
        closed.claim(DELTA), rel=1e-6
    )
    open_ = account(
        Stream(Toeplitz((0.5, 1.0, *(0.9**place for place in range(60)))), 6000, 500.0, 500, 3),
        relation=ZERO,
    )
    assert not open_.exact and 0 < open_.epsilon(DELTA).lower < 0.999 * open_.claim(DELTA)
    uneven = account(
        SampledStream(Columns(((1.0, 0.0), (3.0,), (2.0,), (1.0,))), 4, 4.0, rate=0.5),
        relation=ZERO,
    )
    assert uneven.epsilon(DELTA).lower <= uneven.claim(DELTA)


def test_wrapping_keeps_what_is_known_of_the_parts():
    step, fixed = gauss(Poisson(0.1)), gauss(FixedSize(3, 30))
    assert account(Composed((step,), (5,)), relation=ZERO).exact
    assert account(Parallel((step, step)), relation=ZERO).exact
    wrapped, plain = (
        account(event, relation=ZERO) for event in (Composed((fixed,), (5,)), Repeated(fixed, 5))
    )
    assert not wrapped.exact and wrapped.epsilon(DELTA) == plain.epsilon(DELTA)
    assert not account([step, fixed], relation=ZERO).exact
    choices = account(Repeated(Sampled(Poisson(1.0), (ExponentialChoice(1.0, 4.0),)), 2))
    assert not choices.exact
