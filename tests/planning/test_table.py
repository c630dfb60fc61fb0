"""The table behind the page with sliders: the accountant calls every entry enough."""

import itertools
import random

import pytest

from dpfy.accounting import calibrate_noise
from dpfy.errors import InvalidArgument
from dpfy.planning import table
from dpfy.planning.table import DELTAS, EPOCHS, EPSILONS, RATES

NOISE = table.load()
SHAPE = tuple(map(len, (EPSILONS, DELTAS, RATES, EPOCHS)))
CORNERS = [(0, 0, 0, 0), (0, 3, 10, 10), (8, 0, 10, 10), (8, 3, 0, 0), (5, 3, 7, 7)]


def drawn(seed, count):
    generator = random.Random(seed)
    return [tuple(generator.randrange(size) for size in SHAPE) for _ in range(count)]


def claimed(place, noise):
    _, delta, rate, epochs = place
    return table.claimed(noise, RATES[rate], table.steps_at(rate, epochs), DELTAS[delta])


@pytest.mark.parametrize("place", CORNERS + drawn(seed=1, count=12))
def test_the_accountant_calls_an_entry_enough_and_little_less_not_enough(place):
    noise, epsilon = NOISE.at(*place), EPSILONS[place[0]]
    assert claimed(place, noise) <= epsilon < claimed(place, 0.98 * noise)


def test_there_is_an_entry_for_every_combination_of_stops():
    assert len(NOISE.noise) == SHAPE[0] * SHAPE[1] * SHAPE[2] * SHAPE[3]
    assert all(noise > 0 for noise in NOISE.noise)
    for stops in (EPSILONS, DELTAS, RATES, EPOCHS):
        assert list(stops) == sorted(set(stops))


def test_the_next_stop_on_the_safe_side_never_has_less_noise():
    """A smaller ε or δ, more epochs, or a larger rate for the same number of steps."""
    for e in range(SHAPE[0]):
        for d in range(SHAPE[1]):
            for q in range(SHAPE[2]):
                for j in range(SHAPE[3]):
                    here = NOISE.at(e, d, q, j)
                    safer = [
                        NOISE.at(*place)
                        for place in (
                            (e - 1, d, q, j),
                            (e, d - 1, q, j),
                            (e, d, q, j + 1),
                            (e, d, q + 1, j + 1),
                        )
                        if min(place) >= 0 and place[2] < SHAPE[2] and place[3] < SHAPE[3]
                    ]
                    assert all(noise >= here for noise in safer), (e, d, q, j)


def test_as_many_stops_up_in_rate_and_epochs_is_the_same_number_of_steps():
    for q in range(SHAPE[2] - 1):
        for j in range(SHAPE[3] - 1):
            if EPOCHS[j] / RATES[q] >= 1:
                assert table.steps_at(q, j) == table.steps_at(q + 1, j + 1)


@pytest.mark.parametrize("seed", range(8))
def test_between_stops_the_entry_on_the_safe_side_is_enough(seed):
    generator = random.Random(seed)
    epsilon, delta = generator.uniform(0.1, 20), 10 ** generator.uniform(-10, -3)
    rate = 10 ** generator.uniform(-3.3, -0.5)
    steps = generator.randrange(1, int(60 / rate))
    above = table.stop_above("rate", RATES, rate)
    noise = NOISE.at(
        table.stop_below("epsilon", EPSILONS, epsilon),
        table.stop_below("delta", DELTAS, delta),
        above,
        table.stop_above("epochs", EPOCHS, steps * RATES[above]),
    )
    assert table.claimed(noise, rate, steps, delta) <= epsilon


def test_the_search_finds_what_calibration_finds():
    case = {"epsilon": 3.0, "delta": 1e-5, "rate": 0.125, "steps": 512}
    least = calibrate_noise(**case)
    assert least * (1 - 1e-4) <= table.least_noise(*case.values(), near=20.0) <= 1.015 * least
    assert NOISE.at(5, 3, 7, 7) == pytest.approx(least, rel=0.015)


def test_a_table_of_few_stops_is_computed_like_the_whole_one(monkeypatch):
    few = {"EPSILONS": (1.0, 4.0), "DELTAS": (1e-5,), "RATES": (0.5, 1.0), "EPOCHS": (0.5, 1.0)}
    for name, stops in few.items():
        monkeypatch.setattr(table, name, stops)
    computed = table.compute()
    monkeypatch.undo()
    for e, q, j in itertools.product(range(2), range(2), range(2)):
        place = (EPSILONS.index(few["EPSILONS"][e]), 3, 9 + q, j)
        found = computed.noise[(e * 2 + q) * 2 + j]
        assert found == pytest.approx(NOISE.at(*place), rel=0.02)
        assert claimed(place, found) <= few["EPSILONS"][e]


def test_beyond_the_stops_on_the_safe_side_is_refused():
    for find, value in ((table.stop_below, 0.05), (table.stop_above, 17.0)):
        with pytest.raises(InvalidArgument, match="dpfy plan"):
            find("epsilon", EPSILONS, value)
    assert table.stop_below("epsilon", EPSILONS, 3.5) == 5
    assert table.stop_above("epsilon", EPSILONS, 3.5) == 6
