"""Second moments of bounded rows as one vector, and what is computed from them."""

import math
from dataclasses import dataclass
from typing import Self

import numpy as np

from dpfy.estimators.declarations import Floats
from dpfy.estimators.fitting import summed

FIRST, TARGET = 0.5, 0.5
"""The weights of first moments, and of moments with the target, inside the vector."""


def moments_bound(target: bool) -> float:
    """Return the largest ℓ2 norm of what one row adds to :func:`moment_sum`.

    *Formal guarantee*: the vector of a row x with ‖x‖ ≤ 1 and |y| ≤ 1 has the norm of
    (x, FIRST) ⊗ (x, TARGET·y) without one copy of x ⊗ x, hence at most
    √(1 + FIRST²)·√(1 + TARGET²) (docs/proofs/estimators.md, Lemma 3).

    Args:
        target: Whether there is a target y.

    Returns:
        The bound.

    >>> round(moments_bound(target=True), 6)
    1.25
    """
    return math.sqrt(1 + FIRST**2) * (math.sqrt(1 + TARGET**2) if target else 1.0)


def moment_sum(vectors: Floats, targets: Floats | None = None) -> Floats:
    """Return Σ x xᵀ (its upper triangle), Σ x, Σ y·x and Σ y as one weighted vector.

    Entries off the diagonal are multiplied by √2, so that the triangle has the norm of the matrix.
    """

    def block(x: Floats, y: Floats) -> Floats:
        parts = [triangle(x.T @ x), FIRST * x.sum(axis=0)]
        if targets is not None:
            parts += [TARGET * (y @ x), np.atleast_1d(FIRST * TARGET * y.sum())]
        return np.concatenate(parts)

    total: Floats = summed(block, vectors, np.zeros(len(vectors)) if targets is None else targets)
    return total


@dataclass(frozen=True)
class Moments:
    """Noisy moments of n rows, centred at their mean.

    Args:
        mean: The mean of the vectors.
        scatter: The sum of the centred vectors' products with themselves.
        cross: The sum of the centred vectors times the centred targets.
        target: The mean of the targets.
    """

    mean: Floats
    scatter: Floats
    cross: Floats
    target: float

    @classmethod
    def of(cls, noisy: Floats, records: int, width: int) -> Self:
        """Return the moments that a noisy sum holds.

        Args:
            noisy: A :func:`moment_sum` with noise.
            records: The public number of rows.
            width: The number of coordinates of a vector.

        Returns:
            The moments; those of targets are zero where there were none.
        """
        upper, first, *rest = np.split(noisy, np.cumsum([width * (width + 1) // 2, width]))
        second = symmetric(upper, width)
        tail = rest[0] if len(rest[0]) else np.zeros(width + 1)
        count = max(records, 1)
        mean, target = first / FIRST / count, float(tail[-1]) / FIRST / TARGET / count
        return cls(
            mean,
            second - count * np.outer(mean, mean),
            tail[:-1] / TARGET - count * mean * target,
            target,
        )

    def ridge(self, alpha: float, noise: float) -> Floats:
        """Return the coefficients of ridge regression, with a penalty that noise asks for.

        The penalty is raised until the least eigenvalue of the penalised scatter is at least
        ``noise``·√d, the size of the noise of the matrix, so that it is always positive definite.

        Args:
            alpha: The least penalty, at least 0.
            noise: The standard deviation of the noise of the scatter's entries.

        Returns:
            The coefficients of the vectors.

        Reference: Wang 2018, Revisiting differentially private linear regression, Algorithm 2, with
        the least eigenvalue taken from the noisy matrix.
        """
        width = len(self.mean)
        least = float(np.linalg.eigvalsh(self.scatter)[0])
        penalty = alpha + max(0.0, noise * math.sqrt(width) - least)
        solved = np.linalg.solve(self.scatter + penalty * np.eye(width), self.cross)
        return solved.astype(np.float64)


def triangle(matrix: Floats) -> Floats:
    """Return the upper triangle of a symmetric matrix as a vector of the matrix's norm.

    >>> triangle(np.ones((2, 2)))
    array([1.        , 1.41421356, 1.        ])
    """
    width = len(matrix)
    found: Floats = (matrix * _weights(width))[np.triu_indices(width)]
    return found


def symmetric(upper: Floats, width: int) -> Floats:
    """Return the symmetric matrix that has this :func:`triangle`."""
    found = np.zeros((width, width))
    found[np.triu_indices(width)] = upper
    return (found + np.triu(found, 1).T) / _weights(width)


def _weights(width: int) -> Floats:
    """Return what entries of a symmetric matrix are multiplied by: 1 on the diagonal, √2 beside."""
    return np.where(np.eye(width, dtype=bool), 1.0, math.sqrt(2))
