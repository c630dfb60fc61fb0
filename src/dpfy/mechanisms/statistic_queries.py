"""Statistics that a step releases beside the gradient, described without touching a tensor.

:mod:`dpfy.mechanisms.statistics` computes them.

Tests: tests/mechanisms/test_query.py.
"""

import math
from dataclasses import dataclass

from dpfy import _validate
from dpfy.errors import InvalidArgument
from dpfy.ledger.events import Fact
from dpfy.mechanisms.clipped_sums import LEAST, MOST


@dataclass(frozen=True)
class Statistic(Fact, tag="statistic"):
    """The sum of one tensor per record, each scaled down to an ℓ2 norm of at most ``bound``.

    The values are those that ``loss_fn`` returns as ``Losses(stats={name: …})``: one row of
    ``shape`` for each record. A row that is not finite counts as zero. The sum is released with
    noise bound·z/√share per coordinate, divided by the plan's divisor.

    *Assumes*: the row of a record moves by at most 2⁻¹⁵ bounds when other records join its batch,
    which changes the rounding error of what the model computes. Losses, moments and labels do; a
    step, such as "is this score the largest", does not. :func:`dpfy.soft_accuracy` replaces it by a
    ramp.

    Args:
        name: The name of the statistic, in releases and in the ledger.
        bound: The largest norm of a row, from 1e-30 to 1e30.
        shape: The shape of a row; by default a single number.
        every: It is released at the first step and every ``every``-th after it; at least 1.
        share: The part of the noise budget of a step that it takes, in (0, 1).

    Raises:
        InvalidArgument: If an argument is out of its range.
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
        """The number of coordinates."""
        return math.prod(self.shape)

    def due(self, step: int) -> bool:
        """Return whether a step, counted from 1, releases it."""
        return (step - 1) % self.every == 0


@dataclass(frozen=True)
class SampleSize(Statistic, tag="sample_size"):
    """The number of records in the sample, as a fraction of the divisor, with noise.

    The exact number is never released.

    Args:
        name: The name of the statistic, in releases and in the ledger.
        bound: Always 1.
        shape: Always empty: it is one number.
        every: It is released at the first step and every ``every``-th after it; at least 1.
        share: The part of the noise budget of a step that it takes, in (0, 1).

    Raises:
        InvalidArgument: If an argument is out of its range.
    """

    name: str = "sample size"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shape or self.bound != 1:
            raise InvalidArgument("A record counts once: the sample size has bound 1 and no shape.")


@dataclass(frozen=True)
class Contributing(Statistic, tag="contributing"):
    """The share of records that were loaded, collated and had finite gradients.

    A record adds 1, and 0 if the norm of any of its gradients is not finite; one that cannot be
    loaded or makes the loss raise adds nothing. A norm counts in full up to 2⁵⁶ and less and less
    up to 2⁶⁰, so that rounding error cannot change the verdict on many records at once. The release
    is the noisy count over the plan's divisor, the expected batch size:
    :class:`dpfy.ContributingShare` says when it is too low to be chance. The share of 0.01 makes
    the gradient's noise larger by half a percent.

    *Formal guarantee*: one record moves the count by at most 1. Proof: docs/proofs/queries.md.

    Args:
        name: The name of the statistic, in releases and in the ledger.
        bound: Always 1.
        shape: Always empty: it is one number.
        every: It is released at the first step and every ``every``-th after it; at least 1.
        share: The part of the noise budget of a step that it takes, in (0, 1).

    Raises:
        InvalidArgument: If an argument is out of its range.
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
    there would turn the rounding error of a norm, which depends on the size of its block, into a
    whole count. A norm that is not finite is above every threshold.

    Proof: docs/proofs/queries.md.

    Args:
        name: The name of the statistic, in releases and in the ledger.
        bound: Computed: half the square root of the number of thresholds.
        shape: Computed: one number for each threshold.
        every: It is released at the first step and every ``every``-th after it; at least 1.
        share: The part of the noise budget of a step that it takes, in (0, 1).
        thresholds: The norms to compare with, each above zero.
        of: For each threshold, the name of the clipped sum whose norms are compared; by default the
            first one.

    Raises:
        InvalidArgument: If a threshold is not above zero, or ``of`` has another length.
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
    """For each clipped sum in ``of``, the sum of the norms of its gradients, cut at ``limits``.

    A norm counts as a fraction of its limit, so that a record has at most 1 for every clipped sum.
    A norm that is not finite counts as zero.

    Args:
        name: The name of the statistic, in releases and in the ledger.
        bound: Computed: the square root of the number of limits.
        shape: Computed: one number for each limit.
        every: It is released at the first step and every ``every``-th after it; at least 1.
        share: The part of the noise budget of a step that it takes, in (0, 1).
        limits: The largest norm that counts in full, for each clipped sum, above zero.
        of: The names of the clipped sums, one for each limit.

    Raises:
        InvalidArgument: If a limit is not above zero, or ``of`` has another length.
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

    Args:
        name: The name of the statistic, in releases and in the ledger.
        bound: Always 1.
        shape: Always empty: it is one number.
        every: It is released at the first step and every ``every``-th after it; at least 1.
        share: The part of the noise budget of a step that it takes, in (0, 1).

    Raises:
        InvalidArgument: If an argument is out of its range.
    """

    name: str = "norm of the sum"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shape or self.bound != 1:
            raise InvalidArgument(
                "The norm of a sum is a number, in clip bounds: it has bound 1 and no shape."
            )
