"""Refuse a file system on which a ledger could have two writers, or lose what it has acknowledged.

A ledger rests on two promises: ``flock`` keeps a second writer out, and ``fsync`` returns when the
data is on stable storage. What can be tried from one machine is tried here. A file system that
reports success and does nothing, as some behind FUSE do, cannot be told from one that works.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dpfy.errors import UnsafeStorage

LOCKS, SYNC = "locks (flock)", "durable writes (fsync)"
_UNSUPPORTED = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK}
_REMEDY = (
    "Nothing private was computed. Keep the ledger on a local disk, or on NFS 4 or NFS 3 that is "
    "mounted with local_lock=none."
)
_LOCAL_LOCKS = "its locks end at this machine, so another one could write to the same ledger"
_NO_SYNC = "fsync does not reach the server, so a crash could lose steps that were released"
# Options of a mount that break a promise without any call failing.
_UNSAFE = {
    "nfs": {
        "nolock": _LOCAL_LOCKS,
        "local_lock=flock": _LOCAL_LOCKS,
        "local_lock=all": _LOCAL_LOCKS,
    },
    "cifs": {"nobrl": _LOCAL_LOCKS, "nostrictsync": _NO_SYNC},
}
_UNSAFE |= {"nfs4": _UNSAFE["nfs"], "smb3": _UNSAFE["cifs"]}
_MOUNTS = Path("/proc/self/mountinfo")


@contextmanager
def required(feature: str, path: Path) -> Iterator[None]:
    """Turn the error of a call that the file system of ``path`` does not know into a refusal."""
    try:
        yield
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        raise UnsafeStorage(
            f"The file system of {path} does not support {feature}, which a ledger needs: "
            f"{error.strerror}. {_REMEDY}"
        ) from error


def check_mount(folder: Path) -> None:
    """Refuse a folder that is mounted with an option that breaks a promise; needs Linux."""
    try:
        device = folder.stat().st_dev
        lines = _MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in lines:
        mount, _, details = line.partition(" - ")
        if mount.split()[2] != number:
            continue
        kind, *_, options = details.split()
        for option, reason in _UNSAFE.get(kind, {}).items():
            if option in options.split(","):
                raise UnsafeStorage(
                    f"{folder} is on {kind}, mounted with {option}: {reason}. {_REMEDY}"
                )


def check_exclusion(path: Path) -> None:
    """Refuse a file system that lets a second descriptor lock ``path``, which is locked by now."""
    import fcntl  # where it does not exist, ledgers can still be read

    second = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    finally:
        os.close(second)
    raise UnsafeStorage(
        f"The file system of {path} grants one lock twice, so two runs could write to the same "
        f"ledger. {_REMEDY}"
    )
