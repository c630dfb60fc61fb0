"""One sampled step: δ(ε) = P(loss > ε) − e^ε·Q(loss > ε).

It has a closed form because the loss grows with the output.
"""

import math

import numpy as np

from dpfy.accounting.dominating_pairs import Pair
from dpfy.accounting.pld import closed_forms, discretize
from dpfy.types import Interval

_ROUNDING = 1e-10
_SMALLEST = 1e-290
_MAX_LOSS = 640.0  # e^loss is a float; beyond it, that of a full batch is the bound


def epsilon(pair: Pair, delta: float) -> Interval:
    """Return the smallest ε ≥ 0 with δ(ε) ≤ ``delta``."""
    if pair.noise == "gaussian" and pair.neighbours != "opposed":
        return closed_forms.one_step_epsilon(pair.rate, pair.mu, delta)
    largest = _largest_loss(pair)
    whole = (
        closed_forms.epsilon(pair.mu, delta).upper
        if pair.noise == "gaussian"
        else pure_epsilon(pair)
    )
    if largest > _MAX_LOSS and whole < math.inf:
        return Interval(0.0, whole)
    if profile(pair, 0.0) <= delta:
        return Interval(0.0, 0.0)
    low, high = 0.0, min(largest, _MAX_LOSS)
    if (
        profile(pair, high) > delta
    ):  # outputs that give a record away, or losses too large to be told from it
        return Interval(high if high == largest else 0.0, math.inf)
    while high - low > 1e-13 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if profile(pair, middle) <= delta else (middle, high)
    return Interval(low * (1 - _ROUNDING) if largest <= _MAX_LOSS else 0.0, high * (1 + _ROUNDING))


def delta(pair: Pair, epsilon: float) -> Interval:
    """Return δ(ε) to about ten digits."""
    if pair.noise == "gaussian" and pair.neighbours != "opposed":
        value = closed_forms.one_step_delta(pair.rate, pair.mu, epsilon)
    elif _largest_loss(pair) > _MAX_LOSS:
        rest = (
            closed_forms.delta(pair.mu, epsilon)
            if pair.noise == "gaussian"
            else float(epsilon < pure_epsilon(pair))
        )
        if (
            pure_epsilon(pair) == math.inf and pair.distribution is not None
        ):  # masses of such losses are rounded up
            rest = profile(pair, epsilon) * (1 + _ROUNDING) + _SMALLEST
        return Interval(0.0, min(pair.rate, rest))
    else:
        value = profile(pair, epsilon)
    return Interval(
        value * (1 - _ROUNDING), min(1.0, value * (1 + _ROUNDING) + _SMALLEST) if value else 0.0
    )


def pure_epsilon(pair: Pair) -> float:
    """Return the largest loss of a step in either direction, rounded up; ∞ if there is none."""
    if pair.noise == "gaussian":
        return math.inf
    base = pair.mu if pair.distribution is None else pair.distribution.largest
    return closed_forms.amplified(pair.rate, base) * (1 + _ROUNDING)


def profile(pair: Pair, epsilon: float) -> float:
    """Return δ(ε) in the worse direction, for ε ≥ 0.

    With Gaussian and Laplace noise that is the direction of removing the record.
    """
    if pair.distribution is None and epsilon >= _largest_loss(pair):
        return 0.0
    there = max(0.0, discretize.excess_beyond(pair, min(epsilon, _MAX_LOSS)))
    if pair.symmetric or pair.distribution is None or pair.distribution.symmetric:
        return there
    return max(there, discretize.excess_before(pair, min(epsilon, _MAX_LOSS)))


def _largest_loss(pair: Pair) -> float:
    return float(discretize.losses(pair, np.array([discretize.place_range(pair, -700.0)[1]]))[0])
