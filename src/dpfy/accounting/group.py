"""Several records of one person at once, from the events themselves.

Of k records, a Poisson sample at rate q holds Binomial(k, q) many, which move the sum by at most
that many bounds. The step is therefore dominated by a mixture of Gaussians at 0, 1, …, k with
binomial weights against the Gaussian at 0, in both directions (Ganesh 2024), whatever directions
the records' contributions have.

The loss of the mixture is put on a lattice such that both distributions keep their masses, which
can only raise δ (connect-the-dots: Doroshenko et al. 2022); composition is a power of its Fourier
transform. What the window cuts off, and a bound on the error of the transform, are charged to δ.
The proof is in ``docs/proofs/conversions.md``.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpfy import _validate
from dpfy.accounting.conversions import group_claim
from dpfy.accounting.dominating_pairs import Pair
from dpfy.accounting.guarantee import account
from dpfy.accounting.solvers import brentq
from dpfy.accounting.sources import read_source
from dpfy.accounting.special import logsumexp, ndtr, xlog1py, xlogy
from dpfy.errors import UnsupportedEvent
from dpfy.ledger.events import Event, Importance, Sampled
from dpfy.ledger.streams import SampledStream
from dpfy.types import Relation

Array = NDArray[np.float64]

_REACH = (
    9.0  # standard deviations beyond the outermost Gaussians; the mass further out is below 2e-19
)
_CUTS = 16384  # of one step's outputs
_MAX_SIZE = 2**20
_TILTS = np.geomspace(1e-2, 300, 31)
_TINY = 1e-250  # masses below it are raised to an infinite loss
_MAX_SPAN = 600.0  # of one step's losses, and of exponents: e^x must be a number
_CLOSE = 3e-4  # stop refining when ε moves by less
_UNIT = 2.0**-53


@dataclass(frozen=True)
class _Loss:
    """One step's loss in one direction, on a lattice.

    ``mass[j]`` lies at ``first`` + j lattice steps, and the rest at ∞.
    """

    first: int
    mass: Array
    infinite: float


class _Mixture(NamedTuple):
    """Masses of both distributions between cuts of the output, and the losses at the cuts."""

    present: Array
    absent: Array
    losses: Array


def group_epsilon(source: object, size: int, delta: float) -> float:
    """Return the ε at ``delta`` when all of ``size`` records are added or removed together.

    *Formal guarantee*: the released values are (ε, δ)-differentially private for data sets that
    differ in up to ``size`` records, added or removed. The claim is never above the one from group
    privacy of (ε, δ).

    *Assumes* Poisson samples that draw each record on its own, sums with Gaussian noise, and events
    fixed in advance.

    Args:
        source: A ledger or its path, a plan, an event, or a list of events.
        size: How many records are added or removed together, at least 1.
        delta: δ, between 0 and 1.

    Returns:
        The ε that one may claim; ∞ if there is none.

    Raises:
        InvalidArgument: ``size`` or ``delta`` is out of range.
        UnsupportedEvent: The source has a filter, its relation is replace-one, or some noise is not
            Gaussian. Use :func:`~dpfy.accounting.conversions.group_claim` there.

    Reference: Ganesh 2024 (mixtures of Gaussians); Vadhan 2017, Lemma 2.2.

    >>> from dpfy.ledger.events import Poisson, Repeated, Sampled, SumQuery
    >>> steps = Repeated(Sampled(Poisson(0.01), (SumQuery(1.0, 2.0),)), 100)
    >>> one, four = (group_epsilon(steps, size, 1e-5) for size in (1, 4))
    >>> one < four < group_claim(account(steps), 4, 1e-5)
    True
    """
    size, delta = _validate.count("size", size), _validate.delta(delta)
    facts = read_source(source)
    if facts.filter is not None or facts.relation == Relation.REPLACE_ONE:
        raise UnsupportedEvent(
            "Groups are accounted from events that were fixed in advance, for adding or removing "
            "records. Use group_claim for any other guarantee."
        )
    guarantee = account(facts.events, "pld", Relation.ADD_OR_REMOVE_ONE)
    table = guarantee.canonical  # without pairs where records have budgets of their own, see below
    best = group_claim(guarantee, size, delta)
    if any(_by_themselves(run.event) for run in facts.events):
        return best  # no mixture is proved to dominate a group
    # Records of several groups are no mixture of one pair; the weakest group's curve covers them.
    rest = delta - table.numerical_delta
    if size == 1 or not table.pairs or rest <= 0 or table.non_private or table.unprotected > 0:
        return best
    previous = math.inf
    for interval in _intervals(table.pairs, size):
        epsilon = max(
            _epsilon(steps, interval, rest, best)
            for steps in _both_directions(table.pairs, size, interval)
        )
        best = min(best, epsilon)
        if (
            abs(previous - epsilon) <= _CLOSE * epsilon
        ):  # also when both are ∞: finer lattices do not help
            break
        previous = epsilon
    return best


def _by_themselves(event: Event) -> bool:
    """Tell whether an event, or one that it holds, has a pair that is for one record only.

    Where records are drawn by their norms, the coins of a group move those of others; in a sampled
    stream, records of several parts share rows.
    """
    if isinstance(event, Sampled):
        return isinstance(event.policy, Importance)
    if isinstance(event, SampledStream):
        return True
    held = (
        each
        for value in vars(event).values()
        for each in (value if isinstance(value, tuple) else (value,))
    )
    return any(_by_themselves(each) for each in held if isinstance(each, Event))


def _intervals(pairs: tuple[tuple[Pair, int], ...], size: int) -> Iterator[float]:
    """Yield finer and finer lattices, until one step's range has as many points as a transform."""
    span = max(float(np.ptp(_mixture(pair, size).losses)) for pair, _ in pairs)
    interval = 2.0 ** math.floor(math.log2(span / 512))
    while span < _MAX_SPAN and span / interval < _MAX_SIZE:
        yield interval
        interval /= 2


