"""Rényi accounting: curves add up over steps and are turned into (ε, δ) at the best order.

The curve of the sampled Gaussian is a finite sum at integer orders and an integral at others
(Mironov, Talwar & Zhang 2019). Both are written as what exceeds 1, in positive terms only, so that
tiny rates and huge noise keep all digits.
"""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dpfy.accounting.dominating_pairs import Bound, Pair, Pairs, coarsened, merging_note
from dpfy.accounting.rdp_from_atoms import bounded, mirrored
from dpfy.accounting.special import gammaln, logsumexp

Array = NDArray[np.float64]

_ORDERS: Array = np.concatenate(
    (
        1 + np.geomspace(1e-3, 1, 40)[:-1],
        np.arange(20, 120) / 10,
        np.arange(12, 64),
        np.arange(64, 256, 8),
        np.arange(256, 1025, 64),
    )
)
_FARTHER: Array = (
    1024 * 2.0 ** np.arange(0.5, 5.5, 0.5) // 1
)  # tried where the best order is the last one
_MAX_PAIRS = 64
_LOST = 1e-12  # relative: more than rounding and the quadrature can lose
_LEAST_NOISE = 0.05  # below it the integrand is too sharp, and integer orders are interpolated
_REACH = 10.0  # standard deviations on either side of the outermost modes


def epsilon_upper(pairs: Pairs, delta: float, accuracy: float = 0.0) -> Bound:
    """Return an upper bound on ε(δ); Rényi accounting has one accuracy."""
    merged = coarsened(pairs, _MAX_PAIRS, pessimistic=True)
    epsilon, order = _best_epsilon(_ORDERS, _total(merged, _ORDERS), delta)
    if order == _ORDERS[-1]:
        epsilon = min(epsilon, _best_epsilon(_FARTHER, _total(merged, _FARTHER), delta)[0])
    return Bound(epsilon, merging_note(pairs, merged))


def delta_upper(pairs: Pairs, epsilon: float, accuracy: float = 0.0) -> Bound:
    """Return an upper bound on δ(ε)."""
    merged = coarsened(pairs, _MAX_PAIRS, pessimistic=True)
    orders = np.concatenate((_ORDERS, _FARTHER))
    return Bound(_best_delta(orders, _total(merged, orders), epsilon), merging_note(pairs, merged))


def epsilon_lower(pairs: Pairs, delta: float, accuracy: float = 0.0) -> float:
    """Return 0: Rényi curves certify no lower bound."""
    return 0.0


def delta_lower(pairs: Pairs, epsilon: float, accuracy: float = 0.0) -> float:
    """Return 0: Rényi curves certify no lower bound."""
    return 0.0


def renyi_divergence(pair: Pair, order: float) -> float:
    """Return an upper bound on the Rényi divergence of ``pair`` in the worse direction.

    >>> round(renyi_divergence(Pair(1.0, 2.0), 8.0), 6)
    1.0
    """
    return float(_total(((pair, 1),), np.array([order]))[0])


def _total(pairs: Pairs, orders: Array) -> Array:
    """Return the Rényi curve of the composition."""
    curve = np.zeros_like(orders)
    for pair, times in pairs:
        at = tuple(orders.tolist())
        curve = curve + times * (
            _of_gaussian(pair, at) if pair.noise == "gaussian" else bounded(pair, at)
        )
    return curve


def _of_gaussian(pair: Pair, orders: tuple[float, ...]) -> Array:
    """Return the Rényi curve of a Gaussian step, rounded up.

    Records that are opposed or exchanged have at most twice the moment of one that is absent at
    their distance, and at most that of a full batch.
    """
    absent, alpha = _curve(pair.rate, 1 / pair.mu, orders), np.array(orders)
    if pair.neighbours == "absent" or pair.rate == 1:
        return absent
    return np.minimum(mirrored(absent, alpha), _curve(1.0, 1 / pair.mu, orders))


def _best_epsilon(orders: Array, curve: Array, delta: float) -> tuple[float, float]:
    """Return ε and the order that attains it, by Canonne, Kamath & Steinke 2020, Proposition 12.

    Orders with δ² ≥ 1 − e^{−D} give ε = 0: a total variation below δ is (0, δ)-DP (Bretagnolle &
    Huber 1979).
    """
    bounds = curve + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)
    bounds = np.where(-np.expm1(-curve) <= delta**2, 0.0, bounds)
    best = int(np.argmin(bounds))
    return max(0.0, float(bounds[best])), float(orders[best])


