"""Closed forms: full-batch Gaussian sums, one sampled step, and counted participations.

Tests: tests/accounting/test_edges.py.
"""

import math

from dpfy.accounting.solvers import brentq
from dpfy.accounting.special import betainc, erfcx
from dpfy.types import Interval

_ROUNDING = 1e-12
_MAX_PARTICIPATIONS = 400


def log_delta(mu: float, epsilon: float) -> float:
    """Return log δ(ε) of the Gaussian pair N(0, 1), N(μ, 1).

    With s = ε/μ − μ/2 and t = ε/μ + μ/2, e^ε·φ(t) = φ(s) turns Φ(−s) − e^ε·Φ(−t) into φ(s)·(M(s) −
    M(t)), M the Mills ratio: no large numbers are subtracted, at any μ. Where δ is near 1, 1 − δ =
    φ(s)·(M(−s) + M(t)) has all digits.

    Reference: Balle & Wang 2018, Theorem 8.
    """
    if mu == 0:
        return -math.inf
    s, t = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    if s < -1:
        return math.log1p(-math.exp(-s * s / 2) / math.sqrt(2 * math.pi) * (_mills(-s) + _mills(t)))
    gap = _mills(s) - _mills(t)
    return -s * s / 2 - math.log(2 * math.pi) / 2 + math.log(gap) if gap > 0 else -math.inf


def delta(mu: float, epsilon: float) -> float:
    """Return δ(ε) of the Gaussian pair N(0, 1), N(μ, 1)."""
    return math.exp(log_delta(mu, epsilon))


def delta_interval(mu: float, epsilon: float) -> Interval:
    """Return δ(ε) of the Gaussian pair, bracketed to the precision of floats."""
    value = delta(mu, epsilon)
    s = epsilon / mu - mu / 2 if 0 < mu < math.inf else 0.0
    lost = _ROUNDING + 1e-15 * (1 + abs(s)) * (abs(s) + mu) if 0 < mu < math.inf else 0.0
    return Interval(max(0.0, value * (1 - lost)), min(1.0, value * (1 + lost)))


def epsilon(mu: float, delta: float) -> Interval:
    """Return the smallest ε ≥ 0 with δ(ε) ≤ ``delta``, bracketed to the precision of floats.

    >>> round(epsilon(mu=1000**0.5 / 30, delta=1e-5).upper, 6)
    4.652985
    """
    if math.isinf(mu):
        return Interval(math.inf, math.inf)
    if math.erf(mu / math.sqrt(8)) <= delta:
        return Interval(0.0, 0.0)
    goal = math.log(delta)
    ceiling = mu * mu / 2 + mu * math.sqrt(-2 * goal)  # δ ≤ Φ(−s) ≤ exp(−s²/2)
    if log_delta(mu, 0.0) <= goal:  # by rounding
        return Interval(0.0, ceiling)
    root = float(
        brentq(
            lambda value: log_delta(mu, value) - goal,
            0.0,
            ceiling,
            xtol=1e-300,
            rtol=1e-14,
            maxiter=500,
        )
    )
    return Interval(root * (1 - _ROUNDING), root * (1 + _ROUNDING))


def one_step_epsilon(rate: float, mu: float, delta: float) -> Interval:
    """Return ε of one Poisson-sampled Gaussian sum under adding or removing a record.

    Removing dominates: δ(ε) = q·δ_G(log(1 + (e^ε − 1)/q)) (Balle, Barthe & Gaboardi 2018), and the
    profile of adding is (q − (e^ε − 1)(1 − q))·δ_G at a larger argument, hence below it for every ε
    ≥ 0.
    """
    if delta >= rate:
        return Interval(0.0, 0.0)
    base = epsilon(mu, delta / rate)
    return Interval(*(amplified(rate, bound) for bound in base))


def one_step_delta(rate: float, mu: float, epsilon: float) -> float:
    """Return δ(ε) of one Poisson-sampled Gaussian sum under adding or removing a record."""
    base = math.log1p(math.expm1(epsilon) / rate) if epsilon < 500 else epsilon - math.log(rate)
    return rate * delta(mu, base)


def participation_epsilon(rate: float, mu: float, steps: int, delta: float) -> float:
    """Return an upper bound on ε that conditions on how often one record is drawn.

    Given the steps in which the record takes part, the run is that many full-batch sums; by joint
    convexity δ(ε) ≤ Pr[N > k] + δ_G(√k·μ, ε) with N ~ Binomial(``steps``, ``rate``), for each k.
    """
    best = math.inf
    for count in _counts(steps, rate):
        rest = delta - more_than(count, steps, rate)
        if rest > 0:
            best = min(best, epsilon(math.sqrt(count) * mu, rest).upper)
    return best


def participation_delta(rate: float, mu: float, steps: int, epsilon: float) -> float:
    """Return the upper bound on δ that :func:`participation_epsilon` inverts."""
    return min(
        more_than(count, steps, rate) + delta(math.sqrt(count) * mu, epsilon)
        for count in _counts(steps, rate)
    )


def _counts(steps: int, rate: float) -> range:
    """Return the participation counts worth trying.

    They start at the median, or at 0 if there are few, and end where more is rarer than any δ.
    """
    most = _smallest_count(steps, rate, 1e-30)
    least = 0 if most < _MAX_PARTICIPATIONS else _smallest_count(steps, rate, 0.5)
    return range(least, most + 1, max(1, (most - least) // _MAX_PARTICIPATIONS))


def _smallest_count(steps: int, rate: float, tail: float) -> int:
    low, high = 0, steps
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if more_than(middle, steps, rate) <= tail else (middle + 1, high)
    return low


def more_than(count: int, steps: int, rate: float) -> float:
    """Return Pr[Binomial(steps, rate) > count]."""
    return float(betainc(count + 1, steps - count, rate)) if count < steps else 0.0


def amplified(rate: float, base: float) -> float:
    """Return log(1 + q(e^ε − 1)) without overflow."""
    return math.log1p(rate * math.expm1(base)) if base < 500 else base + math.log(rate)


def _mills(x: float) -> float:
    return math.sqrt(math.pi / 2) * float(erfcx(x / math.sqrt(2)))
