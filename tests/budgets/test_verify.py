import json
import sqlite3
import zipfile

import pytest
from books import DATASET, cut_short, opened, plan_of, take

from dpfy.budgets import BudgetBook
from dpfy.budgets.store import Transaction
from dpfy.errors import BookDamaged, BookError
from dpfy.ledger import Ledger


@pytest.fixture
def full(book, tmp_path):
    """A book in which everything that can happen has happened."""
    grants = [book.reserve(DATASET, plan_of(), purpose="a test") for _ in range(4)]
    with opened(grants[0], tmp_path / "run.dpl") as ledger:
        take(ledger, 3)
    book.settle(grants[0], tmp_path / "run.dpl")
    cut_short(grants[1], tmp_path / "lost.dpl", 2)
    book.reopen(grants[1], tmp_path / "lost.dpl")
    book.forfeit(grants[1], "lost")
    book.withdraw(grants[2])
    return book


def changed(tmp_path, *statements):
    """Change the database behind the book's back, as only somebody with the file can."""
    with sqlite3.connect(tmp_path / "team.db") as connection:
        triggers = connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'")
        for (name,) in triggers.fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        for statement in statements:
            connection.execute(statement)
    connection.close()


def test_a_book_verifies_and_its_export_holds_all_of_it(full, tmp_path):
    count = full.verify()
    path = full.export(tmp_path / "book.zip")
    with zipfile.ZipFile(path) as archive:
        lines = archive.read("entries.jsonl").splitlines()
        (name,) = [name for name in archive.namelist() if name.startswith("ledgers/")]
        data = archive.read(name)
    assert count == len(lines) == len(list(full.log()))
    assert data == (tmp_path / "run.dpl").read_bytes()
    assert Ledger.from_bytes(data, "exported").count == 3
    assert json.loads(lines[-1])["hash"] == list(full.log())[-1].hash


def test_entries_and_settled_ledgers_cannot_be_changed(full, tmp_path):
    with sqlite3.connect(tmp_path / "team.db") as connection:
        for table in ("entries", "ledgers"):
            for statement in (f"DELETE FROM {table}", f"UPDATE {table} SET grant_id = 'x'"):
                with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                    connection.execute(statement)
    connection.close()


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("UPDATE entries SET actor = 'another' WHERE number = 3", "Entry 3 .* was edited"),
        ("UPDATE entries SET body = replace(body, '\"opened\":1', '\"opened\":2')", "was edited"),
        ("UPDATE entries SET time = '2020-01-01' WHERE number = 2", "Entry 2 .* was edited"),
        ("UPDATE entries SET key = 'x' WHERE number = 4", "Entry 4 .* was edited"),
        ("DELETE FROM entries WHERE number = 5", "Entry 5 .* missing"),
        ("DELETE FROM entries WHERE number > 8", "missing"),
        ("DELETE FROM ledgers", "ledger .* is missing"),
        ("UPDATE ledgers SET sha256 = 'x'", "ledger was edited"),
        ("UPDATE heads SET number = 3", "missing"),
    ],
)
def test_an_edited_or_removed_row_is_named(full, tmp_path, statement, named):
    changed(tmp_path, statement)
    with pytest.raises(BookDamaged, match=named):
        full.verify()


def test_nothing_is_granted_from_a_budget_whose_last_entry_was_edited(full, tmp_path):
    last = max(entry.number for entry in full.log(DATASET))
    changed(tmp_path, f"UPDATE entries SET body = '{{}}' WHERE number = {last}")
    with pytest.raises(BookDamaged, match=f"Entry {last} "):
        full.reserve(DATASET, plan_of(), purpose="a test")


def test_nothing_is_granted_after_the_last_entry_was_removed(full, tmp_path):
    last = max(entry.number for entry in full.log())
    changed(tmp_path, f"DELETE FROM entries WHERE number = {last}")
    with pytest.raises(BookDamaged, match=f"Entry {last} "):
        full.reserve(DATASET, plan_of(), purpose="a test")


@pytest.mark.parametrize("kind", ["reserve", "settle", "forfeit", "reopen"])
def test_a_book_that_was_sealed_anew_with_another_cost_is_found(book, tmp_path, monkeypatch, kind):
    """Whoever can write entries can chain them; what follows from the events they cannot change."""
    append = Transaction.append

    def cheaper(self, written, body, **options):
        if written == kind:
            grant = body["grant"]
            field = "lost" if kind == "reopen" else "cost" if kind == "reserve" else "charged"
            grant[field] = [part * 9 // 10 for part in grant[field]]
        return append(self, written, body, **options)

    monkeypatch.setattr(Transaction, "append", cheaper)
    grant = book.reserve(DATASET, plan_of(), purpose="a test")
    if kind == "reserve":
        pass
    elif kind == "settle":
        with opened(grant, tmp_path / "run.dpl") as ledger:
            take(ledger, 3)
        book.settle(grant, tmp_path / "run.dpl")
    else:
        cut_short(grant, tmp_path / "run.dpl", 3)
        book.reopen(grant, tmp_path / "run.dpl") if kind == "reopen" else book.forfeit(grant, "x")
    with pytest.raises(BookDamaged):
        book.verify()


def test_a_book_of_another_schema_is_refused(book, tmp_path, monkeypatch):
    from dpfy.budgets import tables

    monkeypatch.setattr(tables, "SCHEMA", 2)
    with pytest.raises(BookError, match="schema 2"):
        BudgetBook.open(f"sqlite:///{tmp_path / 'team.db'}")
