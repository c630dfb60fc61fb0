"""Grants: what a ledger is told by the book that keeps the budget of its data set.

Tests: tests/budgets/test_grant.py.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from dpfy.ledger.guard import Guard
from dpfy.ledger.journal import Head, Header

if TYPE_CHECKING:
    from dpfy.ledger.ledger import Ledger


class Grant(Protocol):
    """The permission of a budget book to spend on one ledger; the book hands out its own kind.

    A ledger that is opened with a grant names it in its header, asks it before the first step of
    each run, and can never be written to without it.
    """

    def declared(self, header: Header | None) -> Header:
        """Return the header with the grant in it.

        Raises:
            GrantRefused: if the header is for something else than was granted.
        """
        ...

    def guard(self, guard: Guard) -> Guard:
        """Return a guard that admits what ``guard`` does, within what was granted."""
        ...

    def begin(self, ledger: "Ledger") -> int | None:
        """Have the book let a run begin on ``ledger``, and return the number of the run.

        It is None if the ledger was settled: it may be opened, and nothing more may be spent.

        Raises:
            BookError: if it does not.
        """
        ...

    def follow(self, head: Head) -> None:
        """Take notice of a head that is durable, without delay and whether or not it arrives."""
        ...

    def end(self, ledger: "Ledger") -> None:
        """Take notice that the run has ended; what the book misses can be told it later."""
        ...


@runtime_checkable
class Booking(Protocol):
    """The place of a ledger that a budget book pays for, once it is known what it is for."""

    path: Path

    def grant(self, planned: Header) -> Grant:
        """Return the grant that the ledger at the place names, or reserve one for a header.

        Raises:
            BudgetExhausted: if the data set has no room for it.
            BookError: if the book refuses it.
        """
        ...


def facts_of(grant: dict[str, Any] | None) -> str:
    """Return how errors name the grant that a header declares."""
    return (
        "no grant" if grant is None else f"grant {grant.get('grant')} of {grant.get('dataset')!r}"
    )
