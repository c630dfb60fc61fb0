"""The ledger's format as a pure state machine: bytes in, verified facts out, no files.

Every line is ``{"<kind>":<payload>,"hash":"<64 hex>"}`` in canonical JSON, where the hash is the
SHA-256 of the previous line's hash followed by the line without its own hash. Equal steps therefore
have equal bodies, so a reader looks up the body of a repeated step instead of parsing it a million
times.
"""

import hashlib
import json
import secrets
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any, Self

from dpfy import _validate
from dpfy._version import __version__
from dpfy.errors import InvalidArgument, LedgerDamaged
from dpfy.ledger.events import (
    Envelope,
    Event,
    Repeated,
    canonical_json,
    envelope_from_json,
    envelope_to_json,
)
from dpfy.types import Relation, Unit

SCHEMA = 1
GENESIS = "0" * 64
_HASH_KEY = b',"hash":"'
_TAIL = len(_HASH_KEY) + 64 + len(b'"}\n')
_OPTIONAL = {"strict", "grant"}  # fields of headers that are written only if they are set
_RECOVER = b'{"recover":'
_MAX_REMEMBERED = 4096  # bodies whose notes always differ must not fill the memory


@dataclass(frozen=True)
class Head:
    """The number of lines in a ledger, and the hash of the last one."""

    count: int = 0
    hash: str = GENESIS


def seal(previous: str, body: bytes) -> tuple[bytes, str]:
    """Return ``body`` as a line that is chained to ``previous``, and the hash of the line.

    ``body`` is a canonical JSON object.
    """
    digest = hashlib.sha256(previous.encode() + body).hexdigest()
    return body[:-1] + _HASH_KEY + digest.encode() + b'"}\n', digest


def unseal(previous: str, line: bytes) -> tuple[bytes, str] | None:
    """Return the body and the hash of a line that :func:`seal` wrote, or None if a byte differs."""
    body = line[:-_TAIL] + b"}"
    sealed, digest = seal(previous, body)
    return (body, digest) if sealed == line else None


def recovery_line(journal: "Journal") -> bytes:
    """Return the bytes that turn a torn tail, when appended to it, into a line that charges it."""
    charged = journal.next_event()
    payload = {
        "bytes": len(journal.torn),
        "event": charged.to_json() if charged else None,
        "sha256": hashlib.sha256(journal.torn).hexdigest(),
    }
    return seal(journal.head.hash, canonical_json({"recover": payload}))[0]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True)
