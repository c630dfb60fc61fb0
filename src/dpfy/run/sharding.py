"""Keep what a run knows of a sharded model: its rows, its whole parameters, the way of its sums.

Tests: tests/run/test_sharding.py.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn

from dpfy.errors import InvalidArgument, RankFailed
from dpfy.gradients.sharded.exchange import Exchange
from dpfy.gradients.sharded.gather import LOST, Gathering
from dpfy.gradients.sharded.rows import Owned, Shards, like, totals
from dpfy.ledger.individual import FilteredPoisson
from dpfy.mechanisms.gaussian_sum import GaussianSum
from dpfy.plans.plan import Plan
from dpfy.run.release_layout import ReleaseLayout
from dpfy.run.released import Released

if TYPE_CHECKING:
    from dpfy.run.context import StepContext


class Division:
    """The division of one model among the processes of a run.

    Args:
        model: The model, on whose modules ``fully_shard`` was called.
        shards: Which rows this process owns.
    """

    def __init__(self, model: nn.Module, shards: Shards) -> None:
        self.shards = shards
        self.gathering = Gathering(model, shards)
        self._rows: dict[tuple[str, ...], dict[str, torch.Tensor]] = {}
        self._exchanges: dict[tuple[str, ...], Exchange] = {}

    @classmethod
    def of(cls, model: nn.Module) -> "Division | None":
        """Return how a model is divided; None for one that every process has as a whole."""
        shards = Shards.of(model)
        return None if shards is None else cls(model, shards)

    def rows_of(self, parameters: Mapping[str, nn.Parameter]) -> Mapping[str, torch.Tensor]:
        """Return the rows of this process, by name: the same tensors for the same names."""
        names = tuple(parameters)
        if names not in self._rows:
            self._rows[names] = {
                name: each.local for name, each in zip(names, self._owned(parameters), strict=True)
            }
        return self._rows[names]

    def exchange_of(self, parameters: Mapping[str, nn.Parameter]) -> Exchange:
        """Return the way of the sums of some parameters to their owners."""
        names = tuple(parameters)
        if names not in self._exchanges:
            self._exchanges[names] = Exchange(self.shards, self._owned(parameters))
        return self._exchanges[names]

    def _owned(self, parameters: Mapping[str, nn.Parameter]) -> list[Owned]:
        return self.shards.of_trained(parameters.values())

    def begin_noise(
        self, context: "StepContext", mechanism: GaussianSum, layout: ReleaseLayout
    ) -> None:
        """Begin to draw the noise of the rows that this process releases."""
        if self.shards.releases:
            size = layout.size if context.ranks.first else layout.numbers
            context.noise.prefetch(size, mechanism.stddev, mechanism.grid)

    def add_replicas(self, sums: torch.Tensor) -> None:
        """Add the sums of the processes that have the same rows, in float64, on all of them."""
        if self.shards.replicas is not None:
            self._message(lambda: dist.all_reduce(sums, group=self.shards.replicas))

    def from_first_replica(self, tensors: Sequence[torch.Tensor]) -> None:
        """Overwrite tensors with those of the first process that has the same rows."""
        group = self.shards.replicas
        if group is not None:
            for tensor in tensors:
                self._message(partial(dist.broadcast, tensor, group=group, group_src=0))

    def norm_of(self, sums: torch.Tensor) -> float:
        """Return the norm of a vector of which every owner has a part."""
        (squared,) = totals([float(sums.square().sum())], self.shards.group)
        return math.sqrt(squared)

    def share(self, model: nn.Module) -> None:
        """Give replicas the same rows."""
        parameters = [p for p in model.parameters() if id(p) in self.shards.owned]
        self.from_first_replica([each.local for each in self.shards.of_trained(parameters)])

    @staticmethod
    def as_parameters(released: Released, parameters: Mapping[str, nn.Parameter]) -> Released:
        """Return released rows as gradients that are divided as their parameters are."""
        gradients = {
            name: like(parameters[name], rows) for name, rows in released.gradients.items()
        }
        return replace(released, gradients=gradients)

    @staticmethod
    def _message(send: "Callable[[], object]") -> None:
        try:
            send()
        except RuntimeError as error:
            raise RankFailed(LOST) from error


def check_plan(plan: Plan, engine: str) -> None:
    """Refuse what has no proof for sharded models.

    Raises:
        InvalidArgument: If the plan or the engine needs more of a record than one pass shows.
    """
    reason = ""
    if plan.query.slots is not None:
        reason = "microbatches"
    elif isinstance(plan.sampling, FilteredPoisson):
        reason = "individual filters"
    elif hasattr(plan.sampling, "bounds_at"):
        reason = "importance sampling"
    elif any(each.controls == "coordinates" for each in plan.controllers):
        reason = "AdaClip"
    if reason:
        raise InvalidArgument(
            f"A sharded model is trained by book-keeping, which does not serve {reason}. Use "
            "another plan, or a model that every process has as a whole."
        )
    if engine not in ("auto", "bookkeeping"):
        raise InvalidArgument(
            f"Engine {engine!r} needs the whole model in every process. Use engine='bookkeeping' "
            "for a sharded one."
        )
