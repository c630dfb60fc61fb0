"""First settings: large rates, small bounds, C·α fixed, and whatever the user said."""

import re

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from dpfy import data as reference_data
from dpfy.models import recommended
from dpfy.planning import default_delta, first_run, interactive
from dpfy.planning.table import DELTAS
from dpfy.plans import dpsgd
from dpfy.trainer.builders import completed
from dpfy.trainer.config import TrainConfig
from dpfy.tuning import Space, TuneConfig
from dpfy.tuning.search import Objects, _Search


@pytest.mark.parametrize("records", [1, 7, 1000, 60_000, 10**6, 10**8, 10**9])
def test_first_settings_make_a_plan_for_any_number_of_records(records):
    first = first_run(records)
    plan = dpsgd(records=records, batch_size=first.batch_size, epochs=first.epochs, clip=first.clip)
    assert plan.steps >= 30
    assert 0 <= first.ema < 1 and first.momentum == 0.9


def test_rates_are_large_where_records_are_few_and_compute_is_limited_where_they_are_many():
    few, many = first_run(10_000), first_run(10**7)
    assert few.batch_size / 10_000 == pytest.approx(0.1)
    assert many.epochs == 1.0 and many.batch_size > 10_000


@pytest.mark.parametrize("clip", [0.01, 0.1, 1.0])
def test_the_product_of_bound_and_rate_stays(clip):
    assert first_run(10**6, clip=clip).learning_rate * clip == pytest.approx(0.5, rel=0.03)
    assert first_run(2000, clip=clip).learning_rate * clip == pytest.approx(0.028, rel=0.03)


def test_a_given_rate_sets_the_bound_within_reason():
    assert first_run(10**6, learning_rate=2.0).clip == pytest.approx(0.25)
    assert first_run(10**6, learning_rate=0.01).clip == 1.0


def test_steps_are_short_where_noise_is_large():
    # With the same bound: fewer records, a smaller ε, more parameters.
    usual = first_run(20_000).learning_rate
    assert first_run(10_000).learning_rate == pytest.approx(usual / 2, rel=0.05)
    assert first_run(20_000, epsilon=1.5).learning_rate == pytest.approx(usual / 2, rel=0.1)
    assert first_run(20_000, parameters=80_000).learning_rate == pytest.approx(usual / 2, rel=0.05)


@pytest.mark.parametrize(
    ("data", "records", "parameters"),
    [("digits", 1437, 4810), ("mnist", 60_000, 26_010), ("adult", 32_561, 6_900)],
)
def test_lengths_are_those_that_were_found_for_reference_data(data, records, parameters):
    known = recommended(data)
    first = first_run(
        records,
        epochs=known["epochs"],
        batch_size=known["batch_size"],
        clip=known["clip"],
        parameters=parameters,
    )
    assert known["lr"] / 2 <= first.learning_rate <= 2 * known["lr"]


def test_adam_does_not_care_for_the_product():
    assert (
        first_run(1000, optimizer="adam").learning_rate,
        first_run(1000, optimizer="adam").clip,
    ) == (1e-3, 0.1)


def test_the_average_spans_a_tenth_of_the_steps():
    assert first_run(60_000).ema == pytest.approx(1 - 1 / 30, abs=1e-3)
    assert first_run(60_000, epochs=50, batch_size=60_000).ema == 0.0  # too few to average


def test_what_the_user_said_stays_and_the_rest_is_filled_in():
    said = {
        "data": "own:load",
        "records": 5000,
        "clip": 0.5,
        "ema": 0.0,
        "momentum": 0.0,
        "epochs": 3.0,
    }
    config = completed(TrainConfig(**said))
    assert {name: getattr(config, name) for name in said} == said
    assert config.learning_rate == pytest.approx(0.14) and config.batch_size == 50
    assert completed(TrainConfig(data="own:load", records=5000)).ema > 0.9


def test_reference_data_keep_their_own_settings():
    config = completed(TrainConfig(data="mnist"))
    assert (config.epochs, config.batch_size, config.clip, config.learning_rate, config.ema) == (
        5,
        1024,
        0.1,
        4.0,
        0.0,
    )


@pytest.mark.parametrize("records", [1, 1000, 60_000, 99_999, 100_000, 100_001, 10**6, 10**9])
def test_a_delta_that_nobody_gave_is_below_one_in_the_declared_number(records):
    # A default of 1e-5 for all: at 100,000 records, publishing one of them would be within it.
    delta = default_delta(records)
    assert delta < 1 / records or (records == 1 and delta < 1)
    assert (delta == 1e-5) == (records < 100_000)
    assert completed(TrainConfig(data="own:load", records=records)).delta == delta
    assert completed(TrainConfig(records=records)).delta == delta  # own records given as objects
    stop = max(place for place, stop in enumerate(DELTAS) if stop <= delta)
    assert re.search(rf'id="delta" [^>]* value="{stop}"', interactive(records=records))


def test_a_delta_that_was_given_stays():
    for delta in (1e-3, 1e-7, "auto"):
        assert completed(TrainConfig(data="own:load", records=10**6, delta=delta)).delta == delta
    assert (
        completed(TrainConfig.from_mapping({"records": 10**6, "delta": 1e-5})).delta == 1e-5
    )  # as older runs saved
    page = interactive(records=10**6, delta=1e-8)
    assert re.search(rf'id="delta" [^>]* value="{DELTAS.index(1e-8)}"', page)


def test_reference_data_have_few_enough_records_for_the_usual_delta():
    # A larger one among them would need its number where nothing has been loaded yet; these have at
    # most 60,000.
    assert all(completed(TrainConfig(data=name)).delta == 1e-5 for name in reference_data.NAMES)
    assert set(reference_data.NAMES) == {
        "digits",
        "mnist",
        "fashion-mnist",
        "cifar-10",
        "imdb",
        "adult",
    }


def test_a_search_settles_the_delta_of_its_trials():
    # Left open, it would be no number where the budget of the search is declared.
    records = TensorDataset(torch.zeros(8, 4), torch.zeros(8, dtype=torch.int64))
    base = TrainConfig(
        data="own", records=10**6, batch_size=1000, epochs=1, clip=1.0, learning_rate=0.1
    )
    search = _Search(
        TuneConfig(base, Space.parse(["clip=0.5,1"]), epsilon=3.0),
        Objects(lambda: nn.Linear(4, 2), records, records, None),
        None,
    )
    assert search.budget.delta == search.base.delta == default_delta(10**6)
