"""The client of a book's service: the same book as at its database, over connections that break."""

import inspect

import pytest
import teams
from teams import PLAN, Team

from dpfy.budgets import BudgetBook
from dpfy.budgets.backend import Backend
from dpfy.budgets.client import Service
from dpfy.budgets.database import Database
from dpfy.budgets.wire import KINDS, status_of, tag_of
from dpfy.errors import BookError, BookUnavailable, BudgetExhausted, GrantRefused, InvalidArgument


@pytest.fixture
def team(tmp_path):
    found = Team(tmp_path)
    found.book("root").create("admissions", unit="record", epsilon=3.0, delta=1e-5)
    yield found
    found.close()


def test_a_client_has_all_that_a_database_has():
    methods = [name for name in vars(Backend) if not name.startswith("_")]
    for name in methods:
        expected, found = (
            inspect.signature(getattr(kind, name)).parameters for kind in (Database, Service)
        )
        assert list(expected) == list(found), name


def test_a_run_over_the_service_is_that_at_the_database(team, tmp_path):
    """Fails if a value does not survive its way there and back."""
    book, local = team.book("anna"), BudgetBook(Database(team.store, "root"))
    assert book.identity == local.identity
    grant = book.reserve("admissions", PLAN, purpose="a run", part=None)
    assert grant.terms == local.grant(grant.id).terms
    assert (
        book.datasets() == local.datasets()
        and book.show("admissions").grants[0].state == "reserved"
    )
    path = teams.run(grant, tmp_path / "run.dpl", steps=30)
    settled = book.settle(grant, path)
    assert settled == local.show("admissions").grants[0] and settled.holder == "anna"
    assert list(book.log()) == list(local.log()) and book.verify() == local.verify()
    assert (
        book.export(tmp_path / "a.zip").stat().st_size
        == local.export(tmp_path / "b.zip").stat().st_size
    )
    withdrawn = book.withdraw(book.reserve("admissions", PLAN, purpose="a mistake"))
    forfeited = book.forfeit(book.reserve("admissions", PLAN, purpose="a loss"), "lost")
    assert (withdrawn.state, forfeited.state) == ("withdrawn", "forfeited")


def operations(team, tmp_path):
    """Everything that changes a book, each with a fresh client whose requests get lost."""
    steward, anna = team.book("root"), team.book("anna")
    steward.create("visits", unit="record", epsilon=3.0, delta=1e-5, tranches=(1.0, 2.0))
    grants = [anna.reserve("admissions", PLAN, purpose=f"run {each}") for each in range(3)]
    path = teams.run(grants[0], tmp_path / "run.dpl", steps=3)
    other = anna.reserve("admissions", PLAN, purpose="a run that goes on")
    teams.run(other, tmp_path / "other.dpl", steps=3)
    head = other.show().head
    return {
        "create": ("root", lambda book: book.create("new", unit="user", epsilon=1.0, delta=1e-6)),
        "open": ("root", lambda book: book.open_tranche("visits")),
        "issue": ("root", lambda book: book._backend.issue("dora", "auditor", "d" * 64)),
        "reserve": ("anna", lambda book: book.reserve("admissions", PLAN, purpose="lost").show()),
        "activate": (
            "anna",
            lambda book: book.activate(grants[1], "e" * 64, "a ledger"),
        ),
        "anchor": ("anna", lambda book: book.anchor(other, type(head)(head.count + 5, "f" * 64))),
        "settle": ("anna", lambda book: book.settle(grants[0], path)),
        "withdraw": ("anna", lambda book: book.withdraw(grants[2])),
        "revoke": ("root", lambda book: book._backend.revoke("bert")),
    }


