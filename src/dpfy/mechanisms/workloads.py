"""Workloads: how an optimizer adds up the gradients of its steps, and what noise that leaves.

The weights after step T are a linear function A of the released gradients. A strategy C gives these
noise C⁻¹Z, so that the weights have noise A·C⁻¹Z. Its size is what strategies are optimised for.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dpfy import _validate
from dpfy.errors import InvalidArgument
from dpfy.ledger.streams import Buffered, Columns, Strategy, Toeplitz, Tree
from dpfy.mechanisms.solvers import lfilter, solve_triangular, toeplitz

Array = NDArray[np.float64]
Objective = Literal["mean", "last", "max"]
OBJECTIVES: tuple[Objective, ...] = ("mean", "last", "max")

MOST_RATES = 4096
"""The most steps that may have learning rates of their own: their matrix is written out."""
_POWER = 16.0  # of a mean that stands for the maximum, where gradients are needed


@dataclass(frozen=True)
class Workload:
    """The sums of gradients that an optimizer takes: prefix sums, with momentum and decay.

    Args:
        steps: the number of steps.
        momentum: the factor of the momentum buffer, in [0, 1); 0 by default.
        decay: the fraction by which weights shrink in a step, weight decay times learning rate, in
            [0, 1); 0 by default.
        learning_rates: the learning rate of each step, up to a common factor; by default they are
            all equal.

    Raises:
        InvalidArgument: if a number is out of its range, if there is not one learning rate for each
            step, or if there are more than 4096 of them.

    >>> Workload(4).impulse.tolist()
    [1.0, 1.0, 1.0, 1.0]
    """

    steps: int
    momentum: float = 0.0
    decay: float = 0.0
    learning_rates: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        _validate.count("steps", self.steps)
        for name in ("momentum", "decay"):
            value = _validate.real(name, getattr(self, name), 0, 1, open_high=True)
            object.__setattr__(self, name, value)
        rates = tuple(_validate.positive("learning rate", rate) for rate in self.learning_rates)
        object.__setattr__(self, "learning_rates", rates)
        if rates and (len(rates) != self.steps or self.steps > MOST_RATES):
            raise InvalidArgument(
                f"Expected one learning rate for each of the {self.steps} steps, and at most "
                f"{MOST_RATES} of them, got {len(rates)}. Leave them out to optimise for equal "
                "ones."
            )

    @property
    def impulse(self) -> Array:
        """How far a gradient of 1 in the first step moves the weights after each step.

        Learning rates aside.
        """
        return self._sums(self._momenta)

    @property
    def _momenta(self) -> Array:
        """What the momentum buffer has of the first gradient after each step."""
        return self.momentum ** np.arange(self.steps, dtype=np.float64)

    def _sums(self, updates: Array) -> Array:
        """Return the weights after each step, from the updates along the first axis."""
        sums: Array = lfilter([1.0], [1.0, self.decay - 1.0], updates, axis=0)
        return sums

    def responses(self, noise: Array) -> Array:
        """Return what noise along the first axis adds to the weights after each step."""
        momenta = lfilter([1.0], [1.0, -self.momentum], noise, axis=0)
        rates = np.array(self.learning_rates or (1.0,) * self.steps)
        return self._sums(rates.reshape(-1, *(1,) * (noise.ndim - 1)) * momenta)

    def error(self, objective: Objective) -> "tuple[Array, Callable[[Array], tuple[float, Array]]]":
        """Return a series, and the squared error with its gradient as a function of that series.

        The series of a Toeplitz strategy with coefficients c is the returned one, filtered by 1/c.
        """
        if not self.learning_rates:
            weights = np.ones(self.steps)
            if objective == "mean":
                weights = np.arange(self.steps, 0, -1) / self.steps
            return self.impulse, lambda series: (
                float(weights @ np.square(series)),
                2 * weights * series,
            )
        if objective == "max":
            return self._momenta, self._largest_error
        form = self._form(objective)

        def error_of(series: Array) -> tuple[float, Array]:
            moved = form @ series
            return float(series @ moved), 2 * moved

        return self._momenta, error_of

    def _form(self, objective: Objective) -> Array:
        """Return Q, by which the squared error of a series m is mᵀQm.

        Noise of one row reaches the weights of step t by Σ_u α_tu·m_(u−s), with α_tu the learning
        rate of step u, decayed until t. So Q_ij adds up α_t(s+i)·α_t(s+j) over s and t: the Gram
        matrix of α, summed along its diagonals.
        """
        ages = np.subtract.outer(np.arange(self.steps), np.arange(self.steps))
        decayed = np.where(ages >= 0, (1 - self.decay) ** np.maximum(ages, 0), 0.0)
        reach = decayed * np.array(self.learning_rates)
        if objective == "last":
            form = np.outer(reach[-1], reach[-1])
        else:
            form = reach.T @ reach / self.steps
        for row in range(self.steps - 2, -1, -1):
            form[row, :-1] += form[row + 1, 1:]
        return form

    def _largest_error(self, momenta: Array) -> tuple[float, Array]:
        """Return the largest squared error of all steps, and its gradient."""
        rates = np.array(self.learning_rates)[:, None]
        response = self._sums(rates * np.tril(toeplitz(momenta)))
        error, weights = _smooth_maximum(np.square(response).sum(axis=1))
        back = rates * self._sums((2 * weights[:, None] * response)[::-1])[::-1]
        lags = np.subtract.outer(np.arange(self.steps), np.arange(self.steps))
        sums = np.bincount(np.maximum(lags, -1).ravel() + 1, back.ravel(), self.steps + 1)
        return error, np.asarray(sums[1:], dtype=np.float64)


def _smooth_maximum(rows: Array) -> tuple[float, Array]:
    """Return a power mean of the squared errors of all rows, and its gradient."""
    steps = len(rows)
    largest = float(rows.max())
    mean = largest * float(np.mean((rows / largest) ** _POWER)) ** (1 / _POWER)
    return mean, (rows / mean) ** (_POWER - 1) / steps


def rmse(strategy: Strategy, workload: Workload, objective: Objective = "mean") -> float:
    """Return the root mean squared error of a strategy, per unit of the noise of one row.

    Multiplied by the noise multiplier, it is the noise of each weight in clip bounds (at a learning
    rate of 1). Multiplied by the sensitivity it compares strategies at equal privacy.

    Args:
        strategy: the strategy.
        workload: the sums that the optimizer takes.
        objective: "mean" (the default) over all steps, the "last" one, or the "max" of all.

    Returns:
        The root of the mean, the last or the largest squared error.

    Raises:
        InvalidArgument: if the objective is unknown, the strategy has no inverse, or the workload
            is too long for a strategy that is written out as a matrix.

    >>> round(rmse(Toeplitz((1.0,)), Workload(100), "last"), 6)
    10.0
    """
    _validate.choice("objective", objective, OBJECTIVES)
    rows = _rows(strategy, workload)
    return math.sqrt(
        {"mean": float(rows.mean()), "last": float(rows[-1]), "max": float(rows.max())}[objective]
    )


def inverse(strategy: Toeplitz | Buffered, steps: int) -> tuple[Array, Array]:
    """Return numerator and denominator of the filter that multiplies by C⁻¹.

    Args:
        strategy: a strategy with the same coefficients in every column.
        steps: the number of steps.

    Returns:
        The coefficients of both, for :func:`scipy.signal.lfilter`.

    Raises:
        InvalidArgument: if the diagonal is not positive.

    >>> [series.tolist() for series in inverse(Buffered((0.5,), (0.25,)), 1000)]
    [[1.0, -0.5], [1.0, -0.25]]
    """
    if isinstance(strategy, Buffered):
        return rational(np.array(strategy.decays), np.array(strategy.scales))
    column = np.array(strategy.column(steps))
    if not column[0] > 0:
        raise InvalidArgument(f"Expected a positive diagonal, got {float(column[0])!r}.")
    return np.ones(1), column


def rational(decays: Array, scales: Array) -> tuple[Array, Array]:
    """Return Q and P with C = P/Q: Q = Π(1 − θ_i·x) and P = Q + Σ ω_i·x·Q/(1 − θ_i·x)."""
    below = np.asarray(np.poly(decays), dtype=np.float64)
    above = below.copy()
    for place, scale in enumerate(scales):
        above[1:] += scale * np.poly(np.delete(decays, place))
    return below, above


def _rows(strategy: Strategy, workload: Workload) -> Array:
    """Return the squared norm of each row of A·C⁻¹."""
    if isinstance(strategy, Toeplitz | Buffered) and not workload.learning_rates:
        filtered = lfilter(*inverse(strategy, workload.steps), workload.impulse)
        return np.cumsum(np.square(filtered))
    if workload.steps > MOST_RATES:
        raise InvalidArgument(
            f"Expected at most {MOST_RATES} steps for a {strategy.tag!r}, got {workload.steps}. "
            "Use toeplitz coefficients or buffers."
        )
    rows: Array = np.square(workload.responses(_noise(strategy, workload.steps))).sum(axis=1)
    return rows


def _noise(strategy: Strategy, steps: int) -> Array:
    """Return the noise of each step, as columns that independent numbers multiply."""
    if isinstance(strategy, Toeplitz | Buffered):
        series = lfilter(*inverse(strategy, steps), np.eye(1, steps)[0])
        return np.tril(toeplitz(series))
    if isinstance(strategy, Tree):
        return np.diff(_in_use(strategy, steps), axis=0, prepend=0.0)
    if not isinstance(strategy, Columns) or len(strategy.columns) != steps:
        raise InvalidArgument(f"Expected a strategy of {steps} steps, got a {strategy.tag!r}.")
    matrix = np.zeros((steps, steps))
    for place, column in enumerate(strategy.columns):
        matrix[place : place + len(column), place] = column
    if not (np.diagonal(matrix) > 0).all():
        raise InvalidArgument("Expected a positive diagonal, got columns that begin with others.")
    inverted: Array = solve_triangular(matrix, np.eye(steps), lower=True)
    return inverted


def _in_use(tree: Tree, steps: int) -> Array:
    """Return after which steps (rows) the noise of each node (columns) is in the prefix sum.

    A prefix is a sum of complete nodes: a left child is one of them until its parent is complete.
    """
    size = tree.restart or steps
    nodes = []
    for first in range(0, steps, size):
        length = min(size, steps - first)
        for level in range(length.bit_length()):
            width = 1 << level
            for start in range(0, length - width + 1, 2 * width):
                replaced = start + 2 * width <= length
                nodes.append((first + start + width, replaced and first + start + 2 * width))
    used = np.zeros((steps, len(nodes)))
    for number, (complete, replaced_at) in enumerate(nodes):
        used[complete - 1 : replaced_at - 1 if replaced_at else steps, number] = 1.0
    return used
