"""Find out whether somebody is writing to a ledger, without touching its lock.

A writer holds a lock on the ledger's head. To try the lock would disturb a run that starts at that
moment, so the kernel's own list is read instead.
"""

import os
from collections.abc import Iterable
from pathlib import Path

_LOCKS = Path("/proc/locks")
_PROCESSES = Path("/proc")


class Writers:
    """The locks of this machine at one moment.

    Args:
        text: The kernel's list of locks, or None where there is none, as on other systems than
            Linux.
    """

    def __init__(self, text: str | None) -> None:
        self.known = text is not None
        self._holders: dict[int, set[tuple[str, str]]] = {}
        for line in (text or "").splitlines():
            words = line.split()
            # 1: FLOCK  ADVISORY  WRITE 4242 fe:00:131 0 EOF
            if len(words) >= 6 and words[1] == "FLOCK" and words[3] == "WRITE":
                device, _, inode = words[5].rpartition(":")
                if inode.isdigit():
                    self._holders.setdefault(int(inode), set()).add((device, words[4]))

    @classmethod
    def now(cls) -> "Writers":
        """Return the locks that are held now."""
        try:
            return cls(_LOCKS.read_text(encoding="ascii", errors="replace"))
        except OSError:
            return cls(None)

    def hold(self, path: Path) -> bool:
        """Whether a process of this machine holds the lock of the file ``path``."""
        try:
            status = path.stat()
        except OSError:
            return False
        holders = self._holders.get(status.st_ino, set())
        device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
        if any(found == device for found, _ in holders):
            return True
        # Some file systems, such as btrfs, show another device number here than in a file's status.
        return _have_open(status, (process for _, process in holders))


def _have_open(status: os.stat_result, processes: Iterable[str]) -> bool:
    """Whether one of the processes has opened the very file that ``status`` describes."""
    for process in processes:
        try:
            opened = list((_PROCESSES / process / "fd").iterdir())
        except OSError:  # it ended, or is somebody else's
            continue
        for each in opened:
            try:
                if os.path.samestat(each.stat(), status):
                    return True
            except OSError:
                continue
    return False
