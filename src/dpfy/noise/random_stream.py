"""The only source of randomness for noise and sampling: the key stream of a cipher.

The operating system draws the key.
"""

import hashlib
import os
import platform
import threading
import time
from pathlib import Path
from typing import Literal, Never

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from dpfy import _validate
from dpfy._process import this_process
from dpfy.errors import InvalidArgument

Purpose = Literal["noise", "sampling", "training"]
Words = npt.NDArray[np.uint64]

_PURPOSES = ("noise", "sampling", "training")
# Encrypted block by block: 64 KiB stays in the cache and makes the cost of a call negligible.
_ZEROS = bytes(1 << 16)
_leaving = threading.Lock()  # for threads of a child that find a stream of the parent


def _unlock() -> None:
    """Replace the lock in a child process, as the parent's may have been copied locked."""
    global _leaving
    _leaving = threading.Lock()


os.register_at_fork(after_in_child=_unlock)


def _has_aes_instructions() -> bool:
    """Return whether AES is fast here; only Linux tells cheaply, and elsewhere it mostly is."""
    if platform.system() != "Linux":
        return True
    try:
        return " aes" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return True


class KeyStream:
    """The words of the cipher under a key.

    Different numbers give different sections of the key stream.
    """

    def __init__(self, key: bytes, number: int = 0) -> None:
        own = number.to_bytes(8, "big")
        if _HAS_AES:
            self._cipher = Cipher(algorithms.AES(key), modes.CTR(own + bytes(8))).encryptor()
        else:
            self._cipher = Cipher(algorithms.ChaCha20(key, bytes(8) + own), mode=None).encryptor()

    def fill(self, out: Words) -> None:
        """Overwrite the contiguous array ``out`` with fresh words."""
        target = out.data.cast("B")
        for start in range(0, len(target), len(_ZEROS)):
            block = target[start : start + len(_ZEROS)]
            self._cipher.update_into(_ZEROS[: len(block)], block)

    def words(self, count: int) -> Words:
        """Return ``count`` fresh words."""
        out = np.empty(count, dtype=np.uint64)
        if count:
            self.fill(out)
        return out


