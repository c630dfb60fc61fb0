import os
import signal
import threading

import pytest
from books import DATASET, STEPS, copied, cut_short, kill, opened, plan_of, take

from dpfy.budgets import State
from dpfy.budgets.grant import Grant, GrantGuard, Spent, _Anchors
from dpfy.errors import BookUnavailable, BudgetExhausted, GrantRefused, LedgerMismatch
from dpfy.ledger import Ledger
from dpfy.ledger.events import Poisson, Repeated, Sampled, SumQuery
from dpfy.ledger.guard import Unguarded
from dpfy.ledger.journal import Head
from dpfy.plans import dpftrl


def stream_of(**options):
    return dpftrl(
        records=60, batch_size=20, noise_multiplier=3.0, strategy="banded", bands=2, **options
    )


def zeros(book):
    book.create("zero", unit="record", relation="zero_out", epsilon=8.0, delta=1e-6)
    return book


def test_a_run_goes_on_where_it_ended(book, grant, tmp_path):
    for number in (1, 2, 3):
        with opened(book.grant(grant.id), tmp_path / "run.dpl") as ledger:
            take(ledger, 2)
        assert Ledger.read(tmp_path / "run.dpl").ended_session == number
    assert Ledger.read(tmp_path / "run.dpl").count == 6
    with (
        pytest.raises(BudgetExhausted, match="20 of 20 steps are spent"),
        opened(grant, tmp_path / "run.dpl") as ledger,
    ):
        take(ledger, STEPS)


def test_a_copy_that_the_original_left_behind_is_refused(grant, tmp_path):
    """A folder that was restored, ledger and head together, would take its steps twice."""
    with opened(grant, tmp_path / "run.dpl") as ledger:
        take(ledger, 2)
    old = copied(tmp_path, "old")
    with opened(grant, tmp_path / "run.dpl") as ledger:
        take(ledger, 2)
    with pytest.raises(GrantRefused, match="rolled back"):
        opened(grant, old / "run.dpl")
    with pytest.raises(GrantRefused, match="rolled back"):
        grant.settle(old / "run.dpl")


def test_a_copy_of_which_the_book_knows_no_later_line_is_refused(grant, tmp_path):
    """Of a run that was cut short the book knows that it began, and not how it ended."""
    with opened(grant, tmp_path / "run.dpl") as ledger:
        take(ledger, 2)
    old = copied(tmp_path, "old")
    cut_short(grant, tmp_path / "run.dpl", 2)
    for folder in (old, tmp_path):
        with pytest.raises(GrantRefused, match="no known end"):
            opened(grant, folder / "run.dpl")
        with pytest.raises(GrantRefused, match="no known end"):
            grant.settle(folder / "run.dpl")
    assert grant.show().state is State.ACTIVE


def test_of_two_copies_one_goes_on(grant, tmp_path):
    opened(grant, tmp_path / "run.dpl").close()
    twin = copied(tmp_path, "twin")
    with opened(grant, tmp_path / "run.dpl"), pytest.raises(GrantRefused, match="no known end"):
        opened(grant, twin / "run.dpl")


def test_going_on_after_a_kill_costs_what_the_ledger_does_not_show(book, grant, tmp_path):
    cut_short(grant, tmp_path / "run.dpl", 5)
    before = book.show(DATASET).reserved
    book.reopen(grant, tmp_path / "run.dpl")
    book.reopen(grant, tmp_path / "run.dpl")  # as when the answer was lost: it is paid for once
    with opened(grant, tmp_path / "run.dpl") as ledger:
        take(ledger, STEPS - 5)
    assert grant.show().state is State.SETTLED
    together = STEPS + (STEPS - 5)
    record = book._backend._store.read(lambda view: view.last_of_grant(grant.id)).body["grant"]
    unit = grant.terms.cost[3] // STEPS
    assert record["charged"][3] == together * unit
    assert book.show(DATASET).spent > before


