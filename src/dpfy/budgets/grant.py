"""Grants, as runs hold them: what a book permits, and how it hears of the run.

Tests: tests/budgets/test_grant.py.
"""

import secrets
import sys
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpfy.budgets.backend import Backend
from dpfy.budgets.costs import Cost, cost_of_event, nothing, plus
from dpfy.budgets.values import DatasetState, GrantState, State, Terms
from dpfy.errors import BookError, BookUnavailable, BudgetExhausted, GrantRefused, InvalidArgument
from dpfy.ledger import Ledger
from dpfy.ledger.events import Event, canonical_json, envelope_to_json
from dpfy.ledger.guard import Guard
from dpfy.ledger.journal import Head, Header


class Grant:
    """The permission of a book to spend on one ledger.

    Pass it as ``grant=`` to :func:`dpfy.privatize`, :func:`dpfy.resume` or
    :meth:`dpfy.Ledger.open`, for the first run and for every run that goes on with the ledger.

    *Formal guarantee*: a ledger that is opened under the grant admits no step beyond what was
    granted, and no run begins on it unless the book knows how the run before ended.

    Args:
        backend: the keeper of the book.
        terms: what was granted.
    """

    def __init__(self, backend: Backend, terms: Terms) -> None:
        self._backend = backend
        self._anchors: _Anchors | None = None
        self.terms = terms

    @property
    def id(self) -> str:
        """The name of the grant."""
        return self.terms.id

    @property
    def dataset(self) -> str:
        """The name of the data set."""
        return self.terms.dataset

    @property
    def part(self) -> str | None:
        """The part of the data set; None for all of it."""
        return self.terms.part

    def __repr__(self) -> str:
        return f"<Grant {self.id} of {self.dataset!r}>"

    def show(self) -> GrantState:
        """Return what the book knows of the grant."""
        return self._backend.grant(self.id)

    def show_dataset(self) -> DatasetState:
        """Return what the book knows of the data set."""
        return self._backend.show(self.dataset)

    # What a ledger asks and tells (dpfy.ledger.grant)

    def declared(self, header: Header | None) -> Header:
        """Return the header with the grant in it, if it is for what was granted."""
        terms = self.terms
        if header is None:
            header = Header(unit=terms.unit, relation=terms.relation)
        for label in ("unit", "relation"):
            given, granted = getattr(header, label), getattr(terms, label)
            if given != granted:
                raise GrantRefused(
                    f"Grant {self.id} is for the {label} {granted}, and the run is for {given}. "
                    "Reserve a grant for the run that you mean."
                )
        planned = canonical_json(envelope_to_json(header.envelope))
        granted_plan = canonical_json(envelope_to_json(terms.envelope))
        if (header.envelope and planned != granted_plan) or canonical_json(
            header.filter
        ) != canonical_json(terms.filter):
            raise GrantRefused(
                f"Grant {self.id} was reserved for another plan than that of the run. Reserve a "
                "grant for this plan, and withdraw the other one."
            )
        facts = {"book": terms.book, "dataset": terms.dataset, "grant": terms.id}
        return replace(header, grant=facts if terms.part is None else {**facts, "part": terms.part})

    def guard(self, guard: Guard) -> Guard:
        """Return a guard that admits what ``guard`` does, within what was granted."""
        return GrantGuard(guard, self.terms)

    def begin(self, ledger: Ledger) -> int | None:
        """Have the book let a run begin on ``ledger``, and return its number.

        It is None where the ledger was settled: it can be opened, and admits nothing more.
        """
        known, header, line = self.show(), ledger.header, ledger.hash_at(1)
        assert header is not None and line is not None  # it was registered
        mine = known.ledger == header.identity
        if mine and ledger.hash_at(known.head.count) != known.head.hash:
            raise GrantRefused(
                f"{ledger.path} was rolled back or replaced: the book remembers line "
                f"{known.head.count} of the ledger of grant {self.id} otherwise. Restore the "
                "newest copy, or forfeit the grant."
            )
        if known.state is State.SETTLED:
            return None
        number = self._backend.activate(
            self.id,
            line,
            header.identity,
            Head(ledger.lines, ledger.head_hash),
            ledger.ended_session,
            secrets.token_hex(16),
        )
        self._anchors = _Anchors(self._backend, self.id)
        return number

    def follow(self, head: Head) -> None:
        """Let the book know of a head, in the background."""
        if self._anchors is not None:
            self._anchors.newest = head

    def end(self, ledger: Ledger) -> None:
        """Tell the book how far the ledger came, and settle a grant that is used up."""
        anchors, self._anchors = self._anchors, None
        if anchors is None:  # no run had begun, or it has ended
            return
        anchors.close()
        if ledger.ended_session is None:
            return
        try:
            spent = Spent(self.terms)
            for run in ledger.uses:
                spent.add(run.event, run.times)
            if spent.all:
                self.settle(ledger)
            else:
                self._backend.anchor(self.id, Head(ledger.lines, ledger.head_hash))
        except BookError as error:
            sys.stderr.write(
                f"The run has ended, and the book of {self.dataset!r} could not be told: {error} "
                f"Until it is settled, all of grant {self.id} is kept.\n"
            )

    def settle(self, ledger: Ledger | str | Path) -> GrantState:
        """Charge what ``ledger`` shows, and free the rest; see :meth:`BudgetBook.settle`."""
        return self._backend.settle(self.id, ledger_bytes(ledger))


