"""Rényi curves against forty digits, and against each other."""

import itertools

import mpmath
import numpy as np
import pytest

from dpfy.accounting import account, rdp
from dpfy.accounting.dominating_pairs import Pair
from dpfy.ledger.events import Poisson, Repeated, Sampled, SumQuery


def exact(rate, noise, order):
    """log E r^α by integration with 40 digits."""
    with mpmath.workdps(40):
        q, z, a = mpmath.mpf(rate), mpmath.mpf(noise), mpmath.mpf(order)
        marks = sorted(
            {
                -20 * z,
                -5 * z,
                mpmath.mpf(0),
                mpmath.mpf(1) / 2 - z * z * mpmath.log(q),
                5 * z,
                a - 5 * z,
                a,
                a + 5 * z,
                a + 20 * z,
                2 + 20 * z,
            }
        )
        moment = mpmath.quad(
            lambda x: (
                mpmath.npdf(x, 0, z) * (1 - q + q * mpmath.exp((2 * x - 1) / (2 * z * z))) ** a
            ),
            marks,
        )
        return float(mpmath.log(moment))


@pytest.mark.parametrize(
    ("rate", "noise", "order"),
    [
        (0.01, 1.0, 1.05),
        (0.17, 4.65, 1.5),
        (0.001, 0.6, 2.5),
        (0.01, 0.1, 1.05),
        (0.3, 0.06, 1.3),
        (1e-4, 100.0, 3.7),
        (0.9, 10.0, 7.3),
        (1e-5, 1.0, 1.95),
        (0.5, 0.3, 3.9),
        (1e-9, 0.15, 1.4),
        (0.02, 2.0, 8.0),
        (1e-4, 100.0, 64.0),
    ],
)
def test_moments_have_all_their_digits(rate, noise, order):
    assert rdp.log_moment(rate, noise, order) == pytest.approx(exact(rate, noise, order), rel=1e-11)


@pytest.mark.parametrize(
    ("noise", "rate"), list(itertools.product([1e-3, 0.04, 1.0, 1e6], [1e-9, 0.01, 1 - 1e-12]))
)
def test_curves_are_finite_positive_and_grow_with_the_order(noise, rate):
    curve = rdp._total(((Pair(rate, noise), 1),), rdp._ORDERS)
    assert np.isfinite(curve).all() and (curve > 0).all()
    assert (np.diff(curve) >= -1e-11 * curve[1:]).all()


@pytest.mark.parametrize("delta", [1e-300, 1e-5, 0.5])
@pytest.mark.parametrize("noise", [1e-3, 0.04, 0.06, 1.0, 30.0, 1e6])
def test_cost_grows_with_the_rate_up_to_the_full_batch(noise, delta):
    """Interpolated orders would make a sampled step with little noise cost twice as much as the
    full batch.
    """
    rates = (1e-9, 1e-4, 0.01, 0.1, 0.5, 1 - 1e-9, 1.0)
    claims = [
        account(Repeated(Sampled(Poisson(rate), (SumQuery(1.0, noise),)), 100), "rdp").claim(delta)
        for rate in rates
    ]
    assert all(less <= more * (1 + 1e-9) for less, more in itertools.pairwise(claims)), claims


def test_large_orders_are_tried_where_they_are_best():
    """Tiny ε needs orders beyond the usual list: with 1024 as the largest this would be 0.0147."""
    run = Repeated(Sampled(Poisson(1.0), (SumQuery(1.0, 3000.0),)), 1)
    assert account(run, "rdp").claim(1e-5) < 0.0024
    assert account(run, "pld").claim(1e-5) < account(run, "rdp").claim(1e-5)


@pytest.mark.parametrize(
    ("rate", "noise", "steps", "delta"),
    [
        (0.01, 1.0, 1000, 1e-5),
        (0.2, 3.0, 50, 1e-8),
        (1e-3, 0.5, 10_000, 1e-6),
        (0.01, 0.3, 100, 1e-4),
        (0.5, 50.0, 10, 1e-3),
    ],
)
def test_privacy_loss_distributions_are_never_looser(rate, noise, steps, delta):
    run = Repeated(Sampled(Poisson(rate), (SumQuery(1.0, noise),)), steps)
    assert account(run, "pld").claim(delta) <= account(run, "rdp").claim(delta) * (1 + 1e-9)


def test_a_full_batch_needs_no_sum():
    assert rdp.renyi_divergence(Pair(1.0, 0.5), 3.0) == pytest.approx(6.0, rel=1e-11)
