"""Ledgers in which every step differs."""

import math

import numpy as np
import pytest
from scipy.special import erf, erfinv, ndtr

from dpfy.accounting import pld
from dpfy.accounting.pairs import Pair

SCHEDULE = tuple(sorted((Pair(0.01, 2 * 0.35 ** (t / 9_999)), 1) for t in range(10_000)))


def test_ten_thousand_noise_multipliers():
    lower, upper, _ = pld.epsilon_bracket(SCHEDULE, 1e-5, 1e-3)
    assert 6.40 <= lower <= 6.415  # the truth lies in [6.407, 6.415]
    assert 6.407 <= upper <= 6.418


def test_mixtures_bracket_what_is_composed_one_by_one():
    """A wrong weight of a corner, or a tangent on the wrong side, moves one end past the exact composition."""
    spread = tuple(sorted((Pair(0.02, 1.0 + 0.3 * i / 63), 20) for i in range(64)))
    lower, upper, _ = pld.epsilon_bracket(spread, 1e-6, 1e-3)
    fours = [tuple(sorted((Pair(0.02, 1.0 + 0.3 * (4 * i + edge) / 63), 80) for i in range(16)))
             for edge in (0, 3)]  # 16 kinds, composed one by one: noise moved down, or up, within fours
    assert lower <= pld.epsilon_bracket(fours[0], 1e-6, 1e-3).upper
    assert upper >= pld.epsilon_bracket(fours[1], 1e-6, 1e-3).lower
    middle = tuple(sorted((Pair(0.02, 1.0 + 0.3 * (4 * i + 1.5) / 63), 80) for i in range(16)))
    assert upper == pytest.approx(pld.epsilon_bracket(middle, 1e-6, 1e-3).upper, rel=2e-3)
    assert upper <= 1.0012 * lower


@pytest.mark.parametrize("neighbours", ["absent", "opposed"])
def test_hundreds_of_rates_are_sound(neighbours):
    generator = np.random.default_rng(3)
    rates = np.exp(generator.uniform(math.log(0.005), math.log(0.02), 200))
    noises = generator.uniform(0.8, 1.6, 200)
    pairs = tuple(sorted((Pair(float(q), float(z), neighbours), 5) for q, z in zip(rates, noises, strict=True)))
    lower, upper, _ = pld.epsilon_bracket(pairs, 1e-5, 1e-3)
    cheap = pld.epsilon_bracket(((Pair(float(rates.min()), 1.6, neighbours), 1000),), 1e-5, 1e-3)
    dear = pld.epsilon_bracket(((Pair(float(rates.max()), 0.8, neighbours), 1000),), 1e-5, 1e-3)
    assert cheap.lower < lower <= upper < dear.upper
    assert upper <= 1.03 * lower


def hockey_stick(noise, gamma):
    mu = 1 / noise
    return ndtr(mu / 2 - np.log(gamma) / mu) - gamma * ndtr(-mu / 2 - np.log(gamma) / mu)


def test_the_hockey_stick_is_convex_in_the_total_variation_and_in_the_rate():
    generator = np.random.default_rng(11)
    low, high = np.sort(10 ** generator.uniform(-0.7, 1, (2, 20_000)), axis=0)
    part, gamma = generator.random(20_000), 10 ** generator.uniform(-2, 2, 20_000)
    theta = [erf(1 / (np.sqrt(8) * noise)) for noise in (low, high)]
    between = 1 / (np.sqrt(8) * erfinv(part * theta[0] + (1 - part) * theta[1]))
    chord = part * hockey_stick(low, gamma) + (1 - part) * hockey_stick(high, gamma)
    assert (hockey_stick(between, gamma) <= chord + 1e-14).all()
    rates, epsilon = np.sort(generator.random((2, 20_000)), axis=0), generator.uniform(0, 3, 20_000)
    middle = part * rates[0] + (1 - part) * rates[1]
    profile = [q * hockey_stick(low, 1 + np.expm1(epsilon) / q) for q in (rates[0], rates[1], middle)]
    assert (profile[2] <= part * profile[0] + (1 - part) * profile[1] + 1e-14).all()
