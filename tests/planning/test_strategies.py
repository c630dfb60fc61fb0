"""Procedures choose what their reasons say, on utilities whose optimum is known; private data is
refused.
"""

import math

import pytest

from dpfy.accounting import account
from dpfy.errors import InvalidArgument
from dpfy.planning import solve
from dpfy.planning.strategies import (
    STRATEGIES,
    SWEEP_CLIP,
    SWEEP_RATE,
    Trial,
    clip_and_rate_grid,
    clip_search,
    given_accuracy,
    given_compute,
    small_then_large,
    smallest_batch,
)

BASE = Trial(batch_size=64, steps=100, learning_rate=0.1)
RUN = {"records": 20_000, "epsilon": 3.0, "delta": 1e-5}


def utility(trial):
    """Gradients have norm 1: a clip below that shortens steps, one above adds noise only; best at
    step length 0.1.
    """
    length = trial.learning_rate * min(trial.clip or 1.0, 1.0)
    return 0.9 - 0.1 * abs(math.log10(length / 0.1)) - 20 * trial.noise_in_mean


class Recorder:
    def __init__(self):
        self.trials = []

    def __call__(self, trial):
        self.trials.append(trial)
        return utility(trial)


def test_clip_search_takes_the_smallest_bound_that_costs_little_and_adds_no_noise():
    seen = Recorder()
    chosen = clip_search(seen, BASE, data="proxy", bounds=(10.0, 0.01, 1.0, 0.7, 0.1))
    assert chosen.trial.clip == 0.7  # which costs 0.015
    assert all(trial.noise_multiplier == 0 for trial in seen.trials)
    assert {trial.clip for trial in seen.trials} == {None, 0.01, 0.1, 0.7, 1.0, 10.0}


def test_clip_search_says_so_where_every_bound_costs_much():
    steps = []
    assert (
        clip_search(
            utility, BASE, data="public", bounds=(0.001, 0.01), tell=steps.append
        ).trial.clip
        == 0.01
    )
    assert "None comes close" in steps[0].result


def test_the_grid_has_the_diagonal_of_figure_2():
    noisy = Trial(batch_size=64, steps=100, learning_rate=0.1, noise_multiplier=0.01)
    grid = clip_and_rate_grid(
        utility,
        noisy,
        data="public",
        clips=(0.01, 0.1, 1.0, 100.0),
        learning_rates=(0.1, 1.0, 10.0),
    )
    for clip, row in zip(grid.clips[:3], grid.utilities, strict=False):
        best = grid.learning_rates[row.index(max(row))]
        assert clip * best == pytest.approx(0.1)
    assert max(grid.utilities[3]) < max(
        grid.utilities[2]
    )  # beyond the gradients' norm noise alone grows
    assert grid.best == (0.01, 10.0)
    assert str(grid).count("\n") == 4


def test_given_compute_calibrates_before_it_sweeps_the_rate():
    seen, steps = Recorder(), []
    chosen = given_compute(
        seen, data="public", batch_size=1000, epochs=5, learning_rate=0.2, tell=steps.append, **RUN
    )
    assert [step.title for step in steps] == [step.title for step in STRATEGIES["compute"]]
    assert (
        chosen.trial.noise_multiplier
        == chosen.sketch.noise_multiplier
        == seen.trials[-1].noise_multiplier
        > 0
    )
    assert chosen.sketch.steps == chosen.trial.steps == 100 and chosen.sketch.epsilon <= 3.0
    assert chosen.trial.learning_rate * chosen.trial.clip == pytest.approx(0.1)


def test_the_small_batch_has_the_noise_of_the_large_one():
    seen, steps = Recorder(), []
    chosen = small_then_large(
        seen,
        data="public",
        batch_size=2000,
        small_batch=50,
        steps=60,
        learning_rate=0.1,
        tell=steps.append,
        **RUN,
    )
    assert [step.title for step in steps] == [step.title for step in STRATEGIES["small-batch"]]
    assert all(trial.batch_size == 50 for trial in seen.trials) and chosen.trial.batch_size == 2000
    assert seen.trials[-1].noise_in_mean == pytest.approx(chosen.trial.noise_in_mean)
    assert account(chosen.sketch.plan(clip=chosen.trial.clip)).claim(1e-5) <= 3.0


def test_given_accuracy_finds_the_smallest_batch_for_the_most_noise_that_is_good_enough():
    steps = []
    chosen = given_accuracy(
        utility,
        data="public",
        utility=0.8,
        small_batch=50,
        steps=60,
        learning_rate=0.1,
        noises=(0.05, 0.2, 1.0),
        tell=steps.append,
        **RUN,
    )
    assert [step.title for step in steps] == [step.title for step in STRATEGIES["accuracy"]]
    assert chosen.trial.noise_in_mean <= 0.2 * chosen.trial.clip / 50 * (1 + 1e-9)
    assert chosen.utility >= 0.8 and chosen.sketch.epsilon <= 3.0


def test_given_accuracy_says_when_no_noise_is_small_enough():
    with pytest.raises(InvalidArgument, match=r"0\.89"):
        given_accuracy(
            utility,
            data="public",
            utility=0.95,
            small_batch=50,
            steps=60,
            learning_rate=0.1,
            noises=(0.01, 1.0),
            **RUN,
        )


def test_no_smaller_batch_would_do():
    values = {"records": 5000, "epsilon": 2.0, "delta": 1e-5, "steps": 50}
    found = smallest_batch(noise_in_mean=0.005, clip=0.5, **values)
    assert found.noise_multiplier * 0.5 / found.batch_size == pytest.approx(0.005)
    less = found.batch_size - 1
    assert (
        solve(
            records=5000, batch_size=less, steps=50, delta=1e-5, noise_multiplier=0.01 * less
        ).epsilon
        > 2.0
    )


def test_a_noise_that_no_batch_reaches_is_an_error():
    with pytest.raises(InvalidArgument, match="Not even all 100"):
        smallest_batch(records=100, epsilon=1.0, delta=1e-5, steps=100, noise_in_mean=1e-4)


@pytest.mark.parametrize(
    "search",
    [
        lambda run: clip_search(run, BASE, data="private"),
        lambda run: clip_and_rate_grid(run, BASE, data="private"),
        lambda run: given_compute(
            run, data="private", batch_size=10, epochs=1, learning_rate=1.0, **RUN
        ),
        lambda run: small_then_large(
            run, data="private", batch_size=10, small_batch=5, steps=1, learning_rate=1.0, **RUN
        ),
        lambda run: given_accuracy(
            run, data="private", utility=0.5, small_batch=5, steps=1, learning_rate=1.0, **RUN
        ),
    ],
)
def test_private_data_is_refused_before_anything_is_trained(search):
    seen = Recorder()
    with pytest.raises(InvalidArgument, match="QuantileClip"):
        search(seen)
    assert not seen.trials


def test_steps_print_their_reason():
    assert (
        str(SWEEP_RATE).startswith("Sweep")
        and "\n  why: " in str(SWEEP_RATE)
        and "found" not in str(SWEEP_CLIP)
    )
