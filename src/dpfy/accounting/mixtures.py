"""Ledgers in which every step differs: thousands of noise multipliers on a few hundred blocks of atoms.

With θ = 2Φ(1/(2z)) − 1, the hockey-stick divergence of a Gaussian pair is convex in θ at every ε, and sampling keeps
this; it is convex in the rate at every θ. So *above*, a step between two noise multipliers (and two rates) is no worse
than a mixture of the corners of its bin; *below*, it is no better than the tangent at the bin's largest noise, as long
as the tangent is a positive law. Both err by the square of the bin's width. The proofs are in
``docs/proofs/accounting-heterogeneous.md``.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import erf

from dpfy.accounting import atoms
from dpfy.accounting.atoms import Array, Block, Direction
from dpfy.accounting.fourier import Group, repeated
from dpfy.accounting.pairs import Neighbours, Noise, Pair, Pairs

_DIRECT = 24  # distinct pairs that are composed one by one, and distinct rates that are kept apart
_MAX_BINS = 600
_CHORD = 0.05  # of a bin: the tangent is a chord of this length beside it
_ROUNDING = 1e-12  # of a share, towards the safe side
_SHARED = 0.05  # bins within this of each other, in log z, are cut at the same places


@dataclass(frozen=True)
class Resolution:
    """How finely to cut: atoms per block, the width of bins in log z (and log rate), and where atoms matter."""

    atoms: int
    width: float
    tilt: float
    epsilon: float
    log_tail: float


@dataclass(frozen=True)
class _Bin:
    """Steps of one kind with similar rates and noise multipliers."""

    rates: Array
    noises: Array
    times: Array
    neighbours: Neighbours
    noise: Noise

    def pair(self, rate: float, noise_multiplier: float) -> Pair:
        return Pair(rate, noise_multiplier, self.neighbours, self.noise)

    @property
    def mixable(self) -> bool:
        """Whether convexity in θ and in the rate has been proved."""
        return self.neighbours == "absent" and self.noise == "gaussian"


class _Cutter:
    """Chooses places once for bins that are alike."""

    def __init__(self, direction: Direction, resolution: Resolution) -> None:
        self.direction: Direction = direction
        self._resolution = resolution
        self._known: dict[tuple[object, ...], Array] = {}

    def places(self, pair: Pair, alone: bool) -> Array:
        resolution = self._resolution
        if alone:
            key: tuple[object, ...] = (pair,)
        else:
            noise, rate = (math.floor(math.log(value) / _SHARED)
                           for value in (pair.noise_multiplier, pair.rate**0.25))
            key = (noise, rate, pair.neighbours, pair.noise)
            pair = Pair(pair.rate, math.exp(noise * _SHARED), pair.neighbours, pair.noise)
        if key not in self._known:
            self._known[key] = atoms.choose_places(pair, resolution.atoms, resolution.tilt, resolution.epsilon,
                                                   self.direction, resolution.log_tail)
        return self._known[key]


def groups(pairs: Pairs, direction: Direction, resolution: Resolution, *, pessimistic: bool) -> list[Group]:
    """Return the steps as groups whose δ is nowhere below, or nowhere above, that of ``pairs``."""
    bins = _bins(pairs, resolution.width) if len(pairs) > _DIRECT else [_whole((item,)) for item in pairs]
    build, cutter = _above if pessimistic else _below, _Cutter(direction, resolution)
    return sorted((build(members, cutter, len(bins) <= _DIRECT) for members in bins), key=_contraction)


def _contraction(group: Group) -> float:
    """Groups that damp high frequencies most come first: the others then need few of them."""
    block = group.block
    return -group.steps * min(float(np.abs(block.mass[0]) @ block.loss**2), 1.0)


def _whole(pairs: Pairs) -> _Bin:
    rates, noises, times = (np.array(column, dtype=np.float64) for column in zip(
        *((pair.rate, pair.noise_multiplier, times) for pair, times in pairs), strict=True))
    return _Bin(rates, noises, times, pairs[0][0].neighbours, pairs[0][0].noise)


def _bins(pairs: Pairs, width: float) -> list[_Bin]:
    """Neighbours in log z, and in log rate unless there are few rates; wider ones where there would be too many."""
    result: list[_Bin] = []
    for kind in sorted({(pair.neighbours, pair.noise) for pair, _ in pairs}):
        whole = _whole(tuple(item for item in pairs if (item[0].neighbours, item[0].noise) == kind))
        wide = width if whole.mixable else width / 8  # without mixtures the error is of first order
        values, place = np.unique(whole.rates, return_inverse=True)
        while True:
            rate = place if len(values) <= _DIRECT else np.floor(np.log(whole.rates) / wide)
            key = rate * 2.0**24 + np.floor(np.log(whole.noises) / wide)
            found, inverse = np.unique(key, return_inverse=True)
            if len(found) <= _MAX_BINS:
                break
            wide *= 1.25
        order = np.argsort(inverse, kind="stable")
        cuts = np.cumsum(np.bincount(inverse))[:-1]
        rates, noises, times = (np.split(column[order], cuts) for column in (whole.rates, whole.noises, whole.times))
        result.extend(_Bin(*columns, whole.neighbours, whole.noise)
                      for columns in zip(rates, noises, times, strict=True))
    return result


def _above(members: _Bin, cutter: _Cutter, alone: bool) -> Group:
    rates, noises, times = members.rates, members.noises, members.times
    worst = members.pair(float(rates.max()), float(noises.min()))
    places = cutter.places(worst, alone)
    if len(times) == 1 or not members.mixable:
        return repeated(atoms.above([worst], places, cutter.direction), float(times.sum()))
    shares: list[Array] = []
    blocks: list[Block] = []
    for rate, weight in _ends(rates, _share(rates)):
        ends = _ends(-noises, _share(_theta(noises)))
        blocks.append(atoms.above([Pair(rate, -noise) for noise, _ in ends], places, cutter.direction))
        shares.extend(weight * part for _, part in ends)
    return Group(_stacked(blocks), np.array(shares).T, times)


def _below(members: _Bin, cutter: _Cutter, alone: bool) -> Group:
    noises, times = members.noises, members.times
    pair = members.pair(float(members.rates.min()), float(noises.max()))
    places = cutter.places(pair, alone)
    theta = _theta(noises)
    reach = float(theta.max() - theta.min())
    before = members.pair(pair.rate, pair.noise_multiplier * (1 + _CHORD * math.log(noises.max() / noises.min())))
    span = (theta.min() - float(_theta(np.array([before.noise_multiplier]))[0])) / reach if reach > 0 else 0.0
    if not members.mixable or span < _CHORD / 10 or not _tangent_is_positive(pair, before, span):
        return repeated(atoms.below(pair, places, cutter.direction), float(times.sum()))
    block = atoms.below(pair, places, cutter.direction, before, span)
    share = np.clip((theta - theta.min()) / reach - _ROUNDING, 0.0, 1.0)
    return Group(block, np.stack([np.ones_like(share), share], axis=1), times)


def _tangent_is_positive(pair: Pair, before: Pair, span: float) -> bool:
    """(1 + a)·f − a·f_before ≥ 0 for a = 1/span: the densities' ratio is largest at the loss 0 of a full batch."""
    z, far = pair.noise_multiplier, before.noise_multiplier
    ratio = far / z * math.exp((1 / z**2 - 1 / far**2) / 8)
    return ratio * (1 + _ROUNDING) <= 1 + span


