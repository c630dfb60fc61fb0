"""Exact draws have the law that they say, and none that is two thirds or three halves as wide.

Every comparison accepts the truth but with probability 1e-7: a chi-squared test at that level, or
5.4 standard deviations."""

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import chi2

from dpfy.mechanisms.discrete import (
    below,
    coin,
    discrete_gaussian,
    exponential_coin,
    geometric,
    rounded_laplace,
)
from dpfy.noise import SecureStream

DRAWS = 3000


def stream(key):
    return SecureStream(insecure_test_key=key)


def fits(drawn, law):
    """Whether draws agree with the masses of 0, ±1, … of a symmetric law, tails put together."""
    reach = next(k for k in range(1, 10**6) if sum(law(j) for j in range(k, 50 * k)) * DRAWS < 20)
    edges = np.arange(-reach, reach + 2) - 0.5
    seen = np.histogram(np.clip(drawn, -reach, reach), edges)[0]
    expected = np.array([law(abs(k)) for k in range(-reach, reach + 1)])
    expected[0] = expected[-1] = (1 - expected[1:-1].sum()) / 2
    statistic = ((seen - DRAWS * expected) ** 2 / (DRAWS * expected)).sum()
    return chi2.sf(statistic, 2 * reach) > 1e-7


def laplace_law(scale):
    def law(k):
        return (
            -math.expm1(-0.5 / scale)
            if k == 0
            else (math.exp((0.5 - k) / scale) - math.exp((-0.5 - k) / scale)) / 2
        )

    return law


def gaussian_law(stddev):
    total = sum(math.exp(-k * k / (2 * stddev**2)) for k in range(-1000, 1001))
    return lambda k: math.exp(-k * k / (2 * stddev**2)) / total


@pytest.mark.parametrize(
    ("scale", "law", "draw"),
    [
        (Fraction(37, 10), laplace_law, rounded_laplace),
        (Fraction(2, 3), laplace_law, rounded_laplace),
        (Fraction(31, 10), gaussian_law, lambda scale, source: discrete_gaussian(scale**2, source)),
        (Fraction(8, 10), gaussian_law, lambda scale, source: discrete_gaussian(scale**2, source)),
    ],
)
def test_noise_has_its_scale_and_no_other(scale, law, draw):
    source = stream(5)
    drawn = np.array([draw(scale, source) for _ in range(DRAWS)])
    assert fits(drawn, law(float(scale)))
    assert not fits(drawn, law(float(scale) * 2 / 3)) and not fits(drawn, law(float(scale) * 3 / 2))


@pytest.mark.parametrize("exponent", [0.0, 0.2, 1.0, 2.6])
def test_coins_have_exponential_odds(exponent):
    source = stream(6)
    heads = sum(exponential_coin(Fraction(exponent), source) for _ in range(DRAWS))
    odds = math.exp(-exponent)
    assert abs(heads - DRAWS * odds) <= 5.4 * math.sqrt(DRAWS * odds * (1 - odds))


def test_geometric_numbers_fall_by_their_ratio():
    source, ratio = stream(7), math.exp(-0.4)
    drawn = np.array([geometric(Fraction(2, 5), source) for _ in range(DRAWS)])
    for k in (1, 2, 5):
        odds = ratio**k
        assert abs((drawn >= k).sum() - DRAWS * odds) <= 5.4 * math.sqrt(DRAWS * odds * (1 - odds))


def test_numbers_below_a_bound_are_uniform_at_any_size():
    source = stream(8)
    seen = np.bincount([below(5, source) for _ in range(DRAWS)], minlength=5)
    assert chi2.sf(((seen - DRAWS / 5) ** 2 / (DRAWS / 5)).sum(), 4) > 1e-7
    bound = 3 << 130  # more than two words, and the top third needs the highest bit
    drawn = [below(bound, source) for _ in range(600)]
    assert all(0 <= value < bound for value in drawn)
    assert abs(sum(value >= 2 << 130 for value in drawn) - 200) <= 5.4 * math.sqrt(600 * 2 / 9)
    assert below(1, source) == 0


def test_a_coin_is_as_fine_as_its_odds():
    source = stream(9)
    assert not any(coin(Fraction(1, 2**200), source) for _ in range(50))
    assert all(coin(1 - Fraction(1, 2**200), source) for _ in range(50))
