"""Reports are on the ledger of a person before a value is read, and no more than declared."""

import os

import numpy as np
import pytest

from dpfy import Ledger, Relation, Unit, account
from dpfy.errors import (
    BudgetExhausted,
    LedgerError,
    LedgerMismatch,
    LedgerWriteFailed,
    UnsupportedEvent,
)
from dpfy.local import RandomizedResponse, UnaryEncoding
from dpfy.noise import SecureStream
from dpfy.reporting import report as report_of

METHODS = [RandomizedResponse, UnaryEncoding]


class Unread:
    """A value that nobody may read."""

    def __int__(self):
        raise SystemExit("a private value was read")  # what is no Exception is not caught


class Odd:
    """A value that cannot be converted."""

    __int__ = __index__ = __float__ = None


@pytest.mark.parametrize("method", METHODS)
def test_reports_add_up_on_the_ledger_and_end_where_they_were_declared_to(method, tmp_path):
    mechanism, path = method(5, 0.5, reports=2), tmp_path / "me.dpl"
    mechanism.report(3, path)
    assert account(path).claim(1e-9) <= 0.5 + 1e-9  # of what was sent
    mechanism.report(3, path)
    with pytest.raises(BudgetExhausted):
        mechanism.report(Unread(), path)
    found = Ledger.read(path)
    assert found.count == 2
    assert (found.header.unit, found.header.relation) == (Unit.REPORT, Relation.REPLACE_ONE)
    assert 0.9 < account(path).claim(1e-9) <= 1.0 + 1e-9


@pytest.mark.parametrize("method", METHODS)
def test_a_ledger_is_for_one_question_of_one_epsilon(method, tmp_path):
    path = tmp_path / "me.dpl"
    method(5, 0.5, reports=2).report(3, path)
    for other in (method(6, 0.5, reports=2), method(5, 0.6, reports=2), method(5, 0.5, reports=3)):
        with pytest.raises(LedgerMismatch):
            other.report(Unread(), path)


@pytest.mark.parametrize("method", METHODS)
def test_nothing_is_drawn_that_could_not_be_recorded(method, monkeypatch):
    with Ledger.in_memory() as ledger:
        monkeypatch.setattr(
            type(ledger), "reserve", lambda *_: (_ for _ in ()).throw(LedgerWriteFailed("full"))
        )
        with pytest.raises(LedgerWriteFailed):
            method(5, 0.5).report(Unread(), ledger)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("value", [-1, 5, 10**30, None, "x", float("nan"), float("inf"), Odd()])
def test_a_value_that_is_none_counts_as_the_first_silently(method, value):
    with Ledger.in_memory() as first, Ledger.in_memory() as second:
        found = method(5, 2.0).report(value, first, insecure_test_key=4)
        assert found == method(5, 2.0).report(0, second, insecure_test_key=4)


def test_a_value_that_warns_is_read_silently(recwarn):
    with Ledger.in_memory() as ledger:
        RandomizedResponse(3, 1.0).report(np.complex128(2 + 1j), ledger)
    assert not recwarn.list


def test_no_other_relation_has_a_claim(tmp_path):
    path = tmp_path / "me.dpl"
    RandomizedResponse(3, 1.0).report(1, path)
    for relation in ("add_or_remove_one", "zero_out"):
        with pytest.raises(UnsupportedEvent, match="unit='report'"):
            account(path, relation=relation)
    with pytest.raises(UnsupportedEvent, match="unit='report'"):
        account(path, unit="record")


def test_the_privacy_report_is_about_local_reports(tmp_path):
    UnaryEncoding(3, 1.0, reports=4).report(1, tmp_path / "me.dpl")
    found = report_of(tmp_path / "me.dpl", 1e-6)
    text = found.to_markdown()
    assert "Local reports of one person: 1 of at most 4 sent" in text
    assert "in the local model" in found.formal_statement
    assert "Local differential privacy" in text and "central" not in found.formal_statement
    assert "B3" in text and "teachers" not in text
    assert found.to_json()["ledger"]["unit"] == "report"


class Forks:
    """A value whose reading forks the process; the child exits with 0 if it gets no report."""

    def __init__(self):
        self.child = None

    def __int__(self):
        self.child = os.fork()
        return 3

    __index__ = __int__


@pytest.mark.parametrize("method", METHODS)
def test_a_fork_that_reads_a_value_sends_no_second_report(method):
    parent, value = os.getpid(), Forks()
    with Ledger.in_memory() as ledger:
        try:
            method(5, 0.5).report(value, ledger)
        except LedgerError:
            os._exit(int(os.getpid() == parent))
        if os.getpid() != parent:
            os._exit(2)
        assert os.waitpid(value.child, 0)[1] == 0


@pytest.mark.parametrize("method", METHODS)
def test_a_report_is_drawn_under_a_key_that_is_younger_than_its_reservation(method, monkeypatch):
    # A copy of the machine that is restored between the two would draw the same report otherwise.
    order, reserve, refresh = [], Ledger.reserve, SecureStream.refresh
    monkeypatch.setattr(
        Ledger, "reserve", lambda self, *rest: (order.append("reserve"), reserve(self, *rest))[1]
    )
    monkeypatch.setattr(
        SecureStream, "refresh", lambda self: (order.append("refresh"), refresh(self))[1]
    )
    with Ledger.in_memory() as ledger:
        method(5, 0.5).report(3, ledger)
    assert order[:2] == ["reserve", "refresh"]
