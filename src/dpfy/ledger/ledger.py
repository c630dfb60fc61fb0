"""The write-ahead record of what was spent.

A step is durable in the ledger before any record is read for it.
"""

import os
import secrets
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dpfy import _validate
from dpfy._notebook import html_of
from dpfy._process import Opener
from dpfy.errors import (
    BudgetExhausted,
    InvalidArgument,
    LedgerError,
    LedgerMismatch,
    LedgerWriteFailed,
)
from dpfy.ledger.events import (
    Envelope,
    Event,
    NonPrivate,
    Repeated,
    Sampled,
    canonical_json,
    run_lengths,
)
from dpfy.ledger.grant import Booking, Grant, facts_of
from dpfy.ledger.guard import Guard, Unguarded
from dpfy.ledger.journal import Head, Header, Journal, recovery_line, seal
from dpfy.ledger.sealed import forget, interruption, recall
from dpfy.ledger.store import FileStore, Mark, MemoryStore, Store
from dpfy.ledger.streams import Row

_StrPath = str | os.PathLike[str]


class Ledger:
    """An append-only, hash-chained record of reserved steps.

    Use :meth:`open`, :meth:`read` or :meth:`in_memory` to get one.

    Args:
        store: where the lines are kept.
        journal: the verified contents of the store.
        block: the number of reservations of one fixed event that are paid for at once; at least 1.
        writable: whether steps may be reserved.

    *Formal guarantee*: when :meth:`reserve` returns, the event is on stable storage and the guard
    admitted it; so in every execution, crashes included, the steps that a later reader counts are
    at least those that were released. Lines that go missing or change are a refusal that names the
    place.

    *Assumes* that the storage keeps what ``fsync`` acknowledged, and that ledger, head and (if
    kept) anchor are not all restored together: no local file can show that.

    >>> from dpfy.ledger.events import Poisson, Sampled, SumQuery
    >>> step = Sampled(Poisson(0.01), (SumQuery(1.0, 1.1),))
    >>> with Ledger.in_memory(header=Header(plan={"steps": 2})) as ledger:
    ...     ledger.reserve(step)
    ...     ledger.reserve(step)
    >>> ledger.count, len(ledger.uses), ledger.durable
    (2, 1, False)
    """

    def __init__(
        self, store: Store, journal: Journal, block: int = 1, writable: bool = True
    ) -> None:
        self._store = store
        self._journal = journal
        self._block = _validate.count("block", block)
        self._writable = writable
        self._guard: Guard | None = None
        # whose descriptions were compared last, so that every step need not write them out
        self._agreed: tuple[Header | None, Guard | None] = None, None
        self._paid_for: tuple[Event, bytes] | None = None
        self._paid = self._prepaid = 0  # steps of the last use, and those of them not taken
        self._intact = True
        self._opener = Opener()
        self._grant: Grant | None = None
        self._booking: Booking | None = None
        self._guards: tuple[Guard | None, Guard | None] = None, None  # without and with the grant
        self._asked = False  # whether the book was asked to let this run begin
        self._mutex = threading.RLock()

    @classmethod
    def open(
        cls,
        path: _StrPath | Booking,
        guard: Guard | None = None,
        header: Header | None = None,
        anchor: _StrPath | None = None,
        block: int = 1,
        grant: Grant | None = None,
    ) -> Self:
        """Open ``path`` as its only writer, after verifying it; create it if it does not exist.

        Args:
            path: the ledger file; its head is kept beside it. What
                :meth:`~dpfy.BudgetBook.pay_for` returned takes the grant that the file names, or
                reserves one for what is registered first.
            guard: the gatekeeper of the budget.
            header: what the ledger is for; an existing ledger must have been begun for the same.
            anchor: a file in another place that also keeps the head.
            block: the number of reservations of one fixed event that are paid for at once. A clean
                :meth:`close` hands back unused ones; a crash does not.
            grant: the grant of a :class:`~dpfy.budgets.BudgetBook` that pays for the ledger; it is
                given whenever the ledger is opened.

        Returns:
            The open ledger; close it, or use it as a context manager.

        Raises:
            LedgerLocked: if another process is writing to it.
            LedgerDamaged: if it was truncated, edited or rolled back.
            LedgerMismatch: if it was begun for something else.
            UnsafeStorage: if its file system has no working locks or no fsync.
            LedgerWriteFailed: if it cannot be written.
            BookError: if the book does not let a run begin.
        """
        _validate.count("block", block)
        booking = path if isinstance(path, Booking) and grant is None else None
        if booking is not None and header is not None:
            grant = booking.grant(header)
        if grant is not None and header is not None:
            header = grant.declared(header)  # refused before there is a file
        store = FileStore(_place(path), anchor)
        store.acquire()
        try:
            journal = _replay(store)
            ledger = cls(store, journal, block)
            ledger._take(grant, booking)
            ledger._seal_tail()
            # Open selections were begun by a writer that is gone: we hold its lock.
            for scope, event in list(journal.open.items()):
                ledger.end(scope, interruption(event, recall(store.path, scope)))
            forget(store.path)
            if header is not None:
                ledger.register(guard, header)
            else:
                ledger._attach(ledger._granted(guard))
            ledger._begin_session()
        except BaseException:
            store.close()
            raise
        return ledger

    @classmethod
    def read(cls, path: _StrPath | Booking, anchor: _StrPath | None = None) -> Self:
        """Verify and read ``path`` without a lock, even while a run is writing to it.

        A torn tail counts as spent.

        Args:
            path: the ledger file.
            anchor: the file that also keeps the head, if there is one.

        Returns:
            A ledger that cannot be written to.

        Raises:
            LedgerError: if there is no ledger, or if it cannot be read.
            LedgerDamaged: if it was truncated, edited or rolled back.
        """
        store = FileStore(_place(path), anchor)
        return cls(store, _replay(store), writable=False)

    @classmethod
    def from_bytes(cls, data: bytes, name: str) -> Self:
        """Verify the contents of a ledger file, without its head, and return a ledger to read.

        Args:
            data: the bytes of the file.
            name: how errors name it.

        Returns:
            A ledger that cannot be written to.

        Raises:
            LedgerDamaged: if a line was edited or removed.
        """
        store = MemoryStore(data, name)
        return cls(store, _replay(store), writable=False)

    @classmethod
    def in_memory(
        cls, guard: Guard | None = None, header: Header | None = None, block: int = 1
    ) -> Self:
        """Return a ledger that is lost with the process; reports call it not durable.

        Args:
            guard: the gatekeeper of the budget.
            header: what the ledger is for.
            block: as of :meth:`open`.

        Returns:
            The empty ledger.
        """
        store = MemoryStore()
        ledger = cls(store, Journal(store.name), block)
        if header is not None:
            ledger.register(guard, header)
        else:
            ledger._attach(guard)
        return ledger

    def register(self, guard: Guard | None, header: Header) -> None:
        """Declare what this ledger is for, or check that it was declared so before.

        Extending a ledger after looking at what it paid for is adaptive composition, so a second
        plan is refused unless the header declared a filter at creation.

        Args:
            guard: replaces the previous guard and is told all that was spent; None keeps the
                previous one.
            header: the declaration.

        Raises:
            LedgerMismatch: if the ledger was begun for something else.
        """
        if self._grant is None and self._booking is not None:
            self._grant = self._booking.grant(header)
        if self._grant is not None:
            header = self._grant.declared(header)
        guard = self._granted(guard) or self._guard or self._granted(Unguarded()) or Unguarded()
        header = replace(header, guard=guard.describe())
        with self._mutex:
            if self._is_new(header):
                self._check_writable()
                self._append([("header", header.to_json())])
            self._attach(guard)
            self._begin_session()

    def reserve(self, event: Event, note: dict[str, Any] | None = None) -> None:
        """Record one step durably, or raise; a record may be read only after this returns.

        Args:
            event: the step.
            note: public annotations of the step, such as the realised scale; plain JSON values.

        Raises:
            BudgetExhausted: if the guard does not admit the step.
            LedgerMismatch: if the step is adaptive and the ledger declares no filter.
            LedgerWriteFailed: if the write fails, and for every reservation after that.
        """
        with self._mutex:
            self.prepay(event, note)
            self._prepaid -= 1

    def prepay(self, event: Event, note: dict[str, Any] | None = None) -> None:
        """Pay durably for a step that comes next, or raise; records may be read for it after this.

        Nothing that was computed from them may be released before :meth:`reserve` returned for the
        same event and note, which takes the step and writes no further line. A clean :meth:`close`,
        or a line about something else, hands back a step that was not taken; a crash does not.

        Args:
            event: the step.
            note: as of :meth:`reserve`.

        Raises:
            BudgetExhausted: if the guard does not admit the step.
            LedgerMismatch: if the step is adaptive and the ledger declares no filter.
            LedgerWriteFailed: if the write fails, and for every reservation after that.
        """
        annotation = _as_json(note, "note")
        with self._mutex:
            self._check_writable()
            if self._prepaid and self._paid_for == (event, annotation):
                return
            self._settle()
            guard = self._ready_guard()
            self._check_fixed(event)
            times = self._affordable(guard, event)
            self._append(self._entries(event, times, note))
            guard.record(event, times)
            self._paid_for, self._paid, self._prepaid = (event, annotation), times, times

    def begin(self, event: Event, before: Callable[[str], None] = lambda scope: None) -> str:
        """Reserve ``event`` and return a name under which to :meth:`end` it.

        Until the end nothing may be claimed from this ledger. Callers use
        :class:`~dpfy.ledger.scopes.Selection` instead.

        Args:
            event: the event to reserve, as by :meth:`reserve`.
            before: is called with the name before the name is on record.

        Returns:
            The name of the scope.
        """
        with self._mutex:
            self._check_writable()
            self._settle()
            guard = self._ready_guard()
            self._check_fixed(event)
            guard.admit(event, 1)
            scope = secrets.token_hex(8)
            before(scope)
            *define, (_, use) = self._entries(event, 1, None)
            self._append([*define, ("begin", {"scope": scope, "event": use["event"]})])
            guard.record(event, 1)
            self._paid_for = None
        return scope

    def end(self, scope: str, charge: Repeated | None = None) -> None:
        """Record that the scope that :meth:`begin` began has ended.

        Args:
            scope: the name that :meth:`begin` returned.
            charge: what an interruption costs in addition; None if there was none.

        Raises:
            LedgerMismatch: if no such scope is open.
        """
        with self._mutex:
            self._check_writable()
            self._settle()
            if scope not in self._journal.open:
                raise LedgerMismatch(
                    f"{self._store.name} has no selection under way that is called {scope!r}."
                )
            self._append([("end", {"scope": scope, "charge": charge and charge.to_json()})])
            if charge is not None and self._guard is not None:
                self._guard.record(charge.event, charge.times)

    def record_basis(self, facts: dict[str, Any]) -> None:
        """Record durably the facts that a run rests on, unless they are on record already.

        This costs nothing and releases nothing.

        Args:
            facts: plain JSON values about the engine, the machine and what was declared. Anybody
                may read them: nothing that was computed from private records belongs here.

        Raises:
            InvalidArgument: if ``facts`` are no plain JSON values.
            LedgerWriteFailed: as of :meth:`reserve`; nothing may be released after it.
        """
        if not isinstance(facts, dict):
            raise InvalidArgument(f"Expected facts={facts!r} to be a dict of plain JSON values.")
        found = _as_json(facts, "facts")
        with self._mutex:
            self._check_writable()
            if any(canonical_json(known) == found for known in self._journal.basis):
                return
            self._ready_guard()
            self._settle()  # a settlement must directly follow its use
            self._append([("basis", facts)])

    def require_opener(self) -> None:
        """Refuse to go on in a fork of the process that opened this ledger.

        Whoever releases several times for one event asks this before each release: a fork has a
        copy of what is paid for, and both would take it.

        Raises:
            LedgerError: in every process but the one that opened it.
        """
        self._opener.require(
            self._store.name, "write to it", "Reserve in the process that opened it."
        )

    def admits(self, event: Event) -> bool:
        """Tell whether the guard would let one more of ``event`` pass; nothing is recorded."""
        with self._mutex:
            try:
                self._ready_guard().admit(event, 1)
            except BudgetExhausted:
                return False
        return True

    def verify(self) -> int:
        """Read everything again and return the number of verified lines.

        Raises:
            LedgerDamaged: naming the first bad line.
        """
        return _replay(self._store).head.count

    def hash_at(self, count: int) -> str | None:
        """Return the hash of line number ``count``, or None if there is no such line.

        Other files, such as checkpoints, refer to a state of the ledger by this hash.
        """
        journal = Journal(self._store.name)
        for line in self._store.lines():
            if journal.head.count == count:
                break
            journal.feed(line)
        return journal.head.hash if journal.head.count == count else None

    def close(self) -> None:
        """Hand back the steps that were paid for in advance and not taken; release the file."""
        if not self._opener.is_this_process or not self._writable:
            return
        with self._mutex:
            try:
                if self._intact:
                    self._settle()
                    self._end_session()
            finally:
                self._writable = False
                self._store.close()
                if self._grant is not None:
                    self._grant.end(self)

    def _repr_html_(self) -> str | None:
        return html_of(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def header(self) -> Header | None:
        """The last declaration; None before there is one."""
        return self._journal.headers[-1] if self._journal.headers else None

    @property
    def uses(self) -> Envelope:
        """Everything that a reader must count as spent, in order.

        A torn tail and all steps that were paid for in advance are included. A selection that has
        begun and not ended counts as an event without any guarantee, because it is not known what
        was seen of it. Rows of a stream name this ledger, so that those of several ledgers can be
        accounted as one list.
        """
        name = self.header.identity if self.header else ""
        runs = (
            Repeated(replace(run.event, source=name), run.times)
            if isinstance(run.event, Row)
            else run
            for run in self._journal.runs()
        )
        return run_lengths([*runs, *self._unfinished])

    @property
    def interruptions(self) -> Envelope:
        """The charges for selections that were interrupted or have not ended.

        They are in addition to what the selections registered.
        """
        return (*self._journal.interruptions, *self._unfinished)

    @property
    def _unfinished(self) -> Envelope:
        return tuple(
            Repeated(NonPrivate("a selection that has not ended"), 1) for _ in self._journal.open
        )

    @property
    def count(self) -> int:
        """The number of steps that were reserved or lost.

        Steps that were paid for in advance, which :meth:`close` hands back, are not counted.
        """
        return sum(run.times for run in self._journal.runs()) - self._prepaid

    @property
    def plan_count(self) -> int:
        """The number of steps since the present plan was registered.

        It equals :attr:`count` unless a filter lets plans follow each other.
        """
        return self.count - self._journal.header_start

    @property
    def basis(self) -> tuple[dict[str, Any], ...]:
        """The facts that runs recorded about what they rest on, in order.

        It is empty in ledgers of versions that did not record them.
        """
        return tuple(self._journal.basis)

    @property
    def ended_session(self) -> int | None:
        """The number of the last run that a book let begin here; None if its end is not known."""
        number, ended = self._journal.session
        return number if ended else None

    @property
    def anchored(self) -> bool:
        """Whether an anchor keeps a second copy of the head."""
        return isinstance(self._store, FileStore) and self._store.anchored

    @property
    def torn_bytes(self) -> int:
        """The length of an unterminated last line, which counts as one step."""
        return len(self._journal.torn)

    @property
    def durable(self) -> bool:
        """Whether the record survives the process."""
        return self._store.durable

    @property
    def path(self) -> Path | None:
        """The file, if there is one."""
        return self._store.path if isinstance(self._store, FileStore) else None

    @property
    def lines(self) -> int:
        """The number of verified lines."""
        return self._journal.head.count

    @property
    def head_hash(self) -> str:
        """The hash of the last line, which stands for the whole ledger."""
        return self._journal.head.hash

    def _check_writable(self) -> None:
        name = self._store.name
        self.require_opener()
        if not self._writable:
            raise LedgerError(
                f"{name} was closed or opened for reading. Use Ledger.open to write to it."
            )
        if not self._intact:
            raise LedgerWriteFailed(
                f"An earlier write to {name} did not complete, so nothing more may be released. "
                "Open the ledger again in a new run; what is on disk counts as spent."
            )

    def _take(self, grant: Grant | None, booking: Booking | None) -> None:
        """Take the grant of the ledger; refuse to write without asking the book that pays for it.

        Where it is not known yet what the ledger is for, the grant is taken when it is registered.
        """
        self._grant, self._booking = grant, booking
        if self.header is None:
            return
        if grant is not None:
            if grant.declared(None).grant != self.header.grant:
                raise LedgerMismatch(
                    f"{self._store.name} was begun with another grant: with "
                    f"{facts_of(self.header.grant)}, and is opened with "
                    f"{facts_of(grant.declared(None).grant)}. Begin a new ledger."
                )
        elif booking is not None:
            self._grant = booking.grant(self.header)
        elif self.header.grant is not None:
            raise LedgerMismatch(
                f"{self._store.name} is paid for by {facts_of(self.header.grant)}. Open it with "
                "grant=, as BudgetBook.grant returns it."
            )

    def _granted(self, guard: Guard | None) -> Guard | None:
        """Return a guard that admits no more than the grant either, the same one for the same."""
        if self._grant is None or guard is None:
            return guard
        if self._guards[0] is not guard:
            self._guards = guard, self._grant.guard(guard)
        return self._guards[1]

    def _begin_session(self) -> None:
        """Have the book of the grant let this run begin, once the header says what it is for."""
        if self._grant is None or self.header is None or self._asked:
            return
        self._asked = True
        number = self._grant.begin(self)
        if number is not None:
            self._append([("session", {"number": number, "ended": False})])

    def _end_session(self) -> None:
        """Record that nothing follows in this run, so that a book can tell it from a crash."""
        number, ended = self._journal.session
        if self._grant is not None and not ended:
            self._append([("session", {"number": number, "ended": True})])

    def _check_fixed(self, event: Event) -> None:
        if self._grant is not None and self.ended_session is not None:
            raise BudgetExhausted(
                f"{self._store.name} was settled: its grant pays for nothing more. Nothing was "
                "read; reserve another grant, for a new ledger."
            )
        if (
            isinstance(event, Sampled)
            and event.adaptive
            and self.header is not None
            and self.header.filter is None
        ):
            raise LedgerMismatch(
                f"The step was chosen from earlier outputs, and {self._store.name} declares no "
                "filter that could account it. Declare one in the header when the ledger is "
                "created."
            )
        if event.source:
            raise LedgerMismatch(
                "Expected a row without the name of a run, because all rows on record are of this "
                f"ledger's run, got one of {event.source!r}. Reserve Composed.of the rows of "
                "another run."
            )
        if self._journal.left_of(event) == 0:
            raise BudgetExhausted(
                f"All {event.at_most:,} rows of the stream are on record in {self._store.name}. "
                "Nothing was read; begin a new ledger for a new plan."
            )

    def _is_new(self, header: Header) -> bool:
        """Tell whether ``header`` must be appended; raise if this ledger cannot take it."""
        if self.header is None:
            return True
        differ = self.header.differences(header)
        if not set(differ) - {"plan", "envelope"} and canonical_json(
            self.header.guard
        ) != canonical_json(header.guard):
            differ.append("guard")
        if "strict" in differ:
            raise LedgerMismatch(
                f"{self._store.name} was begun with strict={self.header.strict}, got "
                f"strict={header.strict}. Go on as it was begun, or begin a new ledger."
            )
        # The filter's guard is what permits later plans, so it must stay the same too.
        if differ and (self.header.filter is None or set(differ) - {"plan", "envelope"}):
            raise LedgerMismatch(
                f"{self._store.name} was begun with another {' and '.join(differ)}. Extending a "
                "ledger after looking at its outputs is adaptive composition, which its "
                "accounting does not cover unless a filter was declared at creation; resume with "
                "the same plan or begin a new ledger."
            )
        return bool(differ)

    def _attach(self, guard: Guard | None) -> None:
        # A guard is told what was spent only once, however often it is registered.
        if guard is not None and guard is not self._guard:
            for run in run_lengths(self._journal.runs()):
                guard.record(run.event, run.times)
            self._guard = guard

    def _ready_guard(self) -> Guard:
        """Return the guard that the header names; without a header, the default guard."""
        guard = self._guard or self._granted(Unguarded()) or Unguarded()
        known, agreed = self._agreed
        if known is not None and self.header is known and guard is agreed:
            return guard
        if self.header is None and self._booking is not None and self._grant is None:
            raise LedgerMismatch(
                f"{self._store.name} is to be paid for by a budget book, which has to know what it "
                "is for. Register a header with an envelope first."
            )
        if self.header is None:
            header = Header() if self._grant is None else self._grant.declared(None)
            self._append([("header", replace(header, guard=guard.describe()).to_json())])
            self._begin_session()
        elif canonical_json(self.header.guard) != canonical_json(guard.describe()):
            raise LedgerMismatch(
                f"{self._store.name} is guarded by {self.header.guard.get('name')!r}, but was "
                f"opened with {guard.describe().get('name')!r}. Open it with its own guard."
            )
        self._guard = guard
        self._agreed = self.header, guard
        return guard

    def _affordable(self, guard: Guard, event: Event) -> int:
        """Return the number of steps to pay for now; raise BudgetExhausted if it is 0."""
        times = 1
        if isinstance(event, Sampled | Row) and not event.adaptive:
            left = (self._block, self._journal.left_in_run(event), self._journal.left_of(event))
            times = min(each for each in left if each is not None)
        while times > 1:
            try:
                guard.admit(event, times)
                return times
            except BudgetExhausted:
                times //= 2
        guard.admit(event, 1)
        return 1

    def _entries(
        self, event: Event, times: int, note: dict[str, Any] | None
    ) -> list[tuple[str, Any]]:
        known = self._journal.addresses.get(event)
        define = [] if known else [("define", event.to_json())]
        use = {"event": known or event.address, "times": times} | (
            {} if note is None else {"note": note}
        )
        return [*define, ("use", use)]

    def _settle(self) -> None:
        if self._prepaid and self._paid_for is not None:
            unused, self._prepaid = self._prepaid, 0
            kind = "settle" if unused < self._paid else "void"
            self._append([(kind, {"unused": unused})])
            if self._guard is not None:
                self._guard.record(self._paid_for[0], -unused)

    def _seal_tail(self) -> None:
        """Make durable, and cover by the head, what a crashed writer left; charge its torn line."""
        line = recovery_line(self._journal) if self._journal.torn else b""
        if line:
            whole, self._journal.torn = self._journal.torn + line, b""
            self._journal.feed(whole)
        self._write(line, self._journal.head)

    def _append(self, entries: Iterable[tuple[str, Any]]) -> None:
        """Write all ``entries`` at once and take them in."""
        lines: list[bytes] = []
        digest = self._journal.head.hash
        for kind, payload in entries:
            line, digest = seal(digest, canonical_json({kind: payload}))
            lines.append(line)
        # Not intact until all of it is done: an interrupt must not lead to a release either.
        self._intact = False
        self._write(b"".join(lines), Head(self._journal.head.count + len(lines), digest))
        for line in lines:
            self._journal.feed(line)
        self._intact = True
        if self._grant is not None:
            self._grant.follow(self._journal.head)

    def _write(self, data: bytes, head: Head) -> None:
        try:
            self._store.append(data, head)
        except OSError as error:
            raise LedgerWriteFailed(
                f"An append to {self._store.name} could not be made durable: {error.strerror}. "
                "Nothing is released after it; free or repair the storage and start a new run."
            ) from error


def _place(path: _StrPath | Booking) -> _StrPath:
    return path.path if isinstance(path, Booking) else path


def _as_json(values: dict[str, Any] | None, name: str) -> bytes:
    try:
        return canonical_json(values)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"Expected {name} to hold plain JSON values: {error}.") from error


def _replay(store: Store) -> Journal:
    """Verify the whole of ``store`` against its own chain and against head and anchor."""
    journal = Journal(store.name)
    read_on(store, journal)
    return journal


def read_on(store: Store, journal: Journal) -> None:
    """Verify what follows the lines that ``journal`` has taken in, and take it in too."""
    marks = store.marks()  # before the lines: a writer appends first and moves the head afterwards
    counts = {mark.count for mark in marks}
    journal.torn = b""  # it is read again, with what has been added to it since
    _check_hash(journal, marks)
    for line in store.lines(journal.size):
        journal.feed(line)
        if journal.head.count in counts:
            _check_hash(journal, marks)
    latest = max(marks, key=lambda mark: mark.count, default=None)
    if latest is not None and journal.head.count < latest.count:
        raise journal.damaged(
            f"the ledger ends here, but {latest.where} remembers {latest.count} lines; it was cut "
            "or rolled back."
        )


def _check_hash(journal: Journal, marks: list[Mark]) -> None:
    for mark in marks:
        if mark.count == journal.head.count and mark.hash not in (None, journal.head.hash):
            raise journal.damaged(f"the line before is not the one that {mark.where} remembers.")
