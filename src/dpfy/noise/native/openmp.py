"""Lend the OpenMP threads of torch to the loops in C.

Tests: tests/noise/native/test_kernels.py.
"""

import ctypes
from functools import cache
from typing import Any

import torch

from dpfy._process import this_process


def openmp_threads() -> tuple[int | None, int]:
    """Return the address of ``GOMP_parallel`` and the number of threads that torch uses now.

    The function calls another one on several threads. After an operation, torch's threads look for
    the next one at full speed for some milliseconds, and leave no core to other threads; so loops
    of our own run on these. A forked process has none of them, and OpenMP would wait for them
    forever: there, and where torch brought no OpenMP, the address is None and a loop runs on the
    calling thread.
    """
    _, forks = this_process()
    return (None, 1) if forks else (_gomp_parallel(), torch.get_num_threads())


@cache
def _gomp_parallel() -> int | None:
    """Return the address of ``GOMP_parallel``, if torch loaded it."""
    try:
        found: Any = ctypes.CDLL(None).GOMP_parallel
    except (AttributeError, OSError, TypeError):
        return None
    return ctypes.cast(found, ctypes.c_void_p).value
