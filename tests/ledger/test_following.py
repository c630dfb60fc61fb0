"""Whoever follows a ledger sees what somebody sees who reads all of it."""

import pytest

from dpfy.errors import LedgerDamaged, LedgerError
from dpfy.ledger import Header, Ledger
from dpfy.ledger.events import Poisson, Sampled, SumQuery
from dpfy.ledger.following import Follower

STEP = Sampled(Poisson(0.01), (SumQuery(1.0, 1.1),))


def same(follower, path):
    found, whole = follower.read(), Ledger.read(path)
    assert (found.head_hash, found.uses, found.lines, found.torn_bytes) == (
        whole.head_hash,
        whole.uses,
        whole.lines,
        whole.torn_bytes,
    )


def test_each_state_of_a_growing_ledger_is_seen(tmp_path):
    path = tmp_path / "run.dpl"
    with Ledger.open(path, header=Header(), block=3) as ledger:
        follower = Follower(path)
        for _ in range(5):
            ledger.reserve(STEP)
            same(follower, path)
    same(follower, path)  # steps that were paid for in advance were handed back


def test_lines_are_read_once(tmp_path, monkeypatch):
    path, fed = tmp_path / "run.dpl", []
    with Ledger.open(path, header=Header()) as ledger:
        follower = Follower(path)
        follower.read()
        journal = type(follower._journal)
        feed = journal.feed
        monkeypatch.setattr(
            journal, "feed", lambda self, line: (fed.append(line), feed(self, line))
        )
        ledger.reserve(STEP)
        fed.clear()  # the writer's own
        follower.read()
        follower.read()
    assert len(fed) == 2  # what defines the step, and its use


def test_a_torn_line_counts_until_it_is_whole(tmp_path):
    path = tmp_path / "run.dpl"
    with Ledger.open(path, header=Header()) as ledger:
        ledger.reserve(STEP)
        ledger.reserve(STEP)
        size = path.stat().st_size
        ledger.reserve(STEP)
    whole = path.read_bytes()
    follower = Follower(path)
    path.write_bytes(whole[: size + 40])
    with pytest.raises(LedgerDamaged):  # the head remembers the line
        follower.read()
    path.write_bytes(whole)
    same(follower, path)
    path.write_bytes(whole + b'{"use":{"ev')
    same(follower, path)
    assert follower.read().count == 4
    with Ledger.open(path) as ledger:
        ledger.reserve(STEP)
        same(follower, path)


@pytest.mark.parametrize("harm", ["cut", "rolled back", "gone", "other"])
def test_a_ledger_that_lost_lines_is_refused(tmp_path, harm):
    path, other = tmp_path / "run.dpl", tmp_path / "other.dpl"
    for each in (path, other):
        with Ledger.open(each, header=Header()) as ledger:
            ledger.reserve(STEP)
            early = each.read_bytes()
            ledger.reserve(STEP)
    follower = Follower(path)
    follower.read()
    if harm == "cut":
        path.write_bytes(path.read_bytes()[:-10])
    elif harm == "rolled back":
        path.write_bytes(early)
    elif harm == "gone":
        path.unlink()
    else:
        other.with_name("other.dpl.head").replace(path.with_name("run.dpl.head"))
    with pytest.raises(LedgerError):
        follower.read()
    with pytest.raises(LedgerError):
        follower.read()


def test_a_ledger_that_was_replaced_is_read_from_its_beginning(tmp_path):
    path, other = tmp_path / "run.dpl", tmp_path / "other.dpl"
    for each, steps in ((path, 1), (other, 4)):
        with Ledger.open(each, header=Header()) as ledger:
            for _ in range(steps):
                ledger.reserve(STEP)
    follower = Follower(path)
    follower.read()
    for ending in ("", ".head"):
        other.with_name(f"other.dpl{ending}").replace(path.with_name(f"run.dpl{ending}"))
    same(follower, path)
    assert follower.read().count == 4
