"""Guards, which decide in constant time and before any record is read if a step may happen.

Tests: tests/ledger/test_ledger.py.
"""

from typing import Any, Protocol

from dpfy.ledger.events import Event


class Guard(Protocol):
    """The gatekeeper of a budget.

    A ledger asks its guard before every reservation and tells it about every durable one.

    *Formal guarantee*: a ledger appends only what :meth:`admit` let pass, and calls :meth:`record`
    exactly once for what it appended, in the order of the file, both live and when an existing
    ledger is opened again. A guard may therefore keep its whole state in memory and answer in O(1).

    *Assumes* that :meth:`admit` changes nothing: it may be asked about several sizes of one block,
    and about steps that are then not taken.
    """

    def describe(self) -> dict[str, Any]:
        """Return the guard's name and declared limits as plain JSON values, for the header."""
        ...

    def admit(self, event: Event, times: int) -> None:
        """Refuse ``times`` more of ``event`` if they would exceed a limit.

        Raises:
            BudgetExhausted: if they would.
        """
        ...

    def record(self, event: Event, times: int) -> None:
        """Count ``times`` more of ``event`` as spent.

        ``times`` is negative when the unused rest of a block is handed back.
        """
        ...


class Unguarded:
    """A guard that admits everything, so the ledger records and limits nothing.

    >>> Unguarded().describe()
    {'name': 'unguarded'}
    """

    def describe(self) -> dict[str, Any]:
        """Return the name only; there is no limit to declare."""
        return {"name": "unguarded"}

    def admit(self, event: Event, times: int) -> None:
        """Let any event pass."""

    def record(self, event: Event, times: int) -> None:
        """Keep nothing; the ledger itself is the record."""
