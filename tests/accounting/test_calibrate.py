"""The claim at the calibrated noise is within the target, and not far below it."""

import math

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from dpfy.accounting import (
    account,
    calibrate_envelope,
    calibrate_noise,
    calibrate_rate,
    calibrate_steps,
)
from dpfy.errors import InvalidArgument
from dpfy.ledger.events import NonPrivate, Poisson, Repeated, Sampled, SumQuery

CASES = {
    "epsilon": st.floats(0.05, 20),
    "log_delta": st.floats(-10, -2),
    "log_rate": st.floats(-4, 0),
    "log_steps": st.floats(0, 3),
    "relation": st.sampled_from(["add_or_remove_one", "replace_one", "zero_out"]),
}


def check(epsilon, log_delta, log_rate, log_steps, relation):
    delta, rate, steps = 10**log_delta, 10**log_rate, int(10**log_steps)
    noise = calibrate_noise(epsilon=epsilon, delta=delta, rate=rate, steps=steps, relation=relation)
    events = Repeated(Sampled(Poisson(rate), (SumQuery(1.0, noise),)), steps)
    claim = account(events, relation=relation).epsilon(delta).upper
    assert claim <= epsilon
    assert claim > 0.999 * epsilon or noise == pytest.approx(1e-3)


@given(**CASES)
@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
def test_random_calibrations_stay_within_the_target(**case):
    check(**case)


@pytest.mark.slow
@given(**CASES)
@settings(max_examples=500, suppress_health_check=[HealthCheck.too_slow])
def test_many_random_calibrations_stay_within_the_target(**case):
    check(**case)


def test_rdp_needs_more_noise_than_pld():
    arguments = {"epsilon": 2.0, "delta": 1e-5, "rate": 0.05, "steps": 100}
    assert calibrate_noise(**arguments, method="rdp") > calibrate_noise(**arguments) * 1.01


def test_free_runs_need_no_noise_to_speak_of():
    assert calibrate_noise(epsilon=1.0, delta=1e-5, rate=0.0, steps=100) == pytest.approx(1e-3)
    assert calibrate_noise(epsilon=1.0, delta=1e-5, rate=0.5, steps=0) == pytest.approx(1e-3)


def test_an_envelope_of_several_kinds_of_steps():
    def envelope(noise):
        return (
            Repeated(
                Sampled(Poisson(0.1), (SumQuery(1.0, noise), SumQuery(0.5, noise, "count"))), 20
            ),
            Repeated(Sampled(Poisson(0.1), (SumQuery(1.0, 2 * noise),)), 20),
        )

    noise = calibrate_envelope(envelope, epsilon=2.0, delta=1e-5)
    assert 1.99 < account(envelope(noise)).claim(1e-5) <= 2.0


def test_numerical_delta_is_part_of_what_is_calibrated():
    def envelope(noise, lost=5e-8):
        return (
            Repeated(Sampled(Poisson(0.1), (SumQuery(1.0, noise),), numerical_delta=lost), 100),
        )

    noise = calibrate_envelope(envelope, epsilon=2.0, delta=1e-5)
    assert noise > calibrate_envelope(lambda z: envelope(z, 0.0), epsilon=2.0, delta=1e-5) * 1.005
    assert account(envelope(noise)).claim(1e-5) <= 2.0


@pytest.mark.parametrize(
    "arguments",
    [
        {"epsilon": 0.0},
        {"epsilon": math.inf},
        {"delta": 0.0},
        {"delta": 2.0},
        {"rate": 1.4},
        {"steps": -1},
        {"steps": 1.5},
        {"method": "gdp"},
        {"relation": "none"},
    ],
)
def test_arguments_outside_their_domain_are_refused(arguments):
    with pytest.raises(InvalidArgument, match=next(iter(arguments))):
        calibrate_noise(**{"epsilon": 1.0, "delta": 1e-5, "rate": 0.1, "steps": 10} | arguments)


def test_what_no_noise_can_reach_is_refused():
    with pytest.raises(InvalidArgument, match="No noise multiplier"):
        calibrate_envelope(lambda noise: (Repeated(NonPrivate("x"), 1),), epsilon=1.0, delta=1e-5)


def claim(rate, noise, steps):
    return account(Repeated(Sampled(Poisson(rate), (SumQuery(1.0, noise),)), steps)).claim(1e-5)


@pytest.mark.parametrize(
    ("noise", "steps", "epsilon"), [(1.0, 1000, 3.0), (0.6, 20, 1.0), (5.0, 10**5, 8.0)]
)
def test_the_largest_rate_is_within_the_target_and_a_little_more_is_not(noise, steps, epsilon):
    rate = calibrate_rate(epsilon=epsilon, delta=1e-5, noise_multiplier=noise, steps=steps)
    assert (
        0.9995 * epsilon < claim(rate, noise, steps) <= epsilon < claim(rate * 1.001, noise, steps)
    )


@pytest.mark.parametrize(
    ("noise", "rate", "epsilon"), [(1.0, 0.01, 3.0), (4.0, 0.5, 2.0), (0.9, 0.001, 0.5)]
)
def test_one_step_more_than_the_most_exceeds_the_target(noise, rate, epsilon):
    steps = calibrate_steps(epsilon=epsilon, delta=1e-5, noise_multiplier=noise, rate=rate)
    assert claim(rate, noise, steps) <= epsilon < claim(rate, noise, steps + max(1, steps // 2000))


def test_rates_and_steps_at_their_ends():
    assert calibrate_rate(epsilon=1.0, delta=1e-5, noise_multiplier=100.0, steps=10) == 1.0
    assert calibrate_steps(epsilon=1.0, delta=1e-5, noise_multiplier=1.0, rate=0.0) == 10**9
    assert calibrate_steps(epsilon=1.0, delta=1e-5, noise_multiplier=0.1, rate=1.0) == 0
    with pytest.raises(InvalidArgument, match="No rate"):
        calibrate_rate(epsilon=1e-3, delta=1e-9, noise_multiplier=0.0, steps=10**6)
