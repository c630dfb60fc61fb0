"""Who writes is found in the kernel's list, also where it names devices in its own way."""

import fcntl
import os
import sys

import pytest

from dpfy.page.writers import Writers

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists its locks")


@pytest.fixture
def head(tmp_path):
    with (tmp_path / "run.dpl.head").open("w") as file:
        yield file


def test_a_lock_that_is_held_is_seen_and_one_that_was_given_back_is_not(head, tmp_path):
    path = tmp_path / "run.dpl.head"
    assert not Writers.now().hold(path)
    fcntl.flock(head, fcntl.LOCK_EX)
    assert Writers.now().hold(path)
    fcntl.flock(head, fcntl.LOCK_UN)
    assert not Writers.now().hold(path)


def test_a_reader_is_no_writer(head, tmp_path):
    fcntl.flock(head, fcntl.LOCK_SH)
    assert not Writers.now().hold(tmp_path / "run.dpl.head")


def line_of(path, process, device):
    return f"1: FLOCK  ADVISORY  WRITE {process} {device}:{path.stat().st_ino} 0 EOF\n"


def test_another_number_of_the_device_is_no_obstacle(head, tmp_path):
    # as on btrfs, where a file's status has the number of its subvolume
    path = tmp_path / "run.dpl.head"
    assert Writers(line_of(path, os.getpid(), "ff:ff")).hold(path)


def test_a_file_of_the_same_number_on_another_device_is_not_taken_for_it(tmp_path):
    path = tmp_path / "other.head"
    path.touch()
    assert not Writers(line_of(path, os.getpid(), "ff:ff")).hold(path)
    assert not Writers(line_of(path, 2**30, "ff:ff")).hold(path)


def test_odd_lines_and_missing_files_are_left_out(tmp_path):
    odd = Writers("1: FLOCK\nnonsense\n2: FLOCK ADVISORY WRITE x fe:00:none 0 EOF\n")
    assert odd.known and not odd.hold(tmp_path / "missing")
    assert not Writers(None).known