def test_rows_that_an_older_copy_takes_again_are_paid_for_again(book, tmp_path):
    """A stream of one epoch costs with its first row what it costs in all."""
    plan = stream_of(epochs=1)
    grant = zeros(book).reserve("zero", plan, purpose="a stream")
    path = tmp_path / "run.dpl"
    ledger = opened(grant, path, plan)
    take(ledger, 2, plan)
    old = copied(tmp_path, "old")
    take(ledger, plan.steps - 2, plan)
    kill(ledger)
    book.reopen(grant, old / "run.dpl")
    with opened(grant, old / "run.dpl", plan) as ledger:
        take(ledger, plan.steps - 2, plan)
    record = book._backend._store.read(lambda view: view.last_of_grant(grant.id)).body["grant"]
    assert record["state"] == State.SETTLED
    limited = [0, *(1 + grant.terms.orders.index(order) for order in grant.terms.limits)]
    assert all(record["charged"][at] >= 2 * grant.terms.cost[at] for at in limited)


def test_rows_with_samples_of_their_own_cannot_be_taken_again(book, tmp_path):
    plan = stream_of(epochs=2, sampling="cyclic_poisson")
    grant = zeros(book).reserve("zero", plan, purpose="a stream")
    path = tmp_path / "run.dpl"
    cut_short(grant, path, 2, plan)
    with pytest.raises(GrantRefused, match="does not add up"):
        book.reopen(grant, path)
    assert book.forfeit(grant, "lost").state is State.FORFEITED


def test_a_stream_that_was_stopped_goes_on(book, tmp_path):
    """Its first row pays for all, and the others are still to come."""
    plan = stream_of(epochs=1)
    grant = zeros(book).reserve("zero", plan, purpose="a stream")
    path = tmp_path / "run.dpl"
    with opened(grant, path, plan) as ledger:
        take(ledger, 2, plan)
    assert grant.show().state is State.ACTIVE
    with opened(grant, path, plan) as ledger:
        take(ledger, plan.steps - 2, plan)
    assert grant.show().state is State.SETTLED


def test_a_ledger_that_names_another_grant_or_none_is_refused(book, grant, tmp_path):
    """Its steps would be paid for by one book, and it could be written to without asking it."""
    path = tmp_path / "run.dpl"
    with Ledger.open(path) as ledger:
        ledger.reserve(plan_of().event)
    with pytest.raises(LedgerMismatch, match="with no grant, and is opened with grant"):
        Ledger.open(path, grant=grant)
    assert grant.show().state is State.RESERVED


def test_a_reopened_grant_lets_one_run_begin(grant, book, tmp_path):
    cut_short(grant, tmp_path / "run.dpl", 5)
    book.reopen(grant, tmp_path / "run.dpl")
    twin = copied(tmp_path, "twin")
    cut_short(grant, tmp_path / "run.dpl", 1)
    with pytest.raises(GrantRefused, match="no known end"):
        opened(grant, twin / "run.dpl")


def test_reopening_needs_room(book, grant, tmp_path):
    cut_short(grant, tmp_path / "run.dpl", 0)
    with pytest.raises(BudgetExhausted):
        while True:
            book.reserve(DATASET, plan_of(), purpose="others")
    with pytest.raises(BudgetExhausted):
        book.reopen(grant, tmp_path / "run.dpl")


def test_a_settled_ledger_can_be_opened_and_spends_nothing(book, grant, tmp_path):
    with opened(grant, tmp_path / "run.dpl") as ledger:
        take(ledger, 3)
    grant.settle(tmp_path / "run.dpl")
    with (
        opened(grant, tmp_path / "run.dpl") as ledger,
        pytest.raises(BudgetExhausted, match="was settled"),
    ):
        ledger.reserve(plan_of().event)
    assert Ledger.read(tmp_path / "run.dpl").count == 3
    assert book.verify() > 0


