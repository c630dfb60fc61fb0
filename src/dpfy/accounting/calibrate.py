"""The least noise that keeps a run within its budget."""

import math
from collections.abc import Callable

from dpfy import _validate
from dpfy.accounting.guarantee import METHODS, account
from dpfy.errors import InvalidArgument
from dpfy.ledger.events import Envelope, Poisson, Repeated, Sampled, SumQuery
from dpfy.types import Budget, Relation

_TOLERANCE = 2e-4  # of ε: the claim lies within this below the target
_FINEST = 1e-10  # of log z, where the claim jumps over the tolerance
_LEAST, _MOST = math.log(1e-3), math.log(1e7)


def calibrate_noise(*, epsilon: float, delta: float, rate: float, steps: int,
                    relation: Relation | str = Relation.ADD_OR_REMOVE_ONE, method: str = "pld") -> float:
    """Return the least noise multiplier for which ``steps`` Poisson-sampled sums stay within ``epsilon`` at ``delta``.

    *Formal guarantee*: :func:`~dpfy.accounting.account` of the run with the returned noise claims at most ``epsilon``;
    that very claim was evaluated last.

    >>> round(calibrate_noise(epsilon=1.0, delta=1e-5, rate=1.0, steps=1), 2)
    3.73
    """
    policy = Poisson(_validate.real("rate", rate, 0, 1))
    _validate.count("steps", steps, minimum=0)

    def envelope(noise_multiplier: float) -> Envelope:
        return (Repeated(Sampled(policy, (SumQuery(1.0, noise_multiplier),)), steps),)

    return calibrate_envelope(envelope, epsilon=epsilon, delta=delta, relation=relation, method=method)


def calibrate_envelope(envelope_of: Callable[[float], Envelope], *, epsilon: float, delta: float,
                       relation: Relation | str = Relation.ADD_OR_REMOVE_ONE, method: str = "pld") -> float:
    """Return the least noise multiplier z for which ``envelope_of(z)`` stays within ``epsilon`` at ``delta``.

    *Assumes* that more noise never costs more, as every rule promises; but a claim above ``epsilon`` is never
    accepted, whatever the search did. Noise multipliers below 0.001 are not tried.
    """
    budget = Budget(_validate.epsilon(epsilon), _validate.delta(delta))
    _validate.choice("method", method, tuple(METHODS))

    def excess(log_noise: float) -> float:
        """log(claim / target): at most 0 is within budget."""
        claim = account(envelope_of(math.exp(log_noise)), method, relation).claim(budget.delta)
        return math.log(claim / budget.epsilon) if claim > 0 else -math.inf

    return math.exp(_least(excess, budget))


def _least(excess: Callable[[float], float], budget: Budget) -> float:
    """The argument whose decreasing ``excess`` is in [−tolerance, 0]: bisection first, then straight lines."""
    low, high = _bracket(excess, budget)
    while not -_TOLERANCE <= high[1] <= 0 and high[0] - low[0] > _FINEST:
        middle = (low[0] + high[0]) / 2
        if low[1] - high[1] < 2:  # near enough for a straight line, aimed just below the target
            goal = -_TOLERANCE / 2
            middle = low[0] + (low[1] - goal) / (low[1] - high[1]) * (high[0] - low[0])
            inset = (high[0] - low[0]) / 50
            middle = min(max(middle, low[0] + inset), high[0] - inset)
        value = excess(middle)
        low, high = ((middle, value), high) if value > 0 else (low, (middle, value))
    return high[0]


def _bracket(excess: Callable[[float], float], budget: Budget) -> tuple[tuple[float, float], tuple[float, float]]:
    """Two points around the target, a factor of 2 apart, searched outwards from z = 1."""
    here = (0.0, excess(0.0))
    step = math.log(2) if here[1] > 0 else -math.log(2)
    while True:
        place = min(max(here[0] + step, _LEAST), _MOST)
        there = (place, excess(place))
        if (there[1] > 0) != (here[1] > 0):
            return (here, there) if step > 0 else (there, here)
        if place == _LEAST:
            return there, there
        if place == _MOST:
            raise InvalidArgument(f"No noise multiplier up to {math.exp(_MOST):g} reaches epsilon={budget.epsilon!r} "
                                  f"at delta={budget.delta!r}. Allow a larger epsilon or delta, or fewer steps.")
        here = there
