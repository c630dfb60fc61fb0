"""What is asked of one sample: named bounded sums, described without touching a tensor.

All sums of a step are one Gaussian sum: each is divided by its noise, the pieces are one vector of
norm at most 1, and the same noise goes on every coordinate (McMahan et al. 2018, section 3).
``share`` says how much of that vector's squared length a sum may take up.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from dpfy import _validate
from dpfy.errors import InvalidArgument
from dpfy.ledger.events import Fact, SumQuery

LEAST, MOST = 1e-30, 1e30
"""Of bounds, scales and gammas: no square, product or quotient of them under- or overflows
(docs/proofs/queries.md).
"""
_ROUNDING = 1e-9  # of shares that add up to one


@dataclass(frozen=True)
class ClippedSum(Fact, tag="clipped_sum"):
    """The sum over the sample of per-record gradients, each scaled down to an ℓ2 norm of at most
    ``bound``.

    ``parameters`` are those whose gradients are taken together; none means all that no other sum
    has. With ``scales``,
    one for each parameter, a gradient is divided by its scale before the norm is taken and multiplied by it afterwards:
    joint clipping. ``share`` is relative to the other clipped sums: the noise has bound·z/√share
    per coordinate, times the scale.
    """

    bound: float
    name: str = "gradient"
    parameters: tuple[str, ...] = ()
    scales: tuple[float, ...] = ()
    share: float = 1.0

    def __post_init__(self) -> None:
        _validate.real(
            "clip",
            self.bound,
            LEAST,
            MOST,
            remedy="The clip bound is a public constant above zero.",
        )
        _validate.positive("share", self.share)
        if len(self.scales) not in (0, len(self.parameters)):
            raise InvalidArgument(
                f"Expected one scale for each of {len(self.parameters)} parameters, got "
                f"{len(self.scales)}."
            )
        for scale in self.scales:
            _validate.real("scale", scale, LEAST, MOST)

    def scale_of(self, parameter: str) -> float:
        """What the gradient of a parameter is divided by before norms are taken."""
        return self.scales[self.parameters.index(parameter)] if self.scales else 1.0


@dataclass(frozen=True)
class NormalisedSum(ClippedSum, tag="normalised_sum"):
    """The sum of per-record gradients g·bound/(‖g‖ + gamma): all have about the same norm, which is
    below ``bound``.

    Reference: Z. Bu et al., Automatic Clipping, 2023.
    """

    gamma: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.real("gamma", self.gamma, LEAST, MOST)


@dataclass(frozen=True)
class Statistic(Fact, tag="statistic"):
    """The sum over the sample of a tensor per record, scaled down to an ℓ2 norm of at most
    ``bound``.

    The values are what ``loss_fn`` returns as ``Losses(stats={name: …})``: one row of ``shape`` for
    each record. A row that is not finite counts as zero. It is released at the first step and every
    ``every``-th after it, with noise bound·z/√share per coordinate, and divided by the plan's
    divisor.

    *Assumes*: the row of a record moves by at most 2⁻¹⁵ bounds when other records join its batch,
    which moves the last bits of what the model computes. Losses, moments and labels do; a step,
    such as "is this score the largest", does not. :func:`dpfy.soft_accuracy` is a ramp in its
    place.
    """

    name: str
    bound: float = 1.0
    shape: tuple[int, ...] = ()
    every: int = 1
    share: float = 0.01

    def __post_init__(self) -> None:
        _validate.real("bound", self.bound, LEAST, MOST)
        _validate.count("every", self.every)
        _validate.real("share", self.share, 0, 1, open_low=True, open_high=True)
        for size in self.shape:
            _validate.count("shape", size)

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)

    def due(self, step: int) -> bool:
        """Whether a step, counted from 1, releases it."""
        return (step - 1) % self.every == 0


@dataclass(frozen=True)
class SampleSize(Statistic, tag="sample_size"):
    """The number of records in the sample, as a fraction of the divisor: it leaves with noise or
    not at all.
    """

    name: str = "sample size"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shape or self.bound != 1:
            raise InvalidArgument("A record counts once: the sample size has bound 1 and no shape.")


@dataclass(frozen=True)
class Contributing(Statistic, tag="contributing"):
    """The share of records that contributed: they were loaded and collated, and every gradient of
    theirs was finite.

    A record adds 1, and 0 if the norm of any of its gradients is not finite; one that cannot be
    loaded or makes the loss raise adds nothing. So that last bits cannot turn many records round at
    once, a norm counts in full up to 2⁵⁶ and less and less up to 2⁶⁰. What is released is the noisy
    count over the plan's divisor, the expected batch size: :class:`dpfy.ContributingShare` says
    when it is too low to be chance. The share of 0.01 makes the gradient's noise larger by half a
    percent.

    *Formal guarantee*: one record moves the count by at most 1. Proof: docs/proofs/queries.md.
    """

    name: str = "contributing"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shape or self.bound != 1:
            raise InvalidArgument(
                "A record contributes once: the number of those that do has bound 1 and no shape."
            )


@dataclass(frozen=True)
class RecordNormsBelow(Statistic, tag="norms_below"):
    """For each threshold, the share of records whose gradient norm is at most that, less one half.

    A record adds a number from −½ to ½ for every threshold, which is half as sensitive as a count
    (Andrew et al. 2021). It is clamp((threshold − norm) / (threshold/8), −½, ½): half of the way is
    at the threshold, and norms that differ from it by a sixteenth or more count in full. A step
    there would turn the last bit of a norm, which a block of another size may move, into a whole
    count. ``of`` names the clipped sum whose norms are compared, one for each threshold; by default
    the first one. A norm that is not finite is above every threshold.

    Proof: docs/proofs/queries.md.
    """

    name: str = "norms below"
    thresholds: tuple[float, ...] = (1.0,)
    of: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for threshold in self.thresholds:
            _validate.positive("threshold", threshold)
        if len(self.of) not in (0, len(self.thresholds)):
            raise InvalidArgument(
                f"Expected the name of a clipped sum for each of {len(self.thresholds)} "
                f"thresholds, got {len(self.of)}."
            )
        object.__setattr__(self, "shape", (len(self.thresholds),))
        object.__setattr__(self, "bound", math.sqrt(len(self.thresholds)) / 2)
        super().__post_init__()


@dataclass(frozen=True)
class SumOfRecordNorms(Statistic, tag="clipped_norms"):
    """For each clipped sum in ``of``, the sum of the norms of its gradients, each at most its one
    of ``limits``.

    A norm counts as a share of its limit, so that a record has at most 1 for every clipped sum. One
    that is not finite counts as zero.
    """

    name: str = "clipped norms"
    limits: tuple[float, ...] = (1.0,)
    of: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for limit in self.limits:
            _validate.positive("limit", limit)
        if len(self.of) != len(self.limits):
            raise InvalidArgument(
                f"Expected the name of a clipped sum for each of {len(self.limits)} limits, got "
                f"{len(self.of)}."
            )
        object.__setattr__(self, "shape", (len(self.limits),))
        object.__setattr__(self, "bound", math.sqrt(len(self.limits)))
        super().__post_init__()


@dataclass(frozen=True)
class NormOfSum(Statistic, tag="sum_norm"):
    """The norm of the clipped sum, in clip bounds, and at most four times the divisor.

    One record moves a sum by at most its bound, and therefore its norm.
    """

    name: str = "norm of the sum"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shape or self.bound != 1:
            raise InvalidArgument(
                "The norm of a sum is a number, in clip bounds: it has bound 1 and no shape."
            )


@dataclass(frozen=True)
class Query(Fact, tag="query"):
    """The bounded sums that one step releases, all on the same sample.

    With ``slots`` every record draws one of so many slots, and the mean gradient of a slot is
    clipped instead of every record's. With ``least_sample`` the clipped sum is divided by the
    sample's size, or by ``least_sample`` if that is more. Either way one record moves the gradient
    by up to two bounds. ``pooled`` clipped sums are one sum in events, for shares that move while
    their total stays.

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
                "Microbatches are computed as a whole and have means in the place of records: "
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
        """Return the query of these sums, whose shares are made to add up to one."""
        total = math.fsum(leaf.share for leaf in leaves)
        return cls(
            tuple(replace(leaf, share=leaf.share / total) for leaf in leaves),
            tuple(statistics),
            slots,
            least_sample,
        )

    @property
    def bound(self) -> float:
        """The bound of a record's gradients; where several sums are clipped, of all of them
        together.
        """
        return math.hypot(*(leaf.bound for leaf in self.leaves))

    @property
    def sensitivity_factor(self) -> int:
        """How many bounds one record may move a clipped sum by."""
        return 1 if self.slots is None and self.least_sample is None else 2

    @property
    def period(self) -> int:
        """After how many steps the same sums are released again."""
        return math.lcm(*(statistic.every for statistic in self.statistics))

    def due(self, step: int) -> tuple[Statistic, ...]:
        """Return the statistics that a step, counted from 1, releases."""
        return tuple(statistic for statistic in self.statistics if statistic.due(step))

    def noise_share(self, leaf: ClippedSum | Statistic) -> float:
        """Return the share of a sum when all are released."""
        return leaf.share * self._left if isinstance(leaf, ClippedSum) else leaf.share

    @property
    def _left(self) -> float:
        return 1 - math.fsum(statistic.share for statistic in self.statistics)

    def joint_sensitivity(self, step: int = 1) -> float:
        """Return the norm that a record may have in a step, in units of all sums' noise over the
        multiplier.
        """
        return math.sqrt(math.fsum(self.noise_share(leaf) for leaf in self._released(step)))

    def _released(self, step: int) -> Iterator[ClippedSum | Statistic]:
        yield from self.leaves
        yield from self.due(step)

    def sum_queries(self, noise_multiplier: float, step: int = 1) -> tuple[SumQuery, ...]:
        """Return the queries of a step in units of their bounds; all of them cost what one at this
        multiplier does.
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
    def _sum_query(name: str, moves: int, noise_multiplier: float, share: float) -> SumQuery:
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
        return self.sensitivity_factor if isinstance(leaf, ClippedSum) else 1

    def sum_scale(self, leaf: ClippedSum | Statistic) -> float:
        """Return what a sum is divided by to be a piece of the one Gaussian sum."""
        return self._moves(leaf) * leaf.bound / math.sqrt(self.noise_share(leaf))


def _check_names(names: list[str]) -> None:
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise InvalidArgument(
            f"Two sums are called {repeated!r}. Give each sum of a query a name of its own."
        )


def _check_disjoint(leaves: Sequence[ClippedSum]) -> None:
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
