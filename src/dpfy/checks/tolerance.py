"""Equality of numbers up to the rounding of kernels.

Tests: tests/checks/test_probe.py.
"""

import math

import torch


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


def are_equal_sums(
    found: list[torch.Tensor], expected: list[torch.Tensor], precision: float
) -> bool:
    """Whether sums are equal as vectors: at a kink, single numbers may differ by more."""
    whole = math.hypot(*(float(e.norm()) for e in expected))
    return all(
        float((f - e).norm())
        <= max(1e-3, 16 * precision) * float(e.norm()) + max(1e-5, precision) * whole
        for f, e in zip(found, expected, strict=True)
    )


def _largest(values: torch.Tensor) -> float:
    """Return the largest finite absolute value, and 0 if there is none."""
    return float(values.nan_to_num(0, 0, 0).abs().max()) if values.numel() else 0.0
