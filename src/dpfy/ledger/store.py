"""Storage for the lines of a ledger: a file with a head beside it, or memory.

A store knows nothing about what the lines mean. It promises that the data given to
:meth:`Store.append` is durable when the call returns, and that lines which the head covers cannot
go missing unnoticed.
"""

import contextlib
import json
import os
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dpfy.errors import LedgerDamaged, LedgerError, LedgerLocked, LedgerWriteFailed
from dpfy.ledger.events import canonical_json
from dpfy.ledger.file_system import LOCKS, SYNC, check_exclusion, check_mount, required
from dpfy.ledger.journal import GENESIS, Head, seal

_SLOT = 256


@dataclass(frozen=True)
class Mark:
    """An earlier promise that the ledger has at least ``count`` lines.

    Args:
        where: the file that makes the promise.
        count: the number of lines.
        hash: the hash of the last of these lines, if it is known.
    """

    where: str
    count: int
    hash: str | None


class Store(Protocol):
    """The storage behind a ledger; a shared database could implement it too."""

    durable: bool
    name: str

    def marks(self) -> list[Mark]:
        """Return what the ledger is known to have contained; call it before :meth:`lines`."""
        ...

    def lines(self, start: int = 0) -> Iterator[bytes]:
        """Yield the raw lines from byte ``start`` on; the last one may lack its newline."""
        ...

    def append(self, data: bytes, head: Head) -> None:
        """Make ``data``, then ``head``, durable or raise; do not use the store after an error."""
        ...

    def close(self) -> None:
        """Give up the right to append."""
        ...


class MemoryStore:
    """A store whose lines are lost with the process.

    >>> MemoryStore().durable
    False
    """

    durable = False

    def __init__(self, data: bytes = b"", name: str = "the in-memory ledger") -> None:
        self._data = bytearray(data)
        self.name = name

    def marks(self) -> list[Mark]:
        """Return nothing, because nobody else can have changed the lines."""
        return []

    def lines(self, start: int = 0) -> Iterator[bytes]:
        """Yield the lines so far."""
        yield from bytes(self._data[start:]).splitlines(keepends=True)

    def append(self, data: bytes, head: Head) -> None:
        """Keep ``data``."""
        self._data += data

    def close(self) -> None:
        """Do nothing; the lines can still be read."""


