"""Bounds that need no composition: those on ε and those on δ say the same."""

import math

import pytest

from dpfy.accounting.dominating_pairs import Pair, of_distribution
from dpfy.accounting.loss_distributions import response
from dpfy.accounting.pld.methods import DeltaMethods, EpsilonMethods, ever_drawn, pure_epsilon

RUNS = [
    ((Pair(0.01, 1.0), 1000),),
    ((Pair(1e-4, 0.01), 10),),
    ((Pair(0.02, 1.3, "opposed"), 300),),
    ((Pair(0.1, 2.0, "absent", "laplace"), 50),),
    ((of_distribution(response(0.2)), 60),),
]


@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-9])
@pytest.mark.parametrize("pairs", RUNS)
def test_delta_at_the_bound_on_epsilon_is_the_delta_asked_for(pairs, delta):
    epsilon, _ = min(EpsilonMethods(delta).simple(pairs))
    assert min(DeltaMethods(epsilon).simple(pairs))[0] <= delta * (1 + 1e-6)


@pytest.mark.parametrize("pairs", RUNS)
def test_every_bound_covers_the_composition(pairs):
    lower = EpsilonMethods(1e-5).compose(pairs, 0.0, 1e-3)
    if lower is not None:  # None where the noise is too small for float64
        assert all(lower.lower <= upper for upper, _ in EpsilonMethods(1e-5).simple(pairs))


def test_a_record_that_is_hardly_ever_drawn_costs_nothing():
    pairs = ((Pair(1e-9, 0.1), 100),)
    assert ever_drawn(pairs) == pytest.approx(1e-7)
    assert EpsilonMethods(1e-6).at_once(pairs)[0][:2] == (0.0, 0.0)
    assert ever_drawn(((Pair(1.0, 1.0), 1),)) == 1


def test_largest_losses_add_up():
    assert pure_epsilon(((of_distribution(response(0.2)), 60),)) == pytest.approx(12)
    assert pure_epsilon(((Pair(0.1, 1.0), 1),)) == math.inf
