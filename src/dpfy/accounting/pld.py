"""Privacy loss distributions: the tightest bounds, from above and from below.

Closed forms go first, then composition on a lattice (:mod:`dpfy.accounting.lattice`); where that would need too large
a window, bounds that need none take over, and the note says so.
"""

import math
from functools import lru_cache
from typing import NamedTuple

from dpfy.accounting import gaussian, lattice, rdp
from dpfy.accounting.pairs import Bound, Pair, Pairs, coarsened, full_batch_merged, merging_note
from dpfy.types import Interval

_ACCURACY = 2e-5  # relative, in ε
_PRECISION = 1e-5  # relative, in δ
_LEAST_DELTA = 1e-15  # float64 hides what is below
_MAX_POINTS = 3e5
_MAX_PAIRS = 32
_MAX_EPSILON = 150.0  # beyond it, e^ε times a mass loses all digits


class _Grid(NamedTuple):
    interval: float
    fine: bool


def epsilon_upper(pairs: Pairs, delta: float) -> Bound:
    """Return an upper bound on ε(δ)."""
    closed = _closed_epsilon(pairs, delta)
    if closed is not None:
        return Bound(closed.upper, "closed form")
    grid = _grid(pairs, *rdp.search(pairs, delta))
    merged, laws = _laws(pairs, grid, delta, pessimistic=True)
    bounds = [Bound(max(law.epsilon(delta) for law in laws), merging_note(pairs, merged))] if laws else []
    if not laws or not grid.fine or lattice.round_off(_steps(pairs)) > delta / 100:
        bounds.append(Bound(gaussian.participation_epsilon(*_worst(pairs), delta), "by counting participations"))
        if _has_renyi_curve(pairs):
            bounds.append(Bound(rdp.epsilon_upper(pairs, delta).value, "by Rényi divergences"))
    return min(bounds)


def delta_upper(pairs: Pairs, epsilon: float) -> Bound:
    """Return an upper bound on δ(ε)."""
    closed = _closed_delta(pairs, epsilon)
    if closed is not None:
        return Bound(closed, "closed form")
    guess, value = math.inf, rdp.search_delta(pairs, epsilon)
    while value < guess / 10 and guess > _LEAST_DELTA:  # what the window may cut off must be small against δ itself
        guess = _as_delta(value)
        grid = _grid(pairs, *rdp.search(pairs, guess))
        merged, laws = _laws(pairs, grid, guess, pessimistic=True)
        value = max((law.delta(epsilon) for law in laws), default=guess)
    bounds = [Bound(value, merging_note(pairs, merged))] if laws else []
    if not laws or not grid.fine or lattice.round_off(_steps(pairs)) > bounds[0].value / 100:
        bounds.append(Bound(gaussian.participation_delta(*_worst(pairs), epsilon), "by counting participations"))
        if _has_renyi_curve(pairs):
            bounds.append(Bound(rdp.delta_upper(pairs, epsilon).value, "by Rényi divergences"))
    return min(Bound(1.0), *bounds)


def epsilon_lower(pairs: Pairs, delta: float) -> float:
    """Return a certified lower bound on ε(δ)."""
    closed = _closed_epsilon(pairs, delta)
    if closed is not None:
        return closed.lower
    _, laws = _laws(pairs, _grid(pairs, *rdp.search(pairs, delta)), delta, pessimistic=False)
    if laws:
        return max(law.epsilon(delta) for law in laws)
    return max(gaussian.one_step_epsilon(pair.rate, 1 / pair.noise_multiplier, delta).lower for pair, _ in pairs)


def delta_lower(pairs: Pairs, epsilon: float) -> float:
    """Return a certified lower bound on δ(ε)."""
    closed = _closed_delta(pairs, epsilon)
    if closed is not None:
        return closed
    guess = _as_delta(delta_upper(pairs, epsilon).value)
    _, laws = _laws(pairs, _grid(pairs, *rdp.search(pairs, guess)), guess, pessimistic=False)
    if laws:
        return max(law.delta(epsilon) for law in laws)
    return max(gaussian.one_step_delta(pair.rate, 1 / pair.noise_multiplier, epsilon) for pair, _ in pairs)


