"""Correlated noise beside DP-SGD: the table of what it is worth, and which choice is taken."""

import pytest

from dpfy.accounting import account
from dpfy.errors import InvalidArgument
from dpfy.ledger.events import Cyclic, Repeated
from dpfy.ledger.streams import Row, Stream
from dpfy.mechanisms.strategies import banded
from dpfy.mechanisms.workloads import Workload, rmse
from dpfy.planning.correlated import NoiseChoice, NoiseComparison, compare_correlated

# 250 steps in 25 epochs: DP-SGD with Poisson samples, DP-SGD in a fixed order, bands of an epoch,
# two buffers, and the best bands with cyclic Poisson samples.
ROWS = {4.0: (21.5, 60.6, 22.5, 23.9, 21.0, 2), 8.0: (13.6, 33.6, 12.5, 13.3, 12.3, 4)}


@pytest.mark.parametrize("epsilon", ROWS)
def test_what_correlated_noise_is_worth(epsilon):
    told = []
    found = compare_correlated(
        records=50_000,
        batch_size=5_000,
        epochs=25,
        epsilon=epsilon,
        delta=1e-5,
        buffers=2,
        progress=lambda done, total: told.append((done, total)),
    )
    *expected, bands = ROWS[epsilon]
    errors = {(each.method, each.sampling, each.size): each.rmse for each in found.choices}
    drawn = min(
        (each for each in found.choices if each.sampling == "cyclic_poisson"),
        key=lambda each: each.rmse,
    )
    assert drawn.size == bands
    for place, (value, error) in enumerate(
        zip(
            expected,
            (
                errors["dpsgd", "poisson", 0],
                errors["dpsgd", "cyclic", 0],
                errors["banded", "cyclic", 10],
                errors["blt", "cyclic", 2],
                drawn.rmse,
            ),
            strict=True,
        )
    ):
        assert error == pytest.approx(value, abs=0.051), place
    assert found.steps == 250 and told[0] == (0, len(told) - 1) and told[-1][0] == told[-1][1]
    assert found.best(drawn=False) == next(
        each for each in found.choices if (each.sampling, each.size) == ("cyclic", 10)
    )


def test_a_choice_is_within_the_budget_and_its_error_follows_from_its_noise():
    found = compare_correlated(
        records=120, batch_size=25, epochs=3, epsilon=2.0, delta=1e-4, momentum=0.9, buffers=1
    )
    choice = next(each for each in found.choices if (each.sampling, each.size) == ("cyclic", 5))
    workload = Workload(15, momentum=0.9)
    strategy = banded(workload, 5, 3, 5)
    row = Row(Stream(strategy, 15, choice.noise_multiplier, 3, 5), Cyclic(25, 120))
    assert 2.0 * (1 - 2e-4) <= account(Repeated(row, 15), relation="zero_out").claim(1e-4) <= 2.0
    assert choice.rmse == pytest.approx(choice.noise_multiplier * rmse(strategy, workload))
    assert choice.memory == 8 + 4 * 4


def test_of_choices_that_are_as_good_the_smaller_one_is_taken():
    def choice(size, error):
        return NoiseChoice("banded", "cyclic", size, 1.0, error, 4 * size)

    comparison = NoiseComparison(10, (choice(2, 2.0), choice(4, 1.005), choice(8, 1.0)))
    assert comparison.best(drawn=False).size == 4


@pytest.mark.parametrize("epochs", [0.1, 1])
def test_one_step_and_one_epoch(epochs):
    found = compare_correlated(
        records=10, batch_size=1, epochs=epochs, epsilon=1.0, delta=1e-3, relation="replace_one"
    )
    assert found.steps == round(10 * epochs)
    assert all(each.rmse > 0 for each in found.choices)


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch_size": 11},
        {"records": 0},
        {"epochs": 0.0},
        {"epsilon": 0.0},
        {"delta": 1.0},
        {"relation": "add_or_remove_one"},
        {"objective": "median"},
    ],
)
def test_bad_values_are_refused(wrong):
    right = {"records": 10, "batch_size": 2, "epochs": 1, "epsilon": 1.0, "delta": 1e-3}
    with pytest.raises(InvalidArgument):
        compare_correlated(**right | wrong)
