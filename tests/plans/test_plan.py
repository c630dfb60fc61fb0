"""Plans: public constants, validated, frozen, readable."""

import dataclasses
import json
import math
from fractions import Fraction
from itertools import pairwise

import pytest

import dpfy
from dpfy.accounting import DominatedBy, GaussianFilter, RenyiFilter


def test_steps_rate_and_divisor_follow_from_the_declared_constants():
    plan = dpfy.dpsgd(records=60_000, batch_size=256, epochs=10, clip=1.0)
    assert plan.steps == math.ceil(10 * 60_000 / 256) == 2344
    assert (plan.rate, plan.divisor, plan.clip, plan.records) == (256 / 60_000, 256, 1.0, 60_000)
    assert dpfy.dpsgd(records=1000, batch_size=100, epochs=3).steps == 30
    assert dpfy.dpsgd(records=60_000, batch_size=60, epochs=0.1).steps == 100
    assert dpfy.dpsgd(rate=0.1, records=50, epochs=3).steps == 30
    assert dpfy.dpsgd(rate=0.1, records=50, steps=3).divisor == pytest.approx(5)
    assert dpfy.dpsgd(rate=0.1, divisor=7, steps=3).divisor == 7


@pytest.mark.parametrize(
    "options",
    [
        {"clip": -1.0},
        {"clip": math.nan},
        {"clip": 0.0},
        {"clip": math.inf},
        {"noise_multiplier": -1.0},
        {"noise_multiplier": math.nan},
        {"records": 0},
        {"records": -5},
        {"records": 2.5},
        {"batch_size": 0},
        {"batch_size": 101},
        {"batch_size": math.nan},
        {"epochs": 0},
        {"epochs": -1},
        {"epochs": None},
        {"steps": 5},
        {"epochs": None, "steps": 0},
        {"epochs": None, "steps": 1.5},
        {"rate": 0.5},
        {"batch_size": None},
        {"batch_size": None, "rate": 1.4},
        {"batch_size": None, "rate": -0.1},
        {"batch_size": None, "rate": math.nan},
        {"records": None},
        {"records": None, "batch_size": None, "rate": 0.1},
        {"divisor": 0},
        {"divisor": math.inf},
        {"unit": "planet"},
        {"relation": "cousins"},
        {"clip": "1"},
        {"clip": True},
    ],
    ids=str,
)
def test_values_outside_their_domain_are_one_clear_error(options):
    with pytest.raises(dpfy.InvalidArgument) as caught:
        dpfy.dpsgd(**{"records": 100, "batch_size": 10, "epochs": 1, **options})
    assert len(str(caught.value)) > 20


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [
        (0, 1e-5),
        (-1, 1e-5),
        (math.nan, 1e-5),
        (math.inf, 1e-5),
        (1, 0),
        (1, 1),
        (1, -1e-5),
        (1, math.nan),
        (1, "soon"),
        ("1", 1e-5),
    ],
)
def test_targets_outside_their_domain_are_refused(epsilon, delta):
    with pytest.raises(dpfy.InvalidArgument):
        dpfy.dpsgd(records=100, batch_size=10, epochs=1).calibrate(epsilon=epsilon, delta=delta)


def test_calibration_reaches_the_target_and_never_exceeds_it():
    plan = dpfy.dpsgd(records=60_000, batch_size=256, epochs=10, clip=1.0).calibrate(
        epsilon=3.0, delta=1e-5
    )
    assert plan.budget == dpfy.Budget(3.0, 1e-5)
    assert 2.99 < dpfy.account(plan).epsilon(1e-5).upper <= 3.0


def test_automatic_delta_is_printed_and_needs_the_number_of_records(capsys):
    plan = dpfy.dpsgd(records=1000, batch_size=100, steps=5).calibrate(epsilon=5.0, delta="auto")
    assert plan.budget.delta == pytest.approx(1000**-1.1)
    assert f"{1000**-1.1:.4g}" in capsys.readouterr().out
    with pytest.raises(dpfy.InvalidArgument, match="records"):
        dpfy.dpsgd(rate=0.1, divisor=5, steps=5).calibrate(epsilon=5.0, delta="auto")