class SecureStream(KeyStream):
    """An endless stream of 64-bit words that look uniform to anybody without the key.

    *Formal guarantee.* The words are the key stream of AES-256-CTR (ChaCha20 where the processor
    has no AES instructions) under a key of 256 bits that the operating system drew for this object
    in this process. After a fork the child draws another key. A stream cannot be copied, pickled or
    saved, so no word is ever emitted twice. Copies of the whole machine, such as a snapshot that is
    restored twice, share words until the next :meth:`refresh`; a run calls it at the beginning of
    every step.

    *Assumes* that the cipher is a pseudo-random function and that ``os.urandom`` is unpredictable:
    the differential privacy of what is built on it is computational in this sense.

    Args:
        insecure_test_key: Makes the stream reproducible, and everything drawn from it *not
            private*. A forked child of such a stream is keyed by the operating system, since
            replaying the parent's words would be worse than not being reproducible. By default the
            operating system draws the key.
        purpose: ``"noise"``, ``"sampling"`` or ``"training"``. Streams of different purposes differ
            also under the same test key.

    Raises:
        InvalidArgument: If the purpose or the test key is not one of those, or if the stream is
            copied, pickled or saved.

    >>> SecureStream().key_source
    'operating system'
    >>> SecureStream(insecure_test_key=7).words(2)
    array([14334699503775572441,   597653164674997877], dtype=uint64)
    """

    def __init__(
        self, insecure_test_key: int | bytes | None = None, purpose: Purpose = "noise"
    ) -> None:
        self.purpose: Purpose = purpose
        _validate.choice("purpose", purpose, _PURPOSES)
        self._insecure = insecure_test_key is not None
        self.generation = 0
        self._start(
            os.urandom(32) if insecure_test_key is None else _test_secret(insecure_test_key)
        )

    @property
    def key_source(self) -> str:
        """The source of the key; all but ``"operating system"`` mean that nothing is private."""
        return "insecure test key" if self._insecure else "operating system"

    def fill(self, out: Words) -> None:
        """Overwrite the contiguous array ``out`` with fresh words."""
        self._leave_parent()
        with self._lock:
            super().fill(out)

    def refresh(self) -> None:
        """Go on under a new key, from the old stream, the operating system and the clock.

        *Formal guarantee*: two copies of a stream share no word after it if the operating system
        gives them other bytes, or if they call it at another nanosecond. Knowing only one of the
        old key and the new bytes tells nothing about the new key; nor does the new key tell the old
        one. A stream with a test key stays as it is.

        The clock is for machines whose generator was restored with the rest and has not been
        reseeded since.
        """
        if self._insecure:
            return
        self._leave_parent()
        with self._lock:
            own = np.empty(4, dtype=np.uint64)
            super().fill(own)
            clock = time.time_ns().to_bytes(16, "big", signed=True)
            self._set_key(b"refreshed" + own.tobytes() + os.urandom(32) + clock)

    def split(self) -> "SecureStream":
        """Return an independent stream whose key is drawn from this one."""
        child = SecureStream(self.words(4).tobytes(), self.purpose)
        child._insecure = self._insecure
        return child

    def parts(self) -> "Parts":
        """Return streams for the parts of one vector, under a key drawn from this stream."""
        return Parts(self.words(4).tobytes())

    def _leave_parent(self) -> None:
        """Draw another key if this is a fork of the process that made the stream."""
        if self._process != this_process():
            with _leaving:
                if self._process != this_process():  # another thread was first
                    self._start(os.urandom(32))

    def _start(self, secret: bytes) -> None:
        """Begin a stream of this process."""
        self._lock = threading.Lock()  # a new one, since the fork may have copied it locked
        self._set_key(secret)
        self._process = this_process()  # last, because other threads check it first

    def _set_key(self, secret: bytes) -> None:
        """Go on under the key that a secret stands for."""
        self.generation += 1
        super().__init__(hashlib.sha256(f"dpfy {self.purpose}:".encode() + secret).digest())

    def __reduce_ex__(self, protocol: object) -> Never:
        raise InvalidArgument(
            "A SecureStream cannot be copied, pickled or saved: two copies would emit the same "
            "noise, and their difference is free of it. Make a new stream where one is needed."
        )


class Parts:
    """Streams under one key, told apart by number, that any thread may read in any order.

    Reading the stream of a number again gives the same words: they are for one part of one vector,
    which is used once. A forked child has another key.
    """

    def __init__(self, key: bytes) -> None:
        self._process, self._key = this_process(), key

    def stream(self, number: int) -> KeyStream:
        """Return the stream of a number."""
        return KeyStream(self._own_key(), number)

    @property
    def aes_key(self) -> bytes | None:
        """The key of AES-256, for readers of the streams in C, or None under another cipher.

        The stream of a number begins at block 2⁶⁴ times the number.
        """
        return self._own_key() if _HAS_AES else None

    def _own_key(self) -> bytes:
        """Return the key of this process."""
        if self._process != this_process():
            # In this order, because other threads check the process first.
            self._key, self._process = os.urandom(32), this_process()
        return self._key

    def __reduce_ex__(self, protocol: object) -> Never:
        raise InvalidArgument(
            "The streams of a vector cannot be copied, pickled or saved: two copies would emit the "
            "same noise."
        )


_HAS_AES = _has_aes_instructions()


def _test_secret(key: int | bytes) -> bytes:
    """Return the secret that a test key stands for; an int and its bytes are different keys."""
    if isinstance(key, bytes):
        return b"bytes" + key
    return b"int" + str(_validate.count("insecure_test_key", key, minimum=0)).encode()


def require_purpose(stream: SecureStream, purpose: Purpose) -> SecureStream:
    """Return ``stream`` if it was made for ``purpose``: noise and sampling never share words."""
    if stream.purpose != purpose:
        raise InvalidArgument(
            f"Expected a stream with purpose={purpose!r}, got one for {stream.purpose!r}. Pass "
            f"SecureStream(purpose={purpose!r})."
        )
    return stream
