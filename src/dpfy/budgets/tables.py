"""The tables of a book, on SQLite and PostgreSQL, and the connections to them.

Entries and the ledgers that were settled are append-only: triggers refuse to change or delete them.
``heads`` says how far the book, and each data set in it, has come.

Tests: tests/budgets/test_store.py.
"""

from pathlib import Path
from typing import Any

from sqlalchemy import (
    URL,
    Column,
    Connection,
    Engine,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    create_engine,
    event,
    make_url,
)
from sqlalchemy.exc import ArgumentError

from dpfy.errors import InvalidArgument

SCHEMA = 1
SECONDS = 30  # that a statement, or the wait for another client, may take
_IDLE_SECONDS = 10  # after which a client that hangs within a transaction loses it

metadata = MetaData()
entries = Table(
    "entries",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("time", String(32), nullable=False),
    Column("actor", String(200), nullable=False),
    Column("kind", String(32), nullable=False),
    Column("dataset", String(100), nullable=False, index=True),
    Column("grant_id", String(64), nullable=False, index=True),
    Column("body", Text, nullable=False),
    Column("previous", String(64), nullable=False),
    Column("hash", String(64), nullable=False),
    Column("key", String(200), unique=True),  # of a request, so that it is done once
    Column("ledger", String(64), unique=True),  # of an activation: one grant for each ledger
    Column("header", String(64), unique=True),
)
heads = Table(
    "heads",
    metadata,
    Column("name", String(100), primary_key=True),  # of a data set, or "" for the book
    Column("number", Integer, nullable=False),
    Column("hash", String(64), nullable=False),
)
ledgers = Table(
    "ledgers",
    metadata,
    Column("grant_id", String(64), primary_key=True),
    Column("sha256", String(64), nullable=False),
    Column("data", LargeBinary, nullable=False),
)
_APPEND_ONLY = (entries, ledgers)


def connect(url: str) -> Engine:
    """Return an engine whose transactions are durable once they are committed.

    Raises:
        InvalidArgument: if the address is not that of a SQLite file or a PostgreSQL database.
    """
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise _unknown(url) from None
    if parsed.get_backend_name() == "sqlite" and parsed.database not in (None, "", ":memory:"):
        return _sqlite(parsed)
    if parsed.get_backend_name() == "postgresql":
        return _postgresql(parsed)
    raise _unknown(url)


def create(connection: Connection) -> None:
    """Create the tables and their triggers, where they do not exist."""
    metadata.create_all(connection)
    for table in _APPEND_ONLY:
        for statement in _triggers(connection.dialect.name, table.name):
            connection.exec_driver_sql(statement)


def _sqlite(url: URL) -> Engine:
    if not Path(str(url.database)).resolve().parent.is_dir():
        raise InvalidArgument(
            f"The folder of the book {url.database} does not exist. Create it first."
        )
    engine = create_engine(url, connect_args={"timeout": SECONDS})

    def prepare(connection: Any, _record: object) -> None:
        connection.isolation_level = None  # the module would begin transactions by itself
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")

    def begin(connection: Connection) -> None:
        connection.exec_driver_sql(connection.get_execution_options().get("begin", "BEGIN"))

    event.listen(engine, "connect", prepare)
    event.listen(engine, "begin", begin)
    return engine


def _postgresql(url: URL) -> Engine:
    limits = {
        "statement_timeout": SECONDS,
        "lock_timeout": SECONDS,
        "idle_in_transaction_session_timeout": _IDLE_SECONDS,
    }
    options = " ".join(f"-c {name}={1000 * seconds}" for name, seconds in limits.items())
    network = {"connect_timeout": _IDLE_SECONDS, "tcp_user_timeout": 1000 * SECONDS}
    options = f"{url.query.get('options', '')} {options} -c synchronous_commit=on".strip()
    return create_engine(url, connect_args={**network, "options": options})


def _triggers(dialect: str, table: str) -> list[str]:
    refusal = f"{table} are append-only"
    if dialect == "sqlite":
        return [
            f"CREATE TRIGGER IF NOT EXISTS {table}_{action} BEFORE {action} ON {table} "
            f"BEGIN SELECT RAISE(ABORT, '{refusal}'); END"
            for action in ("UPDATE", "DELETE")
        ]
    return [
        f"CREATE OR REPLACE FUNCTION refuse_{table}() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN RAISE EXCEPTION '{refusal}'; END $$",
        f"CREATE OR REPLACE TRIGGER {table}_kept BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
        f"FOR EACH STATEMENT EXECUTE FUNCTION refuse_{table}()",
    ]


def _unknown(url: str) -> InvalidArgument:
    return InvalidArgument(
        f"Expected the address of a book, got {url.rpartition('@')[2]!r}. Use sqlite:///team.db "
        "for a file, postgresql+psycopg://host/database, or https://host for a service."
    )
