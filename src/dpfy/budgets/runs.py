"""What the trainer and other whole runs do with a book: take a grant, settle it, and tell of it.

Tests: tests/budgets/test_runs.py.
"""

import hashlib
import json
import re
import secrets
import sys
from pathlib import Path
from typing import Any

from dpfy.budgets.book import BudgetBook, Planned, envelope_of
from dpfy.budgets.grant import Grant
from dpfy.budgets.values import State
from dpfy.errors import BookError, InvalidArgument
from dpfy.ledger import Ledger
from dpfy.ledger.events import canonical_json, envelope_to_json
from dpfy.ledger.store import sync_directory


class Booking:
    """A ledger that is yet to be opened, paid for from the budget of a data set.

    A grant that the ledger names already is taken again. Otherwise one is reserved under a key that
    is kept beside the ledger, so that a run that was killed in between finds its own.

    Args:
        book: the book.
        dataset: the name of the data set.
        path: where the ledger is, or will be.
        purpose: what the run is for.
        part: the part of the data set that it reads; None for all of it.
    """

    def __init__(
        self, book: BudgetBook, dataset: str, path: Path, purpose: str, part: str | None = None
    ) -> None:
        self.book, self.dataset, self.path = book, dataset, path.resolve()
        self.purpose, self.part = purpose, part
        self._key_file = path.with_name(path.name + ".grant")

    def __repr__(self) -> str:
        return f"<{self.path}, paid for by {self.dataset!r}>"

    def grant(self, planned: Planned) -> Grant:
        """Return the grant that the ledger names, or reserve one for what is planned."""
        header = Ledger.read(self.path).header if self.path.exists() else None
        if header is None:
            found = self._reserve(planned)
            if not found.show().state.outstanding:  # somebody ended it, or its ledger was removed
                self._key_file.unlink()
                found = self._reserve(planned)
            return found
        if header.grant is None or header.grant.get("dataset") != self.dataset:
            raise InvalidArgument(
                f"{self.path} was begun without a grant of {self.dataset!r}. Begin a new ledger, "
                "or go on with it as it was begun."
            )
        return self.book.grant(str(header.grant["grant"]))

    def give_up(self, grant: Grant) -> None:
        """Withdraw the grant of a run that was refused before its ledger was begun."""
        try:
            if grant.show().state is State.RESERVED:
                self.book.withdraw(grant)
            self._key_file.unlink(missing_ok=True)
        except BookError as error:
            _kept(grant, error)

    def _reserve(self, planned: Planned) -> Grant:
        return self.book.reserve(
            self.dataset, planned, purpose=self.purpose, part=self.part, key=self._key(planned)
        )

    def _key(self, planned: Planned) -> str:
        """Return a key of the request: that of an earlier one for the same events."""
        what = canonical_json(envelope_to_json(envelope_of(planned)))
        return f"{self._secret()}-{hashlib.sha256(what).hexdigest()[:16]}"

    def _secret(self) -> str:
        try:
            return str(json.loads(self._key_file.read_text(encoding="ascii"))["key"])
        except (OSError, ValueError, KeyError):
            key = secrets.token_hex(16)
        self._key_file.write_text(json.dumps({"key": key}), encoding="ascii")
        sync_directory(self._key_file.parent)
        return key


class BookedRun:
    """The grant of one run that opens and closes the book itself.

    Args:
        address: the address of the book and the data set: ``sqlite:///team.db#admissions-2026``.
        planned: the plan, or the events of the run.
        ledger: where its ledger is, or will be.
        purpose: what it is for.

    Raises:
        BudgetExhausted: if the data set has no room for the run; nothing was read.
        BookError: if the book refuses it.
        InvalidArgument: if the address names no data set, or holds a password.
    """

    def __init__(self, address: str, planned: Planned, ledger: Path, purpose: str) -> None:
        url, dataset = split_address(address)
        self._booking = Booking(BudgetBook.open(url), dataset, ledger, purpose)
        try:
            self.grant = self._booking.grant(planned)
        except BaseException:
            self._booking.book.close()
            raise

    def finish(self) -> dict[str, Any] | None:
        """Settle the grant by its ledger, and return what is then known of the data set.

        A book that cannot be reached delays it: the reason is written to standard error.
        """
        try:
            if self.grant.show().state is State.ACTIVE:
                self.grant.settle(self._booking.path)
            return told(self.grant)
        except BookError as error:
            _kept(self.grant, error)
            return None
        finally:
            self._booking.book.close()

    def give_up(self) -> None:
        """Withdraw the grant of a run that was refused before its ledger was begun."""
        self._booking.give_up(self.grant)
        self._booking.book.close()


def _kept(grant: Grant, error: BookError) -> None:
    sys.stderr.write(f"Grant {grant.id} of {grant.dataset!r} is kept: {error}\n")


def split_address(address: str) -> tuple[str, str]:
    """Return the address of a book, and the name of the data set after the last ``#``.

    >>> split_address("sqlite:///team.db#admissions-2026")
    ('sqlite:///team.db', 'admissions-2026')
    """
    url, mark, dataset = address.rpartition("#")
    if not (url and mark and dataset):
        raise InvalidArgument(
            f"Expected the address of a book and a data set, such as "
            f"sqlite:///team.db#admissions-2026, got {without_password(address)!r}."
        )
    if without_password(url) != url:
        raise InvalidArgument(
            f"Expected an address without a password, got {without_password(address)!r}: settings "
            "and reports show it. Keep the password of a PostgreSQL in PGPASSWORD or ~/.pgpass."
        )
    return url, dataset


def without_password(address: str) -> str:
    """Return the address of a database without the password that it may have."""
    return re.sub(r"(://[^/@:]*):[^@]*@", r"\1:***@", address)


def told(grant: Grant) -> dict[str, Any]:
    """Return what a report says of a data set beside a run on it."""
    state = grant.show_dataset()
    names = ("name", "epsilon", "delta", "spent", "reserved", "free")
    return {
        **{name: getattr(state, name) for name in names},
        "grants": len(state.grants),
        "state": str(grant.show().state),
    }
