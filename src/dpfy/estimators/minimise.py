"""Minimise a penalised logistic loss, to a public distance from the minimum on whatever rows.

The loss of a row may be made straight where its slope exceeds a bound, so that rows on the wrong
side count for less.

The proofs are in ``docs/proofs/perturbation.md``, section 3.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from dpfy.estimators.declarations import Floats
from dpfy.estimators.fitting import BLOCK, summed

ROW_NORM = 1 + 2.0**-30
"""The largest ℓ2 norm of a row that was scaled to a norm of 1 in float64."""

_UNIT = 2.0**-53  # the largest relative error of one rounding in float64
_SLOPE = 2.0**-40  # the largest error of a computed logistic function
_NEWTON_STEPS = 200


@dataclass(frozen=True)
class Objective:
    """Σ loss(±x·θ) + regularisation/2·‖θ‖² + linear·θ, with loss(u) = log(1 + e^−u).

    Where the loss is steeper than ``clip``, it goes on as its tangent: convex, and nowhere steeper.

    Args:
        vectors: The rows x, of norm at most :data:`ROW_NORM`.
        targets: 0 or 1 for each row, for − or +.
        regularisation: The strength of the penalty, above 0.
        linear: The coefficients of the linear term.
        clip: The largest slope of a row's loss, in (0, 1].
    """

    vectors: Floats
    targets: Floats
    regularisation: float
    linear: Floats
    clip: float = 1.0

    def value(self, theta: Floats) -> float:
        """Return the objective at θ."""
        bend = math.log((1 - self.clip) / self.clip) if self.clip < 1 else -math.inf

        def block(x: Floats, y: Floats) -> float:
            margins = (2 * y - 1) * (x @ theta)
            curved = np.maximum(margins, bend)
            return float(np.logaddexp(0.0, -curved).sum() + self.clip * (curved - margins).sum())

        penalty = self.regularisation / 2 * theta @ theta + self.linear @ theta
        return float(summed(block, self.vectors, self.targets) + penalty)

    def gradient(self, theta: Floats) -> Floats:
        """Return the gradient at θ, off by at most what :class:`Precision` says."""

        def block(x: Floats, y: Floats) -> Floats:
            return x.T @ np.clip(expit(x @ theta) - y, -self.clip, self.clip)

        total: Floats = summed(block, self.vectors, self.targets)
        return total + self.regularisation * theta + self.linear

    def hessian(self, theta: Floats) -> Floats:
        """Return the Hessian at θ."""

        def block(x: Floats, y: Floats) -> Floats:
            p = expit(x @ theta)
            curved = np.where(np.abs(p - y) <= self.clip, p * (1 - p), 0.0)
            return (x * curved[:, None]).T @ x

        flat: Floats = self.regularisation * np.eye(len(theta))
        return flat + summed(block, self.vectors, self.targets)


@dataclass(frozen=True)
class Precision:
    """How near to a minimum every objective of public sizes can be solved, in float64.

    *Formal guarantee*: :func:`minimise` returns a θ at a distance of at most ``tolerance`` /
    ``regularisation`` from the minimum, for every objective with at most ``rows`` rows of norm at
    most :data:`ROW_NORM` and a linear term of norm at most ``linear_norm``.

    *Assumes* that float64 arithmetic is that of IEEE 754, and that a computed logistic function is
    off by less than 2⁻⁴⁰.

    Args:
        rows: The largest number of rows.
        width: The number of coordinates of a row.
        regularisation: The strength of the penalty, above 0.
        linear_norm: The largest norm of the linear term.
        linear_error: The largest distance of the linear term from the one that is meant.
    """

    rows: int
    width: int
    regularisation: float
    linear_norm: float = 0.0
    linear_error: float = 0.0

    def error(self, norm: float) -> float:
        """Return the most that a computed gradient is off, at parameters of this norm."""
        additions = min(self.rows, BLOCK) + -(-self.rows // BLOCK) + 16
        scores = (self.width + 16) * norm / 4
        sums = self.rows * ((additions + scores) * _UNIT + _SLOPE)
        rest = 8 * _UNIT * (self.regularisation * norm + self.linear_norm + self.rows)
        return 2 * (sums + rest) + self.linear_error

    @property
    def largest_norm(self) -> float:
        """The largest norm of a minimum: the objective is no larger there than at 0."""
        fitted = math.sqrt(2 * math.log(2) * self.rows / self.regularisation)
        return fitted + 2 * self.linear_norm / self.regularisation

    @property
    def rate(self) -> float:
        """A learning rate of at most one over the largest curvature."""
        return 1 / (self.regularisation + self.rows / 2)

    @property
    def tolerance(self) -> float:
        """The largest norm that the gradient has at what :func:`minimise` returns, or less."""
        return 4 * self._floor

    @property
    def steps(self) -> int:
        """The number of steps after which gradient descent from 0 is as near as claimed."""
        apart = max(self.largest_norm * self.regularisation / self._floor, 1.0)
        return math.ceil(math.log(apart) / (self.rate * self.regularisation)) + 1

    @property
    def _floor(self) -> float:
        """Where gradient descent ends: errors of gradients, and of adding steps to parameters."""
        reached = 2 * self.largest_norm + 1
        return self.error(reached) + 4 * _UNIT * reached / self.rate


def minimise(objective: Objective, precision: Precision) -> Floats:
    """Return parameters within ``tolerance``/``regularisation`` of the minimum.

    Newton's method finds them within a few steps, and its last gradient certifies them. Where it
    should not, gradient descent reaches them after a number of steps that is public. Nothing is
    ever refused because of the rows; how long it takes depends on them.

    Args:
        objective: What is minimised.
        precision: Public bounds that the objective meets.

    Returns:
        The parameters.
    """
    with np.errstate(all="ignore"):  # a warning about the rows would tell something about them
        found = _newton(objective, precision)
        return _descent(objective, precision) if found is None else found


def _newton(objective: Objective, precision: Precision) -> Floats | None:
    """Return parameters with a certificate; None if there are none after the last step.

    A step that lowers the objective by a quarter of what its slope promises is taken, or half of
    it, and so on; one that is short enough for the largest curvature always does.
    """
    least = precision.rate * precision.regularisation
    theta = np.zeros_like(objective.linear)
    for _ in range(_NEWTON_STEPS):
        gradient = objective.gradient(theta)
        if _certified(gradient, theta, precision):
            return theta
        try:
            step = np.linalg.solve(objective.hessian(theta), -gradient)
        except np.linalg.LinAlgError:
            return None
        size, fall, value = 1.0, float(gradient @ step), objective.value(theta)
        while size > least and objective.value(theta + size * step) > value + size * fall / 4:
            size /= 2
        theta = theta + size * step
    return None


def _certified(gradient: Floats, theta: Floats, precision: Precision) -> bool:
    """Tell whether the true gradient is as small as claimed; NaN is not."""
    measured = float(np.linalg.norm(gradient)) * (1 + 1e-9)
    norm = float(np.linalg.norm(theta)) * (1 + 1e-9)
    return measured + precision.error(norm) <= precision.tolerance


def _descent(objective: Objective, precision: Precision) -> Floats:
    """Return parameters after the public number of steps of gradient descent from 0."""
    theta = np.zeros_like(objective.linear)
    for _ in range(precision.steps):
        gradient = objective.gradient(theta)
        if _certified(gradient, theta, precision):
            break
        theta = theta - precision.rate * gradient
    return theta
