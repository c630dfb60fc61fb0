"""Strategies for contributions: keep them until all norms are known, measure them, or sum them.

Tests: tests/gradients/bookkeeping/test_capture.py.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce

import torch

from dpfy.gradients.base import BoundedSums, RecordStats, set_to_zero
from dpfy.gradients.bookkeeping.arithmetic import Weights
from dpfy.gradients.bookkeeping.contributions import Contribution, OuterProduct
from dpfy.gradients.bookkeeping.costs import cheapest_kept, cheapest_measured
from dpfy.gradients.bookkeeping.recorder import Consumer, Parts, region
from dpfy.gradients.bookkeeping.workspace import Workspace
from dpfy.mechanisms.clipping import ClipEach, Clipping

# by which terms cancel, from where a record is done exactly in part to where it is as a whole
_OCTAVES = (14.0, 20.0)
RAMP_ROUNDING = 2.0**-23
"""The most that the exact part of a record may move what a co-batched record adds, in clip bounds.

See docs/proofs/clipping-engines.md.
"""


class ChunkNorms:
    """Bounds of the squared norms of a chunk, and the part of each record to be done exactly.

    float32 cannot bound every record well. The part grows continuously from 0 to 1, so that
    rounding error never decides between the two ways of computing a record.
    """

    def __init__(self, parameters: int, records: int, device: torch.device | None = None) -> None:
        nothing = torch.zeros(records, dtype=torch.float64, device=device)
        self.squared = [nothing] * parameters  # nobody writes to them
        self._cancelling: list[torch.Tensor] = []  # parts to be done exactly, for one reason each

    @cached_property
    def exact(self) -> torch.Tensor:
        """The part of each record to be done exactly, once all norms are measured."""
        unknown = ~torch.stack(self.squared).isfinite().all(0)
        return reduce(torch.maximum, self._cancelling, unknown.double())

    @property
    def doubtful(self) -> torch.Tensor:
        """The records that are done exactly as a whole."""
        return self.exact == 1

    @cached_property
    def largest_exact(self) -> float:
        """The largest part of any record that is done exactly, once all norms are measured.

        Asking for it waits for the device, so it is asked for once in a pass.
        """
        # mostly no terms can cancel, and a finite sum of squares has no infinite one, nor a NaN
        if not self._cancelling and math.isfinite(torch.stack(self.squared).sum()):
            return 0.0
        return float(self.exact.max()) if len(self.exact) else 0.0

    def measure(self, position: int, parts: Parts) -> None:
        """Note the norms of all contributions to one parameter."""
        found = [contribution.norms() for _, contribution in parts]
        if found:
            self.squared[position] = reduce(torch.add, (norms.squared for norms in found))
        for norms in found:
            if norms.magnitude is not None:
                octaves, (start, end) = (norms.magnitude / norms.squared.sqrt()).log2(), _OCTAVES
                self._cancelling.append(
                    ((octaves - start) / (end - start)).clamp(0, 1).nan_to_num(1.0)
                )

    def weights(self, clipping: Clipping, norms: torch.Tensor) -> list[Weights]:
        """Return the weights of the parts that are not done exactly, given all squared norms."""
        own = clipping.weights(norms)
        shared = {id(weights): Weights(self._inexact(weights)) for weights in own}
        return [shared[id(weights)] for weights in own]

    def _inexact(self, weights: torch.Tensor) -> torch.Tensor:
        """Return the weights of the parts of records that are not done exactly."""
        return weights if self.largest_exact == 0 else weights * (1 - self.exact)


class StoreThenClip(Consumer):
    """Keeps every contribution until the weights are known: book-keeping in one pass."""

    def __init__(
        self,
        parameters: int,
        records: int,
        device: torch.device | None = None,
        memory: Workspace | None = None,
    ) -> None:
        self.norms = ChunkNorms(parameters, records, device)
        self.parts: list[Parts] = [[] for _ in range(parameters)]
        self._memory = memory or Workspace()

    def take(self, position: int, parts: Parts) -> None:
        """Measure the contributions and keep them."""
        self.norms.measure(position, parts)
        self.parts[position] = parts

    def form(self, outer: OuterProduct) -> Contribution:
        """Return the form that trades memory for time best."""
        return cheapest_kept(outer, self._memory)

    def sums(self, clipping: Clipping, stats: Mapping[str, torch.Tensor]) -> BoundedSums:
        """Return the weighted sums of the kept contributions."""
        norms = clipping.norms(self.norms.squared)
        weights, seen = self.norms.weights(clipping, norms), (RecordStats(norms, stats),)
        return PendingSum(self.parts, weights, seen, memory=self._memory)


class NormPass(Consumer):
    """Measures contributions and drops them: the first of two passes."""

    def __init__(self, parameters: int, records: int, device: torch.device | None = None) -> None:
        self.norms = ChunkNorms(parameters, records, device)

    def take(self, position: int, parts: Parts) -> None:
        """Measure the contributions."""
        self.norms.measure(position, parts)

    def form(self, outer: OuterProduct) -> Contribution:
        """Return the form whose norm is cheapest."""
        return cheapest_measured(outer)


class ClipPass(Consumer):
    """Adds contributions whose weights are known: the second of two passes."""

    def __init__(self, totals: Sequence[torch.Tensor], weights: Sequence[Weights]) -> None:
        self.totals = totals
        self.weights = weights

    def take(self, position: int, parts: Parts) -> None:
        """Add the weighted contributions to the total."""
        add_parts(parts, self.weights[position].exact, self.totals[position])

    def form(self, outer: OuterProduct) -> Contribution:
        """Return the form that was measured, so that the added vector has the measured bits."""
        return cheapest_measured(outer)


class PerGroupClip(Consumer):
    """Clips every group as soon as it is complete, and sums what would take memory.

    Gradients that are not written out are summed later, straight into the total: they take no
    memory of their own.
    """

    def __init__(
        self, parameters: Sequence[torch.Tensor], clipping: Clipping, records: int
    ) -> None:
        assert isinstance(clipping.weigh, ClipEach)
        self.norms = ChunkNorms(len(parameters), records, parameters[0].device)
        self._parameters = parameters
        self._weigh_each = clipping.weigh
        self._clipping = clipping
        self._waiting: dict[int, dict[int, Parts]] = {}
        self._parts: list[Parts] = [[] for _ in parameters]
        self._weights = [Weights(torch.empty(0)) for _ in parameters]
        self._sums: dict[int, torch.Tensor] = {}

    def take(self, position: int, parts: Parts) -> None:
        """Measure the contributions; weigh the group if this was the last of its parameters."""
        self.norms.measure(position, parts)
        clipping = self._clipping
        group = clipping.groups[position]
        members = self._waiting.setdefault(group, {})
        members[position] = parts
        if len(members) < clipping.groups.count(group):
            return
        squared = torch.stack(
            [clipping.scaled(member, self.norms.squared[member]) for member in members]
        ).sum(0)
        weights = self._weigh_each.only(group)(squared.unsqueeze(1)).squeeze(1)
        # Where a record is to be done exactly, these sums are dropped and the chunk is done again,
        # with all groups at once. Asking for that here would wait for the device at every group.
        for member, waiting in self._waiting.pop(group).items():
            self._weigh(member, waiting, clipping.in_units(member, weights))

    def _weigh(self, position: int, parts: Parts, weights: torch.Tensor) -> None:
        """Keep the weights of one parameter, and sum its contributions if they are written out."""
        self._weights[position] = Weights(weights)
        if any(type(part) is not OuterProduct for _, part in parts):
            self._sums[position] = torch.zeros_like(self._parameters[position], dtype=torch.float64)
            add_parts(parts, weights, self._sums[position])
        self._parts[position] = parts

    def form(self, outer: OuterProduct) -> Contribution:
        """Return the form for contributions that are kept until their group is complete."""
        return cheapest_kept(outer)

    def sums(self, stats: Mapping[str, torch.Tensor]) -> BoundedSums:
        """Return the sums that are formed, and those still to be formed."""
        seen = RecordStats(self._clipping.norms(self.norms.squared), stats)
        return PendingSum(self._parts, self._weights, (seen,), self._sums)


def add_parts(parts: Parts, weights: torch.Tensor, total: torch.Tensor) -> None:
    """Add the weighted sum of one parameter to its total, and drop the contributions."""
    while parts:
        rows, contribution = parts.pop()
        contribution.add_sum(weights, region(total, rows))


@dataclass(frozen=True)
class PendingSum(BoundedSums):
    """Contributions and weights that are summed once there is a place for the sum.

    ``sums`` are formed already.
    """

    parts: list[Parts]
    weights: Sequence[Weights]
    seen: tuple[RecordStats, ...]
    sums: Mapping[int, torch.Tensor] = field(default_factory=dict)
    memory: Workspace = field(default_factory=Workspace)

    def add_to(self, totals: Sequence[torch.Tensor]) -> None:
        """Add one weighted sum per parameter."""
        for position, total in enumerate(totals):
            add_parts(self.parts[position], self.weights[position].exact, total)
            if position in self.sums:
                total += self.sums[position]

    def formed_in(self, totals: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return one weighted sum per parameter; a sum that is a single product is not copied.

        If one of them fails, those before it are zeroed: their memory outlives the step.
        """
        formed: list[torch.Tensor] = []
        try:
            for position, total in enumerate(totals):
                formed.append(self._formed(position, total))
        except BaseException:
            for each in formed:
                set_to_zero(each)
            raise
        return formed

    def _formed(self, position: int, total: torch.Tensor) -> torch.Tensor:
        """Return the sum of one parameter, in its total unless it is a single product."""
        parts, weights = self.parts[position], self.weights[position]
        if position in self.sums:
            total = self.sums[position]
        elif (
            len(parts) == 1
            and parts[0][0] is None
            and (summed := parts[0][1].summed(weights, self.memory)) is not None
        ):
            parts.clear()
            return summed
        else:
            set_to_zero(total)
        add_parts(parts, weights.exact, total)
        return total


@dataclass(frozen=True)
class SumPair(BoundedSums):
    """The sums of two parts of a chunk."""

    one: BoundedSums
    other: BoundedSums

    @property
    def seen(self) -> tuple[RecordStats, ...]:  # type: ignore[override]
        """Norms and statistics of the records of both parts."""
        return self.one.seen + self.other.seen

    def add_to(self, totals: Sequence[torch.Tensor]) -> None:
        """Add both sums."""
        self.one.add_to(totals)
        self.other.add_to(totals)
