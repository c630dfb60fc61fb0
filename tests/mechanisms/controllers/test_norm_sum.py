"""What follows from released sums of norms: ratios, clip bounds and noise, whatever the noise in
the sums did.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy import stats

import dpfy
from dpfy.accounting import DominatedBy, GaussianFilter, RenyiFilter, account
from dpfy.accounting.filters import as_fixed
from dpfy.errors import BudgetExhausted, InvalidArgument, UnsupportedEvent
from dpfy.ledger.events import Importance, Poisson, Repeated, Sampled, SumQuery
from dpfy.mechanisms.controllers import NormSumSampling, Schedule, StepConfig
from dpfy.mechanisms.controllers.norm_sum import WIDEST_CLIP, size_of
from dpfy.mechanisms.importance_bounds import JITTER, LARGEST_RATE, LEAST_NOISE, followed
from dpfy.plans.dpis import noise_of_epoch, steps_to_come
from dpfy.testing import check_controller

N, BATCH, LENGTH, EPOCHS = 2000, 100, 20, 5
ORDER = 6.0
RULE = RenyiFilter(3.0, 1e-4, (ORDER,))


def planned(**options):
    return dpfy.dpis(
        **{
            "records": N,
            "batch_size": BATCH,
            "epochs": EPOCHS,
            "norm_sum": "released",
            "noise_multiplier": 1.0,
            **options,
        }
    ).under(RULE)


def after(plan, step, norms, size=N):
    """The state once a sum of norms was released, up to the noise of the epoch."""
    ratio, rate = followed(BATCH, norms, size)
    return {
        **plan.controllers[0].start(plan.query, {}),
        "since": step,
        "ratio": ratio,
        "rate": rate,
        "size": size,
    }


def test_it_conforms():
    check_controller(
        NormSumSampling(Schedule("ratio", (0.5, 0.4), 20), length=20, stddev=40.0, clip_factor=1.5)
    )


@given(st.floats(-1e30, 1e30), st.floats(1.0, 1e6), st.floats(1e-3, 1e6))
def test_no_released_sum_makes_a_record_certain_or_a_contribution_larger_than_it_must_be(
    norms, size, batch
):
    """The lower clamp wins where they cross: with the upper one a rate would be above 1."""
    ratio, rate = followed(batch, norms, size)
    least = batch / (size * LARGEST_RATE)
    assert 0 < rate <= LARGEST_RATE
    assert ratio == pytest.approx(least if least > 1 else min(max(norms / size, least), 1.0))
    assert rate * ratio * size <= batch * (1 + 1e-12)
    assert rate == LARGEST_RATE or rate * ratio * size == pytest.approx(batch)


@pytest.mark.parametrize("mean", [-1e30, -1.0, 0.0, 1e-9, 0.1, 0.25, 1.0, 1e30, math.inf, math.nan])
def test_clip_bounds_and_sizes_stay_positive(mean):
    norms = NormSumSampling(Schedule("ratio", (0.5,), 20), length=20, stddev=40.0, clip_factor=0.5)
    clip = norms.clip_of(2.0, mean)
    assert 2.0 / 32 <= clip <= 2.0 * WIDEST_CLIP
    assert (
        mean != 0.25 or clip == 0.5 * 0.25 * 8.0
    )  # λ times the mean, of norms in units of four planned bounds
    assert N / 8 <= size_of(N, mean * N) <= 8 * N


def test_noise_is_planned_over_the_clip_bound_and_applied_over_contributions():
    """At half the expected ratio, noise over contributions is twice as large, and over the clip
    bound the same.
    """
    plan = planned(ratio=lambda epoch: 0.8 / (1 + epoch))
    state = {**after(plan, 21, 0.2 * N), "noise": 1.5, "clip": 3.0}
    setting = plan.controllers[0].configure(state, 21, StepConfig(plan.query))
    assert setting.query.bound == pytest.approx(0.2 * 3.0)
    assert plan.noise_at(21) * setting.noise * setting.query.bound == pytest.approx(1.0 * 1.5 * 3.0)
    assert (setting.draw.rate, setting.draw.clip) == (pytest.approx(BATCH / (0.2 * N)), 3.0)


def test_a_smaller_sum_is_not_dominated_by_the_largest_though_it_costs_less_at_every_order():
    """Why no list of worst cases accounts the steps: tests that accept many false alarms gain from
    a larger rate.
    """
    largest, smaller = (
        Sampled(Poisson(0.05 / ratio), (SumQuery(1.0, 0.8 / ratio),)) for ratio in (1.0, 0.4)
    )
    assert account(smaller).delta(0.0).lower > 1.01 * account(largest).delta(0.0).upper
    for order in (1.5, 2.0, 6.0, 20.0):
        costs = [RenyiFilter(50.0, 1e-3, (order,)).guard() for _ in range(2)]
        for guard, event in zip(costs, (largest, smaller), strict=True):
            guard.record(event, 1)
        assert costs[1].used < costs[0].used


def test_a_list_of_steps_is_refused_and_so_is_pld():
    plan = planned()
    with pytest.raises(InvalidArgument, match="Declare a filter"):
        replace(plan, filter=None).guard()
    fixed = tuple(Repeated(as_fixed(run.event), run.times) for run in plan.envelope)
    with pytest.raises(InvalidArgument, match="not dominated"):
        plan.under(DominatedBy(fixed))
    with pytest.raises(UnsupportedEvent, match="only a filter"):
        account(plan.envelope, "pld")
    with pytest.raises(InvalidArgument, match="importance sampling"):
        dpfy.dpsgd(records=N, batch_size=BATCH, epochs=1, controllers=plan.controllers)
    with pytest.raises(InvalidArgument, match="whole epoch"):
        planned(noise_schedule="dynamic:0.99")
    with pytest.raises(BudgetExhausted):
        planned(norm_noise=0.001).guard()  # its sums of norms alone would cost more than there is


def test_the_plan_has_all_that_is_released():
    plan = planned(clip_factor=1.0, size_noise=0.05, norm_noise=0.1)
    assert dpfy.Plan.from_json(plan.to_json()) == plan
    size, norms, steps = plan.envelope
    assert (size.event.queries, size.times) == ((SumQuery(1.0, 100.0, "number of records"),), 1)
    assert [query.stddev for query in norms.event.queries] == [
        200.0,
        200.0,
    ] and norms.times == EPOCHS
    assert size.event.policy == norms.event.policy == Poisson(1.0)  # no amplification
    assert (steps.event.policy, steps.times) == (Importance(0.1, JITTER), EPOCHS * LENGTH)


# What is left is spent, and no more


def divergence(rate, noise, order=int(ORDER)):
    """Of a Poisson-sampled Gaussian at a whole order, written out: Mironov, Talwar & Zhang 2019,
    section 3.3.
    """
    terms = [
        math.comb(order, k)
        * (1 - rate) ** (order - k)
        * rate**k
        * math.exp(k * (k - 1) / (2 * noise**2))
        for k in range(order + 1)
    ]
    return math.log(math.fsum(terms)) / (order - 1)


def cost(rate, noise):
    return divergence(rate, noise) + ORDER / 2 * JITTER**2


def test_the_noise_of_an_epoch_spends_what_is_left_by_a_composition_that_is_written_out():
    """Cautious epochs leave room for ratios of 1; sums of norms to come are paid for beforehand."""
    plan, spent = planned(cautious=0.6), 0.3
    past = (Repeated(Sampled(Poisson(1.0), (SumQuery(1.0, math.sqrt(ORDER / 2 / spent)),)), 1),)
    left = RULE.limits[0] - spent
    for step, later in ((21, 1.0), (61, 0.25)):
        noise = noise_of_epoch(plan, after(plan, step, 0.25 * N), N, past)
        epochs = (101 - step) // 20
        total = (
            20 * cost(0.2, 4 * noise)
            + 20 * (epochs - 1) * cost(0.05 / later, noise / later)
            + (epochs - 1) * ORDER / (2 * (0.02 * N) ** 2)
        )
        assert left * (1 - 1e-3) < total <= left


@pytest.mark.parametrize("key", range(3))
def test_whatever_is_released_the_steps_fit_and_the_filter_is_never_exceeded(key):
    """Sums of norms that jump; after the cautious part noise rises if they do, and every step is
    still admitted.
    """
    generator, plan = np.random.default_rng(key), planned(cautious=0.6, noise_schedule="step:0.8:2")
    guard, spent, noises, state = RULE.guard(), [], [], None
    for step in range(1, plan.steps + 1):
        if state is None or plan.controllers[0].due(state, step):
            guard.admit(plan.controllers[0].event, 1)
            spent.append(Repeated(plan.controllers[0].event, 1))
            guard.record(plan.controllers[0].event, 1)
            state = after(plan, step, generator.uniform(-0.1, 1.2) * N)
            state["noise"] = noise_of_epoch(plan, state, N, tuple(spent))
            noises.append(state["noise"])
        draw = plan.controllers[0].configure(state, step, StepConfig(plan.query))
        event = plan.event_at(step, draw.noise, draw.draw.rate)
        guard.admit(event, 1)
        guard.record(event, 1)
        spent.append(Repeated(event, 1))
    assert 0.99 < guard.used <= 1.0
    assert (
        noises[2] <= noises[1] * (1 + 1e-4) <= noises[0] * (1 + 2e-4)
    )  # what was saved is spent later


def test_where_nothing_is_left_the_filter_refuses():
    plan = planned()
    everything = (Repeated(Sampled(Poisson(1.0), (SumQuery(1.0, 1.0),)), 1000),)
    state = {**after(plan, 21, N), "noise": 1.25}
    assert noise_of_epoch(plan, state, N, everything) == 1.25
    guard = RULE.guard()
    guard.record(everything[0].event, 1000)
    with pytest.raises(BudgetExhausted):
        guard.admit(steps_to_come(plan, state, N, 1.25)[1].event, 1)


def test_noise_that_would_not_hide_last_bits_is_not_chosen():
    plan = planned().under(RenyiFilter(1e6, 1e-4, (ORDER,)))
    noise = noise_of_epoch(plan, after(plan, 100, 0.25 * N), N, ())
    assert plan.noise_at(100) * plan.controllers[0].factor(noise, 100, 0.25) == pytest.approx(
        LEAST_NOISE
    )


def test_steps_to_come_are_those_of_the_plan():
    """A resumed epoch begins anywhere; schedules of epochs go on as they were planned."""
    plan = planned(noise_schedule="step:0.5:1", cautious=0.0)
    runs = steps_to_come(plan, after(plan, 53, 0.5 * N), N, 1.0)
    assert [(run.times, run.event.queries[0].stddev) for run in runs[1:] if run.times] == [
        (8, 2 * 0.25),
        (12, 2 * 0.125),
        (8, 2 * 0.125),
        (20, 2 * 0.0625),
    ]
    assert runs[0].times == 2 and all(run.event.policy.rate == 0.1 for run in runs[1:])


@pytest.mark.parametrize("present", [0.2, 0.9])
def test_a_sum_of_norms_and_the_step_that_follows_it_stay_within_the_filter(present):
    """By quadrature: the worse Rényi divergence of both releases together, the step chosen by the
    first, is at most what the filter charges on some path. With half the noise in the sum it would
    be more.
    """
    size, batch, stddev, noise, order = 20.0, 2.0, 2.0, 0.7, int(ORDER)
    sums = np.linspace(present * size - 12 * stddev, present * size + 1 + 12 * stddev, 400)
    outputs = np.linspace(-9.0, 10.0, 1200)
    absent, there = (
        stats.norm.pdf(sums, present * size, stddev),
        stats.norm.pdf(sums, present * size + 1, stddev),
    )
    both, worst = np.zeros(2), 0.0
    for p, q, total in zip(there, absent, sums, strict=True):
        ratio, rate = followed(batch, total, size)
        none = stats.norm.pdf(outputs, 0, noise)
        one = (1 - rate) * none + rate * stats.norm.pdf(outputs, ratio, noise)
        moments = [
            np.trapezoid(a**order * b ** (1 - order), outputs)
            for a, b in ((one, none), (none, one))
        ]
        both += [p**order * q ** (1 - order) * moments[0], q**order * p ** (1 - order) * moments[1]]
        worst = max(worst, divergence(rate, noise / ratio))
    found = np.log(both * (sums[1] - sums[0])).max() / (order - 1)
    allowed = ORDER / (2 * stddev**2) + worst
    assert found <= allowed + 1e-6
    assert found > ORDER / (2 * stddev**2)  # the step is felt


def test_gaussian_filters_account_the_steps_without_amplification():
    plan = planned().under(GaussianFilter(mu=2.0))
    noise = noise_of_epoch(plan, after(plan, 81, 0.5 * N), N, ())
    left = 4.0 - 20 * JITTER**2
    assert 20 / (2 * noise) ** 2 == pytest.approx(left, rel=1e-3)
