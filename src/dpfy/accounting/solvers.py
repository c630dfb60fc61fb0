"""Roots and minima of functions of one variable, by scipy, which is imported on first use.

``scipy.optimize`` brings solvers of every kind with it: 35 MB that a training run whose noise is
given never needs.
"""

from collections.abc import Callable
from typing import Any


def brentq(function: Callable[[float], float], low: float, high: float, **options: Any) -> Any:
    """Return a root between two points of opposite sign: :func:`scipy.optimize.brentq`."""
    from scipy import optimize

    return optimize.brentq(function, low, high, **options)


def minimize_scalar(function: Callable[..., float], **options: Any) -> Any:
    """Return a minimum of a function: :func:`scipy.optimize.minimize_scalar`."""
    from scipy import optimize

    return optimize.minimize_scalar(function, **options)
