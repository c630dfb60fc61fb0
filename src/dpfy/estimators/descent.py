"""Gradient descent on noisy gradients, with settings from a public rule."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import numpy as np

from dpfy import _validate
from dpfy.estimators.declarations import Floats
from dpfy.estimators.fitting import LARGEST_NORM

_GRID = 64  # eigenvalues for which the response to noise is computed


@dataclass(frozen=True)
class Descent:
    """Settings of gradient descent on vectors of norm at most 1, all of them public.

    Args:
        steps: The number of steps, at least 1.
        learning_rate: What the mean gradient is multiplied by, above 0.
        clip: The largest norm of a row's gradient, above 0.
        momentum: The part of the last move that is made again, in [0, 1).
        tail: The part of the steps, the last ones, whose parameters are averaged, in (0, 1].

    Raises:
        InvalidArgument: If a value is out of its range.
    """

    steps: int
    learning_rate: float
    clip: float
    momentum: float = 0.9
    tail: float = 0.5

    def __post_init__(self) -> None:
        _validate.count("steps", self.steps)
        _validate.positive("learning_rate", self.learning_rate)
        _validate.real("clip", self.clip, 1e-6, 1e6)
        _validate.real("momentum", self.momentum, 0, 1, open_high=True)
        _validate.real("tail", self.tail, 0, 1, open_low=True)

    @classmethod
    def rule(
        cls,
        records: int,
        epsilon: float,
        curvature: float,
        *,
        steps: int | None = None,
        learning_rate: float | None = None,
        clip: float | None = None,
    ) -> Self:
        """Return the settings for a number of rows n and an ε; those that are given stay.

        There are 120 steps with gradients clipped at ½. The learning rate is n·ε/3200 over the
        curvature, so that its noise stays in proportion to what it learns, and at most 3 over the
        curvature: gradient descent with a momentum of 0.9 would begin to swing at 3.8.

        Args:
            records: The public number of rows.
            epsilon: The ε of the fit.
            curvature: The largest second derivative of a row's loss: ¼ for logistic regression.
            steps: The number of steps, if it is not to follow the rule.
            learning_rate: The learning rate, if it is not to follow the rule.
            clip: The largest norm of a row's gradient, if it is not to follow the rule.

        Returns:
            The settings.

        >>> Descent.rule(32_561, 0.1, curvature=0.25).learning_rate
        4.07...
        """
        rate = min(3.0, max(records, 1) * epsilon / 3200) / curvature
        return cls(
            120 if steps is None else steps,
            rate if learning_rate is None else learning_rate,
            0.5 if clip is None else clip,
        )

    def noise_gain(self, curvature: float) -> float:
        """Return how noise in gradients shows in parameters, at most.

        Where the mean loss is quadratic, gradient descent is linear in the noise of its gradients,
        one eigenvalue of the second derivatives at a time. This is the largest response over
        eigenvalues from 0 to ``curvature``, on a grid: which of them there are is private.

        Args:
            curvature: The largest second derivative of a row's loss.

        Returns:
            The standard deviation of parameters for independent noise of deviation 1 in every step.

        >>> round(Descent(1, 2.0, clip=1.0).noise_gain(0.25), 6)
        2.0
        """
        bends = np.linspace(0, curvature, _GRID)[:, None]
        pulses = iter(np.eye(self.steps))
        start = np.zeros((_GRID, self.steps))
        moved = _average(lambda place: bends * place + next(pulses), start, self, lambda each: each)
        return float(np.sqrt((moved**2).sum(axis=1)).max())


def descend(gradient: Callable[[Floats], Floats], start: Floats, settings: Descent) -> Floats:
    """Return the average of the last parameters of gradient descent.

    *Formal guarantee*: this is post-processing of what ``gradient`` returns.

    Args:
        gradient: A function that releases the mean gradient at given parameters.
        start: The first parameters, public.
        settings: The settings.

    Returns:
        The parameters.
    """
    return _average(gradient, start, settings, _projected)


def _average(
    gradient: Callable[[Floats], Floats],
    start: Floats,
    settings: Descent,
    within: Callable[[Floats], Floats],
) -> Floats:
    place, move, total = start, np.zeros_like(start), np.zeros_like(start)
    first = settings.steps - max(1, round(settings.tail * settings.steps))
    for step in range(settings.steps):
        move = settings.momentum * move + gradient(place)
        place = within(place - settings.learning_rate * move)
        total = total + place if step >= first else total
    return total / (settings.steps - first)


def _projected(place: Floats) -> Floats:
    """Return the nearest parameters within the norm that bounds of rounding rest on."""
    norm = float(np.linalg.norm(place))
    return place if norm <= LARGEST_NORM else place * (LARGEST_NORM / norm)
