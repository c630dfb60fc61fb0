"""The query of a step: named bounded sums over one sample, described without touching a tensor.

All sums of a step are one Gaussian sum: each is divided by its noise, the pieces are one vector of
norm at most 1, and the same noise goes on every coordinate (McMahan et al. 2018, section 3). The
``share`` of a sum is the part of that vector's squared length that it may take up.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Self

from dpfy import _validate
from dpfy.errors import InvalidArgument
from dpfy.ledger.events import Fact, SumQuery
from dpfy.mechanisms.clipped_sums import LEAST, MOST, ClippedSum, NormalisedSum
from dpfy.mechanisms.statistic_queries import (
    Contributing,
    NormOfSum,
    RecordNormsBelow,
    SampleSize,
    Statistic,
    SumOfRecordNorms,
)

__all__ = [
    "LEAST",
    "MOST",
    "ClippedSum",
    "Contributing",
    "NormOfSum",
    "NormalisedSum",
    "Query",
    "RecordNormsBelow",
    "SampleSize",
    "Statistic",
    "SumOfRecordNorms",
]

_ROUNDING = 1e-9  # how far the sum of all shares may be from one


@dataclass(frozen=True)
class Query(Fact, tag="query"):
    """The bounded sums that one step releases, all on the same sample.

    Args:
        leaves: The clipped sums; their shares add up to 1, and each parameter is in one of them.
        statistics: The statistics that are released beside the gradient.
        slots: The number of microbatches, or None. Every record draws one, and the mean gradient of
            a microbatch is clipped instead of every record's. One record then moves the gradient by
            up to two bounds.
        least_sample: If given, the clipped sum is divided by the sample's size, or by
            ``least_sample`` if that is more. One record then moves the gradient by up to two
            bounds.
        pooled: Whether events describe the clipped sums as one sum, for shares that change while
            their total stays.

    Raises:
        InvalidArgument: If sums contradict each other, or leave no noise budget for the gradient.

    >>> Query((ClippedSum(bound=0.5),)).sum_queries(noise_multiplier=2.0)
    (SumQuery(l2_bound=1.0, stddev=2.0, name='gradient'),)
    """

    leaves: tuple[ClippedSum, ...]
    statistics: tuple[Statistic, ...] = ()
    slots: int | None = None
    least_sample: float | None = None
    pooled: bool = False

    def __post_init__(self) -> None:
        if self.slots is not None:
            _validate.count("microbatches", self.slots)
        if self.least_sample is not None:
            _validate.positive("least_sample", self.least_sample)
        _check_names(
            [*(leaf.name for leaf in self.leaves), *(each.name for each in self.statistics)]
        )
        _check_disjoint(self.leaves)
        shares = math.fsum(leaf.share for leaf in self.leaves)
        if not self.leaves or abs(shares - 1) > _ROUNDING:
            raise InvalidArgument(
                f"Expected clipped sums whose shares add up to 1, got {shares!r}. Query.of makes "
                "them."
            )
        if self._left <= 0:
            raise InvalidArgument(
                f"The statistics take {1 - self._left:.3g} of the noise budget, which leaves "
                "nothing for the gradient. Give them smaller shares."
            )
        self._check_together()

    def _check_together(self) -> None:
        """Refuse statistics that the clipped sums cannot provide."""
        norms = [
            statistic
            for statistic in self.statistics
            if isinstance(statistic, RecordNormsBelow | SumOfRecordNorms)
        ]
        unknown = {name for each in norms for name in each.of} - {leaf.name for leaf in self.leaves}
        if unknown:
            raise InvalidArgument(
                f"There is no clipped sum {sorted(unknown)[0]!r} whose norms could be compared."
            )
        if any(isinstance(each, NormOfSum) for each in self.statistics) and (
            len(self.leaves) > 1 or self.sensitivity_factor > 1
        ):
            raise InvalidArgument(
                "The norm of the sum is released of one clipped sum that a record moves by one "
                "bound: leave out groups, microbatches and least_sample."
            )
        others = [each for each in self.statistics if not isinstance(each, SampleSize)]
        if self.slots is not None and (others or self.least_sample is not None):
            raise InvalidArgument(
                "Microbatches are computed as a whole and have means instead of records: "
                "there are no statistics or norms of single records, and no sample size to divide "
                "by. SampleSize can be released."
            )

    @classmethod
    def of(
        cls,
        leaves: Sequence[ClippedSum],
        statistics: Sequence[Statistic] = (),
        *,
        slots: int | None = None,
        least_sample: float | None = None,
    ) -> Self:
        """Return the query of these sums, with shares scaled so that they add up to one."""
        total = math.fsum(leaf.share for leaf in leaves)
        return cls(
            tuple(replace(leaf, share=leaf.share / total) for leaf in leaves),
            tuple(statistics),
            slots,
            least_sample,
        )

    @property
    def bound(self) -> float:
        """The bound of a record's gradients; of all clipped sums together if there are several."""
        return math.hypot(*(leaf.bound for leaf in self.leaves))

    @property
    def sensitivity_factor(self) -> int:
        """The number of bounds by which one record may move a clipped sum."""
        return 1 if self.slots is None and self.least_sample is None else 2

    @property
    def period(self) -> int:
        """The number of steps after which the same sums are released again."""
        return math.lcm(*(statistic.every for statistic in self.statistics))

    def due(self, step: int) -> tuple[Statistic, ...]:
        """Return the statistics that a step, counted from 1, releases."""
        return tuple(statistic for statistic in self.statistics if statistic.due(step))

    def noise_share(self, leaf: ClippedSum | Statistic) -> float:
        """Return the share of a sum when all are released."""
        return leaf.share * self._left if isinstance(leaf, ClippedSum) else leaf.share

    @cached_property
    def _left(self) -> float:
        """The share of all clipped sums."""
        return 1 - math.fsum(statistic.share for statistic in self.statistics)

    def joint_sensitivity(self, step: int = 1) -> float:
        """Return the most that one record moves all sums of a step, each in units of its noise.

        The unit is the standard deviation over the noise multiplier.
        """
        if not self.statistics:
            return self._joint_of_leaves
        return math.sqrt(math.fsum(self.noise_share(leaf) for leaf in self._released(step)))

    @cached_property
    def _joint_of_leaves(self) -> float:
        """What clipped sums by themselves are moved by, in every step."""
        return math.sqrt(math.fsum(map(self.noise_share, self.leaves)))

    def _released(self, step: int) -> Iterator[ClippedSum | Statistic]:
        """Yield the sums that a step releases."""
        yield from self.leaves
        yield from self.due(step)

    def sum_queries(self, noise_multiplier: float, step: int = 1) -> tuple[SumQuery, ...]:
        """Return the queries of a step in units of their bounds.

        Together they cost what one query at this noise multiplier does.
        """
        if not self.pooled:
            return tuple(
                self._sum_query(
                    leaf.name, self._moves(leaf), noise_multiplier, self.noise_share(leaf)
                )
                for leaf in self._released(step)
            )
        return (
            self._sum_query("gradient", self.sensitivity_factor, noise_multiplier, self._left),
            *(
                self._sum_query(each.name, 1, noise_multiplier, each.share)
                for each in self.due(step)
            ),
        )

    @staticmethod
    @lru_cache(maxsize=256)  # most steps have those of the last one
    def _sum_query(name: str, moves: int, noise_multiplier: float, share: float) -> SumQuery:
        """Return the query of a sum that one record moves by ``moves`` bounds."""
        return SumQuery(
            l2_bound=moves, stddev=moves * noise_multiplier / math.sqrt(share), name=name
        )

    def to_json(self) -> dict[str, Any]:
        """Return the query as plain JSON values."""
        value = super().to_json()
        return (
            value
            if self.pooled
            else {name: item for name, item in value.items() if name != "pooled"}
        )

    def _moves(self, leaf: ClippedSum | Statistic) -> int:
        """Return the number of bounds by which one record may move a sum."""
        return self.sensitivity_factor if isinstance(leaf, ClippedSum) else 1

    def sum_scale(self, leaf: ClippedSum | Statistic) -> float:
        """Return the unit in which a sum is a piece of the one Gaussian sum."""
        return self._moves(leaf) * leaf.bound / math.sqrt(self.noise_share(leaf))


def _check_names(names: list[str]) -> None:
    """Refuse two sums of the same name."""
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise InvalidArgument(
            f"Two sums are called {repeated!r}. Give each sum of a query a name of its own."
        )


def _check_disjoint(leaves: Sequence[ClippedSum]) -> None:
    """Refuse a parameter in two sums, and two sums of all remaining parameters."""
    named = [parameter for leaf in leaves for parameter in leaf.parameters]
    if len(set(named)) < len(named):
        twice = next(name for name in named if named.count(name) > 1)
        raise InvalidArgument(
            f"The parameter {twice!r} is in two clipped sums. Each may be in one."
        )
    if sum(not leaf.parameters for leaf in leaves) > 1:
        raise InvalidArgument(
            "Two clipped sums have no parameters of their own; one may have all that are left over."
        )
