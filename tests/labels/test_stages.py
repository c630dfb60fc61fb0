"""Stages share nothing but released labels, and each label is answered in one of them."""

import itertools
import math

import pytest
import torch
from exact_draws import largest_ratio, law_of

from dpfy import Ledger, account
from dpfy.errors import BudgetExhausted, InvalidArgument
from dpfy.labels import multi_stage, release as release_module, staged_labels
from dpfy.labels.response import RULES
from dpfy.labels.stages import _places


def follower(x, noisy):
    """A model that believes in what it has seen most: the worst prior for secrets in a stage."""
    shares = torch.bincount(noisy.labels, minlength=3).double() + 0.05
    return lambda x: shares.expand(len(x), 3)


def flat(x, noisy):
    return lambda x: torch.ones(len(x), 3)


def drawn(y, epsilon, stages, train_one=follower, rule="information"):
    with Ledger.in_memory() as ledger:
        x = torch.zeros(len(y), 1)
        found = staged_labels(train_one, x, y, 3, epsilon, stages, ledger, rule=rule)
    return tuple(found.labels.tolist())


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_two_stages_cost_one_epsilon_for_each_label(monkeypatch, epsilon, rule):
    """The whole law of three answers, the second of which follows the other two."""
    laws = {
        y: law_of(lambda y=y: drawn(y, epsilon, 2, rule=rule), monkeypatch)
        for y in [(0, 0, 0), (1, 0, 0), (2, 0, 0), (0, 1, 0), (0, 2, 0), (0, 0, 1)]
    }
    base = laws.pop((0, 0, 0))
    ratios = [math.log(largest_ratio(base, law)) for law in laws.values()]
    assert max(ratios) <= epsilon and max(ratios) > epsilon * (1 - 1e-9)


def test_a_prior_sees_released_labels_of_earlier_stages_only():
    seen = []

    def watched(x, noisy):
        seen.append((x.flatten().tolist(), noisy.labels.tolist()))
        return lambda features: (
            seen.append(features.flatten().tolist()) or torch.ones(len(features), 3)
        )

    x, y = torch.arange(7.0)[:, None], [0, 1, 2, 0, 1, 2, 0]
    with Ledger.in_memory() as ledger:
        labels = staged_labels(watched, x, y, 3, 0.4, 3, ledger).labels
    (first, told), asked, (second, told_too), asked_too = seen
    assert (first, asked) == ([0, 3, 6], [1, 4])
    assert (second, asked_too) == ([0, 1, 3, 4, 6], [2, 5])
    assert told == labels[[0, 3, 6]].tolist() and told_too == labels[[0, 1, 3, 4, 6]].tolist()


@pytest.mark.parametrize(("records", "stages"), list(itertools.product([0, 1, 2, 10], [1, 2, 3])))
def test_each_record_is_in_one_stage_by_its_place(records, stages):
    places = [_places(records, stages, stage) for stage in range(stages)]
    together = torch.cat([here for here, _ in places])
    assert sorted(together.tolist()) == list(range(records))
    for stage, (here, before) in enumerate(places):
        assert set(before.tolist()) == {i for i in range(records) if i % stages < stage}
        assert not set(here.tolist()) & set(before.tolist())


@pytest.mark.parametrize("stages", [1, 2, 5])
def test_stages_in_parallel_cost_as_much_as_one(stages, tmp_path):
    path = tmp_path / "labels.dpl"
    staged_labels(flat, torch.zeros(9, 1), [1] * 9, 3, 1.5, stages, path)
    assert 1.5 * (1 - 1e-6) < account(path).claim(1e-9) <= 1.5 * (1 + 1e-9)
    assert Ledger.read(path).count == 1


def test_a_run_goes_on_after_the_stage_that_was_saved(tmp_path):
    path, read = tmp_path / "labels.dpl", []

    class Watched(list):
        def __getitem__(self, place):
            read.append(place)
            return super().__getitem__(place)

    def broken(x, noisy):
        raise KeyboardInterrupt

    x, y = torch.zeros(40, 1), Watched([1] * 40)
    with pytest.raises(KeyboardInterrupt):
        staged_labels(broken, x, y, 3, 1.0, 2, path)
    assert read == list(range(0, 40, 2))  # of the first stage
    noisy = staged_labels(flat, x, y, 3, 1.0, 2, path)
    assert read == [*range(0, 40, 2), *range(1, 40, 2)]  # every label once
    again = staged_labels(broken, x, y, 3, 1.0, 2, path)  # trains nothing
    assert torch.equal(again.labels, noisy.labels)
    assert torch.equal(again.likelihood, noisy.likelihood)
    assert len(read) == 40 and Ledger.read(path).count == 1


def test_a_stage_that_was_drawn_and_lost_is_not_drawn_again(tmp_path, monkeypatch):
    path, x = tmp_path / "labels.dpl", torch.zeros(4, 1)
    saved, write = [], release_module.write_state

    def second_fails(file, state):
        saved.append(file)
        if len(saved) == 2:
            raise KeyboardInterrupt
        write(file, state)

    with monkeypatch.context() as broken:
        broken.setattr(release_module, "write_state", second_fails)
        with pytest.raises(KeyboardInterrupt):
            staged_labels(flat, x, [1] * 4, 3, 1.0, 2, path)
    with pytest.raises(BudgetExhausted, match="begin a new ledger"):
        staged_labels(flat, x, [1] * 4, 3, 1.0, 2, path)


def test_a_bad_predictor_is_refused_before_its_stage_is_spent(tmp_path):
    path, x = tmp_path / "labels.dpl", torch.zeros(4, 1)
    with pytest.raises(InvalidArgument, match=r"priors of shape \(2, 3\)"):
        staged_labels(lambda x, y: lambda x: torch.ones(len(x), 2), x, [1] * 4, 3, 1.0, 2, path)
    assert len(staged_labels(flat, x, [1] * 4, 3, 1.0, 2, path)) == 4


def test_the_last_model_is_trained_on_all_noisy_labels(tmp_path):
    found = multi_stage(
        lambda x, noisy: (len(x), noisy),
        torch.zeros(6, 1),
        [1] * 6,
        3,
        1.0,
        1,
        tmp_path / "a.dpl",
    )
    assert found.model[0] == 6 and found.model[1] is found.noisy


@pytest.mark.parametrize("count", [0, 1])
def test_stages_without_records_are_empty(count):
    assert len(drawn([2] * count, 1.0, 3, flat)) == count


def test_features_and_labels_of_other_lengths_are_refused(tmp_path):
    with pytest.raises(InvalidArgument, match="got 3 and 4"):
        staged_labels(flat, torch.zeros(3, 1), [0] * 4, 3, 1.0, 2, tmp_path / "labels.dpl")
    assert not (tmp_path / "labels.dpl").exists()
