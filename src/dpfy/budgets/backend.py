"""Backends: who keeps a book, a database that is opened here or a service that is asked.

Tests: tests/budgets/test_book.py.
"""

from typing import Protocol

from dpfy.budgets.declarations import Declaration
from dpfy.budgets.values import DatasetState, Entry, GrantState, Request, Terms
from dpfy.ledger.journal import Head


class Backend(Protocol):
    """The keeper of a book; :class:`~dpfy.budgets.BudgetBook` says what each method does.

    A method that failed with :class:`~dpfy.errors.BookUnavailable` may be called again with the
    same arguments: what it did the first time is not done twice.
    """

    name: str
    identity: str

    def create(self, declaration: Declaration) -> None:
        """Declare a data set."""
        ...

    def datasets(self) -> tuple[DatasetState, ...]:
        """Return all data sets."""
        ...

    def show(self, name: str) -> DatasetState:
        """Return one data set."""
        ...

    def grant(self, grant: str) -> GrantState:
        """Return one grant."""
        ...

    def terms(self, grant: str) -> Terms:
        """Return what a grant permits."""
        ...

    def reserve(self, request: Request) -> Terms:
        """Keep budget for a run."""
        ...

    def activate(
        self, grant: str, header_hash: str, ledger_id: str, head: Head, ended: int | None, key: str
    ) -> int:
        """Let a run begin on a ledger, and return its number; a key is granted once."""
        ...

    def anchor(self, grant: str, head: Head) -> None:
        """Remember how far a ledger has come."""
        ...

    def settle(self, grant: str, ledger: bytes) -> GrantState:
        """Charge what a ledger shows, and free the rest."""
        ...

    def reopen(self, grant: str, ledger: bytes) -> GrantState:
        """Pay for what a run without a known end may have spent."""
        ...

    def forfeit(self, grant: str, reason: str) -> GrantState:
        """Charge all that was kept."""
        ...

    def withdraw(self, grant: str) -> GrantState:
        """Free what was kept for a grant that no run has begun under."""
        ...

    def open_tranche(self, name: str, opened: int) -> DatasetState:
        """Open the next tranche of a data set, so that so many are open."""
        ...

    def entries(self, name: str | None, after: int, limit: int) -> list[Entry]:
        """Return entries in order."""
        ...

    def ledger(self, grant: str) -> bytes | None:
        """Return the ledger that settled a grant."""
        ...

    def verify(self) -> int:
        """Check everything, and return the number of entries."""
        ...

    def close(self) -> None:
        """Close what is open."""
        ...
