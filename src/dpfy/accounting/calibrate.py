"""Calibration: the least noise, the largest rate or the most steps within a budget."""

import math
from collections.abc import Callable

from dpfy import _validate
from dpfy.accounting.filters import Additive
from dpfy.accounting.guarantee import METHODS, account
from dpfy.errors import InvalidArgument
from dpfy.ledger.events import Envelope, Poisson, Repeated, Sampled, SumQuery
from dpfy.types import Budget, Relation

_TOLERANCE = 1e-4  # of ε: the claim lies within this below the target
_FINEST = 1e-12  # of the logarithm of what is sought, where the claim jumps over the tolerance
_ROUNDING = 1e-9  # of a share of a filter: the guard may be stricter than a quotient of floats
_LEAST, _MOST = math.log(1e-3), math.log(1e7)
_LEAST_RATE = math.log(1e-12)
_MAX_STEPS = 10**9

_Point = tuple[float, float]


def calibrate_noise(
    *,
    epsilon: float,
    delta: float,
    rate: float,
    steps: int,
    relation: Relation | str = Relation.ADD_OR_REMOVE_ONE,
    method: str = "pld",
) -> float:
    """Return the least noise multiplier that keeps DP-SGD within ``epsilon`` at ``delta``.

    *Formal guarantee*: :func:`~dpfy.accounting.account` of the run with the returned noise claims
    at most ``epsilon``; that very claim was evaluated last.

    Args:
        epsilon: The most that may be claimed, above 0.
        delta: δ, between 0 and 1, both excluded.
        rate: The Poisson sampling rate, from 0 to 1.
        steps: The number of steps, at least 0.
        relation: The neighbouring relation; adding or removing one record by default.
        method: "pld" (the default) or "rdp".

    Returns:
        The noise multiplier: the standard deviation of the noise over the clipping bound.

    Raises:
        InvalidArgument: An argument is out of range, or no noise reaches the budget.

    >>> round(calibrate_noise(epsilon=1.0, delta=1e-5, rate=1.0, steps=1), 2)
    3.73
    """
    policy = Poisson(_validate.real("rate", rate, 0, 1))
    _validate.count("steps", steps, minimum=0)

    def envelope(noise_multiplier: float) -> Envelope:
        return (Repeated(Sampled(policy, (SumQuery(1.0, noise_multiplier),)), steps),)

    return calibrate_envelope(
        envelope, epsilon=epsilon, delta=delta, relation=relation, method=method
    )


def calibrate_envelope(
    envelope_of: Callable[[float], Envelope],
    *,
    epsilon: float,
    delta: float,
    relation: Relation | str = Relation.ADD_OR_REMOVE_ONE,
    method: str = "pld",
) -> float:
    """Return the least noise multiplier z that keeps ``envelope_of(z)`` within a budget.

    *Assumes* that more noise never costs more, as every rule promises; but a claim above
    ``epsilon`` is never accepted, whatever the search did. Noise multipliers below 0.001 are not
    tried.

    Args:
        envelope_of: The events of a run with a given noise multiplier.
        epsilon: The most that may be claimed, above 0.
        delta: δ, between 0 and 1, both excluded.
        relation: The neighbouring relation; adding or removing one record by default.
        method: "pld" (the default) or "rdp".

    Returns:
        The noise multiplier.

    Raises:
        InvalidArgument: An argument is out of range, or no noise multiplier up to ten million
            reaches the budget.
    """
    budget = Budget(_validate.epsilon(epsilon), _validate.delta(delta))
    excess = _excess(envelope_of, budget, relation, method)
    found = _least(excess, 0.0, _LEAST, _MOST)
    if found is None:
        raise InvalidArgument(
            f"No noise multiplier up to {math.exp(_MOST):g} reaches epsilon={budget.epsilon!r} at "
            f"delta={budget.delta!r}. Allow a larger epsilon or delta, or fewer steps."
        )
    return math.exp(found)


def calibrate_rest(
    rest_of: Callable[[float], Envelope],
    spent: Envelope,
    rule: Additive,
    relation: Relation | str = Relation.ADD_OR_REMOVE_ONE,
) -> float | None:
    """Return the least noise factor at which the remaining steps fit into the rest of a filter.

    Where the filter is enforced, a wrong expectation of the steps makes it refuse some of them, and
    nothing else.

    Args:
        rest_of: The remaining steps at a given factor of noise.
        spent: The steps that were taken.
        rule: The filter.
        relation: The neighbouring relation; adding or removing one record by default.

    Returns:
        The factor, or None if none up to ten million is enough.

    >>> from dpfy.accounting.filters import GaussianFilter
    >>> step = Sampled(Poisson(1.0), (SumQuery(1.0, 2.0),))
    >>> def rest_of(factor):
    ...     return (Repeated(Sampled(Poisson(1.0), (SumQuery(1.0, factor),)), 3),)
    >>> round(calibrate_rest(rest_of, (Repeated(step, 1),), GaussianFilter(mu=1.0)), 3)
    2.0
    """

    def excess(logarithm: float) -> float:
        guard = rule.guard(relation)
        for run in (*spent, *rest_of(math.exp(logarithm))):
            guard.record(run.event, run.times)
        return math.log(guard.used) + _ROUNDING if guard.used > 0 else -math.inf

    found = _least(excess, 0.0, _LEAST, _MOST)
    return None if found is None else math.exp(found)


