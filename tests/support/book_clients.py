"""Clients of a book as processes of their own: they race, are killed, and say what they did.

Run as ``python book_clients.py WHAT URL …``.
"""

import contextlib
import json
import math
import os
import random
import sys
import time
from pathlib import Path

from books import DATASET, opened, plan_of, take

from dpfy.budgets import BudgetBook
from dpfy.errors import BookUnavailable, BudgetExhausted, DpfyError, GrantRefused, LedgerError
from dpfy.ledger import Ledger
from dpfy.ledger.events import Poisson, Sampled, SumQuery


def event_for(book, room):
    """Return an event of which the data set has room for exactly so many."""
    declaration = book._backend._declared(DATASET)
    (rule,) = declaration.filters
    order, limit = rule.orders[0], rule.limits[0]
    noise = math.sqrt(order * (room + 0.5) / (2 * limit))
    return Sampled(Poisson(1.0), (SumQuery(1.0, noise),))


def race(url, room, attempts, part=None):
    """Reserve as often as told; print how often it was granted, and how long each took."""
    with BudgetBook.open(url) as book:
        event, granted, times = event_for(book, int(room)), 0, []
        print("ready", flush=True)
        sys.stdin.readline()
        for _ in range(int(attempts)):
            began = time.perf_counter()
            with contextlib.suppress(BudgetExhausted):
                book.reserve(DATASET, event, purpose="a race", part=part or None)
                granted += 1
            times.append(time.perf_counter() - began)
    print(json.dumps({"granted": granted, "times": times}), flush=True)


def spend(url, folder, seed):
    """Run one run after another, as long as it takes; a file beside each says what it released.

    The file is written after a step is paid for: what a real run would have shown by then.
    """
    chance, place = random.Random(int(seed)), Path(folder)
    with BudgetBook.open(url) as book:
        (place / f"{os.getpid()}.ready").touch()
        while True:  # until it is killed
            with contextlib.suppress(BookUnavailable, BudgetExhausted, GrantRefused, LedgerError):
                _spend_once(book, place, chance)


def _spend_once(book, place, chance):
    known = sorted(place.glob("*.dpl"))
    if known and chance.random() < 0.5:  # go on with what somebody left
        path = chance.choice(known)
        header = Ledger.read(path).header
        if header is None or header.grant is None:
            return
        grant = book.grant(header.grant["grant"])
        if chance.random() < 0.3:
            book.reopen(grant, path)
        elif chance.random() < 0.3:
            book.forfeit(grant, "lost")
    else:
        path = place / f"{os.getpid()}-{chance.randrange(10**9)}.dpl"
        grant = book.reserve(DATASET, plan_of(), purpose="to be killed")
        path.with_suffix(".grant").write_text(grant.id)
    with opened(grant, path) as ledger, path.with_suffix(".released").open("a") as released:
        for _ in range(chance.randrange(1, 8)):
            take(ledger, 1)
            released.write("1\n")
            released.flush()
    if chance.random() < 0.5:
        book.settle(grant, path)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        try:
            {"race": race, "spend": spend}[sys.argv[1]](*sys.argv[2:])
        except DpfyError as error:
            sys.exit(f"{type(error).__name__}: {error}")