def _closed_epsilon(pairs: Pairs, delta: float) -> Interval | None:
    pairs = full_batch_merged(pairs)
    if not pairs or _ever_drawn(pairs) <= delta:
        return Interval(0.0, 0.0)
    if len(pairs) > 1 or not _is_one_step(pairs[0]):
        return None
    return gaussian.one_step_epsilon(pairs[0][0].rate, pairs[0][0].mu, delta)


def _closed_delta(pairs: Pairs, epsilon: float) -> float | None:
    pairs = full_batch_merged(pairs)
    if not pairs:
        return 0.0
    if len(pairs) > 1 or not _is_one_step(pairs[0]):
        return None
    return gaussian.one_step_delta(pairs[0][0].rate, pairs[0][0].mu, epsilon)


def _is_one_step(item: tuple[Pair, int]) -> bool:
    return item[1] == 1 and item[0].neighbours == "absent"


def _ever_drawn(pairs: Pairs) -> float:
    """The probability that one record takes part in any step: (0, that)-DP holds whatever the steps do."""
    return -math.expm1(sum(times * math.log1p(-pair.rate) if pair.rate < 1 else -math.inf for pair, times in pairs))


def _worst(pairs: Pairs) -> tuple[float, float, int]:
    return max(pair.rate for pair, _ in pairs), max(pair.mu for pair, _ in pairs), _steps(pairs)


def _steps(pairs: Pairs) -> int:
    return sum(times for _, times in pairs)


def _has_renyi_curve(pairs: Pairs) -> bool:
    return all(pair.neighbours == "absent" or pair.rate == 1 for pair, _ in pairs)


def _as_delta(guess: float) -> float:
    return min(max(guess, _LEAST_DELTA), 0.5)


def _grid(pairs: Pairs, guess: float, order: float) -> _Grid:
    """Choose the interval h from a first guess of ε and its order.

    Connecting dots h apart adds at most h²/4 to the variance of each step's loss, as one more Gaussian mechanism of
    that variance would: about ``order``·h²/8 to ε. The interval is one of 1, 2, 5 × 10^k, so that a search over the
    noise multiplier meets the same lattice again.
    """
    pairs = full_batch_merged(pairs)
    wanted = math.sqrt(8 * _ACCURACY * max(guess, 0.01) / (_steps(pairs) * order))
    reach = max(4 * guess, *(lattice.span(pair) for pair, _ in pairs))
    interval = max(wanted, reach / _MAX_POINTS)
    decade = 10.0 ** math.floor(math.log10(interval))
    rounded = next(step for step in (5, 2, 1) if step * decade <= interval * (1 + 1e-9)) * decade
    return _Grid(rounded, fine=guess <= _MAX_EPSILON and interval <= 3 * wanted)


def _laws(pairs: Pairs, grid: _Grid, delta: float, *, pessimistic: bool) -> tuple[Pairs, tuple[lattice.LossLaw, ...]]:
    """The pairs that were composed, and their laws; no laws where a lattice does not serve."""
    merged = coarsened(full_batch_merged(pairs), _MAX_PAIRS, pessimistic=pessimistic)
    if max(lattice.span(pair) for pair, _ in merged) > 4 * _MAX_EPSILON:
        return merged, ()
    decade = 10.0 ** math.floor(math.log10(_PRECISION * delta))  # the same law serves many δ
    return merged, _composed(merged, grid.interval, decade, pessimistic) or ()


@lru_cache(maxsize=8)
def _composed(pairs: Pairs, interval: float, precision: float, pessimistic: bool) -> tuple[lattice.LossLaw, ...] | None:
    return (lattice.upper if pessimistic else lattice.lower)(pairs, interval, precision)