def calibrate_rate(
    *,
    epsilon: float,
    delta: float,
    noise_multiplier: float,
    steps: int,
    relation: Relation | str = Relation.ADD_OR_REMOVE_ONE,
    method: str = "pld",
) -> float:
    """Return the largest sampling rate that keeps DP-SGD within ``epsilon`` at ``delta``.

    *Formal guarantee*: as for :func:`calibrate_noise`.

    Args:
        epsilon: The most that may be claimed, above 0.
        delta: δ, between 0 and 1, both excluded.
        noise_multiplier: The standard deviation of the noise over the clipping bound, at least 0.
        steps: The number of steps, at least 0.
        relation: The neighbouring relation; adding or removing one record by default.
        method: "pld" (the default) or "rdp".

    Returns:
        The Poisson sampling rate, at most 1.

    Raises:
        InvalidArgument: An argument is out of range, or no rate down to 1e-12 reaches the budget.

    >>> calibrate_rate(epsilon=2.0, delta=1e-5, noise_multiplier=4.0, steps=1)
    1.0
    """
    budget = Budget(_validate.epsilon(epsilon), _validate.delta(delta))
    _validate.real("noise_multiplier", noise_multiplier, 0, math.inf, open_high=True)
    _validate.count("steps", steps, minimum=0)

    def envelope(inverse: float) -> Envelope:
        step = Sampled(Poisson(min(1.0, 1 / inverse)), (SumQuery(1.0, noise_multiplier),))
        return (Repeated(step, steps),)

    found = _least(_excess(envelope, budget, relation, method), 3.0, 0.0, -_LEAST_RATE)
    if found is None:
        raise InvalidArgument(
            f"No rate down to {math.exp(_LEAST_RATE):g} reaches epsilon={epsilon!r} at "
            f"delta={delta!r}. Allow a larger epsilon or delta, fewer steps, or more noise."
        )
    return min(1.0, 1 / math.exp(found))


def calibrate_steps(
    *,
    epsilon: float,
    delta: float,
    rate: float,
    noise_multiplier: float,
    relation: Relation | str = Relation.ADD_OR_REMOVE_ONE,
    method: str = "pld",
) -> int:
    """Return the largest number of steps that stays within ``epsilon`` at ``delta``.

    *Formal guarantee*: the claim of the returned number is at most ``epsilon``; a billion is the
    most that is tried.

    Args:
        epsilon: The most that may be claimed, above 0.
        delta: δ, between 0 and 1, both excluded.
        rate: The Poisson sampling rate, from 0 to 1.
        noise_multiplier: The standard deviation of the noise over the clipping bound, at least 0.
        relation: The neighbouring relation; adding or removing one record by default.
        method: "pld" (the default) or "rdp".

    Returns:
        The number of steps; 0 if even one is too much.

    Raises:
        InvalidArgument: An argument is out of range.

    >>> calibrate_steps(epsilon=4.7, delta=1e-5, rate=1.0, noise_multiplier=30.0)
    1017
    """
    budget = Budget(_validate.epsilon(epsilon), _validate.delta(delta))
    step = Sampled(Poisson(_validate.real("rate", rate, 0, 1)), (SumQuery(1.0, noise_multiplier),))
    excess = _excess(lambda steps: (Repeated(step, round(steps)),), budget, relation, method)
    low, high = 0, 1
    while excess(math.log(high)) <= 0:
        low, high = high, 8 * high
        if low >= _MAX_STEPS:
            return _MAX_STEPS
    below, above = -math.inf, math.inf
    while high - low > 1:
        middle = (low + high) // 2
        if above < 2 and below > -2:  # near enough for a straight line through the logarithms
            slope = (math.log(high) - math.log(low)) / (above - below)
            guess = math.exp(math.log(low) - below * slope)
            inset = max(1, (high - low) // 50)
            middle = min(max(int(guess), low + inset), high - inset)
        value = excess(math.log(middle))
        if value <= 0:
            low, below = middle, value
        else:
            high, above = middle, value
    return low


def _excess(
    envelope_of: Callable[[float], Envelope], budget: Budget, relation: Relation | str, method: str
) -> Callable[[float], float]:
    """Return log(claim / target) as a function of the log of what is sought."""
    _validate.choice("method", method, tuple(METHODS))

    def excess(logarithm: float) -> float:
        claim = account(envelope_of(math.exp(logarithm)), method, relation).claim(budget.delta)
        return math.log(claim / budget.epsilon) if claim > 0 else -math.inf

    return excess


def _least(
    excess: Callable[[float], float], start: float, least: float, most: float
) -> float | None:
    """Return the argument whose decreasing ``excess`` is in [−tolerance, 0].

    It is ``least`` if the excess is below already there, and None if there is no such argument.
    """
    bracket = _bracket(excess, start, least, most)
    if bracket is None:
        return None
    low, high = bracket
    while not -_TOLERANCE <= high[1] <= 0 and high[0] - low[0] > _FINEST:
        middle = (low[0] + high[0]) / 2
        if low[1] - high[1] < 2:  # near enough for a straight line, aimed just below the target
            goal = -_TOLERANCE / 3
            middle = low[0] + (low[1] - goal) / (low[1] - high[1]) * (high[0] - low[0])
            inset = (high[0] - low[0]) / 100
            middle = min(max(middle, low[0] + inset), high[0] - inset)
        value = excess(middle)
        low, high = ((middle, value), high) if value > 0 else (low, (middle, value))
    return high[0]


def _bracket(
    excess: Callable[[float], float], start: float, least: float, most: float
) -> tuple[_Point, _Point] | None:
    """Return two points around the target, a factor of 2 apart, searched from ``start``."""
    here = (start, excess(start))
    step = math.log(2) if here[1] > 0 else -math.log(2)
    while True:
        place = min(max(here[0] + step, least), most)
        there = (place, excess(place))
        if (there[1] > 0) != (here[1] > 0):
            return (here, there) if step > 0 else (there, here)
        if place == least:
            return there, there
        if place == most:
            return None
        here = there