def _best_delta(orders: Array, curve: Array, epsilon: float) -> float:
    logs = (orders - 1) * (curve - epsilon + np.log1p(-1 / orders)) - np.log(orders)
    total_variation = math.sqrt(-math.expm1(-float(curve.min())))
    return min(1.0, total_variation, math.exp(min(0.0, float(logs.min()))))


@lru_cache(maxsize=1024)
def _curve(rate: float, noise_multiplier: float, orders: tuple[float, ...]) -> Array:
    """Return the Rényi curve of one step, rounded up.

    It is at most that of the full batch, of which sampling is a post-processing.
    """
    alpha = np.array(orders)
    curve: Array = alpha / (2 * noise_multiplier**2)
    if rate < 1:
        moments = np.array([log_moment(rate, noise_multiplier, order) for order in orders])
        curve = np.minimum(curve, moments / (alpha - 1))
    return curve * (1 + _LOST)


@lru_cache(maxsize=16384)
def log_moment(rate: float, noise_multiplier: float, order: float) -> float:
    """Return log E (P/Q)^order of the sampled Gaussian under Q."""
    if order == math.floor(order):
        return _integer(rate, noise_multiplier, int(order))
    if noise_multiplier >= _LEAST_NOISE:
        return _fractional(rate, noise_multiplier, order)
    low = math.floor(order)  # the log moment is convex in the order
    part = order - low
    below = log_moment(rate, noise_multiplier, float(low)) if low > 1 else 0.0
    return (1 - part) * below + part * log_moment(rate, noise_multiplier, float(low + 1))


def _integer(rate: float, noise_multiplier: float, order: int) -> float:
    """Return log Σ_k C(α, k) q^k (1 − q)^{α − k} e^{(k² − k)/2σ²}.

    The terms k = 0, 1 and the ones in e^… sum to 1.
    """
    k: Array = np.arange(2, order + 1, dtype=np.float64)
    growth = (k * k - k) / (2 * noise_multiplier**2)
    chance = (
        gammaln(order + 1)
        - gammaln(k + 1)
        - gammaln(order - k + 1)
        + k * math.log(rate)
        + (order - k) * math.log1p(-rate)
    )
    return float(np.logaddexp(0.0, logsumexp(chance + growth + np.log(-np.expm1(-growth)))))


def _fractional(rate: float, noise_multiplier: float, order: float) -> float:
    """Integrate r^α − 1 − α(r − 1) by the trapezoidal rule, r the ratio of the densities.

    E r = 1, so that this is the moment less 1. The integrand is analytic in a strip of half-width
    πσ (in units of the noise), where r has no zero: the rule errs by e^{−2π·width/step}, here less
    than 1e-16 of the integral (``docs/proofs/accounting-rdp.md``).
    """
    z = noise_multiplier
    strip = min(0.9 * math.pi * z, 8.0)
    step = 2 * math.pi * strip / (45 + strip**2 / 2)
    x: Array = np.arange(-_REACH, max(order, 2.0) / z + _REACH + step, step)
    ratio = (x - 0.5 / z) / z
    small = np.minimum(ratio, 30.0)
    gain = rate * np.expm1(small)
    log_r = np.where(
        ratio > 30,
        ratio + math.log(rate) + np.log1p((1 - rate) / rate * np.exp(-np.maximum(ratio, 30.0))),
        np.log1p(gain),
    )
    # log(1 + α(r − 1)), the tangent of r^α at r = 1
    tangent = np.where(
        ratio > 30,
        log_r + math.log(order) + np.log1p((1 - order) / order * np.exp(-np.maximum(log_r, 0.0))),
        np.log1p(np.maximum(order * gain, -0.5)),
    )
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        whole = order * log_r + np.log(-np.expm1(tangent - order * log_r))
        odd = np.log(np.maximum(np.expm1(np.minimum(order * log_r, 0.0)) - order * gain, 1e-300))
        square = np.log(
            order
            * (order - 1)
            / 2
            * gain**2
            * (1 + (order - 2) / 3 * gain * (1 + (order - 3) / 4 * gain))
        )
    tiny = np.abs(gain) * order < 1e-3
    log_excess = np.where(tiny, square, np.where(gain > 0, whole, odd))
    total = logsumexp(log_excess - x * x / 2) + math.log(step / math.sqrt(2 * math.pi))
    return float(np.logaddexp(0.0, total))
