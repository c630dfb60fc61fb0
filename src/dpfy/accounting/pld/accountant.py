"""Accounting by privacy loss distributions: certified bounds from above and from below.

Closed forms go first (full batches, one step). Everything else is composed numerically by
:mod:`dpfy.accounting.pld.compose`, to the accuracy asked for. Where that would leave the range of
float64, simpler bounds take over, and the note says so. ε at a δ and δ at an ε go through the same
steps; what differs between them is in :mod:`dpfy.accounting.pld.methods`.

Tests: tests/accounting/pld/test_soundness.py.
"""

import math
from functools import lru_cache

from dpfy.accounting.dominating_pairs import (
    Bound,
    Pair,
    Pairs,
    coarsened,
    of_distribution,
    unsampled,
)
from dpfy.accounting.loss_distributions import LossDistribution, Range
from dpfy.accounting.pld.bounded_range import Ranges, countable
from dpfy.accounting.pld.methods import DeltaMethods, EpsilonMethods, Methods, Upper
from dpfy.accounting.pld.target import Bracket

ACCURACY = 1e-3  # relative, in ε
_FEW = 8  # kinds of steps that are looked at one by one


def epsilon_upper(pairs: Pairs, delta: float, accuracy: float = ACCURACY) -> Bound:
    """Return an upper bound on ε(δ)."""
    bracket = epsilon_bracket(pairs, delta, accuracy)
    return Bound(bracket.upper, bracket.note)


def epsilon_lower(pairs: Pairs, delta: float, accuracy: float = ACCURACY) -> float:
    """Return a certified lower bound on ε(δ)."""
    return epsilon_bracket(pairs, delta, accuracy).lower


def delta_upper(pairs: Pairs, epsilon: float, accuracy: float = ACCURACY) -> Bound:
    """Return an upper bound on δ(ε)."""
    bracket = delta_bracket(pairs, epsilon, accuracy)
    return Bound(bracket.upper, bracket.note)


def delta_lower(pairs: Pairs, epsilon: float, accuracy: float = ACCURACY) -> float:
    """Return a certified lower bound on δ(ε)."""
    return delta_bracket(pairs, epsilon, accuracy).lower


@lru_cache(maxsize=64)
def epsilon_bracket(pairs: Pairs, delta: float, accuracy: float) -> Bracket:
    """Bound ε(δ) from both sides."""
    return _bracket(pairs, EpsilonMethods(delta), accuracy)


@lru_cache(maxsize=64)
def delta_bracket(pairs: Pairs, epsilon: float, accuracy: float) -> Bracket:
    """Bound δ(ε) from both sides."""
    return _bracket(pairs, DeltaMethods(epsilon), accuracy)


def _bracket(pairs: Pairs, methods: Methods, accuracy: float) -> Bracket:
    """Bound a value from both sides.

    The pair of a class of mechanisms dominates all of them at once, which is not always the best
    upper bound, and implies no lower one: that comes from a mechanism of the class.
    """
    attained, in_a_row = _attained(pairs), _choices_in_a_row(pairs)
    found = _of_pairs(in_a_row, methods, accuracy)
    if attained is None:
        return found
    whole = unsampled(pairs)
    uppers = [(found.upper, found.note), methods.renyi(whole)]
    if whole != pairs:
        known = _of_pairs(whole, methods, accuracy).upper
        uppers.append((known, "as if batches were known"))
    lower = _of_pairs(attained, methods, accuracy).lower
    only = in_a_row[0][0].distribution if len(in_a_row) == 1 else None
    if isinstance(only, Ranges):
        lower = max(lower, methods.attained_by(only))
    return _ordered(lower, min(uppers))


def _of_pairs(pairs: Pairs, methods: Methods, accuracy: float) -> Bracket:
    """Bound a value of the profile that the pairs themselves have."""
    rest, gauss = split(pairs)
    bounds = methods.at_once(pairs)
    if bounds and bounds[0].upper == 0:
        return bounds[0]
    if not rest:
        return Bracket(*methods.full_batch(math.sqrt(gauss)), "closed form")
    if gauss == 0 and len(rest) == 1 and rest[0][1] == 1:
        found: Bracket | None = Bracket(*methods.one_step(rest[0][0]), "closed form")
    else:
        found = methods.compose(rest, gauss, accuracy)
    if found is not None:
        bounds.append(found)
    if found is None or not methods.narrow(found, accuracy):
        bounds.append(_uncomposed(pairs, methods))
    return _best(bounds)


def _uncomposed(pairs: Pairs, methods: Methods) -> Bracket:
    """Bound a value without composition: from below by the costliest single step."""
    few = coarsened(pairs, _FEW, pessimistic=False)
    return _ordered(
        max(methods.one_step(pair).lower for pair, _ in few), min(methods.simple(pairs))
    )


def _ordered(lower: float, best: Upper) -> Bracket:
    """Return the bracket of two bounds that rounding may have put in the wrong order."""
    upper, note = best
    return Bracket(min(lower, upper), upper, note)


def _best(bounds: list[Bracket]) -> Bracket:
    """Return the intersection of brackets."""
    upper = min(bounds, key=lambda bracket: bracket.upper)
    return _ordered(max(bracket.lower for bracket in bounds), (upper.upper, upper.note))


def split(pairs: Pairs) -> tuple[Pairs, float]:
    """Return the sampled pairs, and μ² of all full-batch Gaussian ones together.

    Full-batch Gaussian mechanisms compose to one (Dong, Roth & Su 2022).
    """
    rest = tuple(
        (pair, times) for pair, times in pairs if pair.rate < 1 or pair.noise != "gaussian"
    )
    return rest, math.fsum(
        times * pair.mu**2 for pair, times in pairs if pair.rate == 1 and pair.noise == "gaussian"
    )


def _attained(pairs: Pairs) -> Pairs | None:
    """Replace pairs that only dominate a class by pairs that a mechanism of the class has.

    None if no pair is replaced.
    """
    if all(pair.distribution is None or pair.distribution.attained is None for pair, _ in pairs):
        return None
    if sum(times for _, times in pairs) == 1 and isinstance(pairs[0][0].distribution, Range):
        return None  # at every ε some mechanism has the δ of the class
    found = ((_of_mechanism(pair), times) for pair, times in pairs)
    return tuple(sorted((pair, times) for pair, times in found if pair.noise_multiplier < math.inf))


def _of_mechanism(pair: Pair) -> Pair:
    """Return a pair that some mechanism has and that ``pair`` dominates."""
    attained = pair.distribution.attained if pair.distribution is not None else None
    if attained is None:
        return pair
    return (
        of_distribution(attained, pair.rate)
        if isinstance(attained, LossDistribution)
        else Pair(pair.rate, attained)
    )


def _choices_in_a_row(pairs: Pairs) -> Pairs:
    """Merge exponential mechanisms of the same range into one pair.

    It is the most that an adaptive choice of them costs, also if other steps come between them
    (``docs/proofs/one-shot.md``, Lemma 8).
    """

    def merged(pair: Pair, times: int) -> tuple[Pair, int]:
        own = pair.distribution
        if isinstance(own, Range) and pair.rate == 1 and countable(own.epsilon, times):
            return of_distribution(Ranges(own.epsilon, times)), 1
        return pair, times

    return tuple(sorted(merged(pair, times) for pair, times in pairs))
