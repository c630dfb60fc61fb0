"""Set numpy's global generator in one copy: numpy itself writes its words one by one.

The copy goes to the address that numpy's bit generators tell, ``BitGenerator.ctypes``. Where the
generator is not numpy's own Mersenne twister, or lies in memory in another way than is known,
numpy's function does the work.
"""

import ctypes
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.random import mtrand

from dpfy.sandbox.record_keys import MERSENNE_WORDS

_NO_GAUSSIAN = (0, 0.0)  # numpy keeps every second normal number for the next call


class _Twister(ctypes.Structure):
    """The state of numpy's Mersenne twister: its words, and how many of them are used."""

    _fields_ = [("words", ctypes.c_uint32 * MERSENNE_WORDS), ("used", ctypes.c_int)]


def set_mersenne(words: npt.NDArray[np.uint32], used: int = MERSENNE_WORDS) -> None:
    """Set the state of numpy's global generator, without a normal number that is kept.

    Args:
        words: The 624 words of the Mersenne twister.
        used: The number of words that are used up; by default all, so that the next ones are made.
    """
    generator = mtrand.get_bit_generator()
    if type(generator) is not np.random.MT19937 or not _is_as_known():
        np.random.set_state(("MT19937", words, used, *_NO_GAUSSIAN))
        return
    _write(generator, words, used)
    mtrand.set_bit_generator(generator)  # the same, which forgets the number that is kept


def set_numpy_state(state: Any) -> None:
    """Set the state that ``np.random.get_state()`` returned."""
    if isinstance(state, tuple) and state[0] == "MT19937" and state[3:] == _NO_GAUSSIAN:
        set_mersenne(state[1], state[2])
    else:
        np.random.set_state(state)


def _write(generator: Any, words: npt.NDArray[np.uint32], used: int) -> None:
    """Write the state of a Mersenne twister to its memory."""
    source = np.ascontiguousarray(words, dtype=np.uint32)
    if source.shape != (MERSENNE_WORDS,):
        raise ValueError(f"Expected {MERSENNE_WORDS} words, got an array of shape {source.shape}.")
    with generator.lock:  # other threads may be drawing
        twister = _Twister.from_address(generator.ctypes.state_address)
        ctypes.memmove(twister.words, source.ctypes.data, source.nbytes)
        twister.used = used


@cache
def _is_as_known() -> bool:
    """Tell whether a generator of this version of numpy has the state that is written to it."""
    words = np.arange(1, MERSENNE_WORDS + 1, dtype=np.uint32)
    own = np.random.MT19937(0)
    before = np.ctypeslib.as_array(_Twister.from_address(own.ctypes.state_address).words)
    if not np.array_equal(before, own.state["state"]["key"]):
        return False
    _write(own, words, 7)
    found = own.state["state"]
    return np.array_equal(found["key"], words) and found["pos"] == 7
