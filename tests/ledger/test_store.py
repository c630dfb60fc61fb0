import os
import subprocess
import sys

import pytest

from dpfy.errors import LedgerDamaged, LedgerError, LedgerLocked, LedgerWriteFailed
from dpfy.ledger import Ledger, store as store_module
from dpfy.ledger.store import FileStore, HeadFile

fork_may_warn = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def in_child(action) -> int:
    """Run ``action`` in a forked child and return its exit status."""
    pid = os.fork()
    if pid == 0:
        status = 99
        try:
            status = action()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_reservation_is_synced_line_first_head_second_before_it_returns(
    path, header, step, monkeypatch
):
    with Ledger.open(path, header=header, anchor=path.with_name("anchor")) as ledger:
        calls = []

        def traced(name, real):
            def call(fd, *args):
                calls.append((name, os.path.basename(os.readlink(f"/proc/self/fd/{fd}"))))
                return real(fd, *args)

            return call

        for name in ("write", "fsync", "pwrite", "fdatasync"):
            monkeypatch.setattr(os, name, traced(name, getattr(os, name)))
        ledger.reserve(step)
    assert calls == [
        ("write", "run.dpl"),
        ("fsync", "run.dpl"),
        ("pwrite", "run.dpl.head"),
        ("fdatasync", "run.dpl.head"),
        ("pwrite", "anchor"),
        ("fdatasync", "anchor"),
    ]


def test_a_second_writer_is_refused_and_readers_are_not(path, header, step, tmp_path):
    link = tmp_path / "link.dpl"
    with Ledger.open(path, header=header) as ledger:
        ledger.reserve(step)
        link.symlink_to(path)
        for name in (path, link):
            with pytest.raises(LedgerLocked, match=r"\.dpl.*wait"):
                Ledger.open(name)
        assert [Ledger.read(path).count, Ledger.read(link).count] == [1, 1]
        ledger.reserve(step)
    Ledger.open(path).close()


