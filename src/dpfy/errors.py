"""Errors that dpfy raises on purpose.

An error says what was given, what was expected and what to do. No error carries a value derived
from private records, because an exception text is an output like any other.

Tests: tests/test_imports.py.
"""


class DpfyError(Exception):
    """Base of every error that dpfy raises on purpose."""


class InvalidArgument(DpfyError, ValueError):
    """A declared value is outside its domain; nothing private was computed."""


class MissingExtra(DpfyError, ImportError):
    """A package is not installed; the message names the extra of dpfy that installs it."""


class UnsupportedEvent(DpfyError):
    """No sound accounting rule is known for this event under this relation and method."""


class BudgetExhausted(DpfyError):
    """The next step would exceed the budget or the registered envelope.

    No record was read for that step.
    """


class LedgerError(DpfyError):
    """The ledger cannot be used as asked."""


class LedgerDamaged(LedgerError):
    """The ledger or its head was truncated, edited or rolled back; the message names the place."""


class LedgerLocked(LedgerError):
    """Another process is writing to this ledger."""


class LedgerMismatch(LedgerError):
    """The ledger was begun for another plan, or a query differs from the reserved event."""


class LedgerFinished(LedgerError):
    """All steps of the plan were spent on this ledger before; the message says how to go on."""


class LedgerWriteFailed(LedgerError):
    """An append could not be made durable; nothing is released after it."""


class BookError(DpfyError):
    """A budget book cannot be used as asked; nothing in it was changed."""


class BookDamaged(BookError):
    """An entry of a budget book was edited or removed; the message names the entry."""


class BookUnavailable(BookError):
    """A budget book cannot be reached at the moment; what was asked may be asked again."""


class GrantRefused(BookError):
    """A grant does not permit what was asked: another run, ledger, unit or state than it is for."""


class UnsafeStorage(LedgerError):
    """The file system lacks the locks or the fsync that a ledger rests on; the message says which.

    No record was read.
    """


class UnreleasedGradient(DpfyError):
    """The optimizer was about to apply a gradient that no release produced."""


class BatchAlreadyReleased(DpfyError):
    """A sample was used for a second release; draw another batch."""


class LossError(DpfyError):
    """The loss function does not return one loss per example, or fails on synthetic input."""


class IsolationError(DpfyError):
    """The model or the loss lets examples influence each other, or keeps state between them."""


class DataError(DpfyError):
    """The data set cannot be sampled or loaded as asked."""


class DivergenceError(DpfyError):
    """The released model has non-finite parameters."""


class TrainingInterrupted(DpfyError):
    """Training was interrupted; the message says how to go on.

    Args:
        text: the message.
        signal: the number of the signal that interrupted it: 2 for Ctrl-C, 15 for SIGTERM.
    """

    def __init__(self, text: str, signal: int = 2) -> None:
        super().__init__(text)
        self.signal = signal


class CheckpointError(DpfyError):
    """A checkpoint cannot be written, read, or continued with this ledger."""


class RankFailed(DpfyError):
    """Another process of a distributed run failed or was lost; nothing is released after it."""
