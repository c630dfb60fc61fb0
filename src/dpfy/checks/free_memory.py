"""Give back memory that passes on synthetic records have left free."""

import ctypes
from collections.abc import Iterable
from functools import cache
from typing import Any

import torch

_LARGE = 2**24  # parameters from which on free memory is worth giving back


def give_back(parameters: Iterable[torch.Tensor]) -> None:
    """Return free memory to the operating system, after passes of a large model.

    The allocator of the C library keeps what was freed between blocks that are in use. What a
    large model leaves there is as much again as the model, and what comes next often does not fit
    into it.

    Args:
        parameters: The trained parameters of the model.
    """
    trim = _trim()
    if trim is not None and sum(p.numel() for p in parameters) >= _LARGE:
        trim(0)


@cache
def _trim() -> Any:
    """Return the function of the C library, or None if it has none, as on macOS."""
    return getattr(ctypes.CDLL(None), "malloc_trim", None)
