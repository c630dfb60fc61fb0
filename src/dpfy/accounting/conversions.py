"""A guarantee in other terms: trade-off curve, Gaussian DP, membership inference, groups.

All of them are read off the certified upper curve δ(ε), so each is itself a bound that one may
claim. The proofs are in ``docs/proofs/conversions.md``.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpfy import _validate
from dpfy.accounting.extras.textbook import log_geometric
from dpfy.accounting.grouped import GroupGuarantee
from dpfy.accounting.guarantee import Guarantee
from dpfy.accounting.solvers import minimize_scalar
from dpfy.accounting.special import erfcx, ndtr

Array = NDArray[np.float64]

_POINTS = 65
_PARTS = 8  # of a cell, in each of which a tangent certifies the Gaussian curve
_FLOOR = 1e-9  # δ below which no slope of a trade-off curve is looked for
_LARGEST = 300.0  # e^ε must stay a number


@dataclass(frozen=True)
class TradeoffCurve:
    """The trade-off between the two errors of any test that tells two neighbours apart.

    Any test with false-positive rate ``fpr[i]`` has a false-negative rate of at least ``fnr[i]``.

    Args:
        fpr: False-positive rates.
        fnr: The lowest false-negative rates.
    """

    fpr: tuple[float, ...]
    fnr: tuple[float, ...]


@dataclass(frozen=True)
class DominatingGaussian:
    """A Gaussian mechanism that costs at least as much as a run, down to a small δ.

    δ(ε) is at most that of μ-GDP, or ``floor``, whichever is larger, for every ε ≥ 0.

    Args:
        mu: μ; ∞ if there is none.
        floor: The δ below which nothing is said.
    """

    mu: float
    floor: float


def tradeoff_curve(guarantee: Guarantee, points: int | Sequence[float] = 101) -> TradeoffCurve:
    """Return the lowest false-negative rate of any test, as a function of the false-positive rate.

    *Formal guarantee*: no test of one data set against a neighbour does better, whatever it
    computes from the released values. Each (ε, δ) of the guarantee excludes a half-plane; the curve
    is the boundary of what is left.

    Args:
        guarantee: The guarantee.
        points: The number of evenly spaced false-positive rates, at least 2, or the rates; 101 by
            default.

    Returns:
        The curve.

    Raises:
        InvalidArgument: A rate is not between 0 and 1, or there are fewer than two.

    Reference: Dong, Roth & Su 2022; Kairouz, Oh & Viswanath 2015.

    >>> from dpfy.accounting import account
    >>> from dpfy.ledger.events import Poisson, Sampled, SumQuery
    >>> curve = tradeoff_curve(account(Sampled(Poisson(1.0), (SumQuery(1.0, 1.0),))), [0.05, 0.5])
    >>> [round(value, 2) for value in curve.fnr]
    [0.74, 0.16]
    """
    if isinstance(points, int):
        points = [
            float(value)
            for value in np.linspace(0, 1, _validate.count("points", points, minimum=2))
        ]
    fpr = np.array([_validate.real("fpr", value, 0, 1) for value in points])
    demanded = np.full(len(fpr), np.inf)
    for each in _parts(guarantee):
        place = (fpr[:, None], *_curve(each, _FLOOR))
        found = np.maximum(np.maximum(_steep(*place), _flat(*place)).max(axis=1), 0.0)
        demanded = np.minimum(demanded, found)
    return TradeoffCurve(tuple(fpr.tolist()), tuple(demanded.tolist()))


def tpr_at_fpr(guarantee: Guarantee, fpr: float) -> float:
    """Return the highest true-positive rate of any membership test at a false-positive rate.

    *Formal guarantee*: as :func:`tradeoff_curve`, at the best ε for this rate.

    Args:
        guarantee: The guarantee.
        fpr: The false-positive rate, from 0 to 1.

    Returns:
        The true-positive rate that no test exceeds.

    Raises:
        InvalidArgument: ``fpr`` is out of range.

    >>> from dpfy.accounting import account
    >>> from dpfy.ledger.events import Poisson, Sampled, SumQuery
    >>> round(tpr_at_fpr(account(Sampled(Poisson(1.0), (SumQuery(1.0, 1.0),))), 0.001), 4)
    0.0183
    """
    fpr = _validate.real("fpr", fpr, 0, 1)
    return max(_tpr_at_fpr(each, fpr) for each in _parts(guarantee))


def _tpr_at_fpr(guarantee: Guarantee, fpr: float) -> float:
    at_zero = guarantee.delta(0.0).upper
    last = _last(guarantee, min(_FLOOR, fpr / 10) or _FLOOR) if at_zero > _FLOOR else 0.0
    best = max(0.0, 1 - at_zero - fpr)
    for side in (_steep, _flat):  # each is unimodal in ε, and every ε gives a valid bound
        if last > 0:
            found = minimize_scalar(
                lambda value, side=side: -float(side(fpr, value, guarantee.delta(value).upper)),
                bounds=(0.0, last),
                method="bounded",
                options={"xatol": 1e-3 * last},
            )
            best = max(best, -float(found.fun))
    return 1 - best


def membership_advantage(guarantee: Guarantee) -> float:
    """Return the largest membership advantage of any test, which is δ(0).

    The advantage is the true-positive rate minus the false-positive rate.

    Args:
        guarantee: The guarantee.

    Returns:
        The advantage that no test exceeds.

    Reference: the advantage of Yeom et al. 2018; δ(0) bounds the total variation distance, which no
    test exceeds.

    >>> from dpfy.accounting import account
    >>> from dpfy.ledger.events import Poisson, Sampled, SumQuery
    >>> round(membership_advantage(account(Sampled(Poisson(1.0), (SumQuery(1.0, 1.0),)))), 4)
    0.3829
    """
    return guarantee.delta(0.0).upper


def dominating_mu(guarantee: Guarantee, floor: float = 1e-6) -> DominatingGaussian:
    """Return the smallest μ whose μ-GDP dominates the guarantee wherever δ exceeds ``floor``.

    *Formal guarantee*: δ(ε) ≤ max(δ_μ(ε), ``floor``) for every ε ≥ 0, also between the points that
    were computed. No useful μ dominates a run with sampling down to δ = 0: that all steps drew the
    record is rare, and costs as much as no sampling at all.

    Args:
        guarantee: The guarantee.
        floor: The δ below which nothing is said; 1e-6 by default.

    Returns:
        μ and the floor.

    Raises:
        InvalidArgument: ``floor`` is not between 0 and 1.

    Reference: μ-GDP: Dong, Roth & Su 2022.

    >>> from dpfy.accounting import account
    >>> from dpfy.ledger.events import Poisson, Sampled, SumQuery
    >>> round(dominating_mu(account(Sampled(Poisson(1.0), (SumQuery(1.0, 2.0),)))).mu, 2)
    0.5
    """
    _validate.delta(floor)
    found = (_dominating_mu(each, floor) for each in _parts(guarantee))
    return max(found, key=lambda each: each.mu)


def _dominating_mu(guarantee: Guarantee, floor: float) -> DominatingGaussian:
    epsilons, deltas = _curve(guarantee, floor)
    if deltas[-1] > floor:
        return DominatingGaussian(math.inf, floor)
    if len(epsilons) < 2:
        return DominatingGaussian(0.0, floor)
    return DominatingGaussian(_least(lambda mu: _dominates(mu, epsilons, deltas)), floor)


def group_claim(guarantee: Guarantee, size: int, delta: float) -> float:
    """Return an ε at ``delta`` for ``size`` records at once, from the guarantee for one record.

    *Formal guarantee*: (ε, δ) for one record gives (kε, δ·Σ_{i<k} e^{iε}) for k of them; the best
    point of the curve is taken. :func:`~dpfy.accounting.group.group_epsilon` looks at the events
    and claims less.

    Args:
        guarantee: The guarantee for one record.
        size: How many records change together, at least 1.
        delta: δ, between 0 and 1, both excluded.

    Returns:
        The ε that one may claim; ∞ if there is none.

    Raises:
        InvalidArgument: ``size`` or ``delta`` is out of range.

    Reference: Vadhan 2017, Lemma 2.2.

    >>> from dpfy.accounting import account
    >>> from dpfy.ledger.events import Poisson, Sampled, SumQuery
    >>> single = account(Sampled(Poisson(1.0), (SumQuery(1.0, 10.0),)))
    >>> group_claim(single, size=1, delta=1e-5) == single.claim(1e-5)
    True
    """
    size, delta = _validate.count("size", size), _validate.delta(delta)
    if size == 1:
        return float(guarantee.claim(delta))

    def fits(epsilon: float) -> bool:
        one = guarantee.delta(epsilon).upper
        return one == 0 or math.log(one) + log_geometric(size, epsilon) <= math.log(delta)

    low = float(guarantee.claim(delta))
    if math.isinf(low):
        return math.inf
    high = max(2 * low, 1e-6)
    while not fits(high):
        if high > _LARGEST:
            return math.inf
        low, high = high, 2 * high
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return size * high


def _parts(guarantee: Guarantee) -> tuple[Guarantee, ...]:
    """Return the guarantees of all groups, or the one that there is.

    What holds for each group holds for all, and the profile of a strict group is not asked for
    where only that of a weak one has anything to say: tiny δ take long.
    """
    return (
        tuple(guarantee.groups.values()) if isinstance(guarantee, GroupGuarantee) else (guarantee,)
    )


def _curve(guarantee: Guarantee, floor: float) -> tuple[Array, Array]:
    """Return points (ε, δ(ε)) from ε = 0 to where δ ≤ ``floor``, if it gets there."""
    if guarantee.delta(0.0).upper <= floor:
        return np.zeros(1), np.array([guarantee.delta(0.0).upper])
    epsilons = np.linspace(0, _last(guarantee, floor), _POINTS)
    deltas = np.array([guarantee.delta(float(value)).upper for value in epsilons])
    return epsilons, np.minimum.accumulate(deltas)  # δ never grows with ε


def _last(guarantee: Guarantee, floor: float) -> float:
    """Return an ε at which δ is at most ``floor``, if there is a useful one."""
    last = min(guarantee.claim(floor), _LARGEST)
    while (
        guarantee.delta(last).upper > floor and last < _LARGEST
    ):  # both bounds round their own way
        last = min(1.002 * last, _LARGEST)
    return last


def _steep(fpr: Array | float, epsilon: Array | float, delta: Array | float) -> Array:
    """Return the false-negative rate that (ε, δ) demands at ``fpr``."""
    return np.asarray(1 - delta - np.exp(epsilon) * fpr)


def _flat(fpr: Array | float, epsilon: Array | float, delta: Array | float) -> Array:
    """Return the same with the data sets exchanged."""
    return np.asarray(np.exp(np.negative(epsilon)) * (1 - delta - fpr))


def _dominates(mu: float, epsilons: Array, deltas: Array) -> bool:
    """Tell whether δ_μ is above the polygon through the points, as functions of e^ε.

    True curves are convex in e^ε, so they are below the polygon; δ_μ is convex too, so it is above
    its tangents. On each part of a cell a tangent of δ_μ, itself a line, is compared with the
    polygon at both ends.
    """
    parts = np.linspace(0, 1, _PARTS + 1)
    left, right = np.exp(epsilons[:-1, None]), np.exp(epsilons[1:, None])
    grown = left + (right - left) * parts
    polygon = deltas[:-1, None] + (deltas[1:] - deltas[:-1])[:, None] * parts
    middle = (grown[:, 1:] + grown[:, :-1]) / 2
    value = _gaussian_deltas(mu, np.log(middle))
    slope = -ndtr(-np.log(middle) / mu - mu / 2)
    half = (grown[:, 1:] - grown[:, :-1]) / 2
    return bool(
        np.all(value - slope * half >= polygon[:, :-1])
        and np.all(value + slope * half >= polygon[:, 1:])
    )


def _gaussian_deltas(mu: float, epsilons: Array) -> Array:
    """Return δ of μ-GDP at many ε, by both forms of ``closed_forms.log_delta``."""
    s, t = epsilons / mu - mu / 2, epsilons / mu + mu / 2
    density = np.exp(-s * s / 2) / math.sqrt(2 * math.pi)
    return np.where(
        s < -1,
        1 - density * (_mills(-s) + _mills(t)),
        density * (_mills(np.maximum(s, -1)) - _mills(t)),
    )


def _mills(x: Array) -> Array:
    return np.asarray(math.sqrt(math.pi / 2) * erfcx(np.maximum(x, -1) / math.sqrt(2)))


def _least(works: Callable[[float], bool]) -> float:
    """Return the smallest μ that works, to four digits and never below it."""
    high = 1.0
    while not works(high):
        high *= 2
    low = high / 2
    while works(low) and low > 1e-12:
        low, high = low / 2, low
    while high - low > 1e-5 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if works(middle) else (middle, high)
    return high
