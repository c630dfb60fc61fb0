"""The lattice gℤ on which sums and noise live, so that their floating-point addition is exact."""

import math
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch

from dpfy import _validate
from dpfy.errors import InvalidArgument

# log2; rounding d coordinates moves a sum by √d·g/2, which for d = 10^8 is 2e-5 of the noise
_STEPS_PER_STDDEV = 28
# No step, product or quotient under- or overflows between these.
_SMALLEST, _LARGEST = 2.0**-900, 2.0**900

Vector = TypeVar("Vector", torch.Tensor, npt.NDArray[np.float64])


def lattice_step(stddev: float) -> float:
    """Return the power of two, between 2⁻²⁹ and 2⁻²⁸ of ``stddev``, whose multiples are released.

    It depends on the declared noise alone, never on the values, so the lattice is fixed before the
    data is seen.

    Args:
        stddev: The standard deviation of the noise, from 2⁻⁹⁰⁰ to 2⁹⁰⁰.

    Returns:
        The step of the lattice.

    Raises:
        InvalidArgument: If ``stddev`` is outside of that range.

    >>> lattice_step(1.0) == lattice_step(1.99) == 2.0**-28
    True
    """
    _validate.real("stddev", stddev, _SMALLEST, _LARGEST)
    return math.ldexp(1.0, math.frexp(stddev)[1] - 1 - _STEPS_PER_STDDEV)


def steps_per_stddev(stddev: float, grid: float) -> float:
    """Return ``stddev / grid``, which is exact because ``grid`` is a power of two."""
    _validate.real("stddev", stddev, _SMALLEST, _LARGEST)
    if not 2.0**-100 <= stddev / _power_of_two(grid) <= 2.0**32:
        raise InvalidArgument(
            f"Expected grid={grid!r} between 2^-32 and 2^100 times stddev={stddev!r}. Use "
            "lattice_step(stddev)."
        )
    return stddev / grid


def round_to_lattice(values: torch.Tensor, grid: float) -> torch.Tensor:
    """Round float64 ``values`` in place to the nearest multiples of the power of two ``grid``.

    Near 1.5·2⁵² steps neighbouring doubles are one step apart, so adding and subtracting that
    number rounds to the nearest multiple, by at most ``grid / 2``. Values beyond 2⁵¹ steps are
    rounded as the doubles at that distance are.

    Args:
        values: A float64 tensor; overwritten.
        grid: The lattice step, a power of two.

    Returns:
        ``values``, rounded.

    >>> round_to_lattice(torch.tensor([0.3, -0.7], dtype=torch.float64), 0.25)
    tensor([ 0.2500, -0.7500], dtype=torch.float64)
    """
    far = far_from_zero(grid)
    return values.add_(far).sub_(far)


def add_on_lattice(values: Vector, noise: Vector, unit: float, grid: float) -> Vector:
    """Round ``values`` to the lattice in place, add ``unit · noise``, and round the sum.

    ``noise`` is overwritten. The sum is rounded to the lattice from its exact value, whatever its
    size.

    >>> values, noise = torch.tensor([[0.3], [0.2]], dtype=torch.float64)
    >>> add_on_lattice(values, noise, 1.0, 0.25)
    tensor([0.5000], dtype=torch.float64)
    """
    far = far_from_zero(grid)
    noise *= unit
    values += far
    values += noise
    values -= far
    return values


def add_steps(values: torch.Tensor, steps: torch.Tensor, grid: float) -> torch.Tensor:
    """Round ``values`` to the lattice in place, and add whole ``steps`` of it.

    Where sums are below 2⁵¹ steps, the result is that of :func:`add_on_lattice`, bit by bit. Beyond
    that too, values are rounded to multiples of ``grid``, and what follows is a function of the
    exact sum of multiples.

    >>> values, steps = torch.tensor([[0.3], [1.0]], dtype=torch.float64)
    >>> add_steps(values, steps, 0.25)
    tensor([0.5000], dtype=torch.float64)
    """
    return values.div_(_power_of_two(grid)).round_().add_(steps).mul_(grid)


def far_from_zero(grid: float) -> float:
    """Return the number near which neighbouring doubles are one step apart."""
    return 1.5 * 2.0**52 * _power_of_two(grid)


def _power_of_two(grid: float) -> float:
    """Return ``grid``, and refuse what is not a power of two."""
    _validate.real("grid", grid, _SMALLEST * 2.0**-100, _LARGEST * 2.0**100)
    if math.frexp(grid)[0] != 0.5:
        raise InvalidArgument(
            f"Expected grid={grid!r} to be a power of two. Use lattice_step(stddev)."
        )
    return grid
