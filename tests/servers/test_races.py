"""Clients that reserve at the same time: as many are granted as there is room for, and no more."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from books import DATASET, new_book

CLIENTS = Path(__file__).parents[1] / "support" / "book_clients.py"
PATIENCE = 600


def start(*arguments):
    return subprocess.Popen(
        [sys.executable, str(CLIENTS), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def raced(url, processes, room, attempts, parts=()):
    """Return how many reservations were granted to all processes together."""
    clients = [
        start("race", url, room, attempts, parts[number % len(parts)] if parts else "")
        for number in range(processes)
    ]
    try:
        for client in clients:
            assert client.stdout.readline() == "ready\n"
        for client in clients:
            client.stdin.write("go\n")
            client.stdin.flush()
        answers = [json.loads(client.communicate(timeout=PATIENCE)[0]) for client in clients]
    finally:
        for client in clients:
            client.kill()
            client.wait()
    return sum(answer["granted"] for answer in answers)


def test_a_few_clients_get_exactly_what_there_is(database):
    with new_book(database) as book:
        assert raced(database, processes=4, room=10, attempts=10) == 10
        state = book.show(DATASET)
        assert len(state.grants) == 10 and state.free < 0.5 and state.reserved <= state.epsilon
        assert book.verify() == 12


@pytest.mark.slow
@pytest.mark.parametrize("time", range(20))
def test_of_1600_requests_of_eight_clients_exactly_100_are_granted(database, time):
    with new_book(database) as book:
        assert raced(database, processes=8, room=100, attempts=200) == 100
        assert book.verify() == 102


@pytest.mark.slow
def test_parts_are_filled_exactly_too(database):
    with new_book(database, parts=("north", "south")) as book:
        parts = ("north", "south")
        assert raced(database, processes=8, room=50, attempts=50, parts=parts) == 100
        assert book.verify() == 102