def test_the_lock_dies_with_another_process(path, header, tmp_path):
    Ledger.open(path, header=header).close()
    code = (
        "import sys; from dpfy.ledger import Ledger; ledger = Ledger.open(sys.argv[1]); "
        "print('held', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as other:
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(LedgerLocked):
            Ledger.open(path)
        other.kill()
        other.wait()
    Ledger.open(path).close()


@fork_may_warn
def test_a_forked_child_cannot_write_and_does_not_release_the_parents_lock(path, header, step):
    def child():
        with pytest.raises(LedgerError, match="forked"):
            ledger.reserve(step)
        ledger.close()
        with pytest.raises(LedgerLocked):
            Ledger.open(path)
        return 7

    with Ledger.open(path, header=header, block=5) as ledger:
        ledger.reserve(step)
        assert in_child(child) == 7
        ledger.reserve(step)
        assert Ledger.read(path).count == 5  # the child settled nothing


@fork_may_warn
def test_a_child_that_outlives_the_writer_does_not_keep_the_lock(path, header, step):
    """Data-loading workers may live a little longer than the run that forked them."""
    wait, go = os.pipe()
    forked, ready = os.pipe()
    ledger = Ledger.open(path, header=header)
    pid = os.fork()
    if pid == 0:
        os.close(go)
        os.write(ready, b".")
        os.read(wait, 1)
        os._exit(0)
    try:
        os.read(forked, 1)
        ledger._store.close()
        with Ledger.open(path) as again:
            again.reserve(step)
        assert Ledger.read(path).count == 1
    finally:
        for end in (wait, go, forked, ready):
            os.close(end)
        os.waitpid(pid, 0)


@pytest.mark.parametrize("missing", ["run.dpl", "run.dpl.head", "anchor"])
def test_a_deleted_file_is_a_refusal(tmp_path, path, header, step, missing):
    anchor = tmp_path / "anchor"
    with Ledger.open(path, header=header, anchor=anchor) as ledger:
        ledger.reserve(step)
    (tmp_path / missing).unlink()
    for use in (Ledger.open, Ledger.read):
        with pytest.raises(LedgerDamaged, match=missing):
            use(path, anchor=anchor)
    assert not (tmp_path / missing).exists()


def test_only_the_anchor_shows_that_ledger_and_head_were_restored_together(
    tmp_path, path, header, step
):
    anchor, head = tmp_path / "anchor", tmp_path / "run.dpl.head"
    with Ledger.open(path, header=header, anchor=anchor) as ledger:
        ledger.reserve(step)
        old = path.read_bytes(), head.read_bytes()
        ledger.reserve(step)
        ledger.reserve(step)
    path.write_bytes(old[0])
    head.write_bytes(old[1])
    assert Ledger.read(path).count == 1  # cannot be noticed locally
    with pytest.raises(LedgerDamaged, match=r"line 4 .*anchor remembers 5 lines"):
        Ledger.open(path, anchor=anchor)


def test_an_anchor_of_another_ledger_is_refused(tmp_path, path, header, step):
    for name in ("one", "two"):
        with Ledger.open(
            tmp_path / name, header=header, anchor=tmp_path / f"{name}.anchor"
        ) as ledger:
            ledger.reserve(step, {"name": name})
    with pytest.raises(LedgerDamaged, match=r"two\.anchor"):
        Ledger.open(tmp_path / "one", anchor=tmp_path / "two.anchor")
    with pytest.raises(LedgerDamaged, match=r"two\.anchor remembers"):
        Ledger.open(tmp_path / "three", anchor=tmp_path / "two.anchor")


def test_an_anchor_can_be_begun_by_copying_the_head(tmp_path, small, step):
    (tmp_path / "anchor").write_bytes((tmp_path / "run.dpl.head").read_bytes())
    with Ledger.open(small, anchor=tmp_path / "anchor") as ledger:
        ledger.reserve(step)
    assert Ledger.read(small, anchor=tmp_path / "anchor").count == 6


@pytest.mark.parametrize(
    "act",
    [
        lambda path: path.unlink(),
        lambda path: os.truncate(path, 10),
        lambda path: path.write_bytes(path.read_bytes() + b"x"),
        lambda path: (
            path.with_name("copy").write_bytes(path.read_bytes()),
            path.with_name("copy").replace(path),
        ),
    ],
    ids=["deleted", "cut", "written to", "replaced"],
)
def test_a_file_that_changes_under_a_running_writer_stops_it(path, header, step, act):
    ledger = Ledger.open(path, header=header)
    ledger.reserve(step)
    act(path)
    with pytest.raises(LedgerDamaged, match="while it was in use"):
        ledger.reserve(step)
    with pytest.raises(LedgerWriteFailed):
        ledger.reserve(step)


def test_places_that_cannot_hold_a_ledger_are_one_clear_error(tmp_path, header):
    with pytest.raises(LedgerError, match=r"directory of .* does not exist"):
        Ledger.open(tmp_path / "missing" / "run.dpl", header=header)
    with pytest.raises(LedgerError, match="is a directory"):
        Ledger.open(tmp_path, header=header)
    with pytest.raises(LedgerError, match="no ledger at"):
        Ledger.read(tmp_path / "none.dpl")
    with pytest.raises(LedgerError, match="no ledger at"):
        Ledger.read(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_read_only_place_is_one_clear_error(path, header, monkeypatch):
    def read_only(*args):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(store_module.os, "open", read_only)
    with pytest.raises(LedgerWriteFailed, match=r"Read-only file system.*Nothing private"):
        Ledger.open(path, header=header)


def test_an_interrupted_creation_is_not_a_deleted_ledger(path, header, step):
    head = path.with_name("run.dpl.head")
    for left_over in (b"", b"\0" * 100, b"\0" * 512):
        head.write_bytes(left_over)
        with Ledger.open(path, header=header) as ledger:
            ledger.reserve(step)
        path.unlink()
        with pytest.raises(LedgerDamaged, match="is gone"):
            Ledger.open(path, header=header)
        head.unlink()


def test_a_torn_slot_of_the_head_still_covers_one_line_more(path, header, step):
    """The slot is written after its line, so cutting that line together with tearing the slot is
    noticed.
    """
    with Ledger.open(path, header=header) as ledger:
        sizes = [path.stat().st_size]
        for _ in range(4):
            ledger.reserve(step)
            sizes.append(path.stat().st_size)
    head = HeadFile(path.with_name("run.dpl.head"), "head")
    newest = max((0, 1), key=lambda index: head.slots()[index].count)
    raw = bytearray(head.path.read_bytes())
    raw[newest * 256 + 20] ^= 1
    head.path.write_bytes(raw)
    assert Ledger.read(path).count == 4
    os.truncate(path, sizes[-2])
    with pytest.raises(LedgerDamaged, match="cut or rolled back"):
        Ledger.read(path)


def test_a_closed_store_keeps_no_descriptor(path, header):
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        Ledger.open(path, header=header).close()
        with pytest.raises(LedgerDamaged):
            Ledger.open(path, anchor=path.with_name("never"))
    assert len(os.listdir("/proc/self/fd")) == before
    assert FileStore(path).path == path
