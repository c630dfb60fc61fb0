"""A label has a say in one draw: whoever calls, how often, and whatever crashes in between."""

import math
import os

import pytest
import torch

import dpfy
from dpfy import Ledger, Relation, Unit, account
from dpfy.errors import BudgetExhausted, CheckpointError, LedgerLocked, LedgerMismatch
from dpfy.labels import Alibi, by_clusters, randomized_response, release as release_module
from dpfy.labels.release import Declared, LabelRelease
from dpfy.ledger import Header
from dpfy.ledger.events import LaplaceSum
from dpfy.mechanisms.one_shot.base import once


class Unread:
    """Labels that nobody may read."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, place):
        raise AssertionError("a private label was read")


METHODS = {
    "rr": lambda y, ledger: randomized_response(y, 10, 1.0, ledger),
    "alibi": lambda y, ledger: Alibi(10, 1.0).release(y, ledger).values,
    "cluster": lambda y, ledger: (
        by_clusters(torch.arange(len(y)), y, 10, 1.0, ledger, clusters=3).labels
    ),
}


@pytest.mark.parametrize("method", METHODS)
def test_a_second_call_returns_the_first_draw_and_reads_nothing(method, tmp_path):
    draw, path = METHODS[method], tmp_path / "labels.dpl"
    first = draw([3] * 50, path)
    size = path.stat().st_size
    assert torch.equal(draw(Unread(50), path), first)
    assert path.stat().st_size == size and Ledger.read(path).count == 1
    other = draw([3] * 50, tmp_path / "other.dpl")
    assert not torch.equal(other, first)  # 50 equal draws have a chance below 1e-15


@pytest.mark.parametrize("method", METHODS)
def test_a_ledger_in_memory_pays_for_one_draw(method):
    with Ledger.in_memory() as ledger:
        METHODS[method]([1, 2], ledger)
        with pytest.raises(BudgetExhausted, match="lives in memory"):
            METHODS[method](Unread(2), ledger)
        assert ledger.count == 1


@pytest.mark.parametrize("method", METHODS)
def test_the_header_says_whose_privacy_it_is(method, tmp_path):
    METHODS[method]([1, 2], tmp_path / "labels.dpl")
    header = Ledger.read(tmp_path / "labels.dpl").header
    assert (header.unit, header.relation) == (Unit.LABEL, Relation.REPLACE_ONE)
    claim = account(tmp_path / "labels.dpl").claim(1e-9)
    assert 1 - 1e-6 < claim <= 1 + 1e-9


def test_the_event_is_durable_before_a_label_is_read(tmp_path):
    path, seen = tmp_path / "labels.dpl", []

    class Watched(list):
        def __getitem__(self, place):
            ledger = Ledger.read(path)
            seen.append((ledger.count, any("labels_begun" in each for each in ledger.basis)))
            return super().__getitem__(place)

    randomized_response(Watched([1, 2]), 3, 1.0, path)
    assert seen == [(1, True)] * 2


@pytest.mark.parametrize("method", METHODS)
def test_what_a_crash_lost_before_it_was_saved_is_not_drawn_again(method, tmp_path, monkeypatch):
    path = tmp_path / "labels.dpl"
    with monkeypatch.context() as broken:
        broken.setattr(release_module, "write_state", _crash)
        with pytest.raises(KeyboardInterrupt):
            METHODS[method]([1, 2], path)
    with pytest.raises(BudgetExhausted, match="has paid for these noisy labels") as refused:
        METHODS[method](Unread(2), path)
    assert Ledger.read(path).count == 1 and "[" not in str(refused.value)


def test_a_crash_before_labels_were_read_costs_nothing_more(tmp_path, monkeypatch):
    path = tmp_path / "labels.dpl"
    with monkeypatch.context() as broken:
        broken.setattr(Ledger, "record_basis", _crash)
        with pytest.raises(KeyboardInterrupt):
            randomized_response(Unread(3), 3, 1.0, path)
    assert Ledger.read(path).count == 1
    assert len(randomized_response([1, 2, 0], 3, 1.0, path)) == 3
    assert Ledger.read(path).count == 1


def test_a_removed_file_is_not_drawn_again(tmp_path):
    path = tmp_path / "labels.dpl"
    randomized_response([1, 2], 3, 1.0, path)
    (tmp_path / "labels.dpl.labels0").unlink()
    with pytest.raises(BudgetExhausted, match="Restore the file"):
        randomized_response(Unread(2), 3, 1.0, path)


def test_a_file_of_another_ledger_is_refused(tmp_path):
    one, other = tmp_path / "one.dpl", tmp_path / "other.dpl"
    for path in (one, other):
        randomized_response([1, 2], 3, 1.0, path)
    os.replace(tmp_path / "one.dpl.labels0", tmp_path / "other.dpl.labels0")
    with pytest.raises(LedgerMismatch, match="has not paid for"):
        randomized_response(Unread(2), 3, 1.0, other)


def test_a_damaged_file_is_refused_and_not_replaced(tmp_path):
    path, file = tmp_path / "labels.dpl", tmp_path / "labels.dpl.labels0"
    randomized_response([1, 2], 3, 1.0, path)
    file.write_bytes(b"damaged")
    with pytest.raises(CheckpointError):
        randomized_response(Unread(2), 3, 1.0, path)
    assert file.read_bytes() == b"damaged"


@pytest.mark.parametrize(
    "again",
    [
        lambda path: randomized_response(Unread(2), 3, 2.0, path),
        lambda path: randomized_response(Unread(2), 4, 1.0, path),
        lambda path: randomized_response(Unread(3), 3, 1.0, path),
        lambda path: Alibi(3, 1.0).release(Unread(2), path),
    ],
)
def test_one_ledger_holds_one_release(again, tmp_path):
    path = tmp_path / "labels.dpl"
    randomized_response([1, 2], 3, 1.0, path)
    with pytest.raises(LedgerMismatch, match="Labels are drawn once"):
        again(path)
    assert Ledger.read(path).count == 1


def test_a_ledger_of_a_training_run_takes_no_labels(tmp_path):
    path = tmp_path / "run.dpl"
    Ledger.open(path, header=Header(plan={"steps": 3})).close()
    with pytest.raises(LedgerMismatch, match="another unit"):
        randomized_response(Unread(10), 2, 1.0, path)


def test_two_workers_do_not_draw_the_same_labels(tmp_path):
    path = tmp_path / "labels.dpl"
    with Ledger.open(path), pytest.raises(LedgerLocked):
        randomized_response(Unread(2), 3, 1.0, path)


def test_a_test_key_is_recorded_and_is_not_private(tmp_path):
    path = tmp_path / "labels.dpl"
    first = randomized_response([1] * 20, 3, 1.0, path, insecure_test_key=5)
    again = randomized_response([1] * 20, 3, 1.0, tmp_path / "b.dpl", insecure_test_key=5)
    assert torch.equal(first, again) and not account(path).private
    with pytest.raises(LedgerMismatch, match="key_source"):
        randomized_response(Unread(20), 3, 1.0, path)


def test_an_event_that_costs_more_than_was_declared_is_refused(tmp_path):
    """Under replace-one a bound of 2 counts twice: the event of one-hot labels has the bound 1."""
    twice = Declared("wrong", 3, 1.0, 2, once(LaplaceSum(2.0, 2.0)))
    with pytest.raises(BudgetExhausted, match="at most the declared"):
        LabelRelease(twice, tmp_path / "labels.dpl")
    right = Declared("right", 3, 1.0, 2, once(LaplaceSum(1.0, 2.0)))
    with LabelRelease(right, tmp_path / "right.dpl") as release:
        assert not math.isnan(account(release.ledger).claim(1e-5))


def test_labels_are_not_accounted_as_records(tmp_path):
    path = tmp_path / "labels.dpl"
    randomized_response([1, 2], 3, 1.0, path)
    for options in ({"relation": "add_or_remove_one"}, {"unit": "record"}):
        with pytest.raises(dpfy.UnsupportedEvent, match="labels alone"):
            account(path, **options)


def _crash(*arguments, **options):
    raise KeyboardInterrupt
