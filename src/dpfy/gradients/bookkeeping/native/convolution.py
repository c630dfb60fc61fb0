"""The gradients of a convolution's weight, written out record by record by ``convolution.c``.

Torch has no kernel for them. Products of its own, tap by tap, take up to three times as long as the
one gradient that plain training needs; this takes about as long:
docs/decisions/clipping-engines.md.
"""

import ctypes
import math
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from dpfy.gradients.bookkeeping.workspace import Workspace
from dpfy.noise.native.c_types import array_of, declare
from dpfy.noise.native.compiler import IEEE, Compilation, compilations, loaded
from dpfy.noise.native.openmp import openmp_threads

_SOURCE = Path(__file__).with_name("convolution.c")
# The code never leaves this machine. Fused operations are more exact, and no lattice is involved.
_OPTIONS = (*IEEE, "-ffp-contract=fast")
_LARGEST_IMAGE = 2**30  # numbers of a padded image, whose places are integers of 32 bits
_CLOSE = 1e-5

Places = npt.NDArray[np.int32]


class Sliding(NamedTuple):
    """How a kernel slides over an image: sizes in each of its dimensions.

    Args:
        image: pixels of the image.
        positions: positions of the kernel.
        kernel: taps of the kernel.
        stride: pixels from one position to the next.
        padding: zeros on each side of the image.
        dilation: pixels from one tap to the next.
    """

    image: tuple[int, ...]
    positions: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]


def products_over_windows(
    image: torch.Tensor, small: torch.Tensor, sliding: Sliding, memory: Workspace
) -> torch.Tensor | None:
    """Return Σ_t small[t] ⊗ image[t·stride + tap·dilation − padding] for each record.

    Args:
        image: [items, channels, *pixels].
        small: [items, rows, *positions], a number for each position of the kernel.
        sliding: how the kernel slides.
        memory: where the result is written.

    Returns:
        [items, rows, *kernel, channels], or None if there is no kernel for it here: it takes a
        compiler, and float32 in the memory of the CPU.
    """
    plain = image.dtype == small.dtype == torch.float32 and image.is_cpu and small.is_cpu
    if not plain or not len(image) or (kernel := compiled()) is None:
        return None
    table = _table(sliding, image.shape[1])
    if table is None:
        return None
    written = memory.floats(len(image), small.shape[1], math.prod(sliding.kernel), image.shape[1])
    made = kernel(
        *openmp_threads(),
        len(image),
        image.shape[1],
        math.prod(sliding.image),
        table.pixels,
        table.size,
        image.data_ptr(),
        small.shape[1],
        math.prod(sliding.positions),
        table.positions,
        small.data_ptr(),
        len(table.runs),
        table.runs,
        written.shape[2] * written.shape[3] // len(table.runs),
        written.data_ptr(),
    )
    return written.unflatten(2, sliding.kernel) if made else None


class _Table(NamedTuple):
    """Places in an image that is laid out with its channels side by side and zeros around it."""

    pixels: Places
    positions: Places
    runs: Places  # of taps that are neighbours in memory
    size: int


@lru_cache(maxsize=256)
def _table(sliding: Sliding, channels: int) -> _Table | None:
    """Return the places for one geometry, or None if the image is too large for them."""
    reach = [
        (n - 1) * s + (k - 1) * d + 1
        for n, s, k, d in zip(
            sliding.positions, sliding.stride, sliding.kernel, sliding.dilation, strict=True
        )
    ]
    padded = [n + 2 * p for n, p in zip(sliding.image, sliding.padding, strict=True)]
    sides = [max(both) for both in zip(reach, padded, strict=True)]
    size = math.prod(sides) * channels
    if size > _LARGEST_IMAGE:
        return None
    steps = [channels * math.prod(sides[axis + 1 :]) for axis in range(len(sides))]
    taps = sliding.kernel if sliding.dilation[-1] > 1 else (*sliding.kernel[:-1], 1)
    return _Table(
        _grid(sliding.image, steps)
        + sum(p * s for p, s in zip(sliding.padding, steps, strict=True)),
        _grid(sliding.positions, [a * b for a, b in zip(steps, sliding.stride, strict=True)]),
        _grid(taps, [a * b for a, b in zip(steps, sliding.dilation, strict=True)]),
        size,
    )


def _grid(counts: tuple[int, ...], steps: list[int]) -> Places:
    """Return Σ index·step for all indices below ``counts``, the last one running fastest."""
    found = np.zeros(1, dtype=np.int32)
    for count, step in zip(counts, steps, strict=True):
        found = (found[:, None] + np.arange(count, dtype=np.int32) * np.int32(step)).ravel()
    return found


_begun: list[Compilation] = []  # ahead of the first use, one at most


def compile_ahead(model: nn.Module) -> None:
    """Start the compiler if the model has convolutions; the first of them waits for it.

    It runs in a process of its own while this one has other things to do.
    """
    needed = any(isinstance(module, _ConvNd) for module in model.modules())
    if needed and not _begun and not compiled.cache_info().currsize:
        _begun.extend(compilations(_SOURCE, _OPTIONS))


@cache
def compiled() -> Any:
    """Compile ``convolution.c`` and return its function, or None if that fails or it errs.

    See :mod:`dpfy.noise.native.compiler`.
    """
    return loaded(_begun, _SOURCE, _OPTIONS, _declared, _is_right)


def _declared(library: ctypes.CDLL) -> Any:
    """Return the function of the library with the types of its arguments."""
    size, places, floats = ctypes.c_ssize_t, array_of(np.int32), ctypes.c_void_p
    return declare(
        library.weight_gradients,
        ctypes.c_int,
        *(size, size, places, size, floats),
        *(size, size, places, floats),
        *(size, places, size, floats),
    )


def _is_right(function: Any) -> bool:
    """Return whether compiled code agrees with a product for each tap, on synthetic numbers."""
    channels, rows = 5, 13
    image = torch.arange(2 * channels * 9 * 9, dtype=torch.float64).sin().view(2, channels, 9, 9)
    small = torch.arange(2 * rows * 4 * 4, dtype=torch.float64).cos().view(2, rows, 4, 4)
    table = _table(Sliding((9, 9), (4, 4), (3, 3), (2, 2), (0, 0), (1, 1)), channels)
    assert table is not None
    expected = torch.stack(
        [
            torch.einsum("nryx,ncyx->nrc", small, image[:, :, y : y + 7 : 2, x : x + 7 : 2])
            for y in range(3)
            for x in range(3)
        ],
        2,
    )
    written = torch.full(expected.shape, math.nan)
    image, small = image.float(), small.float()
    made = function(
        *(None, 1, 2, channels, 81, table.pixels, table.size, image.data_ptr()),
        *(rows, 16, table.positions, small.data_ptr()),
        *(3, table.runs, 3 * channels, written.data_ptr()),
    )
    return bool(made) and torch.allclose(written.double(), expected, rtol=_CLOSE, atol=_CLOSE)
