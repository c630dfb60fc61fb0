import threading
from itertools import pairwise

import pytest
from sqlalchemy.exc import DBAPIError

from dpfy.budgets.queue import Queue
from dpfy.budgets.store import Store
from dpfy.errors import BookUnavailable


@pytest.fixture
def store(tmp_path):
    with Store(f"sqlite:///{tmp_path / 'team.db'}") as store:
        yield store


def test_what_fails_leaves_no_entry(store):
    def change(book):
        book.append("note", {"text": "written"}, actor="a test")
        raise ValueError("after the insertion")

    with pytest.raises(ValueError, match="after the insertion"):
        store.write(change)
    assert store.read(lambda book: book.entry(2)) is None


def test_commits_are_durable(store):
    """WAL with synchronous=NORMAL would lose commits with the power."""
    with store._engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"


def test_writers_of_several_threads_take_turns(store):
    def write():
        for _ in range(5):
            store.write(lambda book: book.append("note", {}, actor="a test"))

    threads = [threading.Thread(target=write) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(300)
    entries = store.read(lambda book: book.entries(None, 0, None))
    assert [entry.number for entry in entries] == list(range(1, 22))
    assert all(one.hash == other.previous for one, other in pairwise(entries))


def test_a_lost_connection_is_made_anew(store, monkeypatch):
    monkeypatch.setattr("dpfy.budgets.store._PAUSES", (0.0, 0.0, None))
    asked = []

    def question(book):
        asked.append(book)
        if len(asked) < 3:
            raise DBAPIError("SELECT 1", {}, Exception("gone"), connection_invalidated=True)
        return "answered"

    assert store.read(question) == "answered" and len(asked) == 3

    def lost(book):
        raise DBAPIError("SELECT 1", {}, Exception("gone"), connection_invalidated=True)

    with pytest.raises(BookUnavailable, match="gone"):
        store.write(lost)


def test_a_folder_that_is_gone_is_a_book_that_cannot_be_reached(store, tmp_path):
    store._queue = Queue(tmp_path / "gone" / "team.db-queue")
    with pytest.raises(BookUnavailable, match="cannot be reached"):
        store.write(lambda book: None)


def test_one_writer_of_a_file_passes_at_a_time(tmp_path):
    one, other = Queue(tmp_path / "queue"), Queue(tmp_path / "queue")
    inside, passed = threading.Event(), threading.Event()

    def second():
        inside.wait(120)
        with other.turn():
            passed.set()

    thread = threading.Thread(target=second)
    thread.start()
    with one.turn():
        inside.set()
        assert not passed.wait(0.2)  # it can only be let through too early
    thread.join(120)
    assert passed.is_set()
    one.close(), other.close()