def test_a_plan_is_frozen_and_survives_json():
    plan = dpfy.dpsgd(records=1000, batch_size=100, steps=5).calibrate(epsilon=5.0, delta=1e-3)
    assert dpfy.Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.steps = 6
    with pytest.raises(dpfy.InvalidArgument):
        dpfy.Plan.from_json({**plan.to_json(), "typo": 1})
    with pytest.raises(dpfy.InvalidArgument):
        dpfy.Plan.from_json({**plan.to_json(), "query": {"type": "poisson", "rate": 0.1}})


def test_an_uncalibrated_plan_has_no_event():
    with pytest.raises(dpfy.InvalidArgument, match="calibrate"):
        _ = dpfy.dpsgd(records=1000, batch_size=100, steps=5).event


@pytest.mark.parametrize(
    "make",
    [
        lambda plan: GaussianFilter(1.0),
        lambda plan: DominatedBy(plan.envelope),
        lambda plan: RenyiFilter.tuned(2.0, 1e-5, to=plan.envelope),
    ],
    ids=["gaussian", "dominated", "renyi"],
)
def test_a_filter_takes_the_place_of_the_budget_and_survives_json(make):
    plan = dpfy.dpsgd(records=1000, batch_size=100, steps=5).calibrate(epsilon=5.0, delta=1e-3)
    filtered = plan.under(make(plan))
    assert filtered.budget is None and filtered.noise_multiplier == plan.noise_multiplier
    assert dpfy.Plan.from_json(json.loads(json.dumps(filtered.to_json()))) == filtered
    assert "filter" not in plan.to_json()
    with pytest.raises(dpfy.InvalidArgument, match="not both"):
        filtered.calibrate(epsilon=5.0, delta=1e-3)


def test_what_is_no_filter_is_refused():
    with pytest.raises(dpfy.InvalidArgument, match="Filter"):
        dpfy.dpsgd(records=1000, batch_size=100, steps=5).under("renyi")


@pytest.mark.parametrize(
    ("records", "batch_size", "epochs"),
    [(4000, 64, 2), (1437, 512, 20), (60_000, 256, 10), (100, 100, 3), (7, 3, 1), (10**6, 7, 3)],
)
@pytest.mark.parametrize("make", [dpfy.dpsgd, dpfy.dpis])
def test_a_plan_has_the_epochs_that_were_asked_for(make, records, batch_size, epochs):
    if make is dpfy.dpis and 4 * batch_size > records:
        pytest.skip("importance samples are small")
    plan = make(records=records, batch_size=batch_size, epochs=epochs, noise_multiplier=1.0)
    assert plan.steps == math.ceil(Fraction(epochs * records, batch_size))
    assert plan.epochs == epochs
    ends = [0, *map(plan.last_step_of, range(1, epochs + 1))]
    lengths = [end - start for start, end in pairwise(ends)]
    assert sum(lengths) == plan.steps and max(lengths) - min(lengths) <= 1
    for epoch, end in enumerate(ends[1:], 1):
        assert plan.epoch_of(end) == epoch and plan.epoch_of(end + 1) == epoch + 1


def test_a_part_of_an_epoch_is_an_epoch_and_a_step_too_many_is_none():
    plan = dpfy.dpsgd(records=100, batch_size=10, epochs=2.5, noise_multiplier=1.0)
    assert plan.epochs == 3 and plan.last_step_of(3) == 25
    assert dpfy.dpsgd(rate=0.5, divisor=1, steps=7, noise_multiplier=1.0).epochs == 4
    assert dpfy.dpsgd(rate=0.0, divisor=1, steps=7, noise_multiplier=1.0).epochs == 1


@pytest.mark.parametrize("sampling", ["shuffled", "cyclic", "balls_in_bins"])
def test_passes_over_the_data_are_whole_where_every_record_comes_once(sampling):
    # 57 steps would be 19 passes of three batches
    plan = dpfy.dpsgd(
        records=1437,
        batch_size=512,
        epochs=20,
        sampling=sampling,
        relation="zero_out",
        noise_multiplier=1.0,
    )
    assert (plan.steps, plan.epochs, plan.last_step_of(7)) == (60, 20, 21)
    assert sum(run.times for run in plan.envelope) == 20
