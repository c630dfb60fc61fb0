"""Dominating pairs: two distributions whose privacy loss bounds that of a step.

The bound holds for all neighbouring data sets.

Tests: tests/accounting/test_to_pairs.py.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from dpfy.accounting.loss_distributions import LossDistribution

Neighbours = Literal["absent", "opposed", "exchanged"]
Noise = Literal["gaussian", "laplace", "other"]


@dataclass(frozen=True, order=True)
class Pair:
    """A dominating pair of one step, in units of its bound.

    ``absent``: (1 − q)·N(0, z²) + q·N(1, z²) against N(0, z²): the record is in the data or is not.
    ``opposed``: (1 − q)·N(0, z²) + q·N(1, z²) against (1 − q)·N(0, z²) + q·N(−1, z²): it is one or
    the other. ``exchanged``: the positive losses of (1 − q)·N(0, z²) + q·N(2, z²) against N(0, z²),
    the same with both distributions exchanged as negative losses, and the rest at 0: another record
    takes its place in the sample. With ``noise`` "laplace", N(m, z²) is the Laplace distribution
    about m of scale z. With "other", (1 − q)·Q + q·P is against Q, where P and Q are those of
    ``distribution``, and 1/z is only its spread: see :func:`of_distribution`.

    Args:
        rate: The sampling rate q.
        noise_multiplier: z.
        neighbours: What neighbours differ in.
        noise: The kind of noise.
        distribution: The loss distribution on the full batch, for noise that is "other".
    """

    rate: float
    noise_multiplier: float
    neighbours: Neighbours = "absent"
    noise: Noise = "gaussian"
    distribution: LossDistribution | None = None

    @property
    def mu(self) -> float:
        """The distance of the two means over the noise, when the record takes part for sure."""
        return (1 if self.neighbours == "absent" else 2) / self.noise_multiplier

    @property
    def symmetric(self) -> bool:
        """Whether both directions have one profile."""
        alike = self.noise == "laplace" or (
            self.distribution is not None and self.distribution.symmetric
        )
        return self.neighbours != "absent" or (self.rate == 1 and alike)


def of_distribution(distribution: LossDistribution, rate: float = 1.0) -> Pair:
    """Return the pair of a mechanism with this loss distribution on a Poisson sample of this rate.

    Reference: Zhu, Dong & Wang 2022, Theorem 11.
    """
    spread = distribution.spread
    return Pair(rate, 1 / spread if spread else math.inf, "absent", "other", distribution)


Pairs = tuple[tuple[Pair, int], ...]
"""Pairs and how often each is composed, sorted; free steps are left out."""


def unsampled(pairs: Pairs) -> Pairs:
    """Replace each loss distribution that one Gaussian sum dominates by that sum."""
    whole = [
        (pair.distribution.whole if pair.distribution is not None else None, pair, times)
        for pair, times in pairs
    ]
    return tuple(
        sorted((pair if noise is None else Pair(1.0, noise), times) for noise, pair, times in whole)
    )


class Bound(NamedTuple):
    """An upper bound, with a note where the method's name does not say how it was obtained."""

    value: float
    note: str = ""


def coarsened(pairs: Pairs, limit: int, *, pessimistic: bool) -> Pairs:
    """Merge similar pairs until at most ``limit`` are left.

    The costliest or the cheapest member of each bin represents it. More noise and a smaller rate
    are post-processings of less noise and a larger rate, so the composition of the result dominates
    (``pessimistic``) or is dominated by that of ``pairs``.
    """
    if len(pairs) <= limit:
        return pairs
    kinds = sorted({(pair.neighbours, pair.noise, pair.distribution) for pair, _ in pairs})
    logs = np.log([(pair.rate, pair.noise_multiplier) for pair, _ in pairs])
    logs -= logs.min(axis=0)
    kind = np.array(
        [kinds.index((pair.neighbours, pair.noise, pair.distribution)) for pair, _ in pairs]
    )
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
