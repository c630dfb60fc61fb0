"""The page of budgets says what the book says, and never begins a book."""

import contextlib
import sqlite3

import pytest
from run_folders import plan_of

from dpfy.budgets import BudgetBook
from dpfy.page.budgets import BudgetReader, all_budgets
from dpfy.reporting.numbers import epsilon_text

NASTY = "<script>alert(1)</script>"


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path / 'team.db'}"


@pytest.fixture
def book(url):
    with BudgetBook.open(url, actor="ada") as found:
        found.create("ward", unit="record", epsilon=8.0, delta=1e-5, reference=plan_of())
        yield found


def looked(url):
    reader = BudgetReader(url)
    reader.look()
    return reader


def test_what_is_spent_reserved_and_free_is_the_books_own(url, book):
    book.reserve("ward", plan_of(), purpose="first", holder="ada")
    reader, state = looked(url), book.show("ward")
    shown = all_budgets(reader)
    reader.close()
    for number in (state.spent, state.reserved):
        assert f"<dd>{epsilon_text(number)}<" in shown
    assert f"<dd>{epsilon_text(state.free, lower=True)}<" in shown  # never more than there is
    assert "first" in shown and "reserved" in shown
    assert all(entry.hash[:12] in shown for entry in book.log())


def test_only_what_is_new_is_read(url, book):
    reader = looked(url)
    assert not reader.look()
    book.reserve("ward", plan_of(), purpose="second", holder="ada")
    assert reader.look() and "second" in all_budgets(reader)
    assert not reader.look()
    numbers = [entry.number for entry in reader.entries]
    assert numbers == sorted(numbers, reverse=True) and len(set(numbers)) == len(numbers)
    reader.close()


def test_names_are_text(url, book):
    book.reserve("ward", plan_of(), purpose=NASTY, holder=NASTY)
    reader = looked(url)
    assert "<script>" not in all_budgets(reader) and "&lt;script&gt;" in all_budgets(reader)
    reader.close()


def test_a_book_that_is_not_there_is_refused_and_not_begun(url, tmp_path):
    reader = looked(url)
    assert "There is no book" in all_budgets(reader) and not list(tmp_path.iterdir())
    with BudgetBook.open(url, actor="ada") as book:
        book.create("ward", unit="record", epsilon=8.0, delta=1e-5, reference=plan_of())
        assert reader.look() and "ward" in all_budgets(reader)
    reader.close()


@pytest.mark.parametrize("content", [b"", b"no database"])
def test_another_file_is_left_as_it_is(url, tmp_path, content):
    (tmp_path / "team.db").write_bytes(content)
    reader = looked(url)
    assert "There is no book" in all_budgets(reader)
    assert (tmp_path / "team.db").read_bytes() == content
    reader.close()


def test_another_database_is_left_as_it_is(url, tmp_path):
    with contextlib.closing(sqlite3.connect(tmp_path / "team.db")) as other:
        other.execute("CREATE TABLE entries (number INTEGER)")
        other.commit()
    before = (tmp_path / "team.db").read_bytes()
    reader = looked(url)
    assert "There is no book" in all_budgets(reader)
    assert (tmp_path / "team.db").read_bytes() == before
    reader.close()


def test_a_password_is_not_shown():
    reader = BudgetReader("postgresql+psycopg://ada:s3cret@127.0.0.1:1/none")
    reader.look()
    assert reader.refusal and "s3cret" not in all_budgets(reader)
    reader.close()


def test_without_a_book_the_page_says_how_to_show_one():
    assert "--budget URL" in all_budgets(None)