def _both_directions(
    pairs: tuple[tuple[Pair, int], ...], size: int, interval: float
) -> tuple[list[tuple[_Loss, int]], ...]:
    """Return the steps in the direction of removing the group, and in that of adding it."""
    both = [(_on_lattice(_mixture(pair, size), interval), times) for pair, times in pairs]
    removing = [(directions[0], times) for directions, times in both]
    return removing, [(directions[1], times) for directions, times in both]


@lru_cache(maxsize=64)
def _mixture(pair: Pair, size: int) -> _Mixture:
    """Cut the outputs of one step where its loss grows evenly."""
    if pair != Pair(pair.rate, pair.noise_multiplier):
        raise UnsupportedEvent(
            "Groups are accounted for sums with Gaussian noise only. Use group_claim."
        )
    z, counts = pair.noise_multiplier, np.arange(size + 1)
    ways = np.array([math.log(math.comb(size, count)) for count in range(size + 1)])
    log_weights = ways + xlogy(counts, pair.rate) + xlog1py(size - counts, -pair.rate)

    def loss(x: Array) -> Array:
        value: Array = logsumexp(
            log_weights + (2 * np.multiply.outer(x, counts) - counts**2) / (2 * z**2), axis=-1
        )
        return value

    reached = np.linspace(-_REACH * z, size + _REACH * z, _CUTS)
    levels = loss(reached)
    cuts = np.interp(np.linspace(levels[0], levels[-1], _CUTS), levels, reached)
    edges = np.concatenate(([-np.inf], np.unique(np.concatenate((cuts, reached))), [np.inf]))
    weights = np.exp(log_weights)
    present = sum(
        weight * _normal_masses((edges - count) / z)
        for count, weight in zip(counts, weights, strict=True)
    )
    return _Mixture(np.asarray(present), _normal_masses(edges / z), loss(edges[1:-1]))