class HeadFile:
    """Two checksummed slots that are overwritten in turn, so that one of them is always intact.

    *Formal guarantee*: when :meth:`write` returns, the head is durable; when it is interrupted at
    any point, the previous head is still readable. A write costs one ``fdatasync`` without
    metadata, half of what a temporary file and a rename cost. The file keeps its inode, so it can
    carry the writer's lock.
    """

    def __init__(self, path: Path, role: str) -> None:
        self.path = path
        self.role = role
        self._fd = -1
        self._turn = 0
        self._newest: Head | None = None

    def slots(self) -> list[Head | None]:
        """Return both slots; an unreadable one is None."""
        try:
            raw = self.path.read_bytes()
        except FileNotFoundError:
            raw = b""
        if len(raw) != 2 * _SLOT:
            return [None, None]
        return [_decode_slot(raw[:_SLOT]), _decode_slot(raw[_SLOT:])]

    def marks(self) -> list[Mark]:
        """Return what the slots promise; at least one must be intact."""
        slots = self.slots()
        whole = [Mark(str(self.path), slot.count, slot.hash) for slot in slots if slot is not None]
        if not whole:
            remedy = (
                "restore it together with the ledger"
                if self.role == "head"
                else "restore it, or, to begin keeping an anchor, copy the ledger's .head file "
                "there"
            )
            raise LedgerDamaged(
                f"{self.path}, the ledger's {self.role}, is missing or damaged (byte 0), so lost "
                f"lines could not be noticed; {remedy}."
            )
        # A slot is written after the lines that it covers: a torn slot proves one more line.
        if None in slots:
            whole.append(Mark(str(self.path), whole[0].count + 1, None))
        return whole

    def open(self, create: bool) -> int:
        """Open for writing and return the descriptor."""
        self._fd = os.open(self.path, os.O_RDWR | (os.O_CREAT if create else 0), 0o644)
        first, second = self.slots()
        self._turn = (
            0 if first is None or (second is not None and first.count <= second.count) else 1
        )
        self._newest = second if self._turn == 0 else first
        return self._fd

    def reset(self) -> None:
        """Write the head of an empty ledger into both slots."""
        _write(self._fd, 2 * _encode_slot(Head()), offset=0)
        os.ftruncate(self._fd, 2 * _SLOT)
        os.fsync(self._fd)
        self._newest = Head()

    def write(self, head: Head) -> None:
        """Replace the older slot, durably.

        A head that is already there is not written again, so that counts only grow.
        """
        if head == self._newest:
            return
        _write(self._fd, _encode_slot(head), offset=self._turn * _SLOT)
        os.fdatasync(self._fd)
        self._turn = 1 - self._turn
        self._newest = head

    def close(self) -> None:
        """Close the descriptor, which gives up a lock that it carries."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class FileStore:
    r"""A file of lines, its head beside it, and optionally an anchor: a copy of the head elsewhere.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     store = FileStore(Path(directory, "run.dpl"))
    ...     store.acquire()
    ...     store.append(b"line\n", Head(1, "f" * 64))
    ...     list(store.lines()), max(mark.count for mark in store.marks())
    ...     store.close()
    ([b'line\n'], 1)
    """

    durable = True

    def __init__(
        self, path: str | os.PathLike[str], anchor: str | os.PathLike[str] | None = None
    ) -> None:
        self.path = Path(path).resolve()  # one lock per file, whichever link leads to it
        self.name = str(path)
        self._head = HeadFile(self.path.with_name(self.path.name + ".head"), "head")
        self._heads = [
            self._head,
            *([HeadFile(Path(anchor).resolve(), "anchor")] if anchor is not None else []),
        ]
        self._fd = -1
        self._size = 0

    @property
    def anchored(self) -> bool:
        """Whether there is an anchor."""
        return len(self._heads) > 1

    def marks(self) -> list[Mark]:
        """Return what head and anchor promise.

        Raises:
            LedgerError: if there is no ledger.
            LedgerDamaged: if the ledger, the head or the anchor is missing or damaged.
        """
        if not self.path.is_file():
            self._check_not_deleted()
            raise LedgerError(f"There is no ledger at {self.name}. Check the path.")
        return [mark for head in self._heads for mark in head.marks()]

    def lines(self, start: int = 0) -> Iterator[bytes]:
        """Yield the lines as they are now, from byte ``start`` on.

        Lines that a writer appends meanwhile may or may not be among them.
        """
        try:
            with self.path.open("rb") as file:
                file.seek(start)
                for line in file:
                    yield line
                    if not line.endswith(b"\n"):
                        return
        except OSError as error:
            raise LedgerError(f"{self.name} cannot be read: {error.strerror}.") from error

    def acquire(self) -> None:
        """Become the only writer, and create the ledger if it does not exist.

        Raises:
            LedgerLocked: if another process is writing to it.
            LedgerDamaged: if head or anchor do not match.
            UnsafeStorage: if its file system has no working locks or no fsync.
            LedgerWriteFailed: if it cannot be opened for writing.
        """
        if not self.path.parent.is_dir():
            raise LedgerError(f"The directory of {self.name} does not exist. Create it first.")
        if self.path.is_dir():
            raise LedgerError(
                f"{self.name} is a directory. Give the path of a file, such as run.dpl."
            )
        try:
            self._acquire()
        except OSError as error:
            self.close()
            raise LedgerWriteFailed(
                f"{self.name} cannot be opened for writing: {error.strerror}. Nothing private was "
                "computed; choose a writable place with free space."
            ) from error
        except BaseException:
            self.close()
            raise
        _open_stores.add(self)

    def append(self, data: bytes, head: Head) -> None:
        """Append, sync, then move head and anchor; any failure raises and is final.

        The directory is not synced, because neither file is created or renamed here. A failed
        ``fsync`` is never tried again, because the kernel may have dropped the pages that it failed
        to write.
        """
        _write(self._fd, data)
        os.fsync(self._fd)
        self._size += len(data)
        for each in self._heads:
            each.write(head)
        self._check_still_there()

    def close(self) -> None:
        """Release the lock and the files."""
        _open_stores.discard(self)
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        for head in self._heads:
            head.close()

    def _acquire(self) -> None:
        create = not self.path.exists()
        if not create and not self._head.path.exists():
            self._head.marks()  # raises: an existing ledger without a head
        check_mount(self.path.parent)
        descriptor = self._head.open(create)
        with required(LOCKS, self.path):
            _lock(descriptor, self.name)
            check_exclusion(self._head.path)
        create = not self.path.exists()  # another process may have created it meanwhile
        if create:
            self._create()
        else:
            for head in self._heads:
                head.marks()
            for head in self._heads[1:]:
                head.open(create=False)
        self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        with required(SYNC, self.path):
            os.fsync(self._fd)
            sync_directory(self.path.parent)
        self._size = os.fstat(self._fd).st_size

    def _create(self) -> None:
        """Create the files, empty heads first.

        So an interrupted creation differs from a deleted ledger.
        """
        self._check_not_deleted()
        for head in self._heads[1:]:
            head.open(create=True)
        for head in self._heads:
            with required(SYNC, head.path):
                head.reset()
                sync_directory(head.path.parent)
        os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o644))

    def _check_not_deleted(self) -> None:
        for head in self._heads:
            if any(slot is not None and slot.count > 0 for slot in head.slots()):
                raise LedgerDamaged(
                    f"{self.name} is gone (byte 0), but {head.path} remembers lines of it. Restore "
                    "it; a new ledger needs a new name, because what was spent does not come back."
                )

    def _check_still_there(self) -> None:
        try:
            seen, mine = os.stat(self.path), os.fstat(self._fd)
        except FileNotFoundError:
            raise LedgerDamaged(f"{self.name} was deleted while it was in use (byte 0).") from None
        if not os.path.samestat(seen, mine) or seen.st_size != self._size:
            raise LedgerDamaged(
                f"{self.name} was replaced, cut or written to by someone else while it was in use: "
                f"{seen.st_size} bytes, expected {self._size}."
            )


def _write(fd: int, data: bytes, offset: int | None = None) -> None:
    """Write all of ``data`` in one call.

    A short write is a failure, because the rest would need a second write.
    """
    written = os.write(fd, data) if offset is None else os.pwrite(fd, data, offset)
    if written != len(data):
        raise OSError(0, f"only {written} of {len(data)} bytes were written")


def _lock(fd: int, name: str) -> None:
    import fcntl  # where it does not exist, ledgers can still be read

    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise LedgerLocked(
            f"Another run is writing to {name}, perhaps an earlier one in this process: close() "
            "it, wait until it ends, or give this run its own ledger. Ledger.read needs no lock."
        ) from None


def sync_directory(path: Path) -> None:
    """Make the list of files of a directory durable."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _encode_slot(head: Head) -> bytes:
    line, _ = seal(GENESIS, canonical_json({"count": head.count, "head": head.hash}))
    return line.rstrip(b"\n").ljust(_SLOT - 1) + b"\n"


def _decode_slot(raw: bytes) -> Head | None:
    with contextlib.suppress(ValueError, TypeError, KeyError):
        value = json.loads(raw)
        head = Head(value["count"], value["head"])
        if _encode_slot(head) == raw:
            return head
    return None


_open_stores: "weakref.WeakSet[FileStore]" = weakref.WeakSet()


def _close_in_child() -> None:
    """Close stores in a forked child, which must not write, nor hold the lock after its parent."""
    for store in list(_open_stores):
        store.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)
