import copy
import hashlib
import io
import os
import pickle
import threading

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy import stats
from streams import in_child

from dpfy.errors import InvalidArgument
from dpfy.noise import random_stream
from dpfy.noise.random_stream import SecureStream, require_purpose


def test_words_are_the_counter_mode_key_stream():
    key = hashlib.sha256(b"dpfy noise:int9").digest()
    counters = b"".join(counter.to_bytes(16, "big") for counter in range(5000))
    expected = Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(counters)
    assert SecureStream(insecure_test_key=9).words(10_000).tobytes() == expected


def test_chacha20_is_used_without_aes_instructions(monkeypatch):
    monkeypatch.setattr(random_stream, "_HAS_AES", False)
    key = hashlib.sha256(b"dpfy noise:int9").digest()
    expected = (
        Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(80_000))
    )
    assert SecureStream(insecure_test_key=9).words(10_000).tobytes() == expected


def test_how_words_are_asked_for_does_not_change_them():
    pieces = SecureStream(insecure_test_key=2)
    together = np.concatenate([pieces.words(count) for count in (1, 0, 8191, 8192, 8193, 30_000)])
    assert (together == SecureStream(insecure_test_key=2).words(54_577)).all()


@pytest.mark.parametrize(
    "make",
    [
        lambda: SecureStream(),
        lambda: SecureStream(insecure_test_key=1),
        lambda: SecureStream(insecure_test_key=2),
        lambda: SecureStream(insecure_test_key=b"1"),
        lambda: SecureStream(insecure_test_key=1, purpose="sampling"),
    ],
)
def test_streams_of_different_keys_and_purposes_share_no_word(make):
    assert not set(make().words(1000)) & set(SecureStream(insecure_test_key=3).words(1000))
    assert not set(make().words(1000)) & set(
        SecureStream(insecure_test_key=3, purpose="sampling").words(1000)
    )
    assert not set(SecureStream().words(1000)) & set(make().words(1000))


def test_noise_and_sampling_differ_under_one_test_key():
    noise, sampling = (
        SecureStream(insecure_test_key=1, purpose=purpose) for purpose in ("noise", "sampling")
    )
    assert not set(noise.words(1000)) & set(sampling.words(1000))


def test_a_split_stream_shares_no_word_and_remembers_where_its_key_came_from():
    stream = SecureStream(insecure_test_key=1)
    first, second = stream.split(), stream.split()
    assert len({*stream.words(500), *first.words(500), *second.words(500)}) == 1500
    assert (
        first.key_source == "insecure test key"
        and SecureStream().split().key_source == "operating system"
    )
    again = SecureStream(insecure_test_key=1).split()
    assert (again.words(3) == SecureStream(insecure_test_key=1).split().words(3)).all()


@pytest.mark.parametrize("key", [None, 5])
def test_a_forked_child_never_repeats_the_parent_or_a_sibling(key):
    stream = SecureStream(insecure_test_key=key)
    stream.words(3)  # in the middle of a block
    children = [in_child(lambda: stream.words(500).tobytes()) for _ in range(2)]
    words = [
        set(stream.words(500)),
        *(set(np.frombuffer(data, dtype=np.uint64)) for data in children),
    ]
    assert not words[0] & words[1] and not words[0] & words[2] and not words[1] & words[2]


def test_a_reused_process_id_does_not_hide_a_fork(monkeypatch):
    monkeypatch.setattr(os, "getpid", lambda: 4711)
    stream = SecureStream(insecure_test_key=5)
    child = in_child(lambda: stream.words(500).tobytes())
    assert child != stream.words(500).tobytes()


def test_the_child_of_a_test_stream_still_calls_itself_insecure():
    stream = SecureStream(insecure_test_key=5)
    assert (
        in_child(lambda: (stream.words(1), stream.key_source)[1].encode()) == b"insecure test key"
    )


@pytest.mark.parametrize(
    "duplicate",
    [
        copy.copy,
        copy.deepcopy,
        pickle.dumps,
        lambda stream: torch.save(stream, io.BytesIO()),
        lambda stream: pickle.dumps({"nested": [stream]}, protocol=2),
    ],
)
def test_a_stream_cannot_be_duplicated_or_saved(duplicate):
    with pytest.raises(InvalidArgument, match="cannot be copied, pickled or saved"):
        duplicate(SecureStream())


def test_threads_share_no_word():
    stream, drawn = SecureStream(), []

    def work():
        for _ in range(50):
            drawn.append(stream.words(2000))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    words = np.concatenate(drawn)
    assert len(words) == 4 * 50 * 2000 == len(np.unique(words))  # a chance collision: 1e-8


def test_every_bit_is_fair():
    words = SecureStream(insecure_test_key=4).words(100_000)
    ones = [int(((words >> np.uint64(bit)) & np.uint64(1)).sum()) for bit in range(64)]
    assert min(stats.binomtest(count, len(words)).pvalue for count in ones) > 1e-6 / 64


@pytest.mark.parametrize("aes", [True, False])
def test_the_streams_of_parts_are_told_apart_by_key_and_number(monkeypatch, aes):
    monkeypatch.setattr(random_stream, "_HAS_AES", aes)
    source = SecureStream(insecure_test_key=1)
    keys = [source.parts(), source.parts()]
    drawn = [
        parts.stream(number).words(4000) for parts in keys for number in (0, 1, 2, 255, 256, 2**40)
    ]
    assert len(np.unique(drawn)) == 12 * 4000  # a chance collision: 1e-10
    assert np.array_equal(keys[0].stream(256).words(4000), drawn[4])
    assert len({parts.aes_key for parts in keys} - {None}) == (2 if aes else 0)


def test_a_fork_has_other_streams_for_the_same_parts():
    parts = SecureStream(insecure_test_key=1).parts()
    parent = parts.stream(3).words(4).tobytes()
    assert in_child(lambda: parts.stream(3).words(4).tobytes()) != parent
    assert in_child(lambda: parts.aes_key) != parts.aes_key
    assert parts.stream(3).words(4).tobytes() == parent


@pytest.mark.parametrize("copying", [copy.copy, copy.deepcopy, pickle.dumps])
def test_the_streams_of_parts_cannot_be_copied(copying):
    with pytest.raises(InvalidArgument, match="same noise"):
        copying(SecureStream().parts())


def test_bad_arguments():
    with pytest.raises(InvalidArgument, match="purpose='dropout'"):
        SecureStream(purpose="dropout")
    with pytest.raises(InvalidArgument, match="insecure_test_key"):
        SecureStream(insecure_test_key=-1)
    with pytest.raises(InvalidArgument, match="insecure_test_key"):
        SecureStream(insecure_test_key=True)
    with pytest.raises(InvalidArgument, match=r"purpose='noise'.*'sampling'"):
        require_purpose(SecureStream(purpose="sampling"), "noise")


@pytest.mark.parametrize(
    "system, text, expected",
    [
        ("Linux", "flags : fpu aes avx", True),
        ("Linux", "flags : fpu avx", False),
        ("Darwin", "", True),
    ],
)
def test_the_cipher_follows_the_processor(monkeypatch, system, text, expected):
    monkeypatch.setattr(random_stream.platform, "system", lambda: system)
    monkeypatch.setattr(random_stream.Path, "read_text", lambda self: text)
    assert random_stream._has_aes_instructions() is expected
