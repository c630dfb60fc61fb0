"""Composition theorems as textbooks state them, for teaching and for claims without events.

Each takes (ε, δ) pairs at their word. :func:`~dpfy.accounting.account` knows the mechanisms behind
them and claims less; :func:`compare` puts the theorems side by side on DP-SGD.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from dpfy import _validate
from dpfy.accounting import rdp
from dpfy.accounting.guarantee import account
from dpfy.accounting.solvers import brentq
from dpfy.accounting.special import gammaln
from dpfy.accounting.to_pairs import canonical
from dpfy.ledger.events import Poisson, Repeated, Sampled, SumQuery
from dpfy.types import Relation

_ORDERS = tuple(map(float, (*np.arange(1.25, 10, 0.25), *range(10, 65), *range(72, 257, 8))))


class EpsilonDelta(NamedTuple):
    """One (ε, δ) claim.

    Args:
        epsilon: ε.
        delta: δ.
    """

    epsilon: float
    delta: float


def basic(claims: Iterable[EpsilonDelta]) -> EpsilonDelta:
    """Compose mechanisms on the same data by adding up their claims.

    Args:
        claims: The claim of each mechanism.

    Returns:
        The sum of the ε, and the sum of the δ.

    Raises:
        InvalidArgument: A claim is out of range.

    Reference: Dwork & Roth 2014.

    >>> basic([EpsilonDelta(1.0, 1e-6), EpsilonDelta(0.5, 1e-6)])
    EpsilonDelta(epsilon=1.5, delta=2e-06)
    """
    checked = [_checked(claim) for claim in claims]
    return EpsilonDelta(
        math.fsum(claim.epsilon for claim in checked), math.fsum(claim.delta for claim in checked)
    )


def parallel(claims: Iterable[EpsilonDelta]) -> EpsilonDelta:
    """Take the worst of mechanisms that each see their own part of the data.

    *Assumes* that which part a record is in depends on nothing but the record, and neighbours that
    differ by adding or removing one. A record that is *replaced* may change its part, and then two
    of the mechanisms notice.

    Args:
        claims: The claim of each mechanism.

    Returns:
        The largest ε, and the largest δ.

    Raises:
        InvalidArgument: A claim is out of range.

    Reference: McSherry 2009.

    >>> parallel([EpsilonDelta(1.0, 1e-6), EpsilonDelta(0.5, 1e-5)])
    EpsilonDelta(epsilon=1.0, delta=1e-05)
    """
    checked = [_checked(claim) for claim in claims] or [EpsilonDelta(0.0, 0.0)]
    return EpsilonDelta(
        max(claim.epsilon for claim in checked), max(claim.delta for claim in checked)
    )


def advanced(claim: EpsilonDelta, times: int, slack: float) -> EpsilonDelta:
    """Compose ``times`` mechanisms with one claim, chosen adaptively or not, for a ``slack`` in δ.

    Args:
        claim: The claim that each mechanism has.
        times: The number of mechanisms, at least 0.
        slack: What δ may grow by, between 0 and 1, both excluded.

    Returns:
        The claim of the composition.

    Raises:
        InvalidArgument: An argument is out of range.

    Reference: Dwork, Rothblum & Vadhan 2010, with the mean of the loss as in "How to DP-fy ML",
    Appendix B.

    >>> round(advanced(EpsilonDelta(0.1, 0.0), 100, slack=1e-5).epsilon, 3)
    5.298
    """
    epsilon, delta = _checked(claim)
    times, slack = _validate.count("times", times, minimum=0), _validate.delta(slack)
    mean = times * epsilon * math.tanh(epsilon / 2)
    return EpsilonDelta(
        min(times * epsilon, mean + epsilon * math.sqrt(2 * times * math.log(1 / slack))),
        times * delta + slack,
    )


def optimal(claim: EpsilonDelta, times: int, slack: float) -> EpsilonDelta:
    """Compose ``times`` mechanisms known by one claim only, as tightly as that allows.

    Args:
        claim: The claim that each mechanism has.
        times: The number of mechanisms, at least 0.
        slack: What δ may grow by, between 0 and 1, both excluded.

    Returns:
        The claim of the composition.

    Raises:
        InvalidArgument: An argument is out of range.

    Reference: Kairouz, Oh & Viswanath 2015, Theorem 3.3, for every ε instead of multiples of the
    claim's.

    >>> round(optimal(EpsilonDelta(0.1, 0.0), 100, slack=1e-5).epsilon, 3)
    4.307
    """
    epsilon, delta = _checked(claim)
    times, slack = _validate.count("times", times, minimum=0), _validate.delta(slack)
    total = -math.expm1(times * math.log1p(-delta) + math.log1p(-slack)) if delta < 1 else 1.0
    if _randomized_response(0.0, epsilon, times) <= slack:
        return EpsilonDelta(0.0, total)
    root = brentq(
        lambda value: _randomized_response(value, epsilon, times) - slack,
        0.0,
        times * epsilon,
        xtol=1e-12,
    )
    return EpsilonDelta(float(root) + 1e-11, total)


def group(claim: EpsilonDelta, size: int, *, simple: bool = False) -> EpsilonDelta:
    """Return the claim for ``size`` = k records at once.

    It is (kε, δ·Σ_{i<k} e^{iε}), or with ``simple`` the coarser (kε, k·e^{kε}·δ).
    :func:`~dpfy.accounting.group.group_epsilon` knows the events and claims far less.

    Args:
        claim: The claim for one record.
        size: The number of records, at least 1.
        simple: Whether to use the coarser formula; False by default.

    Returns:
        The claim for the group.

    Raises:
        InvalidArgument: An argument is out of range.

    Reference: Vadhan 2017, Lemma 2.2.

    >>> group(EpsilonDelta(2.0, 1e-24), size=20, simple=True)
    EpsilonDelta(epsilon=40.0, delta=4.7...e-06)
    """
    epsilon, delta = _checked(claim)
    size = _validate.count("size", size)
    if delta == 0:
        return EpsilonDelta(size * epsilon, 0.0)
    factor = math.log(size) + size * epsilon if simple else log_geometric(size, epsilon)
    return EpsilonDelta(size * epsilon, math.exp(min(0.0, math.log(delta) + factor)))


def compare(*, rate: float, noise_multiplier: float, steps: int, delta: float) -> dict[str, float]:
    """Return ε of DP-SGD by each composition theorem, from the oldest to the newest.

    Every row starts from the exact (ε, δ) of one step, so that what differs is the composition
    alone ("How to DP-fy ML", Table 2, gives their orders of magnitude).

    Args:
        rate: The Poisson sampling rate, from 0 to 1.
        noise_multiplier: The standard deviation of the noise over the clipping bound.
        steps: The number of steps, at least 1.
        delta: δ, between 0 and 1, both excluded.

    Returns:
        The ε of each theorem, by its name.

    Raises:
        InvalidArgument: An argument is out of range.

    >>> rows = compare(rate=0.01, noise_multiplier=1.0, steps=1000, delta=1e-5)
    >>> list(rows.values()) == sorted(rows.values(), reverse=True)
    True
    """
    step = Sampled(Poisson(rate), (SumQuery(1.0, noise_multiplier),))
    steps, delta = _validate.count("steps", steps), _validate.delta(delta)
    one, run = account(step), Repeated(step, steps)

    def each(part: float) -> EpsilonDelta:
        return EpsilonDelta(one.claim(part), part)

    halves = each(delta / (2 * steps))
    return {
        "basic": basic([each(delta / steps)] * steps).epsilon,
        "advanced": advanced(halves, steps, delta / 2).epsilon,
        "optimal for (ε, δ)": optimal(halves, steps, delta / 2).epsilon,
        "Rényi, 2016 conversion": _moments_epsilon(step, steps, delta),
        "Rényi": account(run, "rdp").claim(delta),
        "privacy loss distribution": account(run, "pld").claim(delta),
    }


def log_geometric(size: int, epsilon: float) -> float:
    """Return log Σ_{i<k} e^{iε} without overflow."""
    if epsilon == 0:
        return math.log(size)
    return (
        (size - 1) * epsilon
        + math.log(-math.expm1(-size * epsilon))
        - math.log(-math.expm1(-epsilon))
    )


def _randomized_response(total: float, epsilon: float, times: int) -> float:
    """Return δ(total) of ``times`` randomised responses.

    Every ε-DP mechanism is a post-processing of randomised response.
    """
    count = np.arange(times + 1)
    gap = (
        times - 2 * count
    ) * epsilon - total  # how far the loss of this many lies exceeds the total
    kept = gap > 0
    log_odds = (
        gammaln(times + 1)
        - gammaln(count + 1)
        - gammaln(times - count + 1)
        - times * np.logaddexp(0, -epsilon)
    )
    return float(np.sum(np.exp((log_odds - count * epsilon)[kept]) * -np.expm1(-gap[kept])))


def _moments_epsilon(step: Sampled, steps: int, delta: float) -> float:
    """Convert the Rényi curve by ε = D + log(1/δ)/(order − 1) (Abadi et al. 2016, Theorem 2)."""
    pairs = canonical((Repeated(step, 1),), "rdp", Relation.ADD_OR_REMOVE_ONE).pairs
    return min(
        math.fsum(steps * rdp.renyi_divergence(pair, order) for pair, _ in pairs)
        - math.log(delta) / (order - 1)
        for order in _ORDERS
    )


def _checked(claim: EpsilonDelta) -> EpsilonDelta:
    epsilon, delta = claim
    return EpsilonDelta(
        _validate.real("epsilon", epsilon, 0, math.inf, open_high=True),
        _validate.real("delta", delta, 0, 1),
    )
