"""Dropout masks from a generator that the proof covers.

On some processors torch draws masks on the CPU by a library whose generator has 31 bits of state
and is seeded by one number for every mask. The masks of a chunk are then one of two billion, and
not independent. There, dropout layers draw from the Mersenne twister instead, whose whole state is
secret. Masks that are drawn inside of other operations, as in attention and between recurrent
layers, cannot be replaced, and a model that has them is refused.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache

import torch
import torch.nn.functional as F

from dpfy.sandbox.record_keys import TORCH_STATE

_MANY = 4096  # numbers: more than the twister has before it turns


@lru_cache(maxsize=1)
def are_covered() -> bool:
    """Whether torch draws masks from the Mersenne twister.

    Drawing many numbers then renews the twister's whole state.
    """
    with torch.random.fork_rng(devices=[]):
        before = torch.get_rng_state().view(torch.int64)[TORCH_STATE].clone()
        torch.empty(_MANY, dtype=torch.float32).bernoulli_(0.5)
        return not torch.equal(torch.get_rng_state().view(torch.int64)[TORCH_STATE], before)


@contextmanager
def covered_masks() -> Iterator[None]:
    """Let dropout functions draw from the twister inside the block, where torch does not."""
    if are_covered():
        yield
        return
    functions = {name: getattr(F, name) for name in _CHANNELS}
    try:
        for name, channels in _CHANNELS.items():
            setattr(F, name, _dropout(functions[name], channels))
        yield
    finally:
        for name, function in functions.items():
            setattr(F, name, function)


_CHANNELS = {"dropout": None, "dropout1d": 2, "dropout2d": 2, "dropout3d": 2}
"""The number of axes of a mask, for functions that one mask describes; others are refused."""


def _dropout(
    original: Callable[..., torch.Tensor], axes: int | None
) -> Callable[..., torch.Tensor]:
    """Return dropout whose masks have this number of axes, drawn from the twister."""

    def dropout(
        input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> torch.Tensor:
        if not training or p in (0.0, 1.0) or not input.is_cpu:
            return original(input, p, training, inplace)
        shape = (
            input.shape if axes is None else (*input.shape[:axes], *(1 for _ in input.shape[axes:]))
        )
        kept = (torch.rand(shape, dtype=torch.float32) >= p).to(input.dtype) / (1 - p)
        return input.mul_(kept) if inplace else input * kept

    return dropout
