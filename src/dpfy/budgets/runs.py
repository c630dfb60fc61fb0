"""What the trainer and other whole runs do with a book: take a grant, settle it, and tell of it.

Tests: tests/budgets/test_runs.py.
"""

import json
import secrets
import sys
from pathlib import Path
from typing import Any

from dpfy.budgets.book import BudgetBook, Planned
from dpfy.budgets.grant import Grant
from dpfy.budgets.values import State
from dpfy.errors import BookError, InvalidArgument
from dpfy.ledger import Ledger
from dpfy.ledger.store import sync_directory


class BookedRun:
    """The grant of one run, for as long as the run lasts.

    A grant that the ledger names already is taken again. Otherwise one is reserved under a key that
    is kept beside the ledger, so that a run that was killed in between finds its own.

    Args:
        address: the address of the book and the data set: ``sqlite:///team.db#admissions-2026``.
        planned: the plan, or the events of the run.
        ledger: where its ledger is, or will be.
        purpose: what it is for.

    Raises:
        BudgetExhausted: if the data set has no room for the run; nothing was read.
        BookError: if the book refuses it.
        InvalidArgument: if the address names no data set.
    """

    def __init__(self, address: str, planned: Planned, ledger: Path, purpose: str) -> None:
        url, dataset = split_address(address)
        self.ledger = ledger
        self._key_file = ledger.with_name(ledger.name + ".grant")
        self.book = BudgetBook.open(url)
        try:
            self.grant = self._taken(dataset) or self.book.reserve(
                dataset, planned, purpose=purpose, key=self._key()
            )
        except BaseException:
            self.book.close()
            raise

    def finish(self) -> dict[str, Any] | None:
        """Settle the grant by its ledger, and return what is then known of the data set.

        A book that cannot be reached delays it: the reason is written to standard error.
        """
        try:
            if self.grant.show().state is State.ACTIVE:
                self.grant.settle(self.ledger)
            return told(self.grant)
        except BookError as error:
            sys.stderr.write(f"Grant {self.grant.id} of {self.grant.dataset!r} is kept: {error}\n")
            return None
        finally:
            self.book.close()

    def give_up(self) -> None:
        """Withdraw the grant of a run that was refused before its ledger was begun."""
        try:
            if self.grant.show().state is State.RESERVED:
                self.book.withdraw(self.grant)
            self._key_file.unlink(missing_ok=True)
        except BookError as error:
            sys.stderr.write(f"Grant {self.grant.id} of {self.grant.dataset!r} is kept: {error}\n")
        finally:
            self.book.close()

    def _taken(self, dataset: str) -> Grant | None:
        """Return the grant that the ledger names, if there is a ledger."""
        header = Ledger.read(self.ledger).header if self.ledger.exists() else None
        if header is None:
            return None
        if header.grant is None or header.grant.get("dataset") != dataset:
            raise InvalidArgument(
                f"{self.ledger} was begun without a grant of {dataset!r}. Begin a new run, or go "
                "on as it was begun."
            )
        return self.book.grant(str(header.grant["grant"]))

    def _key(self) -> str:
        try:
            return str(json.loads(self._key_file.read_text(encoding="ascii"))["key"])
        except (OSError, ValueError, KeyError):
            key = secrets.token_hex(16)
        self._key_file.write_text(json.dumps({"key": key}), encoding="ascii")
        sync_directory(self._key_file.parent)
        return key


def split_address(address: str) -> tuple[str, str]:
    """Return the address of a book, and the name of the data set after the last ``#``.

    >>> split_address("sqlite:///team.db#admissions-2026")
    ('sqlite:///team.db', 'admissions-2026')
    """
    url, mark, dataset = address.rpartition("#")
    if not (url and mark and dataset):
        raise InvalidArgument(
            f"Expected the address of a book and a data set, such as "
            f"sqlite:///team.db#admissions-2026, got {address!r}."
        )
    return url, dataset


def told(grant: Grant) -> dict[str, Any]:
    """Return what a report says of a data set beside a run on it."""
    state = grant.show_dataset()
    names = ("name", "epsilon", "delta", "spent", "reserved", "free")
    return {
        **{name: getattr(state, name) for name in names},
        "grants": len(state.grants),
        "state": str(grant.show().state),
    }
