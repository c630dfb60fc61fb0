"""Filters and minima by scipy, which is imported on first use.

A training run whose noise is independent never needs them.

Tests: tests/mechanisms/test_strategies.py, tests/accounting/test_solvers.py.
"""

from typing import Any


def lfilter(numerator: Any, denominator: Any, values: Any, axis: int = -1) -> Any:
    """Return values after a linear recursion: :func:`scipy.signal.lfilter`."""
    from scipy import signal

    return signal.lfilter(numerator, denominator, values, axis=axis)


def fftconvolve(first: Any, second: Any) -> Any:
    """Return a convolution: :func:`scipy.signal.fftconvolve`."""
    from scipy import signal

    return signal.fftconvolve(first, second)


def minimize(function: Any, start: Any, **options: Any) -> Any:
    """Return a minimum: :func:`scipy.optimize.minimize`."""
    from scipy import optimize

    return optimize.minimize(function, start, **options)


def nnls(matrix: Any, values: Any) -> Any:
    """Return least squares that are not negative: :func:`scipy.optimize.nnls`."""
    from scipy import optimize

    return optimize.nnls(matrix, values)


def solve_triangular(matrix: Any, values: Any, **options: Any) -> Any:
    """Return the solution of a triangular system: :func:`scipy.linalg.solve_triangular`."""
    from scipy import linalg

    return linalg.solve_triangular(matrix, values, **options)


def toeplitz(column: Any) -> Any:
    """Return a symmetric Toeplitz matrix: :func:`scipy.linalg.toeplitz`."""
    from scipy import linalg

    return linalg.toeplitz(column)
