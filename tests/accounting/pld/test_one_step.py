"""Laplace noise by privacy loss distributions."""

import math

import numpy as np
import pytest

from dpfy.accounting import account
from dpfy.errors import UnsupportedEvent
from dpfy.ledger.events import Event, LaplaceSum, Poisson, Repeated, Sampled, SumQuery


def run(rate, scale, steps, bound=1.0):
    return Repeated(Sampled(Poisson(rate), (LaplaceSum(bound, scale),)), steps)


def test_ten_full_batches_have_the_published_cost():
    lower, upper = account(run(1.0, 2.0, 10)).epsilon(
        1e-5
    )  # another implementation, exact on a lattice: 4.989962
    assert lower <= 4.989962 <= upper <= 4.9921


def test_one_step_is_the_closed_form_and_never_more_than_pure():
    assert account(run(1.0, 2.0, 1)).epsilon(1e-12).upper == pytest.approx(0.5, rel=1e-6)
    epsilon = 0.2  # δ of two Laplace distributions a distance 1/b apart: 1 − e^{(ε − 1/b)/2}
    assert account(run(1.0, 2.0, 1)).delta(epsilon).upper == pytest.approx(
        -math.expm1((epsilon - 0.5) / 2), rel=1e-8
    )


def test_two_sampled_steps_agree_with_integration():
    rate, scale, epsilon = 0.3, 0.8, 0.4
    x = np.linspace(-25, 26, 3_061)
    q = np.exp(-np.abs(x) / scale) / (2 * scale) * (x[1] - x[0])
    p = (1 - rate) * q + rate * np.exp(-np.abs(x - 1) / scale) / (2 * scale) * (x[1] - x[0])
    truth = np.maximum(
        np.multiply.outer(p, p) - math.exp(epsilon) * np.multiply.outer(q, q), 0
    ).sum()
    lower, upper = account(run(rate, scale, 2)).delta(epsilon)
    assert lower - 2e-4 <= truth <= upper + 2e-4
    assert upper <= 1.001 * lower


def test_bounds_scale_with_the_noise_and_survive_json():
    assert account(run(0.1, 4.0, 50, bound=2.0)).claim(1e-6) == pytest.approx(
        account(run(0.1, 2.0, 50)).claim(1e-6)
    )
    event = Sampled(Poisson(0.5), (LaplaceSum(1, 2),))
    assert Event.from_json(event.to_json()) == event
    assert account(run(0.5, 0.0, 3)).claim(1e-6) == math.inf
    assert account(run(0.5, 1.0, 3, bound=0.0)).claim(1e-6) == 0


@pytest.mark.parametrize(
    ("queries", "method", "relation"),
    [
        ((LaplaceSum(1.0, 1.0), SumQuery(1.0, 1.0)), "pld", "add_or_remove_one"),
        ((LaplaceSum(1.0, 1.0), LaplaceSum(1.0, 1.0)), "rdp", "replace_one"),
    ],
)
def test_what_has_no_rule_is_refused(queries, method, relation):
    with pytest.raises(UnsupportedEvent, match="laplace"):
        account(Sampled(Poisson(0.1), queries), method, relation)
