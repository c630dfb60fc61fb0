"""Storage of a book: a chain of entries in a database, one writer at a time.

Entries are the truth, and everything else follows from them: what a data set has spent is in the
last entry that moved its budget, and how far a grant has come is in the last entry of the grant.

Tests: tests/budgets/test_store.py.
"""

import json
import os
import secrets
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self, TypeVar

from sqlalchemy import Connection, func, insert, inspect, select, update
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from dpfy._version import __version__
from dpfy.budgets import tables
from dpfy.budgets.queue import Queue
from dpfy.budgets.values import Entry, whoever
from dpfy.errors import BookDamaged, BookError, BookUnavailable
from dpfy.ledger.events import canonical_json
from dpfy.ledger.journal import GENESIS

BOOK = ""  # the name of the head of the whole book

_T = TypeVar("_T")
_PAUSES = (0.05, 0.2, 0.8, None)  # seconds before what failed is tried again


class Transaction:
    """A view of the book within one transaction; writers see the newest entries.

    Args:
        connection: the connection, within a transaction.
        name: how errors name the book.
    """

    def __init__(self, connection: Connection, name: str) -> None:
        self._connection = connection
        self._name = name
        self._lasts: dict[str, Entry] = {}  # by data set, as far as they were read or written here

    def last_of(self, dataset: str) -> Entry | None:
        """Return the last entry of a data set, or of the book; None if there is none.

        Raises:
            BookDamaged: if the entry is missing or was edited.
        """
        if dataset in self._lasts:
            return self._lasts[dataset]
        head = self._connection.execute(
            select(tables.heads).where(tables.heads.c.name == dataset)
        ).one_or_none()
        if head is None:
            return None
        entry = self.entry(head.number)
        if entry is None or entry.hash != head.hash:
            raise self._damaged(head.number, "it is missing, or not the one that was written")
        self._lasts[dataset] = entry
        return entry

    def last_of_grant(self, grant: str) -> Entry | None:
        """Return the last entry of a grant; None if there is none."""
        return self._one(
            select(tables.entries)
            .where(tables.entries.c.grant_id == grant)
            .order_by(tables.entries.c.number.desc())
            .limit(1)
        )

    def reservation(self, grant: str) -> Entry:
        """Return the first entry of a grant that exists."""
        entries = tables.entries
        query = select(entries).where(entries.c.grant_id == grant)
        found = self._one(query.order_by(entries.c.number).limit(1))
        assert found is not None
        return found

    def grants_of(self, dataset: str) -> list[tuple[Entry, Entry]]:
        """Return the first and the last entry of every grant of a data set, oldest grant first."""
        entries = tables.entries
        ends = (
            select(
                func.min(entries.c.number).label("first"), func.max(entries.c.number).label("last")
            )
            .where(entries.c.dataset == dataset, entries.c.grant_id != "")
            .group_by(entries.c.grant_id)
            .subquery()
        )
        rows = self._connection.execute(
            select(ends.c.first, entries)
            .join(ends, (entries.c.number == ends.c.first) | (entries.c.number == ends.c.last))
            .order_by(ends.c.first, entries.c.number)
        ).all()
        found: dict[int, list[Entry]] = {}
        for row in rows:
            found.setdefault(row.first, []).append(
                self._checked({name: row._mapping[name] for name in _NAMES})
            )
        return [(pair[0], pair[-1]) for pair in found.values()]

    def entry(self, number: int) -> Entry | None:
        """Return one entry, or None if it does not exist."""
        return self._one(select(tables.entries).where(tables.entries.c.number == number))

    def with_key(self, key: str) -> Entry | None:
        """Return the entry that was written for a request with this key, if there is one."""
        return self._one(select(tables.entries).where(tables.entries.c.key == key))

    def bound_to(self, ledger: str, header: str) -> Entry | None:
        """Return the activation that bound a ledger, by its identity or its header, to a grant."""
        entries = tables.entries
        return self._one(
            select(entries)
            .where((entries.c.ledger == ledger) | (entries.c.header == header))
            .order_by(entries.c.number)
            .limit(1)
        )

    def first(self, dataset: str) -> Entry | None:
        """Return the entry that declared a data set, or None if there is none."""
        entries = tables.entries
        return self._one(
            select(entries).where(entries.c.dataset == dataset, entries.c.kind == "create").limit(1)
        )

    def first_of(self, kind: str) -> list[Entry]:
        """Return the entries of a kind, oldest first."""
        entries = tables.entries
        rows = self._connection.execute(
            select(entries).where(entries.c.kind == kind).order_by(entries.c.number)
        )
        return [self._checked(row._asdict()) for row in rows]

    def entries(self, dataset: str | None, after: int, limit: int | None) -> list[Entry]:
        """Return the entries after a number in order, of one data set or of all.

        Raises:
            BookDamaged: if one of them was edited.
        """
        entries = tables.entries
        query = select(entries).where(entries.c.number > after)
        if dataset is not None:
            query = query.where(entries.c.dataset == dataset)
        rows = self._connection.execute(query.order_by(entries.c.number).limit(limit))
        return [self._checked(row._asdict()) for row in rows]

    def heads(self) -> dict[str, tuple[int, str]]:
        """Return the number and hash of the last entry of the book and of each data set."""
        rows = self._connection.execute(select(tables.heads))
        return {row.name: (row.number, row.hash) for row in rows}

    def ledger(self, grant: str) -> tuple[str, bytes] | None:
        """Return the digest and the compressed bytes of the ledger that settled a grant."""
        row = self._connection.execute(
            select(tables.ledgers).where(tables.ledgers.c.grant_id == grant)
        ).one_or_none()
        return None if row is None else (row.sha256, bytes(row.data))

    def keep_ledger(self, grant: str, digest: str, data: bytes) -> None:
        """Keep the compressed bytes of the ledger that settles a grant."""
        self._connection.execute(
            insert(tables.ledgers).values(grant_id=grant, sha256=digest, data=data)
        )

    def append(
        self, kind: str, body: dict[str, Any], *, actor: str, dataset: str = "", grant: str = ""
    ) -> Entry:
        """Append an entry; it is durable once the transaction is committed.

        ``body["key"]`` and ``body["binds"]``, where they exist, are in no other entry.
        """
        last = self.last_of(BOOK)
        entry = Entry(
            number=1 if last is None else last.number + 1,
            time=datetime.now(UTC).isoformat(timespec="seconds"),
            actor=actor,
            kind=kind,
            dataset=dataset,
            grant=grant,
            body=body,
            previous=GENESIS if last is None else last.hash,
            hash="",
        )
        entry = replace(entry, hash=entry.digest)
        self._connection.execute(insert(tables.entries).values(_columns(entry)))
        for name in {BOOK, dataset}:
            self._move_head(name, entry.number, entry.hash)
            self._lasts[name] = entry
        return entry

    def _move_head(self, name: str, number: int, digest: str) -> None:
        heads = tables.heads
        moved = self._connection.execute(
            update(heads).where(heads.c.name == name).values(number=number, hash=digest)
        )
        if moved.rowcount == 0:
            self._connection.execute(insert(heads).values(name=name, number=number, hash=digest))

    def _one(self, query: Any) -> Entry | None:
        row = self._connection.execute(query).one_or_none()
        return None if row is None else self._checked(row._asdict())

    def _checked(self, row: Mapping[str, Any]) -> Entry:
        entry = _entry(row)
        if entry is None:
            raise self._damaged(row["number"], "it was edited")
        return entry

    def _damaged(self, number: int, reason: str) -> BookDamaged:
        return BookDamaged(
            f"Entry {number} of {self._name} does not hold: {reason}. Nothing is granted from this "
            "book; restore its database, and run verify to see where it differs."
        )


