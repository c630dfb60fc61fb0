"""The figures' curves, by the accountant and by the laws that papers fitted."""

import math

import numpy as np
import pytest

from dpfy.accounting import account, calibrate_noise
from dpfy.errors import InvalidArgument
from dpfy.ledger.events import Poisson, Repeated, Sampled, SumQuery
from dpfy.planning import ScalingLaw, diminishing_batch, noise_over_batch, noise_over_rate

RATES = tuple(map(float, np.geomspace(1e-3, 1, 7)))


@pytest.fixture(scope="module")
def contour():
    return noise_over_rate(3.0, delta=1e-5, epochs=60, rates=RATES)


def test_the_root_law_of_the_paper(contour):
    # Tramèr & Boneh and Dörmann et al.: c ≈ 13 at ε = 3, δ = 1e-5, 60 epochs, over rates of Figure
    # 2.
    assert contour.root_law == pytest.approx(13, abs=0.25)
    assert list(contour.root_laws) == sorted(contour.root_laws, reverse=True)
    assert (contour.root_laws[0], contour.root_laws[-1]) == pytest.approx((21.6, 10.8), abs=0.1)


def test_a_contour_is_what_calibration_gives(contour):
    # A walk that began near the last answer must not end anywhere else, and not above the budget.
    for place in (0, 6):
        rate, steps = RATES[place], math.ceil(60 / RATES[place] - 1e-9)
        alone = calibrate_noise(epsilon=3.0, delta=1e-5, rate=rate, steps=steps)
        assert contour.noise[place] == pytest.approx(alone, rel=2e-4)
        run = Repeated(Sampled(Poisson(rate), (SumQuery(1.0, contour.noise[place]),)), steps)
        assert account(run).claim(1e-5) <= 3.0


def test_the_first_conversion_gave_the_thirteen_at_full_batches():
    # min over orders of T·α/(2σ²) + log(1/δ)/(α−1) is x²/2 + x√(2 log 1/δ) for x = √T/σ: c = 13.15
    # where PLD says 10.8.
    log = math.log(1e5)
    x = math.sqrt(2 * log + 2 * 3.0) - math.sqrt(2 * log)
    assert math.sqrt(60) / x == pytest.approx(13.15, abs=0.01)


def test_noise_in_the_mean_falls_as_one_over_the_batch_up_to_the_point_of_diminishing_returns():
    curve = noise_over_batch(
        1.0, delta=1e-8, records=10**7, steps=10_000, batch_sizes=(500.0, 1000.0, 5e6, 1e7)
    )
    first, second, third, last = curve.noise_in_mean
    assert curve.diminishing == 1e5
    assert first / second > 1.75  # a batch of twice the size has nearly half the noise
    assert third / last < 1.06  # and here hardly less
    assert first > second > third > last


def test_noise_in_the_mean_is_in_proportion_to_the_clip_bound():
    values = {"delta": 1e-5, "records": 1000, "steps": 50, "batch_sizes": (100.0, 200.0)}
    whole, half = noise_over_batch(3.0, **values), noise_over_batch(3.0, clip=0.5, **values)
    assert np.allclose(np.array(half.noise_in_mean) * 2, whole.noise_in_mean, rtol=1e-12)


def test_diminishing_returns_end_at_all_records():
    assert diminishing_batch(100, 8.0, 2) == 100


def test_the_scaling_law_describes_the_exact_curve_and_appendix_b_exceeds_it():
    counts = (30, 100, 300, 1000, 3000, 10_000)
    fitted, derived = ScalingLaw.fitted(0.01, 1.0, 1e-5, counts), ScalingLaw.appendix_b(0.01, 1e-5)
    step = Sampled(Poisson(0.01), (SumQuery(1.0, 1.0),))
    for count in (100, 1000, 10_000):
        exact = account(Repeated(step, count)).claim(1e-5)
        assert fitted.epsilon(0.01, 1.0, count) == pytest.approx(exact, rel=0.25)
        assert derived.epsilon(0.01, 1.0, count) > exact
    # In the first regime four times the steps cost twice as much, in the last four times.
    assert fitted.epsilon(0.01, 1.0, 4) / fitted.epsilon(0.01, 1.0, 1) == pytest.approx(2, rel=0.05)


@pytest.mark.parametrize("rates", [(0.1,), (0.2, 0.1), (0.0, 0.1), (0.5, 1.5)])
def test_rates_must_rise_within_their_range(rates):
    with pytest.raises(InvalidArgument, match="rates"):
        noise_over_rate(3.0, delta=1e-5, epochs=60, rates=rates)
