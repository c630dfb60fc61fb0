"""Kills at random instants, of clients and of the database: nothing comes back unpaid."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from books import DATASET, new_book, plan_of

from dpfy.budgets import BudgetBook

CLIENTS = Path(__file__).parents[1] / "support" / "book_clients.py"
PLAN = plan_of()


def start(url, folder, seed):
    return subprocess.Popen([sys.executable, str(CLIENTS), "spend", url, str(folder), str(seed)])


def wait_for(clients, folder):
    """Wait until all clients are at work."""
    pause = threading.Event()
    while not all((folder / f"{each.pid}.ready").exists() for each in clients):
        require_alive(clients)
        pause.wait(0.01)


def require_alive(clients):
    assert all(each.poll() is None for each in clients)


def move_on(book, more, clients):
    """Wait until the book has so many more entries, which the clients write."""
    pause, last = threading.Event(), max(entry.number for entry in book.log())
    while not any(True for _ in book.log(after=last + more - 1)):
        require_alive(clients)
        pause.wait(0.01)


def require_paid(book, folder):
    """Whatever was released is charged or kept, within the budget, and every entry holds."""
    book.verify()
    view = book._backend._store.read
    declaration = book._backend._declared(DATASET)
    place = 1 + declaration.orders.index(declaration.filters[0].orders[0])
    found = 0
    for file in folder.glob("*.released"):
        grant = file.with_suffix(".grant").read_text()
        record = view(lambda book, grant=grant: book.last_of_grant(grant)).body["grant"]
        paid = record["charged"] or [
            kept + lost for kept, lost in zip(record["cost"], record["lost"], strict=True)
        ]
        steps = len(file.read_text().splitlines())
        assert paid[place] >= steps * (record["cost"][place] // PLAN.steps)
        found += steps
    last = view(lambda book: book.last_of(DATASET)).body["record"]["accounts"][""]
    assert last["charged"][place] + last["kept"][place] <= (
        declaration.filters[0].limits[0] * 2**80
    )
    return found


def killed_clients(url, folder, kills, seed=0):
    chance = random.Random(seed)
    with new_book(url, epsilon=400.0) as book:
        clients = [start(url, folder, number) for number in range(3)]
        try:
            for number in range(kills):
                wait_for(clients, folder)
                move_on(book, chance.randrange(1, 4), clients)
                victim = chance.randrange(len(clients))
                clients[victim].send_signal(signal.SIGKILL)
                clients[victim].wait()
                clients[victim] = start(url, folder, 100 + number)
        finally:
            for each in clients:
                each.kill()
                each.wait()
        return require_paid(book, folder)


def test_a_few_killed_clients_leave_nothing_unpaid(database, tmp_path):
    assert killed_clients(database, tmp_path, kills=2) > 0


@pytest.mark.slow
def test_300_killed_clients_leave_nothing_unpaid(database, tmp_path):
    assert killed_clients(database, tmp_path, kills=300, seed=1) > 100


def killed_database(postgresql, folder, kills):
    url, chance = postgresql.new_database(), random.Random(2)
    new_book(url, epsilon=400.0).close()
    clients = [start(url, folder, number) for number in range(3)]
    try:
        wait_for(clients, folder)
        for _ in range(kills):
            with BudgetBook.open(url) as book:
                move_on(book, chance.randrange(1, 4), clients)
            postgresql.kill()
            postgresql.start()
    finally:
        for each in clients:
            each.kill()
            each.wait()
    with BudgetBook.open(url) as book:
        return require_paid(book, folder)


def test_a_killed_database_has_kept_every_grant(postgresql, tmp_path):
    assert killed_database(postgresql, tmp_path, kills=1) > 0


@pytest.mark.slow
def test_a_database_killed_300_times_has_kept_every_grant(postgresql, tmp_path):
    assert killed_database(postgresql, tmp_path, kills=300) > 100


def test_a_client_that_hangs_within_a_write_blocks_nobody(shared_postgresql, monkeypatch):
    """PostgreSQL ends its transaction; without that, all others wait as long as it hangs."""
    from dpfy.budgets import tables

    monkeypatch.setattr(tables, "_IDLE_SECONDS", 2)
    url = shared_postgresql.new_database()
    with new_book(url) as hanging, BudgetBook.open(url) as book:
        held, go = threading.Event(), threading.Event()

        def hang():
            def change(transaction):
                if not held.is_set():
                    held.set()
                    assert go.wait(300)
                return transaction.last_of(DATASET)

            return hanging._backend._store.write(change)

        thread = threading.Thread(target=hang, daemon=True)
        thread.start()
        assert held.wait(120)
        grant = book.reserve(DATASET, PLAN, purpose="not to wait for others")
        assert grant.show().holder and thread.is_alive()
        go.set()
        thread.join(120)
        assert not thread.is_alive()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_connections_of_its_own(database):
    with new_book(database) as book:
        child = os.fork()
        if child == 0:
            status = 1
            with contextlib.suppress(BaseException):
                book.reserve(DATASET, PLAN, purpose="of the child")
                status = 0
            os._exit(status)
        book.reserve(DATASET, PLAN, purpose="of the parent")
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert len(book.show(DATASET).grants) == 2 and book.verify() == 4
