"""Lay out the one vector that a step sums up and adds noise to.

It has a piece for every trained parameter and for every statistic.

Tests: tests/run/test_queries.py, tests/run/test_ties.py.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import is_

import torch
from torch import nn

from dpfy.errors import InvalidArgument
from dpfy.gradients.base import Engine, LossFn, RecordStats
from dpfy.gradients.chunk import Chunk
from dpfy.mechanisms.clipping import ClipEach, Clipping
from dpfy.mechanisms.controllers import Coordinates, StepConfig
from dpfy.mechanisms.controllers.base import by_name
from dpfy.mechanisms.query import ClippedSum, NormalisedSum, NormOfSum, Query, Statistic
from dpfy.mechanisms.statistics import bounded_sum
from dpfy.run.released import Released

_LARGEST_NORM = (
    4.0  # of a sum, in clip bounds times the divisor: public, so that its rounding is known
)
_REHEARSED = 2.0**-40  # the lattice of a rehearsal, whose sums nobody sees


@dataclass(frozen=True)
class ReleaseLayout:
    """Say where each sum of a step is in its vector, and in which units.

    Args:
        query: the sums that the step releases, in their present bounds.
        parameters: the trained parameters, by name: of a sharded model this process's rows.
        statistics: the statistics that are due.
        coordinates: coordinates of their own in which gradients are bounded, by parameter name.
    """

    query: Query
    parameters: Mapping[str, torch.Tensor]
    statistics: tuple[Statistic, ...]
    coordinates: Mapping[str, Coordinates] = field(default_factory=dict)

    @classmethod
    def of_step(
        cls, step: int, config: StepConfig, parameters: Mapping[str, torch.Tensor]
    ) -> "ReleaseLayout":
        """Return the layout of a step, counted from 1, that trains ``parameters``."""
        return cls(config.query, parameters, config.query.due(step), config.coordinates)

    def serves(self, other: "ReleaseLayout") -> bool:
        """Whether it is as good as another one: the same query on the very same parameters.

        Coordinates, which change with every release, are not compared.
        """
        return (
            not (self.coordinates or other.coordinates)
            and self.query == other.query
            and self.statistics == other.statistics
            and [*self.parameters] == [*other.parameters]
            and all(map(is_, self.parameters.values(), other.parameters.values()))
        )

    @cached_property
    def sizes(self) -> list[int]:
        """How many numbers each piece has: gradients first, then statistics."""
        return [
            *(p.numel() for p in self.parameters.values()),
            *(each.size for each in self.statistics),
        ]

    @cached_property
    def numbers(self) -> int:
        """How many numbers the gradients have."""
        return sum(p.numel() for p in self.parameters.values())

    def split(self, vector: torch.Tensor) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Return views of the vector: gradients in the parameters' shapes, and flat statistics."""
        views = vector.split(self.sizes)
        count = len(self.parameters)
        return [
            view.view(p.shape) for view, p in zip(views, self.parameters.values(), strict=False)
        ], list(views[count:])

    @cached_property
    def size(self) -> int:
        """The length of the vector."""
        return sum(self.sizes)

    @cached_property
    def _clipping(self) -> Clipping:
        """The clipping of the step on a lattice of step 1: the same on every other."""
        leaves = self.query.leaves
        chosen = [leaf_of(name, leaves) for name in self.parameters]
        scales = tuple(
            leaves[group].scale_of(name)
            for name, group in zip(self.parameters, chosen, strict=True)
        )
        sum_scales = tuple(
            scale * self.query.sum_scale(leaves[group])
            for scale, group in zip(scales, chosen, strict=True)
        )
        gammas = tuple(leaf.gamma if isinstance(leaf, NormalisedSum) else 0.0 for leaf in leaves)
        weigh = ClipEach(tuple(leaf.bound for leaf in leaves), gammas if any(gammas) else ())
        return Clipping(
            weigh,
            1.0,
            tuple(chosen),
            scales if set(scales) != {1.0} else (),
            sum_scales,
            tuple(self.coordinates[name] for name in self.parameters) if self.coordinates else (),
        )

    def clipping(self, grid: float) -> Clipping:
        """Return how records are bounded and in which units their gradients are summed."""
        if grid not in self._clippings:
            self._clippings[grid] = replace(self._clipping, grid=grid)
        return self._clippings[grid]

    @cached_property
    def _clippings(self) -> dict[float, Clipping]:
        """The clipping on each lattice that was asked for."""
        return {}

    def add_statistics(self, seen: Sequence[RecordStats], totals: Sequence[torch.Tensor]) -> None:
        """Add what the records that were seen contribute to the statistics."""
        names = [leaf.name for leaf in self.query.leaves]
        for statistic, total in zip(self.statistics, totals, strict=True):
            for records in seen:
                total += bounded_sum(
                    statistic, records.stats, records.norms, names, self.query.sum_scale(statistic)
                ).to(total.device)

    @property
    def completes(self) -> bool:
        """Whether the query needs whole sums: a division by the sample size, or their norm."""
        return self.query.least_sample is not None or any(
            isinstance(each, NormOfSum) for each in self.statistics
        )

    def complete(
        self,
        vector: torch.Tensor,
        records: int,
        divisor: float,
        norm_of: Callable[[torch.Tensor], float] = lambda sums: float(
            torch.linalg.vector_norm(sums)
        ),
    ) -> None:
        """Divide the sums by the size of the sample, or take their norm, as the query asks.

        Args:
            vector: the sums.
            records: the size of the sample.
            divisor: the public divisor.
            norm_of: what takes the norm of the gradients' sums, of which others may have a part.
        """
        gradients, statistics = self.split(vector)
        least = self.query.least_sample
        if least is not None and records > least:
            for gradient in gradients:
                gradient *= least / records
        for each, total in zip(self.statistics, statistics, strict=True):
            if isinstance(
                each, NormOfSum
            ):  # the gradients are in units of their bound over the root of their share
                norm = norm_of(vector[: sum(map(torch.numel, gradients))])
                bounds = norm / math.sqrt(self.query.noise_share(self.query.leaves[0]))
                total.fill_(min(bounds, _LARGEST_NORM * divisor) / self.query.sum_scale(each))

    def norm_rounding(self, divisor: float, numbers: int) -> float:
        """Return by how much float64 rounding may move the norm of a sum in two neighbours.

        Adding d squares and taking the root has a relative error of at most (d + 2)·2⁻⁵³, and the
        norm is limited. It is zero if no norm is released.

        Args:
            divisor: the public divisor.
            numbers: the coordinates of the sums of all processes.
        """
        if not any(isinstance(each, NormOfSum) for each in self.statistics):
            return 0.0
        return 2 * _LARGEST_NORM * divisor * (numbers + 2) * 2.0**-53

    def factors(self, divisor: float) -> list[float]:
        """Return what every noised sum is multiplied by: its unit over the public divisor."""
        return [
            scale / divisor
            for scale in (
                *self._clipping.sum_scales,
                *map(self.query.sum_scale, self.statistics),
            )
        ]

    def outputs(self, sums: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return memory for every released piece: of the parameter's type, or float64.

        A sum in the type of its parameter is overwritten by what is released, so that nothing of it
        is left in memory.
        """
        parameters, shapes = self.parameters.values(), [each.shape for each in self.statistics]
        device = next(iter(parameters)).device
        dtype = torch.float64 if self.coordinates else None
        return [
            *(
                _place(total, p.shape, dtype or p.dtype, p.device)
                for total, p in zip(sums, parameters, strict=False)
            ),
            *(torch.empty(shape, dtype=torch.float64, device=device) for shape in shapes),
        ]

    def released(
        self, outputs: Sequence[torch.Tensor], step: int, noise_multiplier: float, stddev: float
    ) -> Released:
        """Return what leaves the step, in the user's units.

        Args:
            outputs: the noisy pieces, as :meth:`outputs` has room for.
            step: the step of the plan, counted from 1.
            noise_multiplier: the noise multiplier of the step.
            stddev: the noise of the vector over the divisor.

        Returns:
            Gradients and statistics by name, and what they were released with.
        """
        gradients = {
            name: _outside(output, p, self.coordinates.get(name))
            for (name, p), output in zip(self.parameters.items(), outputs, strict=False)
        }
        rest = outputs[len(self.parameters) :]
        statistics = {each.name: output for each, output in zip(self.statistics, rest, strict=True)}
        bounds = by_name(self.query.leaves)
        return Released(gradients, step, statistics, noise_multiplier, bounds, self.stddevs(stddev))

    def stddevs(self, noise: float) -> dict[str, float | torch.Tensor]:
        """Return the noise of every gradient, given that of the vector over the divisor."""
        sum_scales = self._clipping.sum_scales
        return {
            name: noise * scale * (self.coordinates[name].scale if self.coordinates else 1.0)
            for name, scale in zip(self.parameters, sum_scales, strict=True)
        }


def rehearse(engine: Engine, loss_fn: LossFn, made_up: Chunk, pieces: ReleaseLayout) -> None:
    """Clip synthetic records as the plan says.

    What fails for every record would pass for silence in a step.
    """
    seen = engine.bounded_sums(loss_fn, made_up, pieces.clipping(_REHEARSED)).seen
    sums = [torch.zeros(each.size, dtype=torch.float64) for each in pieces.statistics]
    pieces.add_statistics(seen, sums)


def leaf_of(parameter: str, leaves: Sequence[ClippedSum]) -> int:
    """Return the index of the clipped sum that has a parameter, by name or as the rest."""
    for number, leaf in enumerate(leaves):
        if parameter in leaf.parameters:
            return number
    for number, leaf in enumerate(leaves):
        if not leaf.parameters:
            return number
    raise InvalidArgument(
        f"The trainable parameter {parameter!r} is in none of the plan's clipped sums. Make the "
        "groups from this model, freeze the parameter, or add a sum without parameters for the "
        "rest."
    )


def check_leaves(
    query: Query, parameters: Mapping[str, nn.Parameter], everything: Mapping[str, nn.Parameter]
) -> None:
    """Raise unless clipped sums and trained parameters fit each other."""
    for name in parameters:
        leaf_of(name, query.leaves)
    unknown = next(
        (name for leaf in query.leaves for name in leaf.parameters if name not in everything), None
    )
    if unknown is not None:
        raise InvalidArgument(
            f"The plan's clipped sums name the parameter {unknown!r}, which the model does not "
            "have. Make the groups from this model."
        )


def _place(
    total: torch.Tensor, shape: torch.Size, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Return the sum's own memory, or fresh memory.

    Never that of a float64 sum, whose vector is used again in the next step.
    """
    if (
        dtype == total.dtype == torch.float32
        and total.shape == shape
        and total.is_contiguous()
        and total.device == device
    ):
        return total.detach()
    return torch.empty(shape, dtype=dtype, device=device)


def _outside(
    output: torch.Tensor, parameter: torch.Tensor, coordinates: Coordinates | None
) -> torch.Tensor:
    """Return a released sum as a gradient of the parameter."""
    if coordinates is None:
        return output
    return (output * coordinates.scale + coordinates.offset).to(parameter.device, parameter.dtype)
