"""Balls in bins: the law of an epoch against integration, simulation and what is known of it."""

import itertools
import math

import numpy as np
import pytest
from mpmath import mp, mpf, ncdf
from scipy.integrate import quad
from scipy.special import ndtr

from dpfy.accounting import GaussianFilter, ZcdpFilter, account
from dpfy.accounting.dominating_pairs import Pair
from dpfy.accounting.rules_for.balls_in_bins import BallsInBinsLoss, _epoch, _points, epoch
from dpfy.ledger.events import BallsInBins, Poisson, Repeated, Sampled, SumQuery

ZERO = "zero_out"
DELTA = 1e-5


def run(bins, noise, epochs=1, relation=ZERO):
    return account(
        Repeated(Sampled(BallsInBins(bins, 10**6), (SumQuery(1.0, noise),)), epochs),
        relation=relation,
    )


def normal(x, mean, noise):
    return np.exp(-((x - mean) ** 2) / (2 * noise**2)) / (noise * math.sqrt(2 * math.pi))


def epoch_delta(values, other, noise, epsilon):
    """δ(ε) of one epoch of two batches: every record draws its batch; by integration, in the worse
    direction.

    The sum over a grid errs by about 1e-5 of it, where the integrand has a kink.
    """
    x = np.arange(-3 - 8 * noise, 3 + 8 * noise, 0.05)

    def density(records):
        total = 0
        for places in itertools.product((0, 1), repeat=len(records)):
            sums = [
                sum(value for value, place in zip(records, places, strict=True) if place == batch)
                for batch in (0, 1)
            ]
            total = total + np.multiply.outer(normal(x, sums[0], noise), normal(x, sums[1], noise))
        return total / 2 ** len(records) * 0.05**2

    p, q = density(values), density((other, *values[1:]))
    return max(
        float(np.maximum(one - math.exp(epsilon) * two, 0).sum()) for one, two in ((p, q), (q, p))
    )


@pytest.mark.parametrize("epsilon", [0.0, 0.4, 1.5])
def test_two_batches_are_what_integration_says(epsilon):
    noise = 1.1
    told = run(2, noise).delta(epsilon)
    alone = epoch_delta((1,), 0, noise, epsilon)
    assert told.lower <= alone <= told.upper * (1 + 5e-5) and told.upper <= alone * (1 + 1e-3)
    for others in itertools.product((-1, 0, 1), repeat=2):
        assert epoch_delta((1, *others), 0, noise, epsilon) <= told.upper + 1e-6


@pytest.mark.parametrize("epsilon", [0.0, 0.8, 2.0])
def test_two_batches_of_a_record_that_is_replaced(epsilon):
    """Two opposed records, alone and among others: fails if the second step of a replacement is not
    charged e^ε₁.
    """
    noise = 1.1
    told = run(2, noise, relation="replace_one").delta(epsilon)
    for others in ((), *itertools.product((-1, 0, 1), repeat=1)):
        truth = epoch_delta((1, *others), -1, noise, epsilon)
        assert truth <= told.upper + 1e-6
    assert told.upper <= 2.5 * epoch_delta((1,), -1, noise, epsilon)


@pytest.mark.parametrize(
    ("bins", "noise", "epochs"), [(10, 1.0, 1), (40, 0.7, 1), (10, 1.5, 3), (15, 0.5, 1)]
)
def test_simulation_agrees_in_both_directions(bins, noise, epochs):
    """Losses of simulated epochs add up; five standard errors and a half leave a false alarm of
    4e-8.
    """
    draws, rng = 60_000, np.random.default_rng(3)
    ratio = np.ones(draws)
    for _ in range(epochs):
        x = rng.standard_normal((draws, bins)) * noise
        ratio *= np.exp((2 * x - 1) / (2 * noise**2)).mean(axis=1)
    for epsilon in (0.0, 0.3):
        there, back = (
            np.maximum(ratio - math.exp(epsilon), 0),
            np.maximum(1 - math.exp(epsilon) * ratio, 0),
        )
        means = [part.mean() for part in (there, back)]
        slack = 5.5 * max(part.std() for part in (there, back)) / math.sqrt(draws)
        upper = run(bins, noise, epochs).delta(epsilon).upper
        assert max(means) - slack <= upper <= max(means) * 1.005 + slack


def test_hidden_batches_are_worth_as_much_as_poisson_samples():
    for bins, noise, epochs in ((100, 1.0, 10), (1000, 0.8, 1)):
        claim = run(bins, noise, epochs).claim(DELTA)
        poisson = account(
            Repeated(Sampled(Poisson(1 / bins), (SumQuery(1.0, noise),)), bins * epochs)
        ).claim(DELTA)
        assert 0.8 * poisson < claim < poisson
        assert claim < run(bins, noise, epochs, "replace_one").claim(DELTA) < 4 * claim


@pytest.mark.parametrize(
    ("bins", "noise", "delta"), [(100, 0.4, 1e-5), (100, 1.0, 1e-12), (30, 1.0, 1e-30)]
)
def test_little_noise_and_tiny_deltas_are_rewarded_too(bins, noise, delta):
    """Far less than one Gaussian sum, and no less than what one batch in which the record stands
    out tells: an output x_t of any batch t is a sampled Gaussian sum of rate 1/b.
    """
    claim = run(bins, noise).claim(delta)
    whole, one = (
        account(Sampled(Poisson(rate), (SumQuery(1.0, noise),))) for rate in (1.0, 1 / bins)
    )
    assert one.epsilon(delta).lower < claim < 0.75 * whole.claim(delta)
    poisson = account(Repeated(Sampled(Poisson(1 / bins), (SumQuery(1.0, noise),)), bins)).claim(
        delta
    )
    assert 0.7 * poisson < claim < 1.05 * poisson


