"""Equality of numbers up to the rounding of kernels.

Tests: tests/checks/test_probe.py.
"""

import math
from collections.abc import Callable

import torch

_BLOCK = 2**16  # numbers: half a megabyte in float64, which stays in the cache
_SMALLEST = 2.0**-60  # squared norm of a block in which no square that matters has underflown


def are_equal(a: torch.Tensor, b: torch.Tensor, precision: float) -> bool:
    """Whether two tensors are equal up to rounding, relative to their largest number."""
    if a.shape != b.shape:
        return False
    scale = max(_largest(a), _largest(b))
    return torch.allclose(
        a.double(),
        b.double(),
        rtol=max(1e-4, 16 * precision),
        atol=max(1e-5, 8 * precision) * scale + 1e-12,
        equal_nan=True,
    )


Joined = Callable[[list[float]], list[float]]
"""Adds up squared norms of parts of vectors that other processes have."""


def _alone(squares: list[float]) -> list[float]:
    return squares


def are_equal_sums(
    found: list[torch.Tensor],
    expected: list[torch.Tensor],
    precision: float,
    joined: Joined = _alone,
) -> bool:
    """Whether sums are equal as vectors: at a kink, single numbers may differ by more."""
    lengths = [math.sqrt(each) for each in joined([squared_norm(e) for e in expected])]
    differences = joined([squared_norm(f, e) for f, e in zip(found, expected, strict=True)])
    whole = math.hypot(*lengths)
    return all(
        math.sqrt(difference) <= _relative(precision) * length + max(1e-5, precision) * whole
        for difference, length in zip(differences, lengths, strict=True)
    )


def is_within(
    sums: list[torch.Tensor], bound: float, precision: float, joined: Joined = _alone
) -> bool:
    """Whether the norm of sums, as one vector, is at most a bound, up to rounding."""
    norm = math.sqrt(math.fsum(joined([squared_norm(each) for each in sums])))
    return norm <= bound * (1 + _relative(precision))


def _relative(precision: float) -> float:
    """Return the difference of sums, relative to their length, that rounding explains."""
    return max(1e-3, 16 * precision)


def squared_norm(values: torch.Tensor, others: torch.Tensor | None = None) -> float:
    """Return the squared norm of a tensor, or of its difference from another.

    It is computed block by block, since fresh memory as large as a model takes longer than
    arithmetic: in float32, and again in float64 where that is not in the range of float32.
    """
    blocks = [values.reshape(-1).split(_BLOCK)]
    blocks += [] if others is None else [others.reshape(-1).split(_BLOCK)]
    with torch._C.DisableTorchFunction():  # modes look at every call
        return math.fsum(_squared(*block) for block in zip(*blocks, strict=True))


def _squared(block: torch.Tensor, other: torch.Tensor | None = None) -> float:
    """Return the squared norm of a short vector or difference of vectors."""
    found = math.inf
    for dtype in dict.fromkeys((torch.promote_types(block.dtype, torch.float32), torch.float64)):
        numbers = block.to(dtype)
        if other is not None:
            numbers = numbers - other.to(block.device, dtype)
        found = float(numbers.dot(numbers))
        if _SMALLEST < found < math.inf:
            break
    return found


def _largest(values: torch.Tensor) -> float:
    """Return the largest finite absolute value, and 0 if there is none."""
    return float(values.nan_to_num(0, 0, 0).abs().max()) if values.numel() else 0.0