def _normal_masses(edges: Array) -> Array:
    """Return masses between ``edges``, from the nearer tail so that small ones are precise."""
    below, above = np.diff(ndtr(edges)), -np.diff(ndtr(-edges))
    masses: Array = np.where(edges[1:] <= 0, below, above)
    return np.maximum(masses, 0.0)


def _on_lattice(mixture: _Mixture, interval: float) -> tuple[_Loss, _Loss]:
    """Put both directions of one step on a lattice.

    The masses of each cell go to its two ends, and those of each end to its two lattice points.
    """
    present, absent, losses = mixture
    width = np.maximum(np.diff(losses), 1e-300)
    # A cell's masses carry errors of a few units in the last place of a tail; to the right is the
    # safe side.
    right = present[1:-1] - np.exp(losses[:-1]) * absent[1:-1]
    slack = 8 * _UNIT * (present[1:-1] + np.exp(losses[:-1]) * absent[1:-1]) + 4 * _UNIT**2
    right = np.clip((right + slack) / -np.expm1(-width), 0.0, present[1:-1])
    atoms = np.append(present[1:-1] - right, 0.0)
    atoms[1:] += right
    place = np.floor(losses / interval)
    first, last = int(place[0]), int(place[-1]) + 1
    share = np.clip(-np.expm1(place * interval - losses) / -math.expm1(-interval), 0.0, 1.0)
    index = (place - first).astype(int)
    mass = np.zeros(last - first + 1)
    np.add.at(mass, index, atoms * (1 - share))
    np.add.at(mass, index + 1, atoms * share)
    back = mass * np.exp(-interval * np.arange(first, last + 1))
    mass[0] += present[0]  # losses below the first cut are raised to it, those above the last to ∞
    back[-1] += absent[-1]
    removed = _without_tiny(first, mass, float(present[-1]))
    return removed, _without_tiny(-last, back[::-1], float(absent[0]))


def _without_tiny(first: int, mass: Array, infinite: float) -> _Loss:
    """Return a loss whose tiny masses are moved to ∞."""
    tiny = mass < _TINY
    return _Loss(first, np.where(tiny, 0.0, mass), infinite + float(mass[tiny].sum()))


def _epsilon(steps: list[tuple[_Loss, int]], interval: float, delta: float, guess: float) -> float:
    """Return the smallest ε ≥ 0 whose δ, all charges included, is at most ``delta``; or ∞.

    Losses are tilted towards ``guess`` before they are transformed: errors then shrink with the
    masses around it.
    """
    from scipy.fft import irfft, next_fast_len  # on first use, as other parts of scipy

    tail = delta * 1e-6
    tilt, moment = _saddle(steps, interval, guess)
    tilted = [(_tilted(loss, interval, tilt), times) for loss, times in steps]
    windows = _window(steps, interval, tail), _window(tilted, interval, tail)
    low, high = min(window[0] for window in windows), max(window[1] for window in windows)
    size = next_fast_len(max(high - low + 1, *(len(loss.mass) for loss, _ in steps)), real=True)
    if size > _MAX_SIZE:
        return math.inf
    spectrum, error = _power(tilted, size)
    origin = sum(loss.first * times for loss, times in steps)
    mass = np.roll(irfft(spectrum, size), (origin - low) % size)
    losses = interval * np.arange(low, low + size)
    charge = tail + sum(loss.infinite * times for loss, times in steps)
    # Each factor of a tilted mass is right to a few units in the last place of its exponent.
    rounding = 1 + 16 * _UNIT * sum(times for _, times in steps) * (
        8 + tilt * interval * max(high - low, 1)
    )

    def excess(epsilon: float) -> float:
        start = int(np.searchsorted(losses, epsilon, side="right"))
        weights = -np.expm1(epsilon - losses[start:]) * np.exp(moment - tilt * losses[start:])
        summed = float(weights @ mass[start:]) + error * math.exp(moment - tilt * epsilon)
        return summed * rounding + charge - delta

    top = max(float(losses[-1]), interval)
    if excess(top) > 0:
        return math.inf
    if excess(0.0) <= 0:
        return 0.0
    return float(brentq(excess, 0.0, top, xtol=1e-10)) + 1e-9


