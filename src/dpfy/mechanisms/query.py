"""What is asked of one sample: named bounded sums, described without touching a tensor."""

import math
from dataclasses import dataclass

from dpfy import _validate
from dpfy.ledger.events import Fact, SumQuery


@dataclass(frozen=True)
class ClippedSum(Fact, tag="clipped_sum"):
    """The sum over the sample of per-record gradients, each scaled down to an ℓ2 norm of at most ``bound``."""

    bound: float
    name: str = "gradient"

    def __post_init__(self) -> None:
        _validate.positive("clip", self.bound, remedy="The clip bound is a public constant above zero.")

    @property
    def influence(self) -> int:
        """How many bounds one record may move the sum by."""
        return 1


@dataclass(frozen=True)
class ClippedMeans(ClippedSum, tag="clipped_means"):
    """The sum over public ``slots`` of the mean gradient of the records in each slot, scaled down to ``bound``.

    Every record of a sample draws its slot uniformly and independently of the others; an empty slot gives zero. One
    record more turns the mean of one slot into another mean, so it moves the sum by up to two bounds.
    """

    slots: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.count("microbatches", self.slots)

    @property
    def influence(self) -> int:
        """How many bounds one record may move the sum by."""
        return 2


@dataclass(frozen=True)
class Query(Fact, tag="query"):
    """The bounded sums that one step releases, all on the same sample.

    >>> Query((ClippedSum(bound=0.5),)).sum_queries(noise_multiplier=2.0)
    (SumQuery(l2_bound=1.0, stddev=2.0, name='gradient'),)
    """

    leaves: tuple[ClippedSum, ...]

    def sum_queries(self, noise_multiplier: float) -> tuple[SumQuery, ...]:
        """Return the queries in units of their bounds; together they cost what one query at this multiplier costs."""
        # McMahan et al. 2018, section 4: G leaves at z·√G each compose to (Σ 1/(z²G))^-½ = z.
        stddev = noise_multiplier * math.sqrt(len(self.leaves))
        return tuple(SumQuery(l2_bound=leaf.influence, stddev=leaf.influence * stddev, name=leaf.name)
                     for leaf in self.leaves)