class Header:
    """The declaration that a ledger begins with, the same for all who write to it.

    Args:
        unit: the unit of privacy.
        relation: the relation between neighbouring data sets.
        plan: the plan as an opaque JSON object, or None.
        envelope: the events of the whole plan, if they are known in advance.
        key_source: where random keys come from.
        guard: the description of the guard; the ledger fills it in from the guard it is opened
            with.
        filter: how plans that are added later are accounted for. It is declared at creation or
            never; None allows no later plan.
        library: the version of dpfy that wrote the header.
        created: the time of creation, ISO 8601, UTC.
        identity: a random name, so that two ledgers of one plan differ.
        strict: whether releases that rest on an allowance are refused.
        grant: the grant of a budget book that pays for this ledger, and the data set that it is
            for, as JSON; None if no book knows of it.

    ``strict`` and ``grant`` are written only if they are set: other headers keep their bytes, and a
    version that does not know such a field refuses to write to the ledger.

    Raises:
        InvalidArgument: if a value is no plain JSON, or if unit or relation is unknown.

    >>> header = Header(plan={"steps": 3})
    >>> Header.from_json(header.to_json()) == header
    True
    """

    unit: Unit = Unit.RECORD
    relation: Relation = Relation.ADD_OR_REMOVE_ONE
    plan: dict[str, Any] | None = None
    envelope: Envelope = ()
    key_source: str = "os"
    guard: dict[str, Any] = field(default_factory=lambda: {"name": "unguarded"})
    filter: dict[str, Any] | None = None
    library: str = __version__
    created: str = field(default_factory=_now)
    identity: str = field(default_factory=lambda: secrets.token_hex(16))
    strict: bool = False
    grant: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "unit", Unit(self.unit))
            object.__setattr__(self, "relation", Relation(self.relation))
            if not isinstance(self.strict, bool):
                raise ValueError(f"strict={self.strict!r} is not a truth value")
            canonical_json(self.to_json())
        except (TypeError, ValueError) as error:
            raise InvalidArgument(
                f"Expected a header of plain JSON values with a known unit and relation: {error}."
            ) from error

    def to_json(self) -> dict[str, Any]:
        """Return the header as plain JSON values, with the schema version of the ledger."""
        values = {
            item.name: getattr(self, item.name)
            for item in fields(self)
            if item.name not in _OPTIONAL or getattr(self, item.name)
        }
        return {**values, "envelope": envelope_to_json(self.envelope), "schema": SCHEMA}

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Return the header that :meth:`to_json` wrote.

        Raises:
            InvalidArgument: for other schema versions and for unknown fields.
        """
        if not isinstance(value, dict) or value.get("schema") != SCHEMA:
            given = value.get("schema") if isinstance(value, dict) else None
            raise InvalidArgument(
                f"Expected a ledger of schema {SCHEMA}, got {given!r}. Read it with the version of "
                "dpfy that wrote it, or with a newer one."
            )
        values = {name: item for name, item in value.items() if name != "schema"}
        if (
            set(values) | _OPTIONAL != {item.name for item in fields(cls)}
            or values.get("strict", True) is not True
            or values.get("grant", {"any": 1}) in ({}, None)
        ):
            raise InvalidArgument(
                f"Expected a header with the fields {', '.join(item.name for item in fields(cls))}."
            )
        return cls(**{**values, "envelope": envelope_from_json(values["envelope"])})

    def differences(self, other: "Header") -> list[str]:
        """Return the names of the fields that writers of one ledger must agree on and do not."""
        mine, theirs = self.to_json(), other.to_json()
        names = ("unit", "relation", "plan", "envelope", "key_source", "filter", "strict", "grant")
        return [
            name
            for name in names
            if canonical_json(mine.get(name)) != canonical_json(theirs.get(name))
        ]


class Journal:
    """The contents of the verified lines of a ledger; :meth:`feed` it line by line.

    *Formal guarantee*: a byte string is accepted only if each line hashes to its own hash from the
    previous line's, is canonical, and follows the lines it refers to. An unterminated tail is kept
    as ``torn`` and counts as spent.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.head = Head()
        self.size = 0
        self.torn = b""
        self.headers: list[Header] = []
        self.addresses: dict[Event, str] = {}
        self._events: dict[str, Event] = {}
        self._runs: list[tuple[Event, int]] = []
        self._known_uses: dict[bytes, tuple[Event, int]] = {}
        self._last_use = 0  # steps that the last line paid for, if it can still hand some back
        self._spent = 0
        self.header_start = 0
        self._envelope_ends: list[int] = []
        self.open: dict[str, Event] = {}  # selections that have begun and not ended
        self.interruptions: list[Repeated] = []
        self.session = (0, True)  # the last run that a book let begin here; whether it has ended
        self.basis: list[dict[str, Any]] = []  # recorded grounds of runs; they spend nothing

    def feed(self, line: bytes) -> None:
        """Verify the next line and take it in."""
        if not line.endswith(b"\n"):
            self.torn = line
            return
        opened = unseal(self.head.hash, line)
        if opened is None:
            digest = self._recover(line)
        else:
            body, digest = opened
            use = self._known_uses.get(body)
            if use is not None:
                self._pay(*use)
            else:
                self._interpret(body)
        self.head = Head(self.head.count + 1, digest)
        self.size += len(line)

    def runs(self) -> Iterator[Repeated]:
        """Yield what was spent in order, run-length encoded; a torn tail counts as another step."""
        for event, times in self._runs:
            yield Repeated(event, times)
        charged = self.next_event() if self.torn else None
        if charged is not None:
            yield Repeated(charged, 1)

    def next_event(self) -> Event | None:
        """Return the event that an unreadable step is charged as.

        It is the next event of the envelope or, without an envelope, the last event on record; None
        if that happened as often as it can, as nothing was released for the step.
        """
        envelope = self.headers[-1].envelope if self.headers else ()
        if envelope:
            event = envelope[min(self._envelope_index(), len(envelope) - 1)].event
        elif self._runs:
            event = self._runs[-1][0]
        else:
            return None
        return None if self.left_of(event) == 0 else event

    def left_of(self, event: Event) -> int | None:
        """Return how often ``event`` can still happen; None for any number."""
        if event.at_most is None:
            return None
        spent = sum(times for other, times in self._runs if other == event)
        return max(0, event.at_most - spent)

    def left_in_run(self, event: Event) -> int | None:
        """Return how many more of ``event`` the envelope has next; None without an envelope."""
        envelope, index = self.headers[-1].envelope, self._envelope_index()
        if not envelope:
            return None
        if index == len(envelope) or envelope[index].event != event:
            return 0
        return self._envelope_ends[index] - (self._spent - self.header_start)

    def damaged(self, reason: str) -> LedgerDamaged:
        """Return an error that names the line after the last good one."""
        return LedgerDamaged(
            f"{self.name}, line {self.head.count + 1} (byte {self.size}): {reason} Nothing can be "
            "spent or claimed from it; restore the latest ledger and head, or claim no guarantee."
        )

    def _envelope_index(self) -> int:
        return bisect_right(self._envelope_ends, self._spent - self.header_start)

    def _recover(self, line: bytes) -> str:
        """Take in a torn tail that was sealed when the ledger was opened again."""
        start = line.rfind(_RECOVER)
        opened = unseal(self.head.hash, line[start:]) if start > 0 else None
        if opened is None:
            raise self.damaged(
                "it does not continue the hash chain; it was edited or moved, or a line before it "
                "was removed."
            )
        payload = json.loads(opened[0])["recover"]
        if (payload["bytes"], payload["sha256"]) != (
            start,
            hashlib.sha256(line[:start]).hexdigest(),
        ):
            raise self.damaged("the torn bytes that this line recovered were edited.")
        self._last_use = 0
        if payload["event"] is not None:
            self._spend(Event.from_json(payload["event"]), 1)
        return opened[1]

    def _interpret(self, body: bytes) -> None:
        last_use, self._last_use = self._last_use, 0
        try:
            ((kind, payload),) = json.loads(body).items()
            if canonical_json({kind: payload}) != body:
                raise ValueError("not canonical")
            if kind == "header":
                self._enter(Header.from_json(payload))
            elif kind == "define":
                self._define(Event.from_json(payload))
            elif kind == "use" and self.headers:
                self._use(body, payload)
            elif kind == "settle":
                self._hand_back(payload["unused"], range(1, last_use))  # the first was taken
            elif kind == "void":
                self._hand_back(payload["unused"], range(last_use, last_use + 1))  # none was
            elif kind == "begin" and self.headers:
                self._begin(**payload)
            elif kind == "end":
                self._end(**payload)
            elif kind == "basis" and self.headers:
                self._found(payload)
            elif kind == "session" and self.headers:
                self._let(**payload)
            else:  # an unknown kind may be a charge, so it cannot be skipped
                raise ValueError(
                    f"unexpected {kind!r}; dpfy {__version__} knows no such entry in this place, a "
                    "newer version may"
                )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise self.damaged(f"it is chained but not allowed here: {error}") from error

    def _enter(self, header: Header) -> None:
        if self.headers and self.headers[0].filter is None:
            raise ValueError("a second header without a filter declared in the first")
        if self.headers and (
            set(self.headers[0].differences(header)) - {"plan", "envelope"}
            or canonical_json(self.headers[0].guard) != canonical_json(header.guard)
        ):
            raise ValueError(
                "a second header with another unit, relation, filter, guard, key source or strict"
            )
        self.headers.append(header)
        self.header_start = self._spent
        self._envelope_ends = list(accumulate(run.times for run in header.envelope))

    def _define(self, event: Event) -> None:
        self._events[event.address] = event
        self.addresses[event] = event.address

    def _use(self, body: bytes, payload: dict[str, Any]) -> None:
        if not set(payload) <= {"event", "times", "note"}:
            raise ValueError("a use has an event, a number of times and perhaps a note")
        self._expect_session()
        use = self._events[payload["event"]], _validate.count("times", payload["times"])
        if len(self._known_uses) < _MAX_REMEMBERED:
            self._known_uses[body] = use
        self._pay(*use)

    def _pay(self, event: Event, times: int) -> None:
        self._spend(event, times)
        self._last_use = times

    def _spend(self, event: Event, times: int) -> None:
        last, so_far = self._runs[-1] if self._runs else (None, 0)
        if last is event or last == event:
            self._runs[-1] = event, so_far + times
        else:
            self._runs.append((event, times))
        self._spent += times
        self._last_use = 0

    def _hand_back(self, value: object, allowed: range) -> None:
        unused = _validate.count("unused", value)
        if unused not in allowed:
            raise ValueError("more steps handed back than the line before left unused")
        event, times = self._runs.pop()
        if times > unused:
            self._runs.append((event, times - unused))
        self._spent -= unused

    def _found(self, facts: object) -> None:
        if not isinstance(facts, dict):
            raise ValueError("what a run rests on is an object with names")
        self.basis.append(facts)

    def _expect_session(self) -> None:
        if self.session[1] and self.headers[-1].grant is not None:
            raise ValueError("a step outside of the runs that its budget book let begin")

    def _let(self, number: int, ended: bool) -> None:
        """Take in the beginning or the end of a run that a budget book let begin."""
        known, closed = self.session
        if number != known and not (number > known and ended is False):
            raise ValueError(f"run {number} of a grant after run {known}")
        if ended is not (number == known) or (ended and closed):
            raise ValueError(f"run {number} of a grant ends without having begun")
        self.session = (number, ended)
        self._known_uses.clear()  # they are looked at anew in the next run

    def _begin(self, scope: str, event: str) -> None:
        if scope in self.open or not isinstance(scope, str):
            raise ValueError("a selection has begun under this name already")
        self._expect_session()
        self.open[scope] = self._events[event]
        self._spend(self._events[event], 1)

    def _end(self, scope: str, charge: dict[str, Any] | None) -> None:
        """Take in the end of a selection.

        An interrupted selection is charged, on top of its own cost, for all that may have been seen
        of it.
        """
        del self.open[scope]
        if charge is not None:
            run = Repeated.from_json(charge)
            self.interruptions.append(run)
            self._spend(run.event, _validate.count("times", run.times))