@pytest.mark.parametrize(
    "act",
    [
        "create", "open", "issue", "reserve", "activate", "anchor", "settle", "withdraw", "revoke",
    ],
)  # fmt: skip
@pytest.mark.parametrize("lost", [("after",), ("before", "after", "after")], ids=len)
def test_what_is_asked_again_is_done_once(team, tmp_path, act, lost):
    """Fails if a lost answer spends twice, opens two tranches, or is an error the second time."""
    name, ask = operations(team, tmp_path)[act]
    before = len(list(team.book("carl").log()))
    client = team.client(name)
    client.lost = [None, *lost] if act == "open" else list(lost)  # which looks first
    ask(BudgetBook(client))
    assert client.sent >= 2 and client.pauses
    assert len(list(team.book("carl").log())) == before + 1


def test_a_service_that_does_not_answer_is_told_apart_from_a_refusal(team):
    client = team.client("anna")
    client.lost = ["before"] * 9
    with pytest.raises(BookUnavailable, match="cannot be reached: ConnectionRefusedError"):
        client.datasets()
    assert client.pauses == [0.1, 0.4, 1.6] and client.sent == 1
    client.lost = []
    assert client.datasets()  # afterwards it may be asked again


def test_a_service_that_is_busy_is_asked_again(team, monkeypatch):
    answers = [(429, b"{}"), (503, b"<html>"), (200, b'{"datasets": []}')]
    monkeypatch.setattr(Service, "_connection", lambda self: pytest.fail("no network in this test"))
    client = team.client("anna")
    client._sent = lambda *_: (answers[0][0], "application/json", answers.pop(0)[1])
    assert client.datasets() == () and client.pauses == [0.1, 0.4]


def test_refusals_keep_their_names_and_words(team):
    book = team.book("anna")
    with pytest.raises(BudgetExhausted, match="Nothing was read"):
        for each in range(1000):
            book.reserve("admissions", PLAN, purpose=f"run {each}")
    with pytest.raises(GrantRefused, match="budget in this book"):
        book.show("nothing")
    with pytest.raises(BookError, match="role trainer"):
        book.create("new", unit="record", epsilon=1.0, delta=1e-5)
    with pytest.raises(BookError, match="bearer token"):
        team.client("nobody")


def test_an_answer_that_no_service_gives_is_an_error(team):
    client = team.client("anna")
    for answer in (b"", b"<html>", b"{}", b"[]", b'{"error": 3}'):
        client._sent = lambda *_, answer=answer: (400, "text/html", answer)
        with pytest.raises(BookError, match="status 400"):
            client.datasets()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://budget.example", "in the clear"),
        ("https://anna:secret@budget.example", "without a name or password"),
        ("https://", "address of a service"),
        ("https://budget.example?token=secret", "address of a service"),
    ],
)
def test_addresses_that_would_show_the_token_are_refused(url, says, monkeypatch):
    monkeypatch.setenv("DPFY_BUDGET_TOKEN", "secret")
    with pytest.raises(InvalidArgument, match=says):
        BudgetBook.open(url)


@pytest.mark.parametrize("token", ["", "ä", "a\nb: c"])
def test_a_token_that_cannot_be_sent_is_refused(monkeypatch, token):
    monkeypatch.setenv("DPFY_BUDGET_TOKEN", token)
    with pytest.raises(InvalidArgument, match="DPFY_BUDGET_TOKEN"):
        BudgetBook.open("https://budget.example")


def test_every_error_has_a_name_and_the_status_that_fits():
    assert KINDS["budget_exhausted"] is BudgetExhausted and len(KINDS) == len(set(KINDS.values()))
    assert all(KINDS[tag_of(kind)] is kind for kind in KINDS.values())
    statuses = {status_of(kind("")) for kind in (BudgetExhausted, GrantRefused, BookError)}
    assert statuses == {409} and status_of(KINDS["book_damaged"]("")) == 500


def test_a_token_is_not_shown(team):
    book = team.book("anna")
    grant = book.reserve("admissions", PLAN, purpose="a run")
    assert teams.token_of("anna") not in repr(book) + repr(grant) + str(vars(book)) + book.name