class Store:
    """The database of a book.

    *Formal guarantee*: writers have the book to themselves, and what they wrote is on stable
    storage when :meth:`write` returns. An entry that was edited, or a last entry that is missing,
    is a refusal that names it.

    Args:
        url: the address of the database, as SQLAlchemy writes it.
    """

    def __init__(self, url: str) -> None:
        self._engine = tables.connect(url)
        self.name = self._engine.url.render_as_string(hide_password=True)
        self._queue: Queue | None = None
        if self._engine.dialect.name == "sqlite":
            path = Path(str(self._engine.url.database)).resolve()
            self._queue = Queue(path.with_name(path.name + "-queue"))
        _stores.add(self)
        self._retried(self._create)

    def write(self, change: Callable[[Transaction], _T]) -> _T:
        """Call ``change`` in a transaction that nobody else writes in; return what it returns.

        A connection that is lost is made anew and the change tried again, so it must be one that
        can be repeated.

        Raises:
            BookUnavailable: if the database cannot be reached.
        """
        return self._retried(lambda: self._write(change))

    def read(self, question: Callable[[Transaction], _T]) -> _T:
        """Call ``question`` in a transaction that sees one state of the book.

        Raises:
            BookUnavailable: if the database cannot be reached.
        """

        def once() -> _T:
            with self._engine.connect() as connection:
                if self._queue is None:
                    connection = connection.execution_options(isolation_level="REPEATABLE READ")
                with connection.begin():
                    return question(Transaction(connection, self.name))

        return self._retried(once)

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()
        if self._queue is not None:
            self._queue.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, change: Callable[[Transaction], _T]) -> _T:
        with self._alone() as connection:
            if self._queue is None:  # the last row that all writers change orders them
                heads = tables.heads
                connection.execute(
                    select(heads.c.number).where(heads.c.name == BOOK).with_for_update()
                )
            return change(Transaction(connection, self.name))

    @contextmanager
    def _alone(self) -> Iterator[Connection]:
        """Begin a transaction, on SQLite as its only writer."""
        if self._queue is None:
            with self._engine.begin() as connection:
                yield connection
            return
        with self._queue.turn(), self._engine.connect() as connection:
            connection = connection.execution_options(begin="BEGIN IMMEDIATE")
            with connection.begin():
                yield connection

    def _create(self) -> None:
        """Create the tables if need be, and read what the first entry says of the book."""
        with self._engine.connect() as connection:
            exists = inspect(connection).has_table(tables.heads.name)
        if not exists:
            with self._alone() as connection:
                if self._queue is None:
                    connection.exec_driver_sql("SELECT pg_advisory_xact_lock(21474836)")
                tables.create(connection)
                transaction = Transaction(connection, self.name)
                if transaction.entry(1) is None:
                    facts = {
                        "identity": secrets.token_hex(16),
                        "library": __version__,
                        "schema": tables.SCHEMA,
                    }
                    transaction.append("book", facts, actor=whoever())
        first = self.read(lambda transaction: transaction.entry(1))
        if first is None or first.body.get("schema") != tables.SCHEMA:
            raise BookError(
                f"Expected a book of schema {tables.SCHEMA} at {self.name}, got "
                f"{first and first.body.get('schema')!r}. Use the version of dpfy that wrote it, "
                "or a newer one."
            )
        self.identity = str(first.body["identity"])

    def _retried(self, once: Callable[[], _T]) -> _T:
        for pause in _PAUSES:
            try:
                return once()
            except (SQLAlchemyError, OSError) as error:
                lost = isinstance(error, DBAPIError) and error.connection_invalidated
                if not lost or pause is None:
                    reason = str(getattr(error, "orig", error)).strip().splitlines() or [""]
                    raise BookUnavailable(
                        f"The book at {self.name} cannot be reached: {reason[0]}. Nothing was "
                        "granted; try again."
                    ) from error
                time.sleep(pause)
        raise AssertionError("the last pause is None")

    def _leave_in_child(self) -> None:
        self._engine.dispose(close=False)  # the connections are the parent's


def _entry(row: Mapping[str, Any]) -> Entry | None:
    """Return the entry in a row of the table, or None if a column was edited."""
    try:
        values = {name: row[name] for name in _SHARED}
        entry = Entry(**values, grant=row["grant_id"], body=json.loads(row["body"]))
        return entry if entry.digest == row["hash"] and _columns(entry) == dict(row) else None
    except (ValueError, TypeError, AttributeError):
        return None


_NAMES = tuple(tables.entries.columns.keys())
_SHARED = ("number", "time", "actor", "kind", "dataset", "previous", "hash")


def _columns(entry: Entry) -> dict[str, Any]:
    binds = entry.body.get("binds", {})
    return {
        **{name: getattr(entry, name) for name in _SHARED},
        "grant_id": entry.grant,
        "body": canonical_json(entry.body).decode(),
        "key": entry.body.get("key"),
        "ledger": binds.get("ledger"),
        "header": binds.get("header"),
    }


_stores: "weakref.WeakSet[Store]" = weakref.WeakSet()


def _leave() -> None:
    for store in list(_stores):
        store._leave_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave)