class Unreachable:
    """A book that could be reached until the run began."""

    def __init__(self, backend):
        self._backend, self.reachable = backend, True

    def __getattr__(self, name):
        if not self.reachable:
            raise BookUnavailable("The network is cut.")
        return getattr(self._backend, name)


def test_a_cut_network_delays_nothing_but_settling(book, grant, tmp_path, capsys):
    cut = Unreachable(book._backend)
    with opened(Grant(cut, grant.terms), tmp_path / "run.dpl") as ledger:
        cut.reachable = False
        take(ledger, STEPS)
    assert "is kept" in capsys.readouterr().err
    assert grant.show().state is State.ACTIVE
    assert book.settle(grant, tmp_path / "run.dpl").state is State.SETTLED


def test_a_book_that_cannot_be_reached_lets_no_run_begin(book, grant, tmp_path):
    cut = Unreachable(book._backend)
    cut.reachable = False
    with pytest.raises(BookUnavailable):
        opened(Grant(cut, grant.terms), tmp_path / "run.dpl")
    assert Ledger.read(tmp_path / "run.dpl").count == 0
    opened(grant, tmp_path / "run.dpl").close()  # nothing was spent, so it may begin now


def test_heads_reach_the_book_while_the_run_goes_on(grant, tmp_path, monkeypatch):
    told = threading.Event()
    monkeypatch.setattr(_Anchors, "seconds", 0.001)
    anchor = grant._backend.anchor

    def tell(name, head):
        anchor(name, head)
        if head.count >= 3:
            told.set()

    monkeypatch.setattr(grant._backend, "anchor", tell)
    with opened(grant, tmp_path / "run.dpl") as ledger:
        take(ledger, 2)
        assert told.wait(120)
        assert grant.show().head.count >= 3


def test_an_older_head_changes_nothing(book, grant, tmp_path):
    with opened(grant, tmp_path / "run.dpl") as ledger:
        take(ledger, 2)
    head = grant.show().head
    book.anchor(grant, Head(1, "f" * 64))
    assert grant.show().head == head


def test_the_guard_admits_what_was_granted_and_hands_back(grant):
    event = plan_of().event
    guard = GrantGuard(Unguarded(), grant.terms)
    guard.admit(event, STEPS)
    guard.record(event, STEPS)
    with pytest.raises(BudgetExhausted):
        guard.admit(event, 1)
    guard.record(event, -1)
    guard.admit(event, 1)
    less = Sampled(Poisson(0.1), (SumQuery(1.0, 3.0),))  # costs less than what is left
    guard.admit(less, 2)
    spent = Spent(grant.terms)
    assert not spent.all
    spent.add(event, STEPS)
    assert spent.all


def test_rows_of_a_stream_are_paid_for_together(book, tmp_path):
    plan = stream_of(epochs=2)
    grant = zeros(book).reserve("zero", plan, purpose="a stream")
    path = tmp_path / "run.dpl"
    with opened(grant, path, plan) as ledger:
        take(ledger, plan.steps - 1, plan)
    assert book.settle(grant, path).epsilon <= grant.show().epsilon
    assert book.verify()
    row = [run for run in Ledger.read(path).uses]
    assert row[0].times == plan.steps - 1 and isinstance(row[0], Repeated)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_keeps_no_turn_and_no_connection(book, grant):
    """A child that lives on after a fork within a write must not stop the others."""
    reading, writing = os.pipe()
    store = book._backend._store

    def fork(transaction):
        child = os.fork()
        if child == 0:
            try:
                os.close(writing)
                os.read(reading, 1)  # until the parent is done
            finally:
                os._exit(0)
        return child

    child = store.write(fork)
    try:
        book.withdraw(grant)  # would wait for the child otherwise
        assert book.reserve(DATASET, plan_of(), purpose="after the fork").show()
    finally:
        os.close(writing)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reading)
