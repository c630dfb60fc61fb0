"""Plans of DP-FTRL: what they declare, what they choose, and what they refuse before any record."""

import json
import math
from dataclasses import replace

import pytest

import dpfy
from dpfy.accounting import GaussianFilter, account
from dpfy.errors import InvalidArgument
from dpfy.ledger.events import Cyclic, CyclicPoisson, Poisson, Shuffled
from dpfy.ledger.streams import Buffered, Columns, Row, SampledStream, Stream, Toeplitz, Tree
from dpfy.mechanisms.workloads import Workload, rmse
from dpfy.plans import Plan, dpftrl, dpsgd
from dpfy.plans.correlation import row_of


def small(**options):
    return dpftrl(**{"records": 100, "batch_size": 10, "epochs": 3, **options})


@pytest.mark.parametrize(
    "options, kind, sampling",
    [
        ({}, Buffered, Cyclic(10, 100)),
        ({"strategy": "banded", "bands": 3}, Toeplitz, Cyclic(10, 100)),
        ({"strategy": "tree"}, Tree, Cyclic(10, 100)),
        ({"strategy": "square_root", "bands": 3}, Toeplitz, Cyclic(10, 100)),
        ({"strategy": "independent"}, Toeplitz, Cyclic(10, 100)),
        ({"strategy": Toeplitz((2.0, 1.0))}, Toeplitz, Cyclic(10, 100)),
        ({"sampling": "one_epoch", "epochs": 1}, Buffered, Cyclic(10, 100)),
        ({"sampling": "cyclic_poisson", "bands": 5}, Toeplitz, CyclicPoisson(0.5, 5, 100)),
        (
            {"sampling": "cyclic_poisson", "strategy": "independent"},
            Toeplitz,
            CyclicPoisson(0.1, 1, 100),
        ),
    ],
)
def test_defaults_and_round_trips(options, kind, sampling):
    plan = small(**options)
    assert isinstance(plan.correlation, kind) and plan.sampling == sampling
    assert plan.relation == "zero_out" and plan.divisor == 10
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


def test_a_strategy_of_ones_own_gets_a_unit_diagonal():
    assert small(strategy=Toeplitz((2.0, 1.0))).correlation == Toeplitz((1.0, 0.5))


@pytest.mark.parametrize(
    "records, batch_size, epochs, steps, often, apart",
    [
        (100, 10, 3, 30, 3, 10),
        (101, 10, 3, 33, 3, 11),
        (100, 10, 2.5, 25, 3, 10),
        (10, 10, 4, 4, 4, 1),
    ],
)
def test_events_are_rows_of_the_stream_that_the_order_gives(
    records, batch_size, epochs, steps, often, apart
):
    plan = small(records=records, batch_size=batch_size, epochs=epochs, noise_multiplier=2.0)
    (run,) = plan.envelope
    assert run.times == plan.steps == steps and isinstance(run.event, Row)
    stream = run.event.stream
    assert (stream.participations, stream.separation) == (often, apart)
    assert stream.noise_multiplier == 2.0 and stream.steps == steps
    assert all(plan.event_at(step) == run.event for step in (1, steps))


def test_cyclic_poisson_is_a_sampled_stream():
    stream = small(sampling="cyclic_poisson", bands=4, noise_multiplier=1.0).event.stream
    assert isinstance(stream, SampledStream)
    assert (stream.rate, stream.round, stream.band) == (0.4, 4, 4)


def test_calibration_reaches_the_target_and_no_more():
    plan = small().calibrate(epsilon=2.0, delta=1e-5)
    cost = account(plan.envelope, relation=plan.relation).epsilon(1e-5)
    assert 1.99 < cost.upper <= 2.0
    stream = Stream(plan.correlation, 30, plan.noise_multiplier, 3, 10)
    assert cost.upper == pytest.approx(
        account(stream, relation=plan.relation).epsilon(1e-5).upper, rel=1e-6
    )


def test_calibration_takes_the_bands_with_the_least_error():
    """At every target the choice is the minimum of single calibrations; targets differ in it."""
    open_plan = dpftrl(records=640, batch_size=40, epochs=4, sampling="cyclic_poisson")
    assert [each.sampling.parts for each in open_plan.alternatives] == [1, 2, 4, 8, 16]
    assert open_plan.sampling == CyclicPoisson(1 / 16, 1, 640)
    chosen = []
    for epsilon in (0.5, 8.0):
        tried = {
            parts: dpftrl(
                records=640, batch_size=40, epochs=4, sampling="cyclic_poisson", bands=parts
            ).calibrate(epsilon, 1e-5)
            for parts in (1, 4, 16)
        }
        errors = {
            parts: rmse(each.correlation, Workload(64)) * each.noise_multiplier
            for parts, each in tried.items()
        }
        found = open_plan.calibrate(epsilon, 1e-5)
        assert found.alternatives == () and found.budget.epsilon == epsilon
        error = rmse(found.correlation, Workload(64)) * found.noise_multiplier
        assert error <= min(errors.values()) * (1 + 1e-9)
        chosen.append(found.sampling.parts)
    assert chosen[0] < chosen[1]