def _saddle(steps: list[tuple[_Loss, int]], interval: float, guess: float) -> tuple[float, float]:
    """Return the tilt λ that makes losses around ``guess`` typical, and the log-moment at it."""
    if math.isinf(guess):
        return 0.0, 0.0
    moments = {float(tilt): _log_moment(steps, interval, float(tilt)) for tilt in _TILTS}
    usable = {0.0: 0.0} | {tilt: moment for tilt, moment in moments.items() if moment < _MAX_SPAN}
    return min(usable.items(), key=lambda item: item[1] - item[0] * guess)


def _log_moment(steps: list[tuple[_Loss, int]], interval: float, tilt: float) -> float:
    return math.fsum(times * _log_sum(loss, interval, tilt) for loss, times in steps)


def _log_sum(loss: _Loss, interval: float, tilt: float) -> float:
    """Return log E e^{tilt·loss} of one step, ∞ aside."""
    return float(logsumexp(_tilted_logs(loss, interval, tilt)))


def _tilted_logs(loss: _Loss, interval: float, tilt: float) -> Array:
    logs = np.log(loss.mass, out=np.full_like(loss.mass, -np.inf), where=loss.mass > 0)
    tilted: Array = logs + tilt * interval * (loss.first + np.arange(len(loss.mass)))
    return tilted


def _tilted(loss: _Loss, interval: float, tilt: float) -> _Loss:
    """Return the loss with masses in proportion to e^{tilt·loss}, which add up to 1."""
    logs = _tilted_logs(loss, interval, tilt)
    return _Loss(loss.first, np.exp(logs - logsumexp(logs)), 0.0)


def _power(steps: list[tuple[_Loss, int]], size: int) -> tuple[NDArray[np.complex128], float]:
    """Return the transform of the composition, and a bound on the sum of its masses' errors.

    A transform of length n errs by at most c = 8·u·log₂ n of the Euclidean norm of its input
    (Higham 2002, on the fast Fourier transform), so each frequency by √n·c·‖mass‖, a T-th power by
    T·|f|^{T−1} times that where the modulus is |f|, and the inverse by the Euclidean norm of all
    this over the frequencies: the sum of absolute errors is at most √n times theirs.
    """
    from scipy.fft import rfft

    relative = 8 * _UNIT * math.log2(size)
    spectrum = np.ones(size // 2 + 1, dtype=np.complex128)
    modulus = np.ones(size // 2 + 1)
    wrong = np.zeros(size // 2 + 1)
    for loss, times in steps:
        transform = rfft(loss.mass, size)
        each = math.sqrt(size) * relative * float(np.linalg.norm(loss.mass))
        bounded = np.minimum(np.abs(transform) + each, 1.0)
        # |a^T·s − â^T·ŝ| ≤ |a|^T·|s − ŝ| + T·|a|^{T−1}·|a − â|·|ŝ|, and the power's own rounding
        wrong = bounded**times * wrong + times * bounded ** (times - 1) * each * modulus
        modulus = modulus * bounded**times
        wrong += (4 * times + 4) * _UNIT * modulus
        spectrum *= transform**times
    norm = math.sqrt(2) * (float(np.linalg.norm(wrong)) + relative * float(np.linalg.norm(modulus)))
    return spectrum, norm


def _window(steps: list[tuple[_Loss, int]], interval: float, tail: float) -> tuple[int, int]:
    """Return lattice points beyond which less than ``tail`` lies, by Chernoff's bound."""
    ends = []
    for sign in (-1, 1):
        best = math.inf
        for tilt in _TILTS:
            moment = _log_moment(steps, interval, sign * float(tilt))
            best = min(best, (moment - math.log(tail)) / (tilt * interval))
        reach = sum(
            times * (loss.first + len(loss.mass) - 1 if sign > 0 else -loss.first)
            for loss, times in steps
        )
        ends.append(sign * math.ceil(min(best, reach)))
    return ends[0], ends[1]
