"""Groups of records, from the events: sound against brute force, tight against closed forms and
another library.
"""

import math

import numpy as np
import pytest
from dp_accounting.dp_event import MixtureOfGaussiansDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant
from scipy.stats import binom, norm

from dpfy.accounting import account
from dpfy.accounting.conversions import group_claim
from dpfy.accounting.group import group_epsilon
from dpfy.accounting.pld import closed_forms
from dpfy.errors import InvalidArgument, UnsupportedEvent
from dpfy.ledger.events import NonPrivate, Poisson, Repeated, Sampled, SumQuery

DELTA = 1e-5


def run(rate: float, noise: float, steps: int = 1) -> Repeated:
    return Repeated(Sampled(Poisson(rate), (SumQuery(1.0, noise),)), steps)


def one_step_deltas(rate: float, noise: float, size: int, epsilon: float) -> tuple[float, float]:
    """δ(ε) of removing and of adding the group, by a fine sum over the outputs of one step."""
    x = np.linspace(-12 * noise, size + 12 * noise, 400_001)
    absent = norm.pdf(x, 0, noise)
    present = sum(
        weight * norm.pdf(x, count, noise)
        for count, weight in enumerate(binom.pmf(range(size + 1), size, rate))
    )
    grown = math.exp(epsilon)
    return (
        float(np.trapezoid(np.maximum(present - grown * absent, 0), x)),
        float(np.trapezoid(np.maximum(absent - grown * present, 0), x)),
    )


@pytest.mark.parametrize(("rate", "noise", "size"), [(0.3, 1.0, 2), (0.05, 0.7, 5), (0.9, 3.0, 4)])
def test_one_step_is_the_mixture(rate, noise, size):
    epsilon = group_epsilon(run(rate, noise), size, 1e-3)
    worst = max(one_step_deltas(rate, noise, size, epsilon))
    assert worst <= 1e-3 * (1 + 1e-6)  # sound
    assert (
        max(one_step_deltas(rate, noise, size, 0.999 * epsilon)) > 1e-3
    )  # and tight to a thousandth


@pytest.mark.parametrize("size", [2, 7])
def test_full_batches_are_gaussian(size):
    truth = closed_forms.epsilon(size * math.sqrt(50) / 30, DELTA).upper
    assert truth <= group_epsilon(run(1.0, 30.0, 50), size, DELTA) < 1.001 * truth


def test_many_steps_agree_with_another_library():
    theirs = PLDAccountant(value_discretization_interval=2e-3)
    weights = tuple(binom.pmf(range(4), 3, 0.02))
    theirs.compose(SelfComposedDpEvent(MixtureOfGaussiansDpEvent(1.5, (0, 1, 2, 3), weights), 300))
    assert group_epsilon(run(0.02, 1.5, 300), 3, DELTA) == pytest.approx(
        theirs.get_epsilon(DELTA), rel=3e-3
    )


def test_different_steps_compose():
    together = group_epsilon([run(0.1, 2.0, 20), run(1.0, 20.0, 5), run(0.02, 1.0, 50)], 3, DELTA)
    parts = [
        group_epsilon(part, 3, DELTA)
        for part in (run(0.1, 2.0, 20), run(1.0, 20.0, 5), run(0.02, 1.0, 50))
    ]
    assert max(parts) < together < sum(parts)
    assert group_epsilon([run(0.1, 2.0, 8), run(0.1, 2.0, 12)], 3, DELTA) == group_epsilon(
        run(0.1, 2.0, 20), 3, DELTA
    )


def test_groups_cost_more_than_one_and_less_than_group_privacy_of_epsilon():
    guarantee = account(run(0.02, 1.0, 100))
    costs = [group_epsilon(run(0.02, 1.0, 100), size, DELTA) for size in (1, 2, 4, 8)]
    assert costs == sorted(costs) and costs[0] == guarantee.claim(DELTA)
    for size, cost in zip((2, 4, 8), costs[1:], strict=True):
        assert cost < 0.9 * group_claim(guarantee, size, DELTA)


@pytest.mark.parametrize("delta", [1e-8, 1e-12])
def test_small_deltas_keep_their_digits(delta):
    # Without the tilt, the error of the transform alone would exceed them.
    truth = closed_forms.epsilon(3 * math.sqrt(50) / 20, delta).upper
    assert truth <= group_epsilon(run(1.0, 20.0, 50), 3, delta) < 1.002 * truth


def test_where_no_lattice_serves_the_weaker_bound_is_used():
    steps = run(0.01, 0.01, 3)  # losses of tens of thousands
    assert group_epsilon(steps, 2, 1e-9) == group_claim(account(steps), 2, 1e-9)


def test_edges():
    assert group_epsilon(run(0.0, 1.0, 9), 3, DELTA) <= 1e-5
    assert group_epsilon(run(0.1, 0.0), 3, DELTA) == math.inf
    assert group_epsilon(NonPrivate("looked"), 3, DELTA) == math.inf
    with pytest.raises(InvalidArgument):
        group_epsilon(run(0.1, 1.0), 0, DELTA)
    with pytest.raises(UnsupportedEvent):
        group_epsilon(Sampled(Poisson(0.1), (SumQuery(1.0, 1.0),), adaptive=True), 2, DELTA)
