"""The number of trials of a selection, which stays secret while the selection runs.

It is kept beside the ledger in a file that only its owner can read, so that an interruption can be
charged. The file is removed when the selection ends. A ledger in memory has no such file; the
number is lost with the process, and so is the ledger.

Tests: tests/ledger/test_scopes.py.
"""

import json
import os
from glob import escape
from pathlib import Path

from dpfy.errors import LedgerWriteFailed
from dpfy.ledger.composite_events import Composed
from dpfy.ledger.events import Event, NonPrivate, Repeated
from dpfy.ledger.selection import Selected
from dpfy.ledger.store import sync_directory

_LENGTH = 64  # of the file, for every number: its length is visible without read access


def remember(ledger: Path | None, scope: str, trials: int | None) -> None:
    """Make the number of trials durable.

    None says that the number is not drawn yet, hence that nothing has run.
    """
    if ledger is None:
        return
    try:
        _write(_place(ledger, scope), json.dumps({"trials": trials}).ljust(_LENGTH))
    except OSError as error:
        raise LedgerWriteFailed(
            f"The number of trials could not be kept beside {ledger.name}: {error.strerror}. No "
            "trial ran; free or repair the storage."
        ) from error


def recall(ledger: Path | None, scope: str) -> int | None:
    """Return the number of trials that may have run.

    It is 0 if the number was not drawn yet, and None if it is not known.
    """
    try:
        trials = (
            json.loads(_place(ledger, scope).read_text(encoding="ascii"))["trials"]
            if ledger
            else None
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return 0 if trials is None else int(trials)


def forget(ledger: Path | None, scope: str = "*") -> None:
    """Remove the remembered number of one selection, or of all."""
    if ledger is not None:
        for place in ledger.parent.glob(f"{escape(ledger.name)}.{scope}.sealed"):
            place.unlink(missing_ok=True)


def interruption(event: Event, trials: int | None) -> Repeated | None:
    """Return the extra cost of an interrupted selection: all trials, as if each was released.

    *Formal guarantee*: their number does not depend on the data, and stopping before the last one,
    for whatever reason, is post-processing of all of them (``docs/proofs/scopes.md``, Claim 3). An
    unknown number has no guarantee.
    """
    if trials is None or not isinstance(event, Selected):
        return Repeated(NonPrivate("an interrupted selection whose number of trials is lost"), 1)
    return Repeated(Composed((event.run,), (trials,)), 1) if trials else None


def _place(ledger: Path, scope: str) -> Path:
    return ledger.with_name(f"{ledger.name}.{scope}.sealed")


def _write(place: Path, text: str) -> None:
    """Replace the file atomically and durably; only its owner may read it."""
    draft = place.with_name(f"{place.name}.draft")
    with os.fdopen(
        os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="ascii"
    ) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(place)
    sync_directory(place.parent)
