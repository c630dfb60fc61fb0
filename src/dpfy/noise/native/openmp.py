"""The threads of torch, for loops of our own."""

import ctypes
from functools import cache
from typing import Any

import torch

from dpfy.noise.random_stream import this_process


def torchs_threads() -> tuple[int | None, int]:
    """Return where the function is by which OpenMP calls another on several threads, and how many
    torch uses now.

    They look out for the next operation at full speed for some milliseconds after the last one, and
    leave no core to threads of anybody else. A forked process has none of them, and OpenMP would
    wait for them forever: there, and where torch brought no OpenMP, a loop is for the thread that
    it is called on.
    """
    _, forks = this_process()
    return (None, 1) if forks else (_parallel(), torch.get_num_threads())


@cache
def _parallel() -> int | None:
    try:
        found: Any = ctypes.CDLL(None).GOMP_parallel
    except (AttributeError, OSError, TypeError):
        return None
    return ctypes.cast(found, ctypes.c_void_p).value