def test_more_batches_and_more_noise_never_cost_more():
    claims = [run(bins, 1.0, 4).claim(DELTA) for bins in (1, 2, 5, 50)]
    assert claims == sorted(claims, reverse=True)
    claims = [run(20, noise, 4).claim(DELTA) for noise in (0.04, 0.06, 0.6, 2.0)]
    assert claims == sorted(claims, reverse=True)


def test_no_claim_exceeds_that_of_known_batches():
    known = account(Repeated(Sampled(Poisson(1.0), (SumQuery(1.0, 1.0),)), 3))
    opposed = account(Repeated(Sampled(Poisson(1.0), (SumQuery(1.0, 0.5),)), 3))
    for delta in (1e-3, 1e-8, 1e-16):
        assert run(10, 1.0, 3).claim(delta) <= known.claim(delta) * (1 + 1e-9)
        assert run(10, 1.0, 3, "replace_one").claim(delta) <= opposed.claim(delta) * (1 + 1e-9)
    assert run(2, 0.06, relation="replace_one").note(DELTA) == "as if batches were known"
    assert 0 < run(10, 1.0, 3).epsilon(DELTA).lower < run(10, 1.0, 3).epsilon(DELTA).upper


def test_what_floats_cannot_hold_is_one_gaussian_sum():
    assert epoch(10, 0.04) == Pair(1.0, 0.04) and epoch(1, 2.0) == Pair(1.0, 2.0)
    assert epoch(1, 2.0, "opposed") == Pair(1.0, 2.0, "opposed") and epoch(9, 1e7) == Pair(1.0, 1e7)
    assert epoch(10, math.inf) == Pair(1.0, math.inf) and epoch(10, 0.0) == Pair(1.0, 0.0)


def test_two_batches_are_never_below_a_finer_integral():
    noise, epsilon = 1.1, 1.5
    tau, level = 1 / noise, 2 * math.exp(epsilon)

    def excess(g):  # of the mean of two lognormal numbers over e^ε, given the first
        rest = level - math.exp(tau * g - tau**2 / 2)
        if rest <= 0:
            return (1 - rest) / 2
        place = math.log(rest) / tau
        return (ndtr(tau / 2 - place) - rest * ndtr(-place - tau / 2)) / 2

    kink = (math.log(level) + tau**2 / 2) / tau
    parts = [
        quad(lambda g: normal(g, 0, 1) * excess(g), *span, epsabs=1e-15, epsrel=1e-13, limit=300)[0]
        for span in ((-12, kink), (kink, 14))
    ]
    assert sum(parts) <= run(2, noise).delta(epsilon).upper <= sum(parts) * (1 + 1e-3)


def test_masses_of_an_epoch_sum_to_one():
    for bins, noise in ((3, 0.8), (200, 1.0)):
        p, q, gain = BallsInBinsLoss(bins, noise).masses(np.array([-0.1, 0.0, 0.2]))
        assert p.sum() == pytest.approx(1, abs=1e-8) and q.sum() == pytest.approx(1, abs=1e-8)
        assert min(p.sum(), q.sum()) > 1
        assert gain == pytest.approx(p - q, abs=1e-12)


def test_filters_that_reward_no_sampling_charge_one_gaussian_sum():
    step = Sampled(BallsInBins(10, 1000), (SumQuery(1.0, 2.0),))
    for rule, part in ((GaussianFilter(mu=1.0), 0.25), (ZcdpFilter(rho=1.0), 0.125)):
        guard = rule.guard(ZERO)
        guard.record(step, 1)
        assert guard.used == pytest.approx(part, rel=1e-9)


@pytest.mark.parametrize("noise", [1.0, 1e5])
def test_rounding_is_outward_where_numbers_differ_from_one_in_their_last_digits(noise):
    """One number moved to the same points in 40 digits: fails if the means that floats lose near 1
    are not charged.
    """
    with mp.workdps(40):
        tau, points = 1 / mpf(noise), [mpf(point) for point in _points(1, 1 / noise).tolist()]
        places = [mp.log(point) / tau if point else -mp.inf for point in points]
        inside, moment = (
            [ncdf(right - side) - ncdf(left - side) for left, right in itertools.pairwise(places)]
            for side in (-tau / 2, tau / 2)
        )
        mass = [mpf(0)] * (len(points) - 1) + [ncdf(-places[-1] - tau / 2)]
        for cell, (left, right) in enumerate(itertools.pairwise(points)):
            share = (moment[cell] - left * inside[cell]) / (right - left)
            mass[cell], mass[cell + 1] = mass[cell] + inside[cell] - share, mass[cell + 1] + share
        table = _epoch(1, noise)
        found = [(mp.exp(loss), mpf(p)) for loss, p in zip(table.loss, table.mass, strict=True)]
        for at in points[100:-40:25]:
            ahead = sum(
                part * (point - at) for part, point in zip(mass, points, strict=True) if point > at
            )
            behind = sum(
                part * (at - point) for part, point in zip(mass, points, strict=True) if point < at
            )
            assert ahead < 1e-25 or ahead <= sum(
                p * (1 - at / ratio) for ratio, p in found if ratio > at
            )
            assert behind < 1e-25 or behind <= table.missing * at + sum(
                p * (at / ratio - 1) for ratio, p in found if ratio < at
            )
