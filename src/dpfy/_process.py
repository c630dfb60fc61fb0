"""Tell a process from its forks.

A fork has a copy of everything that its parent has paid for. Whatever one event pays for several
times would be released by both, with other noise, and that event covers one of them.

Tests: tests/run/test_forks.py, tests/ledger/test_ledger.py, tests/noise/test_random_stream.py.
"""

import os

from dpfy.errors import LedgerError

_forks = 0


def _count_fork() -> None:
    """Note in a child process that it is one."""
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_fork)


def this_process() -> tuple[int, int]:
    """Return an identity of this process that its forks do not share.

    The count of forks catches a process id that was used before.
    """
    return os.getpid(), _forks


class Opener:
    """Remember the process that opened something, and refuse all others."""

    def __init__(self) -> None:
        self._process = this_process()

    @property
    def is_this_process(self) -> bool:
        """Whether the process that asks is the one that opened it."""
        return self._process == this_process()

    def require(self, name: str, cannot: str, instead: str) -> None:
        """Refuse to go on in a fork of the process.

        Args:
            name: what was opened, as the first words of the message.
            cannot: what a fork cannot do.
            instead: what to do instead, as a sentence.

        Raises:
            LedgerError: in every process but the one that opened it.
        """
        if not self.is_this_process:
            raise LedgerError(
                f"{name} was opened by process {self._process[0]}; a forked process cannot "
                f"{cannot}. {instead}"
            )