def _theta(noises: Array) -> Array:
    """The total variation of the Gaussian pair."""
    theta: Array = erf(1 / (2 * math.sqrt(2) * noises))
    return theta


def _share(values: Array) -> Array:
    """Where in its bin a value lies, rounded up."""
    low, high = values.min(), values.max()
    share = (values - low) / (high - low) if high > low else np.zeros_like(values)
    rounded: Array = np.clip(share + _ROUNDING * (values > low), 0.0, 1.0)
    return rounded


def _ends(values: Array, share: Array) -> list[tuple[float, Array]]:
    """The cheap and the costly end of a bin with the weights of its members; one end if there is but one value."""
    low, high = float(values.min()), float(values.max())
    return [(low, 1 - share), (high, share)] if high > low else [(low, np.ones_like(share))]


def _stacked(blocks: list[Block]) -> Block:
    """Blocks on atoms of their own, side by side."""
    if len(blocks) == 1:
        return blocks[0]
    sizes = [len(block.loss) for block in blocks]
    rows = [np.pad(block.mass, ((0, 0), (sum(sizes[:i]), sum(sizes[i + 1:])))) for i, block in enumerate(blocks)]
    return Block(*(np.concatenate(parts) for parts in (
        [block.loss for block in blocks], rows, [block.total for block in blocks], [block.infinite for block in blocks],
        [block.mass_error for block in blocks], [block.shift_error for block in blocks])))
