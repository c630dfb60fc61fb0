"""Balls in bins: the loss of an epoch in which a record is in one batch, drawn uniformly and unseen.

The pair is the mean of N(e_t, z²) over the batches t against N(0, z²) (Chua et al. 2025), whose likelihood ratio is the
mean S of independent lognormal numbers of mean 1 under the latter. Both profiles are expectations of convex functions
of S, so numbers that are moved to the two ends of their cells of a lattice, keeping their mean, can only raise them;
and sums on a lattice are powers of a Fourier transform. Nothing is simulated: the bounds are certain. The proof is in
``docs/proofs/accounting-policies.md``, section 4.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft
from scipy.special import ndtr, ndtri

from dpfy.accounting.outcomes import Array, Law, Masses, Table
from dpfy.accounting.pairs import Pair, of_law

_TAIL = 1e-13  # of what one number exceeds its last cell by, in the mean
_PER_STDDEV = 50  # lattice steps
_MOST = 1 << 20  # lattice steps in all; beyond, they are coarser
_UNIT = 2.0**-53
_POINTS = 8192  # losses in the end
_RARE = 1e-15  # masses beyond the first and the last of them
_LEAST_NOISE = 0.6  # below it, a lattice of few million steps is too coarse


def epoch(bins: int, noise_multiplier: float) -> Pair:
    """Return the pair of an epoch whose record is set to zero or not; one Gaussian sum where no more is known.

    >>> epoch(1, 1.0)
    Pair(rate=1.0, noise_multiplier=1.0, neighbours='absent', noise='gaussian', law=None)
    """
    if bins == 1 or not _LEAST_NOISE <= noise_multiplier < math.inf:
        return Pair(1.0, noise_multiplier)
    return of_law(BallsInBinsLaw(bins, noise_multiplier))


@dataclass(frozen=True)
class BallsInBinsLaw(Law):
    """One epoch with this noise multiplier and so many batches, from above."""

    bins: int
    noise_multiplier: float
    symmetric = False

    @property
    def spread(self) -> float:
        """√log(1 + χ²), where χ² is that of a full batch over the number of batches."""
        return math.sqrt(math.log1p(math.expm1(min(self.noise_multiplier**-2, 600.0)) / self.bins))

    @property
    def attained(self) -> Law | float | None:
        """The sum of all batches, in which the record is for certain, with the noise of all."""
        return self.noise_multiplier * math.sqrt(self.bins) * (1 + 1e-15)

    @property
    def whole(self) -> float | None:
        return self.noise_multiplier

    @property
    def zcdp(self) -> float:
        """That of one Gaussian sum: which batch it is in is not rewarded."""
        return self.noise_multiplier**-2 / 2

    def span(self, log_tail: float) -> tuple[float, float]:
        return _epoch(self.bins, self.noise_multiplier).span(log_tail)

    def masses(self, cuts: Array) -> Masses:
        return _epoch(self.bins, self.noise_multiplier).masses(cuts)


@lru_cache(maxsize=16)
def _epoch(bins: int, noise_multiplier: float) -> Table:
    """The law of log S; below 1 from the masses of Q and above from those of P, which keep their digits."""
    tau = 1 / noise_multiplier
    stddev = math.sqrt(math.expm1(tau**2))
    longest = math.exp(tau * (tau / 2 - float(ndtri(_TAIL))))
    reach = bins + 3 * longest + 40 * math.sqrt(bins) * stddev
    step = max(stddev / _PER_STDDEV, reach / _MOST)
    mass, tail = _lognormal(tau, step, math.ceil(longest / step))
    size = next_fast_len(max(math.ceil(reach / step), 2 * len(mass)), real=True)
    sizes: Array = step * np.arange(len(mass), dtype=np.float64)
    transform, biased = rfft(mass, size), rfft(mass * sizes, size)
    power = transform ** (bins - 1)
    q, p = irfft(power * transform, size), irfft(power * biased, size)
    # A transform of length n errs by 8·u·log₂ n of the norm of its input (Higham 2002); no modulus exceeds the sum.
    lost = 8 * _UNIT * math.log2(size) * math.sqrt(size) * (
        (bins + 4) * float(np.linalg.norm(mass)) + 2 * float(np.linalg.norm(mass * sizes)))
    charge = 2 * lost + _beyond(mass, sizes, bins, step * (size - 1))  # once more for masses that do not sum to 1
    mean = step / bins * np.arange(size)
    low = mean < 1
    p, q = np.maximum(np.where(low, q * mean, p), 0.0), np.maximum(np.where(low, q, p / np.maximum(mean, 1.0)), 0.0)
    return _coarser(np.log(mean[1:]), p[1:], q[1:], tail + charge, float(q[0]) + charge)


def _coarser(loss: Array, p: Array, q: Array, infinite: float, missing: float) -> Table:
    """Losses at fewer points: what is between two goes to both such that P and Q keep their masses, tails to ∞."""
    first, last = int(np.argmax(np.cumsum(q) > _RARE)), len(p) - 1 - int(np.argmax(np.cumsum(p[::-1]) > _RARE))
    ends = np.unique(np.searchsorted(loss, np.linspace(loss[first], loss[last], _POINTS)))
    cuts, bounds = loss[ends], np.append(ends, ends[-1] + 1)
    inside, other = (np.add.reduceat(part, bounds[:-1])[:-1] for part in (p, q))  # from one point to before the next
    right = np.clip((inside - np.exp(cuts[:-1]) * other) / -np.expm1(-np.diff(cuts)), 0.0, inside)
    mass = np.append(inside - right, p[ends[-1]])
    mass[1:] += right
    infinite, missing = infinite + float(p[ends[-1] + 1:].sum()), missing + float(q[:ends[0]].sum())
    mass[0] += float(p[:ends[0]].sum())
    return Table(tuple(cuts.tolist()), tuple(mass.tolist()), infinite, missing, symmetric=False)


def _lognormal(tau: float, step: float, count: int) -> tuple[Array, float]:
    """A lognormal number of mean 1 on a lattice, keeping its mean, and by how much it exceeds the last point."""
    with np.errstate(divide="ignore"):
        places = np.log(step * np.arange(count + 1)) / tau
    above, weighted = ndtr(-places - tau / 2), ndtr(-places + tau / 2)  # of the number, and of its size
    inside, moment = -np.diff(above), -np.diff(weighted)
    right = np.clip((moment - step * np.arange(count) * inside) / step, 0.0, inside)
    mass = np.append(inside - right, above[-1])
    mass[1:] += right
    return mass, float(weighted[-1])


def _beyond(mass: Array, sizes: Array, bins: int, reach: float) -> float:
    """E S of sums beyond the lattice's reach, by Chernoff's bound; such sums would come round to its beginning."""
    best = 1.0
    for tilt in np.geomspace(1.0, 300.0, 30) / sizes[-1]:
        weights = mass * np.exp(tilt * sizes)
        total, biased = float(weights.sum()), float(weights @ sizes)
        best = min(best, math.exp(min((bins - 1) * math.log(total) + math.log(biased) - tilt * reach, 0.0)))
    return best
