"""Answers that were given before, kept beside the ledger that paid for them.

They are public: releasing an answer again is post-processing and costs nothing.
"""

import errno
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpfy.errors import LedgerDamaged, LedgerMismatch, LedgerWriteFailed
from dpfy.ledger import Ledger
from dpfy.ledger.events import canonical_json
from dpfy.ledger.store import sync_directory

Answer = int | float
"""The number of a class, −1 where there was no consensus, or the value of a regression."""

_SCHEMA = 1


@dataclass(frozen=True)
class Entry:
    """An answer that was paid for.

    Args:
        question: The hash of the input.
        answer: What was answered.
        paid: The number of the reservation in the ledger that paid for it, counted from 1.
    """

    question: str
    answer: Answer
    paid: int


class AnswerTable:
    """A durable table of past answers, which several processes share.

    *Formal guarantee*: :meth:`add` returns when the answers are on stable storage, so an answer
    that was handed out after it is the answer to that input from then on, in every process and
    after every crash. A line that a crash has torn was never handed out and is cut off.

    *Assumes* that :meth:`catch_up` and :meth:`add` are called only by who has the ledger open for
    writing, whose lock keeps others out.

    Args:
        path: The file; None keeps the answers in memory.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known: dict[str, Answer] = {}
        self._size = 0  # of the part of the file that is known
        self._paid = 0  # the last reservation that an answer is for

    def get(self, question: str) -> Answer | None:
        """Return the answer that was given before, or None, as far as this process knows."""
        return self._known.get(question)

    def catch_up(self, ledger: Ledger) -> None:
        """Read what other processes have answered since.

        Args:
            ledger: The ledger, open for writing.

        Raises:
            LedgerDamaged: If the table was cut or edited.
            LedgerMismatch: If it belongs to another ledger.
        """
        if self._path is None:
            return
        with _opened(self._path) as descriptor:
            if os.fstat(descriptor).st_size < self._size:
                raise LedgerDamaged(f"{self._path} was cut while it was in use. Restore it.")
            data = _read_from(descriptor, self._size)
            whole = data[: data.rfind(b"\n") + 1]
            os.ftruncate(descriptor, self._size + len(whole))
            if self._size == 0 and not whole:
                whole = _line(_beginning(ledger))
                _write(descriptor, whole)
                sync_directory(self._path.parent)
            os.fsync(descriptor)  # its writer may have died before it did so
        self._take_in(whole, ledger)

    def add(self, entries: Sequence[Entry]) -> None:
        """Make answers durable; they may be handed out after this.

        Args:
            entries: The answers, in the order in which they were paid for.

        Raises:
            LedgerWriteFailed: If they could not be written; none of them may be handed out.
        """
        if self._path is not None:
            data = b"".join(
                _line({"question": each.question, "answer": each.answer, "paid": each.paid})
                for each in entries
            )
            with _opened(self._path) as descriptor:
                _write(descriptor, data)
                os.fsync(descriptor)
            self._size += len(data)
        self._known.update((each.question, each.answer) for each in entries)
        self._paid = max((each.paid for each in entries), default=self._paid)

    def _take_in(self, whole: bytes, ledger: Ledger) -> None:
        """Check new lines against the ledger and remember their answers."""
        lines = whole.splitlines()
        if self._size == 0:
            if _parsed(lines[0], self._path) != _beginning(ledger):
                raise LedgerMismatch(
                    f"{self._path} holds the answers of another ledger than {ledger.path}. Move it "
                    "away, or use the ledger that it was begun with."
                )
            del lines[0]
        for entry in self._entries(lines):
            if not self._paid < entry.paid <= ledger.count:
                raise LedgerMismatch(
                    f"{self._path} has an answer that {ledger.path} has not paid for. Restore the "
                    "two from the same time."
                )
            self._known[entry.question], self._paid = entry.answer, entry.paid
        self._size += len(whole)

    def _entries(self, lines: Sequence[bytes]) -> Iterator[Entry]:
        for line in lines:
            try:
                yield Entry(**_parsed(line, self._path))
            except TypeError:
                raise _damaged(self._path) from None


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """Open a file for reading and appending; what fails is a refusal."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            yield descriptor
        finally:
            os.close(descriptor)
    except OSError as error:
        raise LedgerWriteFailed(
            f"{path} cannot be read and written: {error.strerror}. Nothing was answered; free or "
            "repair the storage, and ask again."
        ) from error


def _beginning(ledger: Ledger) -> dict[str, Any]:
    """Return what the first line says: which ledger the answers belong to."""
    return {"schema": _SCHEMA, "ledger": ledger.hash_at(1)}


def _write(descriptor: int, data: bytes) -> None:
    if os.write(descriptor, data) != len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _read_from(descriptor: int, start: int) -> bytes:
    size = os.fstat(descriptor).st_size
    parts = []
    while start < size:
        parts.append(os.pread(descriptor, size - start, start))
        start += len(parts[-1])
    return b"".join(parts)


def _line(value: dict[str, Any]) -> bytes:
    return canonical_json(value) + b"\n"


def _parsed(line: bytes, path: Path | None) -> Any:
    try:
        value = json.loads(line)
    except ValueError:
        raise _damaged(path) from None
    if not isinstance(value, dict):
        raise _damaged(path)
    return value


def _damaged(path: Path | None) -> LedgerDamaged:
    return LedgerDamaged(
        f"{path} has a line that is no answer. Restore it, or move it away: inputs that were "
        "answered before are then paid for again."
    )