@pytest.mark.parametrize(
    "options, expected",
    [
        ({"strategy": "independent"}, 60.6),
        ({"buffers": 2}, 23.9),
        ({"strategy": "banded", "bands": 10}, 22.5),
        ({"sampling": "cyclic_poisson"}, 21.0),
    ],
)
def test_errors_of_weights_are_those_of_the_table(options, expected):
    """Prefix sums of 250 steps in 25 epochs at epsilon 4 and delta 1e-5, in clip bounds."""
    plan = dpftrl(records=50_000, batch_size=5000, epochs=25, **options).calibrate(4.0, 1e-5)
    error = rmse(plan.correlation, Workload(250)) * plan.noise_multiplier
    assert error == pytest.approx(expected, abs=0.06)


def test_long_trees_can_be_planned():
    """Their error is written out as a matrix, which nobody asked for."""
    assert small(strategy="tree", epochs=500).steps == 5000


def test_learning_rates_momentum_and_decay_change_the_strategy():
    plain = small(strategy="banded", bands=4).correlation
    for options in (
        {"momentum": 0.9},
        {"weight_decay": 0.1},
        {"learning_rates": [1.0] * 10 + [0.1] * 20},
        {"objective": "last"},
    ):
        assert small(strategy="banded", bands=4, **options).correlation != plain


REFUSED = [
    ({"records": None}, "records"),
    ({"batch_size": 101}, "batch_size"),
    ({"batch_size": 2.5}, "batch_size"),
    ({"epochs": None}, "exactly one"),
    ({"steps": 30}, "exactly one"),
    ({"sampling": "poisson"}, "sampling"),
    ({"sampling": "one_epoch"}, "no record comes twice"),
    ({"sampling": "cyclic_poisson", "bands": 11}, "would come twice within a band"),
    ({"sampling": "cyclic_poisson", "strategy": "blt"}, "band"),
    ({"sampling": "cyclic_poisson", "strategy": "tree"}, "band"),
    ({"sampling": "cyclic_poisson", "strategy": Toeplitz((1.0,) * 3), "bands": 2}, "parts"),
    ({"strategy": "banded", "bands": 31}, "at most 30"),
    ({"strategy": "banded", "bands": 0}, "bands"),
    ({"strategy": "dense"}, "strategy"),
    ({"strategy": Toeplitz((0.0, 1.0))}, "positive diagonal"),
    ({"strategy": Toeplitz((-1.0,))}, "positive diagonal"),
    ({"strategy": Columns(((1.0,),) * 30)}, "do not run"),
    ({"relation": "add_or_remove_one"}, "add_or_remove_one"),
    ({"relation": "replace_one", "unit": "user"}, "users in cyclic order"),
    ({"relation": "replace_one", "sampling": "cyclic_poisson", "bands": 2}, "has no proof"),
    ({"strategy": "tree", "bands": 4}, "'tree' has no bands"),
    ({"statistics": [dpfy.Statistic("x", bound=1.0, every=2)]}, "every=1"),
    ({"momentum": 1.0}, "momentum"),
    ({"learning_rates": [0.1]}, "learning rate"),
    ({"objective": "median"}, "objective"),
    ({"noise_multiplier": -1.0}, "noise_multiplier"),
    ({"buffers": 9}, "buffers"),
]


@pytest.mark.parametrize("options, message", REFUSED)
def test_what_is_refused(options, message):
    with pytest.raises(InvalidArgument, match=message):
        small(**options)


def slotted(plan, **options):
    return replace(plan.query, **options)


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda plan: {"controllers": (dpfy.QuantileClipping(),)}, "controllers"),
        (lambda plan: {"controllers": (dpfy.AdaClip(),)}, "controllers"),
        (
            lambda plan: {
                "noise_schedule": dpsgd(
                    records=100, batch_size=10, epochs=3, noise_schedule="exponential:0.1"
                ).noise_schedule
            },
            "schedule of the noise",
        ),
        (lambda plan: {"query": slotted(plan, slots=5)}, "microbatches"),
        (lambda plan: {"query": slotted(plan, least_sample=5.0)}, "least_sample"),
        (lambda plan: {"filter": GaussianFilter(mu=1.0)}, "filter"),
        (lambda plan: {"records": None}, "records="),
        (lambda plan: {"sampling": Poisson(0.1)}, "lie apart"),
        (lambda plan: {"sampling": Shuffled(10, 100)}, "lie apart"),
        (lambda plan: {"correlation": None, "sampling": CyclicPoisson(0.1, 1, 100)}, "dpftrl"),
        (lambda plan: {"correlation": Toeplitz((2.0,))}, "diagonal of 1"),
    ],
)
def test_what_does_not_go_with_correlated_noise(change, message):
    plan = small(noise_multiplier=1.0)
    with pytest.raises(InvalidArgument, match=message):
        replace(plan, **change(plan))


def test_a_row_declares_what_its_policy_gives():
    row = row_of(Cyclic(10, 100), Toeplitz((1.0,)), 25, 1.0)
    assert (row.stream.participations, row.stream.separation) == (3, 10)
    assert math.isclose(row.stream.noise_multiplier, 1.0)
