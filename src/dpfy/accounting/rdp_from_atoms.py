"""Rényi curves of pairs without a closed form, from their discretization from above.

A moment E e^{λ·loss} with λ > 0 is a mixture of hockey-stick divergences with positive weights. So
a discretization whose profile is at least that of a pair has at least its moments, in either
direction (``docs/proofs/one-shot.md``, Lemma 5).

Tests: tests/accounting/pld/test_mixtures.py.
"""

import math
from functools import lru_cache

import numpy as np

from dpfy.accounting.dominating_pairs import Pair
from dpfy.accounting.loss_distributions import Table
from dpfy.accounting.pld import discretize, one_step
from dpfy.accounting.pld.discretize import Array, Direction
from dpfy.accounting.special import logsumexp

_CUTS = 3000
_DEEPEST = 640.0  # e^loss is a float
_ROUNDING = 1e-10
_DIRECTIONS: tuple[Direction, Direction] = (1, -1)


@lru_cache(maxsize=1024)
def bounded(pair: Pair, orders: tuple[float, ...]) -> Array:
    """Return upper bounds on the Rényi divergences of ``pair`` in the worse direction.

    A loss distribution may know its own curve, or a ρ of zCDP, and sampling is post-processing.
    """
    alpha, distribution = np.array(orders), pair.distribution
    if distribution is None:
        return _from_discretization(pair, alpha)
    known, plain = (
        distribution.divergence(alpha, pair.rate),
        alpha * distribution.zcdp * (1 + _ROUNDING),
    )
    if known is not None and (pair.rate == 1 or isinstance(distribution, Table)):
        return np.minimum(known, plain)
    return np.minimum(
        _from_discretization(pair, alpha), plain if known is None else np.minimum(plain, known)
    )


def mirrored(curve: Array, orders: Array) -> Array:
    """Return the Rényi curve of a pair whose negative losses mirror its positive ones.

    ``curve`` is that of a pair with the same positive losses. The moment exceeds 1 by at most twice
    as much (``docs/proofs/accounting-rdp.md``).
    """
    logs = (orders - 1) * curve
    doubled: Array = (logs + np.log1p(-np.expm1(-logs))) / (orders - 1) * (1 + _ROUNDING)
    return doubled


def _from_discretization(pair: Pair, orders: Array) -> Array:
    steps = discretize.rows(((pair, 1),))[0]
    places = np.linspace(*discretize.place_range(pair, -_DEEPEST), _CUTS)
    cuts = np.concatenate(
        (np.clip(discretize.losses(pair, places), -_DEEPEST, _DEEPEST), discretize.ends(pair))
    )
    cuts = np.unique(cuts)
    largest = one_step.pure_epsilon(pair)
    if _DEEPEST < largest < math.inf:
        return np.full_like(orders, largest)
    found, worst = discretize.cells(steps, cuts), np.zeros_like(orders)
    for direction in _DIRECTIONS:
        block = discretize.above(steps, found, cuts, None, direction)
        if block.infinite[0] > 0 and math.isinf(largest):
            return np.full_like(orders, math.inf)
        mass = np.append(block.mass[0] + block.mass_error[0], block.infinite[0])
        with np.errstate(divide="ignore"):
            logs = np.log(mass)
        tilt = orders - 1
        moment = logsumexp(
            logs + np.multiply.outer(tilt, np.append(block.loss, min(largest, _DEEPEST))), axis=1
        )
        worst = np.maximum(worst, (moment * (1 + _ROUNDING) + _ROUNDING * 1e-4) / tilt)
    return np.minimum(worst, largest)