class Spent:
    """What was spent of a grant, in whole numbers: constant time for each step.

    Args:
        terms: what was granted.
    """

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._counts: Counter[Event] = Counter()
        self._streams: Counter[Event] = Counter()
        for run in terms.envelope:
            if run.event.at_most is not None:
                self._streams[run.event] += run.times
        self._total: Cost = nothing(terms.orders)
        self._void = False  # something without any protection is on record
        places = (terms.orders.index(order) for order in terms.limits)
        self._limited = (0, *(1 + place for place in places))

    @property
    def all(self) -> bool:
        """Whether nothing is left; rows of a stream are, though the first one paid for all."""
        if any(self._counts[row] < times for row, times in self._streams.items()):
            return self._void
        return self._void or any(
            self._total[at] >= self._terms.cost[at] > 0 for at in self._limited
        )

    def room_for(self, event: Event, times: int) -> bool:
        """Tell whether so many more of ``event`` are within what was granted."""
        more = plus(self._total, self._change(event, times))
        return not self._void and all(more[at] <= self._terms.cost[at] for at in self._limited)

    def add(self, event: Event, times: int) -> None:
        """Count so many more of ``event``; a negative number hands them back."""
        try:
            self._total = plus(self._total, self._change(event, times))
        except InvalidArgument:
            self._void = True
        self._counts[event] += times

    def _change(self, event: Event, times: int) -> Cost:
        if event.at_most is None:
            return cost_of_event(event, times, self._terms.orders, self._terms.relation)
        before = self._rows(event, self._counts[event])
        return plus(self._rows(event, self._counts[event] + times), before, -1)

    def _rows(self, event: Event, times: int) -> Cost:
        """Return what rows of a stream cost: with the first one, all that were granted."""
        if times <= 0:
            return nothing(self._terms.orders)
        times = max(times, self._streams[event])
        return cost_of_event(event, times, self._terms.orders, self._terms.relation)


class GrantGuard:
    """Guard that admits what another one does, as long as it is within a grant.

    Args:
        guard: the guard of the plan, which the header names.
        terms: what was granted.
    """

    def __init__(self, guard: Guard, terms: Terms) -> None:
        self._guard = guard
        self._terms = terms
        self._spent = Spent(terms)

    def describe(self) -> dict[str, Any]:
        """Return what the guard of the plan says; the header names the grant besides."""
        return self._guard.describe()

    def admit(self, event: Event, times: int) -> None:
        """Raise unless both have room."""
        self._guard.admit(event, times)
        if not self._spent.room_for(event, times):
            raise BudgetExhausted(
                f"{times} more of this step would exceed grant {self._terms.id} of "
                f"{self._terms.dataset!r}. Nothing was read; reserve a grant for what is to come."
            )

    def record(self, event: Event, times: int) -> None:
        """Count ``times`` more steps in both; a negative number hands steps back."""
        self._guard.record(event, times)
        self._spent.add(event, times)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._guard, name)  # what else the plan's guard can tell, such as ``used``


class _Anchors:
    """Tell a book of the newest head now and then, from a thread of its own.

    A book that does not answer delays nothing: the next head says what this one would have.
    """

    seconds = 15.0

    def __init__(self, backend: Backend, grant: str) -> None:
        self.newest: Head | None = None
        self._backend, self._grant = backend, grant
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, name="dpfy-anchors", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()

    def _work(self) -> None:
        told: Head | None = None
        while not self._closed.wait(self.seconds):
            head = self.newest
            if head is None or head == told:
                continue
            try:
                self._backend.anchor(self._grant, head)
                told = head
            except BookUnavailable:
                continue
            except BookError:
                return  # the grant has ended; what is written next is refused when it is settled


def ledger_bytes(ledger: Ledger | str | Path) -> bytes:
    """Return the lines of a ledger as they are on disk, after verifying them against its head."""
    path = ledger.path if isinstance(ledger, Ledger) else Path(ledger)
    if path is None:
        raise InvalidArgument("Expected a ledger in a file; one in memory settles no grant.")
    Ledger.read(path)
    return path.read_bytes()
