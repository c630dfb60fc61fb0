"""Lower bounds from attacks: never above the truth, and worth something."""

import math

import numpy as np
import pytest
from scipy.special import ndtr, ndtri
from scipy.stats import binom

from dpfy.accounting import account
from dpfy.accounting.conversions import TradeoffCurve
from dpfy.auditing.bounds import (
    Guesses,
    Trials,
    approximate_inverse,
    confidence_band,
    epsilon_from_trials,
    gaussian_epsilon,
    gaussian_inverse,
    guesses_refute,
    inverse_of,
    mu_from_trials,
    one_run_epsilon,
    one_run_mu,
    steinke_p_value,
    trials_refute,
)
from dpfy.errors import InvalidArgument
from dpfy.ledger.events import Poisson, Sampled, SumQuery

FAILS = 0.05


def gaussian_attack(mu, canaries, made, rng):
    """Guesses about independent canaries by the best scores there are."""
    present = rng.integers(0, 2, canaries).astype(bool)
    order = np.argsort(rng.normal(size=canaries) + mu * present)
    right = int(present[order[-made // 2 :]].sum() + (~present[order[: made // 2]]).sum())
    return Guesses(canaries, made, right)


@pytest.mark.parametrize(
    ("mu", "canaries", "made"), [(0.5, 100, 100), (1.0, 200, 40), (2.0, 100, 20)]
)
def test_one_run_bounds_exceed_the_truth_as_rarely_as_they_say(mu, canaries, made):
    # Fails if a bound is off by a step of its recursion, forgets abstentions, or takes the
    # confidence twice.
    rng, runs = np.random.default_rng(7), 400
    found = [gaussian_attack(mu, canaries, made, rng) for _ in range(runs)]
    truth = gaussian_epsilon(mu, 1e-3)
    cache = {
        guesses: (one_run_mu(guesses), one_run_epsilon(guesses, 1e-3)) for guesses in set(found)
    }
    too_high = [
        sum(cache[guesses][k] > limit for guesses in found) for k, limit in ((0, mu), (1, truth))
    ]
    assert all(count <= binom.isf(1e-7, runs, FAILS) for count in too_high)


def test_guesses_of_randomised_response_are_refuted_at_the_level_of_the_binomial():
    # For pure ε the recursion is at least as strict as the binomial tail, which is exact.
    epsilon, made = 1.0, 60
    right = 1 / (1 + math.exp(-epsilon))
    for correct in range(made // 2, made + 1):
        tail = float(binom.sf(correct - 1, made, right))
        guesses = Guesses(made, made, correct)
        if guesses_refute(guesses, approximate_inverse(epsilon, 0.0), 0.01):
            assert tail < 0.01
        assert steinke_p_value(guesses, epsilon, 0.0) == pytest.approx(tail)
    assert guesses_refute(Guesses(made, made, made), approximate_inverse(epsilon, 0.0), 0.01)


def test_a_closed_form_of_steinke_and_others():
    # A hundred guesses, all right: p^100 = 5 % at p = e^ε/(1 + e^ε) without a δ, and less with one.
    right = 0.05**0.01
    assert one_run_epsilon(Guesses(1000, 100, 100), 0.0) == pytest.approx(
        math.log(right / (1 - right)), abs=1e-6
    )
    assert 3.4 < one_run_epsilon(Guesses(1000, 100, 100), 1e-5) < 3.49


def test_trials_give_the_truth_in_the_limit():
    false_positive, false_negative = ndtr(-0.5), ndtr(-0.5)  # the even test of μ = 1
    many = Trials(10**7, int(false_positive * 1e7), 10**7, int(false_negative * 1e7))
    assert 0.99 < mu_from_trials(many) < 1.0
    assert 0.99 * math.log((1 - false_positive) / false_negative) < epsilon_from_trials(many, 0.0)
    few = Trials(100, int(false_positive * 100), 100, int(false_negative * 100))
    assert mu_from_trials(few) < mu_from_trials(many)


def test_bounds_grow_with_success_and_shrink_with_confidence():
    found = [one_run_mu(Guesses(400, 100, correct)) for correct in (60, 80, 100)]
    assert 0 < found[0] < found[1] < found[2]
    assert one_run_mu(Guesses(400, 100, 80), 0.999) < found[1]
    assert one_run_mu(Guesses(400, 100, 50)) == 0 == one_run_epsilon(Guesses(400, 100, 50), 1e-5)


def test_a_claim_is_refuted_only_by_what_it_excludes():
    claim = account(Sampled(Poisson(1.0), (SumQuery(1.0, 1.0),)))  # μ = 1
    honest, cheat = Guesses(1000, 200, 185), Guesses(1000, 200, 200)
    assert not guesses_refute(honest, inverse_of(claim), 1e-6)
    weaker = account(Sampled(Poisson(1.0), (SumQuery(1.0, 5.0),)))
    assert guesses_refute(cheat, inverse_of(weaker), 1e-6)
    even = Trials(10_000, int(ndtr(-0.5) * 1e4), 10_000, int(ndtr(-0.5) * 1e4))
    assert not trials_refute(even, claim)
    assert trials_refute(even, weaker)


def test_the_inverse_of_a_ledger_is_never_above_that_of_its_mechanism():
    exact, certified = (
        gaussian_inverse(1.0),
        inverse_of(account(Sampled(Poisson(1.0), (SumQuery(1.0, 1.0),)))),
    )
    for probability in np.geomspace(1e-8, 1, 200):
        assert certified(float(probability)) <= exact(float(probability)) + 1e-12
    assert certified(0.5) > 0.9 * exact(0.5)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Trials(10, 11, 10, 0),
        lambda: Trials(0, 0, 10, 0),
        lambda: Guesses(10, 0, 0),
        lambda: Guesses(10, 11, 5),
        lambda: Guesses(10, 5, 6),
    ],
)
def test_impossible_counts_are_refused(make):
    with pytest.raises(InvalidArgument, match="Expected"):
        make()


def test_no_errors_and_only_errors_are_defined():
    assert epsilon_from_trials(Trials(10, 10, 10, 10), 1e-5) == 0
    assert 0 < epsilon_from_trials(Trials(100, 0, 100, 0), 1e-5) < math.inf
    assert mu_from_trials(Trials(10, 10, 10, 10)) == 0


def covered(rng, radius, absent=150, present=100, mu=1.0, confidence=0.9):
    """Whether the band around one attack, its radius multiplied, holds the true curve."""
    noise, scores = rng.normal(size=absent), rng.normal(mu, size=present)
    thresholds = np.quantile(noise, np.linspace(1, 0, 101))
    fpr = [(noise > each).mean() for each in thresholds]
    fnr = [(scores <= each).mean() for each in thresholds]
    lower, upper = confidence_band(
        TradeoffCurve(tuple(fpr), tuple(fnr)),
        round(absent / radius**2),
        round(present / radius**2),
        confidence,
    )
    true = ndtr(-mu - ndtri(np.clip(fpr, 1e-12, 1 - 1e-12)))
    return bool(np.all((lower.fnr <= true) & (true <= upper.fnr)))


def test_the_band_holds_the_true_curve_and_half_of_it_does_not():
    rng = np.random.default_rng(5)
    runs = 200
    least = binom.ppf(1e-7, runs, 0.9)  # fewer have a chance below one in ten million
    assert sum(covered(rng, 1.0) for _ in range(runs)) >= least
    assert sum(covered(rng, 0.4) for _ in range(runs)) < least


def test_the_band_of_an_attack_that_is_never_wrong_is_within_zero_and_one():
    lower, upper = confidence_band(TradeoffCurve((0.0, 0.5, 0.9), (0.0, 0.0, 0.0)), 50, 50)
    assert set(lower.fnr) == {0.0} and max(upper.fnr) == 1.0
    with pytest.raises(InvalidArgument, match="confidence"):
        confidence_band(lower, 50, 50, 1.0)
