"""Dominating pairs: two distributions whose privacy loss bounds that of a step, for all
neighbouring data sets.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from dpfy.accounting.loss_distributions import LossDistribution

Neighbours = Literal["absent", "opposed", "exchanged"]
Noise = Literal["gaussian", "laplace", "law"]


@dataclass(frozen=True, order=True)
class Pair:
    """A dominating pair of one step, in units of the noise multiplier z.

    ``absent``: (1 − q)·N(0, z²) + q·N(1, z²) against N(0, z²): the record is in the data or is not.
    ``opposed``: (1 − q)·N(0, z²) + q·N(1, z²) against (1 − q)·N(0, z²) + q·N(−1, z²): it is one or
    the other. ``exchanged``: the positive losses of (1 − q)·N(0, z²) + q·N(2, z²) against N(0, z²),
    the same with both distributions exchanged as negative losses, and the rest at 0: another record
    has its place in the sample. With ``noise`` "laplace", N(m, z²) is the Laplace distribution
    about m of scale z. With "law", (1 − q)·Q + q·P is against Q, where P and Q are those of
    ``law``, and 1/z is only its spread: see :func:`of_law`.
    """

    rate: float
    noise_multiplier: float
    neighbours: Neighbours = "absent"
    noise: Noise = "gaussian"
    law: LossDistribution | None = None

    @property
    def mu(self) -> float:
        """The distance of the two means over the noise, when the record takes part for sure."""
        return (1 if self.neighbours == "absent" else 2) / self.noise_multiplier

    @property
    def symmetric(self) -> bool:
        """Whether both directions have one profile."""
        alike = self.noise == "laplace" or (self.law is not None and self.law.symmetric)
        return self.neighbours != "absent" or (self.rate == 1 and alike)


def of_law(law: LossDistribution, rate: float = 1.0) -> Pair:
    """Return the pair of a mechanism with this law on a Poisson sample of this rate (Zhu, Dong &
    Wang 2022, Thm 11).
    """
    spread = law.spread
    return Pair(rate, 1 / spread if spread else math.inf, "absent", "law", law)


Pairs = tuple[tuple[Pair, int], ...]
"""Pairs and how often each is composed, sorted; free steps are left out."""


def unsampled(pairs: Pairs) -> Pairs:
    """The pairs with one Gaussian sum in place of each law that it dominates."""
    whole = [
        (pair.law.whole if pair.law is not None else None, pair, times) for pair, times in pairs
    ]
    return tuple(
        sorted((pair if noise is None else Pair(1.0, noise), times) for noise, pair, times in whole)
    )


class Bound(NamedTuple):
    """An upper bound, and how it was obtained where that is not what the method's name says."""

    value: float
    note: str = ""


def coarsened(pairs: Pairs, limit: int, *, pessimistic: bool) -> Pairs:
    """Merge similar pairs until at most ``limit`` are left, each bin standing for its costliest or
    cheapest member.

    More noise and a smaller rate are post-processings of less noise and a larger rate, so the
    composition of the result dominates (``pessimistic``) or is dominated by that of ``pairs``.
    """
    if len(pairs) <= limit:
        return pairs
    kinds = sorted({(pair.neighbours, pair.noise, pair.law) for pair, _ in pairs})
    logs = np.log([(pair.rate, pair.noise_multiplier) for pair, _ in pairs])
    logs -= logs.min(axis=0)
    kind = np.array([kinds.index((pair.neighbours, pair.noise, pair.law)) for pair, _ in pairs])
    width = 0.0025
    while True:
        rate, noise = np.floor(logs / width).T
        found, inverse = np.unique((kind * 2.0**24 + rate) * 2.0**24 + noise, return_inverse=True)
        if len(found) <= max(limit, len(kinds)):
            break
        width *= 2
    bins: list[list[tuple[Pair, int]]] = [[] for _ in found]
    for item, place in zip(pairs, inverse.tolist(), strict=True):
        bins[place].append(item)
    return tuple(sorted(_representative(members, pessimistic) for members in bins))


def _representative(members: list[tuple[Pair, int]], pessimistic: bool) -> tuple[Pair, int]:
    worst, best = (max, min) if pessimistic else (min, max)
    rate = worst(pair.rate for pair, _ in members)
    noise = best(pair.noise_multiplier for pair, _ in members)
    return replace(members[0][0], rate=rate, noise_multiplier=noise), sum(
        times for _, times in members
    )


def merging_note(pairs: Pairs, merged: Pairs) -> str:
    """Say that steps were merged, if they were."""
    return (
        f"{len(pairs)} kinds of steps merged pessimistically into {len(merged)}"
        if len(merged) < len(pairs)
        else ""
    )
