"""A machine that was restored from a snapshot, perhaps twice: its copies have one key until they
draw fresh ones.
"""

import hashlib
import os
import threading
import time

import numpy as np
import pytest
import torch
from streams import in_child

import dpfy
from dpfy.mechanisms.one_shot import Gaussian, release
from dpfy.noise import LatticeGaussian, SecureStream, lattice_step, prefetch, random_stream

PURPOSES = ("noise", "sampling", "training")
GRID = lattice_step(1.0)


@pytest.fixture
def copies(monkeypatch):
    """Make what a function makes twice over, with the keys of one snapshot."""

    def make(one):
        made = []
        for _ in range(2):
            with monkeypatch.context() as snapshot:
                snapshot.setattr(os, "urandom", lambda count: bytes(range(count)))
                made.append(one())
        return made

    return make


@pytest.mark.parametrize("aes", [True, False])
@pytest.mark.parametrize("purpose", PURPOSES)
def test_copies_go_apart_when_they_are_refreshed(monkeypatch, copies, purpose, aes):
    """Without new entropy both would emit the same noise, and the difference of their releases be
    free of it.
    """
    monkeypatch.setattr(random_stream, "_HAS_AES", aes)
    one, other = copies(lambda: SecureStream(purpose=purpose))
    before = one.words(500)
    assert np.array_equal(before, other.words(500))  # they are copies
    one.refresh()
    other.refresh()
    assert len({*before, *one.words(500), *other.words(500)}) == 1500


@pytest.mark.parametrize("same", ["entropy", "clock"])
def test_entropy_or_the_clock_is_enough_to_tell_copies_apart(monkeypatch, copies, same):
    """The kernel's generator was restored as well and may give both the same bytes; clocks may be
    set alike.
    """
    one, other = copies(SecureStream)
    if same == "entropy":
        monkeypatch.setattr(os, "urandom", bytes)
    else:
        monkeypatch.setattr(time, "time_ns", lambda: 7)
    one.refresh()
    other.refresh()
    assert not set(one.words(500)) & set(other.words(500))


def test_the_new_key_is_secret_if_the_old_one_or_the_entropy_is(monkeypatch):
    """Re-keying from the operating system alone would throw a good key away for bytes that somebody
    may know.
    """
    monkeypatch.setattr(time, "time_ns", lambda: 7)
    one, other = SecureStream(), SecureStream()
    with monkeypatch.context() as known:
        known.setattr(os, "urandom", bytes)
        one.refresh()
        other.refresh()
    assert not set(one.words(500)) & set(other.words(500))


@pytest.mark.parametrize("split", [False, True])
def test_test_keys_stay_what_they_are(split):
    one, other = (SecureStream(insecure_test_key=3) for _ in range(2))
    if split:
        one, other = one.split(), other.split()
    one.refresh()
    assert np.array_equal(one.words(500), other.words(500))


def test_children_of_a_stream_are_refreshed_by_themselves(copies):
    one, other = (stream.split() for stream in copies(SecureStream))
    one.refresh()
    other.refresh()
    assert one.key_source == "operating system" and not set(one.words(500)) & set(other.words(500))


def test_a_refresh_in_a_forked_child_is_of_the_child_s_own_key():
    stream = SecureStream()
    child = in_child(lambda: (stream.refresh(), stream.words(500))[1].tobytes())
    stream.refresh()
    assert not set(np.frombuffer(child, dtype=np.uint64)) & set(stream.words(500))


def test_a_child_that_was_forked_during_a_refresh_does_not_wait_for_it():
    stream = SecureStream()
    with stream._lock:
        assert len(in_child(lambda: (stream.refresh(), stream.words(4))[1].tobytes())) == 32


def test_no_thread_of_a_child_draws_from_the_parent_s_key_while_another_replaces_it(monkeypatch):
    stream, parent = (SecureStream(insecure_test_key=5) for _ in range(2))
    stream._process = (0, 0)  # as in a forked child
    drawn, second, sha256 = (
        [],
        threading.Thread(target=lambda: drawn.append(stream.words(4))),
        hashlib.sha256,
    )

    def interrupted(data):
        if second.ident is None:
            second.start()
            second.join(0.1)  # which it survives if it waits for the new key
        return sha256(data)

    monkeypatch.setattr(hashlib, "sha256", interrupted)
    drawn.append(stream.words(4))
    second.join()
    assert not set(parent.words(8)) & {*drawn[0], *drawn[1]}


def test_threads_that_draw_while_others_refresh_share_no_word():
    """A key that is replaced in the middle of a call must not begin again, nor be used by two
    threads at once.
    """
    stream, drawn, failed = SecureStream(), [], []

    def work(refresh):
        try:
            for _ in range(200):
                if refresh:
                    stream.refresh()
                drawn.append(stream.words(100))
        except Exception as error:  # would be lost with the thread
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number % 2,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    words = np.concatenate(drawn)
    assert not failed and len(np.unique(words)) == len(words) == 80_000  # a chance collision: 2e-10


def test_noise_that_was_drawn_ahead_under_the_old_key_is_never_used(monkeypatch, copies):
    """A step that failed leaves its prefetched noise behind; restored copies would both have it."""
    monkeypatch.setattr(prefetch, "_cores", lambda: 2)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(prefetch, "_SERIAL", 0)
    streams = copies(SecureStream)
    taken = []
    for stream in streams:
        source = LatticeGaussian(stream)
        source.prefetch(50, 1.0, GRID)
        stream.refresh()
        taken.append(source.add_noise(torch.zeros(50, dtype=torch.float64), 1.0, GRID))
        source.close()
    assert not bool((taken[0] == taken[1]).any())  # a chance coincidence: 6e-8, at 2^28 steps to σ


def test_an_answer_refreshes_the_stream_that_it_is_given(copies):
    ones = []
    for stream in copies(SecureStream):
        with dpfy.Ledger.in_memory() as ledger:
            ones.append(release(Gaussian(1.0, 2.0), ledger, lambda: [0.0] * 8, stream))
    assert not bool((ones[0] == ones[1]).any())  # as above
