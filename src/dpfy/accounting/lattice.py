"""Composition of privacy losses on a lattice, rounded so that δ is never too small, or never too large.

*Above*: the mass of each cell [kh, (k+1)h] of the loss goes to its two ends such that both distributions of the pair
keep their mass in the cell: connect-the-dots (Doroshenko et al. 2022, Theorem 3.3), which dominates the pair.

*Below*: each cell [(k−½)h, (k+½)h] becomes one output, which is post-processing and can only lower δ. The loss of a
merged cell lies within O(h²) of kh; all atoms are moved there, and one Chernoff bound covers the sum of the moves.

Either way composition is a product of Fourier transforms; what falls outside the window, and float64, is charged to δ.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, next_fast_len, rfft
from scipy.optimize import brentq
from scipy.special import ndtr

from dpfy.accounting.pairs import Pair, Pairs

Array = NDArray[np.float64]

_REACH = 9.0  # standard deviations covered by cells; the mass beyond is 1e-19 on either side
_MAX_WINDOW = 2**22
_TILTS = np.geomspace(1e-3, 4, 16)  # around the best one for a Gaussian sum; any of them gives a valid bound
_TINY = 1e-290
_ROOT = 1e-9


@dataclass(frozen=True)
class _Atoms:
    """One step: ``mass[j]`` of P at the point ``first + j``, whose loss is ``move[j]`` below it; the rest is at ∞."""

    first: int
    mass: Array
    move: Array
    infinite: float = 0.0


_Steps = list[tuple[_Atoms, int]]


@dataclass(frozen=True)
class LossLaw:
    """A composed law of the loss: it bounds δ after ``shift`` is taken off the losses and ``slack`` is added to δ."""

    losses: Array
    mass: Array
    shift: float
    slack: float

    def delta(self, epsilon: float) -> float:
        """Return the bound on δ(ε) = E[(1 − e^{ε − L})₊]."""
        start = int(np.searchsorted(self.losses, epsilon + self.shift, side="right"))
        kept = -np.expm1(epsilon + self.shift - self.losses[start:])
        return min(1.0, max(0.0, float(kept @ self.mass[start:]) + self.slack))

    def epsilon(self, delta: float) -> float:
        """Return the bound on the smallest ε ≥ 0 with δ(ε) ≤ ``delta``."""
        if self.slack >= delta:
            return math.inf
        if self.delta(0.0) <= delta:
            return 0.0
        top = float(self.losses[-1]) - self.shift  # nothing lies above: δ is the slack there
        root = float(brentq(lambda value: self.delta(value) - delta, 0.0, top, xtol=_ROOT, rtol=1e-12))
        return max(0.0, root + math.copysign(2 * _ROOT, self.slack))


def upper(pairs: Pairs, interval: float, precision: float) -> tuple[LossLaw, ...] | None:
    """Return laws, one per direction of the relation, that bound δ from above; none if the window is too wide.

    ``precision`` is the mass that the window may cut off; it is charged to δ.
    """
    cut = precision / 4 / sum(times for _, times in pairs)
    laws = []
    for steps in _directions([(_connected(pair, interval), times) for pair, times in pairs]):
        trimmed = [(_trimmed_up(atoms, cut), times) for atoms, times in steps]
        laws.append(_compose(trimmed, interval, precision / 4, shift=0.0, charge=precision))
    return tuple(law for law in laws if law is not None) if all(laws) else None


def lower(pairs: Pairs, interval: float, precision: float) -> tuple[LossLaw, ...] | None:
    """Return laws, one per direction of the relation, that bound δ from below; none if the window is too wide.

    ``precision`` is the mass that the window and the moves may cost; it is taken off δ.
    """
    cut = precision / 4 / sum(times for _, times in pairs)
    laws = []
    for steps in _directions([(_merged(pair, interval), times) for pair, times in pairs]):
        trimmed = [(_trimmed_down(atoms, cut), times) for atoms, times in steps]
        shift = _chernoff(trimmed, [atoms.move for atoms, _ in trimmed], precision / 2)
        laws.append(_compose(trimmed, interval, precision / 4, shift=shift, charge=-precision))
    return tuple(law for law in laws if law is not None) if all(laws) else None


def round_off(steps: int) -> float:
    """Return what float64 Fourier composition of ``steps`` may add to δ or take from it."""
    return 1e-14 + 4e-16 * steps


def span(pair: Pair) -> float:
    """Return how far apart the losses of one step lie."""
    low, high = _loss(pair, _ends(pair))
    return float(high - low)


def _directions(steps: list[tuple[tuple[_Atoms, _Atoms], int]]) -> tuple[_Steps, _Steps]:
    return [(forward, times) for (forward, _), times in steps], [(back, times) for (_, back), times in steps]


def _compose(steps: _Steps, interval: float, tail: float, *, shift: float, charge: float) -> LossLaw | None:
    low, high = _window(steps, tail)
    width = max(high - low + 1, *(len(atoms.mass) for atoms, _ in steps))
    if width > _MAX_WINDOW:
        return None
    size = next_fast_len(width, real=True)
    spectrum = np.ones(size // 2 + 1, dtype=np.complex128)
    for atoms, times in steps:
        spectrum *= rfft(atoms.mass, size) ** times
    origin = sum(atoms.first * times for atoms, times in steps)
    mass = np.roll(irfft(spectrum, size), (origin - low) % size)
    losses = interval * np.arange(low, low + size, dtype=np.float64)
    infinite = sum(atoms.infinite * times for atoms, times in steps)
    lost = math.copysign(round_off(sum(times for _, times in steps)), charge)
    return LossLaw(losses, mass, shift, infinite + charge + lost)


def _connected(pair: Pair, interval: float) -> tuple[_Atoms, _Atoms]:
    """Both directions of one step, connect-the-dots between lattice points."""
    bottom, top = _lattice_ends(pair, interval)
    points: Array = interval * np.arange(bottom, top + 1, dtype=np.float64)
    p, q = _pair_masses(pair, np.append(np.insert(_place(pair, points), 0, -np.inf), np.inf))
    grow = np.exp(points[:-1])
    right = np.clip((p[1:-1] - grow * q[1:-1]) / -math.expm1(-interval), 0.0, p[1:-1])
    mass = np.append(p[1:-1] - right, 0.0)
    mass[1:] += right
    back = mass * np.exp(-points)
    mass[0] += p[0]
    back[-1] += q[-1]
    still = np.zeros_like(mass)
    return _Atoms(bottom, mass, still, float(p[-1])), _Atoms(-top, back[::-1], still, float(q[0]))


def _merged(pair: Pair, interval: float) -> tuple[_Atoms, _Atoms]:
    """Both directions of one step, cells merged to their centres. Any cuts are sound; these keep the moves small."""
    bottom, top = _lattice_ends(pair, interval)
    points: Array = interval * np.arange(bottom, top + 1, dtype=np.float64)
    p, q = _pair_masses(pair, _place(pair, np.append(points, points[-1] + interval) - interval / 2))
    lost = (p < _TINY) | (q < _TINY)  # dropping an atom only lowers δ
    p, q = np.where(lost, 0.0, p), np.where(lost, 0.0, q)
    losses = np.log(np.where(lost, 1.0, p)) - np.log(np.where(lost, 1.0, q))
    move = np.where(lost, 0.0, points - losses)
    return _Atoms(bottom, p, move), _Atoms(-top, q[::-1], -move[::-1])


def _kept(mass: Array, cut: float) -> tuple[int, int]:
    """The shortest range of atoms outside which at most ``cut`` lies on either side."""
    start = int(np.searchsorted(np.cumsum(mass), cut, side="right"))
    stop = len(mass) - int(np.searchsorted(np.cumsum(mass[::-1]), cut, side="right"))
    return min(start, stop - 1), stop


def _trimmed_up(atoms: _Atoms, cut: float) -> _Atoms:
    """Raise the smallest losses to the first that is kept and the largest to ∞."""
    start, stop = _kept(atoms.mass, cut)
    mass = atoms.mass[start:stop].copy()
    mass[0] += atoms.mass[:start].sum()
    infinite = atoms.infinite + float(atoms.mass[stop:].sum())
    return _Atoms(atoms.first + start, mass, atoms.move[start:stop], infinite)


def _trimmed_down(atoms: _Atoms, cut: float) -> _Atoms:
    """Drop the rarest losses, which only lowers δ."""
    start, stop = _kept(atoms.mass, cut)
    return _Atoms(atoms.first + start, atoms.mass[start:stop], atoms.move[start:stop])


def _ends(pair: Pair) -> Array:
    reach = _REACH * pair.noise_multiplier
    return np.array([-reach - (pair.neighbours == "opposed"), reach + 1])


def _lattice_ends(pair: Pair, interval: float) -> tuple[int, int]:
    low, high = _loss(pair, _ends(pair)) / interval
    return math.floor(low), math.ceil(high)


def _pair_masses(pair: Pair, cuts: Array) -> tuple[Array, Array]:
    """The mass of P and of Q between neighbouring cuts."""
    noise, rate = pair.noise_multiplier, pair.rate
    absent = _masses(cuts / noise)
    p = (1 - rate) * absent + rate * _masses((cuts - 1) / noise)
    opposed = pair.neighbours == "opposed"
    return p, (1 - rate) * absent + rate * _masses((cuts + 1) / noise) if opposed else absent


def _masses(cuts: Array) -> Array:
    """The standard normal mass between neighbouring cuts, each from the side where nothing cancels."""
    left, right = cuts[:-1], cuts[1:]
    masses: Array = np.where(left > 0, ndtr(-left) - ndtr(-right), ndtr(right) - ndtr(left))
    return masses


def _loss(pair: Pair, x: Array) -> Array:
    variance, absent = pair.noise_multiplier**2, math.log1p(-pair.rate) if pair.rate < 1 else -math.inf
    present = math.log(pair.rate) - 0.5 / variance
    loss: Array = np.logaddexp(absent, present + x / variance)
    return loss - np.logaddexp(absent, present - x / variance) if pair.neighbours == "opposed" else loss


def _place(pair: Pair, loss: Array) -> Array:
    """Where the loss is ``loss``, in increasing order; −∞ below the smallest one."""
    rate, variance = pair.rate, pair.noise_multiplier**2
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if pair.neighbours == "absent":
            place = np.log(np.expm1(loss) + rate) - math.log(rate) + 0.5 / variance
        else:  # a quadratic equation in e^{x/z²}
            log_ratio = np.log((1 - rate) / rate) + 0.5 / variance + np.log(np.abs(np.sinh(loss / 2)))
            arc = np.where(log_ratio > 300, log_ratio + math.log(2), np.arcsinh(np.exp(np.minimum(log_ratio, 300))))
            place = loss / 2 + np.sign(loss) * arc
    return np.maximum.accumulate(np.where(np.isnan(place), -np.inf, variance * place))


def _window(steps: _Steps, tail: float) -> tuple[int, int]:
    """Lattice points beyond each of which at most ``tail`` of the composed law lies."""
    places = [np.arange(atoms.first, atoms.first + len(atoms.mass), dtype=np.float64) for atoms, _ in steps]
    low = sum(atoms.first * times for atoms, times in steps)
    high = sum((atoms.first + len(atoms.mass) - 1) * times for atoms, times in steps)
    highest = _chernoff(steps, places, tail)
    lowest = -_chernoff(steps, [-place for place in places], tail)
    return max(low, math.floor(lowest)), min(high, math.ceil(highest))


def _chernoff(steps: _Steps, values: list[Array], tail: float) -> float:
    """A bound that the sum of the independent ``values`` exceeds with mass at most ``tail``."""
    variance = sum(times * float(atoms.mass @ value**2 - (atoms.mass @ value) ** 2)
                   for (atoms, times), value in zip(steps, values, strict=True))
    best = math.inf
    for tilt in math.sqrt(-2 * math.log(tail) / max(variance, 1e-300)) * _TILTS:
        total = -math.log(tail)
        for (atoms, times), value in zip(steps, values, strict=True):
            peak = float(value.max())
            moment = float(atoms.mass @ np.exp(tilt * (value - peak)))
            total += times * (tilt * peak + math.log(moment)) if moment > _TINY else math.inf
        best = min(best, total / tilt)
    return best
