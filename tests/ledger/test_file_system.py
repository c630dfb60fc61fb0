"""A ledger is refused where locks or fsync do not work, and the message says which and why."""

import errno
import fcntl
import os

import pytest

from dpfy.errors import LedgerWriteFailed, UnsafeStorage
from dpfy.ledger import Ledger, file_system

UNSUPPORTED = [errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK]


def failing(number):
    def call(*_):
        raise OSError(number, os.strerror(number))

    return call


@pytest.mark.parametrize("number", UNSUPPORTED, ids=errno.errorcode.get)
@pytest.mark.parametrize("existing", [False, True], ids=["new", "existing"])
@pytest.mark.parametrize(
    ("owner", "call", "feature"), [(fcntl, "flock", "locks"), (os, "fsync", "fsync")]
)
def test_a_call_that_the_file_system_does_not_know_is_a_refusal_with_the_reason(
    path, header, monkeypatch, number, existing, owner, call, feature
):
    if existing:
        Ledger.open(path, header=header).close()
    before = path.exists() and path.read_bytes()
    monkeypatch.setattr(owner, call, failing(number))
    with pytest.raises(UnsafeStorage) as caught:
        Ledger.open(path, header=header)
    for text in (str(path), feature, os.strerror(number), "local disk", "local_lock=none"):
        assert text in str(caught.value)
    assert (path.read_bytes() if existing else path.exists()) == before
    monkeypatch.undo()
    Ledger.open(path, header=header).close()  # nothing was left behind that would forbid it


@pytest.mark.parametrize("existing", [False, True], ids=["new", "existing"])
def test_a_directory_that_cannot_be_synced_is_a_refusal(path, header, monkeypatch, existing):
    if existing:
        Ledger.open(path, header=header).close()

    def fsync(fd):
        if os.path.isdir(f"/proc/self/fd/{fd}"):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(UnsafeStorage, match="fsync"):
        Ledger.open(path, header=header)


@pytest.mark.parametrize("existing", [False, True], ids=["new", "existing"])
def test_locks_that_exclude_nobody_are_a_refusal(path, header, monkeypatch, existing):
    if existing:
        Ledger.open(path, header=header).close()
    monkeypatch.setattr(fcntl, "flock", lambda fd, how: None)
    with pytest.raises(UnsafeStorage, match=r"run\.dpl.*grants one lock twice"):
        Ledger.open(path, header=header)


def test_a_disk_that_fails_is_not_called_unsupported(path, header, monkeypatch):
    monkeypatch.setattr(os, "fsync", failing(errno.EIO))
    with pytest.raises(LedgerWriteFailed, match="Input/output error"):
        Ledger.open(path, header=header)


def test_reading_needs_no_locks(small, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", failing(errno.ENOLCK))
    assert Ledger.read(small).count == 5


def mounted(folder, monkeypatch, tmp_path, kind, options):
    device = folder.stat().st_dev
    table = tmp_path / "mountinfo"
    table.write_text(
        "22 27 0:9999 / /proc rw,relatime - proc proc rw\n"
        f"31 27 {os.major(device)}:{os.minor(device)} / /a\\040b rw shared:1 - {kind} "
        f"host:/export rw,{options}\n"
    )
    monkeypatch.setattr(file_system, "_MOUNTS", table)


@pytest.mark.parametrize(
    ("kind", "option", "reason"),
    [
        ("nfs", "nolock", "locks end at this machine"),
        ("nfs", "local_lock=all", "locks end at this machine"),
        ("nfs4", "local_lock=flock", "locks end at this machine"),
        ("cifs", "nobrl", "locks end at this machine"),
        ("smb3", "nostrictsync", "fsync does not reach the server"),
    ],
)
def test_a_mount_that_breaks_a_promise_is_a_refusal(
    path, header, monkeypatch, tmp_path, kind, option, reason
):
    mounted(path.parent, monkeypatch, tmp_path, kind, f"vers=3,{option},hard")
    with pytest.raises(UnsafeStorage, match=rf"{path.parent} .*{option}: .*{reason}"):
        Ledger.open(path, header=header)
    assert not path.with_name("run.dpl.head").exists()


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("nfs4", "vers=4.2,hard,local_lock=none"),
        ("nfs", "vers=3,local_lock=posix"),  # flock still reaches the server
        ("cifs", "vers=3.1.1"),
        ("ext4", "nolock"),
    ],
)
def test_other_mounts_are_accepted(path, header, monkeypatch, tmp_path, kind, options):
    mounted(path.parent, monkeypatch, tmp_path, kind, options)
    Ledger.open(path, header=header).close()


def test_without_a_list_of_mounts_the_calls_decide(path, header, monkeypatch, tmp_path):
    monkeypatch.setattr(file_system, "_MOUNTS", tmp_path / "none")
    Ledger.open(path, header=header).close()
