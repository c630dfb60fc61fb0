"""Follow a ledger that somebody else is writing to, and read no line twice."""

import os
from pathlib import Path

from dpfy.ledger.journal import Journal
from dpfy.ledger.ledger import Ledger, read_on
from dpfy.ledger.store import FileStore


class Follower:
    """Reads a ledger again and again; each time only what was appended since the last time.

    *Formal guarantee*: what :meth:`read` returns was verified line by line, from the first one, and
    fits the head as it is now.

    *Assumes* that lines which were read before are as they were: bytes are not read twice. A file
    that was replaced or cut is read from its beginning; whoever must not miss an edit in the middle
    uses :meth:`dpfy.Ledger.read`.

    Args:
        path: The ledger file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "run.dpl")
    ...     with Ledger.open(path) as ledger:
    ...         follower = Follower(path)
    ...         before = follower.read().lines
    ...         ledger.record_basis({"engine": "loop"})
    ...         before, follower.read().lines
    (0, 2)
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._store = FileStore(path)
        self._journal = Journal(self._store.name)
        self._file: tuple[int, int] | None = None  # which file the lines were read from

    def read(self) -> Ledger:
        """Return the ledger as it is now; it changes with the next call.

        Returns:
            A ledger that cannot be written to.

        Raises:
            LedgerError: If there is no ledger, or if it cannot be read.
            LedgerDamaged: If it was truncated, edited or rolled back.
        """
        file, size = _identity(self._store.path)
        if file != self._file or size < self._journal.size:
            self._journal = Journal(self._store.name)
        try:
            read_on(self._store, self._journal)
        except BaseException:
            self._file = None  # so that a ledger that was restored is read from its beginning
            raise
        self._file = file
        return Ledger(self._store, self._journal, writable=False)


def _identity(path: Path) -> tuple[tuple[int, int] | None, int]:
    """Return which file a path leads to, and its size; None if it leads to none."""
    try:
        status = path.stat()
    except OSError:
        return None, 0
    return (status.st_dev, status.st_ino), status.st_size
