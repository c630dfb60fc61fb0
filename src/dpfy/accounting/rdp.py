"""Rényi accounting: curves add up over steps and are turned into (ε, δ) at the best order.

The curves come from ``dp_accounting``, imported on first use because that takes a second.
"""

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp

from dpfy.accounting.pairs import Bound, Pair, Pairs, coarsened, merging_note

Array = NDArray[np.float64]

_ORDERS: Array = np.concatenate((1 + np.geomspace(0.05, 1, 20)[:-1], np.arange(2, 12, 0.1), np.arange(12, 64),
                                np.arange(64, 256, 8), np.arange(256, 1025, 64)))
_SEARCH_ORDERS: Array = np.concatenate((np.geomspace(1.05, 2, 8), np.arange(2.5, 10, 0.5), np.arange(10, 65, 2)))
_MAX_PAIRS = 64


def epsilon_upper(pairs: Pairs, delta: float) -> Bound:
    """Return an upper bound on ε(δ)."""
    merged = coarsened(pairs, _MAX_PAIRS, pessimistic=True)
    return Bound(_best_epsilon(_ORDERS, _total(merged, _ORDERS), delta)[0], merging_note(pairs, merged))


def delta_upper(pairs: Pairs, epsilon: float) -> Bound:
    """Return an upper bound on δ(ε)."""
    merged = coarsened(pairs, _MAX_PAIRS, pessimistic=True)
    return Bound(_best_delta(_ORDERS, _total(merged, _ORDERS), epsilon), merging_note(pairs, merged))


def epsilon_lower(pairs: Pairs, delta: float) -> float:
    """Return 0: Rényi curves certify no lower bound."""
    return 0.0


def delta_lower(pairs: Pairs, epsilon: float) -> float:
    """Return 0: Rényi curves certify no lower bound."""
    return 0.0


def renyi_divergence(pair: Pair, order: float) -> float:
    """Return an upper bound on the Rényi divergence of ``pair`` at ``order``, in the worse of both directions."""
    return float(_total(((pair, 1),), np.array([order]))[0])


def _total(pairs: Pairs, orders: Array) -> Array:
    """Return the Rényi curve of the composition."""
    curve = np.zeros_like(orders)
    for pair, times in pairs:
        curve = curve + times * _curve(pair.rate, 1 / pair.mu, tuple(orders))
    return curve


def _best_epsilon(orders: Array, curve: Array, delta: float) -> tuple[float, float]:
    """Return ε and the order that attains it, by Canonne, Kamath & Steinke 2020, Proposition 12.

    Orders with δ² ≥ 1 − e^{−D} give ε = 0: a total variation below δ is (0, δ)-DP (Bretagnolle & Huber 1979).
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
    """The Rényi curve of one step, with what float64 may have lost added to it: never zero, never negative."""
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(orders)
    with _quiet(), np.errstate(over="ignore"):
        accountant.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(noise_multiplier)))
    alpha = np.array(orders)
    lost = 4e-16 * (10 + 3 * gammaln(alpha + 1)) / (alpha - 1) if rate < 1 else 0.0
    curve: Array = np.maximum(np.nan_to_num(accountant.rdp, nan=np.inf, posinf=np.inf), 0.0) + lost
    return curve


@contextmanager
def _quiet() -> Iterator[None]:
    """Orders whose series does not converge come back as ∞ and lose the minimum; nobody needs to read about it."""
    logger = logging.getLogger("absl")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def search(pairs: Pairs, delta: float) -> tuple[float, float]:
    """Return a first guess of ε and its order, without loading ``dp_accounting``; nobody claims it."""
    return _best_epsilon(_SEARCH_ORDERS, _search_total(pairs), delta)


def search_delta(pairs: Pairs, epsilon: float) -> float:
    """Return a first guess of δ, as good as that of :func:`search`."""
    return _best_delta(_SEARCH_ORDERS, _search_total(pairs), epsilon)


def _search_total(pairs: Pairs) -> Array:
    curve = np.zeros_like(_SEARCH_ORDERS)
    for pair, times in coarsened(pairs, 16, pessimistic=True):
        curve = curve + times * _integrated(pair.rate, 1 / pair.mu)
    return curve


@lru_cache(maxsize=256)
def _integrated(rate: float, noise_multiplier: float) -> Array:
    """The Rényi curve at the orders of the search, by the trapezoidal rule."""
    orders, variance = _SEARCH_ORDERS[:, None], noise_multiplier**2
    left, right = -9 * noise_multiplier, orders.max() + 9 * noise_multiplier
    x = np.linspace(left, right, int(min(3 * (right - left) / noise_multiplier, 2e4)))
    absent = math.log1p(-rate) if rate < 1 else -math.inf
    loss = np.logaddexp(absent, math.log(rate) + (2 * x - 1) / (2 * variance))
    moments = logsumexp(orders * loss - x**2 / (2 * variance), axis=1)
    density = math.log((x[1] - x[0]) / (noise_multiplier * math.sqrt(2 * math.pi)))
    curve: Array = np.maximum(moments + density, 0.0) / (_SEARCH_ORDERS - 1)
    return curve
