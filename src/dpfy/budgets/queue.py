"""Queue for the writers of a SQLite file, so that each waits its turn and none starves.

SQLite itself lets a writer that finds the file locked sleep and try again, by chance long after
others that came later.

Tests: tests/budgets/test_store.py.
"""

import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Queue:
    """Let one writer of a file at a time pass; the kernel wakes the next one at once.

    The lock is advisory and only orders the writers: SQLite's own locks keep the file whole.

    Args:
        path: a file beside the database, which is created.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._mutex = threading.Lock()
        self._fd = -1
        _queues.add(self)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait for the turn of this writer, and pass it on afterwards."""
        try:
            import fcntl
        except ImportError:  # where it does not exist, writers wait by SQLite's own means
            yield
            return
        with self._mutex:
            if self._fd < 0:
                self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _leave_in_child(self) -> None:
        # A child shares the descriptor, and would hold the turn for as long as it lives.
        self._mutex = threading.Lock()
        self.close()


_queues: "weakref.WeakSet[Queue]" = weakref.WeakSet()


def _leave() -> None:
    for queue in list(_queues):
        queue._leave_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave)
