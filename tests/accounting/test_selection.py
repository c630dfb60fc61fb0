"""Private selection: against every order of scores of small mechanisms, against attacks, and against the tables."""

import functools
import itertools
import math

import numpy as np
import pytest
from scipy.special import gammaln

from dpfy.accounting.selection import RunProfile, SelectionProfile, weight
from dpfy.ledger.selection import NegativeBinomialTrials, PoissonTrials

LAWS = [NegativeBinomialTrials(0.0, 0.1), NegativeBinomialTrials(1.0, 0.02), NegativeBinomialTrials(-0.5, 0.01),
        NegativeBinomialTrials(3.0, 0.2), PoissonTrials(0.4), PoissonTrials(12.0)]


@functools.cache
def probabilities(trials):
    """Pr[K = k] from the definition: independent of the closed forms that the rule uses."""
    k = np.arange(0 if isinstance(trials, PoissonTrials) else 1, 2500)
    if isinstance(trials, PoissonTrials):
        log = k * math.log(trials.rate) - gammaln(k + 1)
    else:
        log = k * math.log1p(-trials.success) + gammaln(k + trials.shape) - gammaln(k + 1)
    return k, np.exp(log) / np.exp(log).sum()


def generating(trials, x):
    """E x^K."""
    k, probability = probabilities(trials)
    return float(probability @ x**k)


def hockey_stick(p, q, epsilon):
    return np.maximum(p - math.exp(epsilon) * q, 0.0).sum()


def exact_profile(p, q):
    """The profile of a discrete pair, which is piecewise linear in e^ε between the losses."""
    losses = np.log(p / q)
    points = np.unique(np.concatenate(([0.0, abs(losses).max() + 1.0], np.abs(losses))))
    return RunProfile(points, np.array([hockey_stick(p, q, at) for at in points]),
                      np.array([hockey_stick(q, p, at) for at in points]))


def released(p, groups, trials):
    """The law of the best of K runs if ``groups`` of outcomes are ordered from worst to best, with random ties."""
    out, below = np.zeros_like(p), 0.0
    for group in groups:
        mass = p[list(group)].sum()
        above = min(below + mass, 1.0)
        out[list(group)] = (generating(trials, above) - generating(trials, below)) * p[list(group)] / mass
        below = above
    return out


def orders(count):
    """All orders of ``count`` outcomes, some of which are tied."""
    for order in itertools.permutations(range(count)):
        yield [(place,) for place in order]
        yield [order[:2], *((place,) for place in order[2:])]
        yield [*((place,) for place in order[:-2]), order[-2:]]


@pytest.mark.parametrize("trials", LAWS, ids=str)
def test_no_order_of_scores_exceeds_the_bound(trials):
    """Fails if a direction, the shift, the hull or the weight is wrong: some order then exceeds the bound."""
    rng = np.random.default_rng(11)
    for _ in range(4):
        p, q = (values / values.sum() for values in rng.gamma(1.5, size=(2, 4)) + 0.02)
        profile = SelectionProfile(exact_profile(p, q), trials)
        laws = [(released(p, order, trials), released(q, order, trials)) for order in orders(4)]
        for epsilon in (0.0, 0.3, 1.0, 2.0):
            worst = max(hockey_stick(*pair, epsilon) for pair in laws)
            assert worst <= profile.delta(epsilon) * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize("trials", LAWS, ids=str)
def test_weight_is_the_derivative_of_the_generating_function(trials):
    k, probability = probabilities(trials)
    for a in (0.05, 0.4, 0.9):
        slope = float(probability[k > 0] @ (k * (1 - a) ** (k - 1.0))[k > 0])
        assert float(weight(trials, np.array(a))) == pytest.approx(slope, rel=1e-9)
    assert trials.mean == pytest.approx(float(probability @ k), rel=1e-9)
