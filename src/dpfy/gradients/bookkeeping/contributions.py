"""The contribution of one use of a parameter to its per-record gradients, in several forms.

Every form knows an upper bound of each record's squared norm, and can add the weighted sum over
the records to a total. Where a unit of privacy has several rows, these are folded first: from then
on a unit is a record whose rows count as time steps, so that every norm includes the cross terms
between them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch

from dpfy.gradients.bookkeeping.arithmetic import (
    FLOAT64_ROWS,
    PRODUCT_ROWS,
    PRODUCTS_PER_SUM,
    RECORD_PRODUCTS_PER_SUM,
    RECORD_ROUNDING,
    Weights,
    add_in_float64,
    in_working_precision,
    product_sum,
    record_product_sum,
    rounded_weights,
    row_norms,
    squared_norm_bounds,
    weighted_sum,
)
from dpfy.gradients.bookkeeping.workspace import Workspace

LARGE_WEIGHT = 2**19
"""Numbers of a weight from which on several time steps are summed in float32."""

# records that are added up in the gradients' own precision
_RECORDS_PER_SUM = PRODUCT_ROWS * PRODUCTS_PER_SUM
_GRAM_NUMBERS = 2**22  # inputs and output gradients that are in float64 at the same time
_NOTHING = 2.0**-400  # a norm of zero with its charges for underflow, far below any clip bound


@dataclass(frozen=True)
class NormBounds:
    """Upper bounds of the norms of one contribution, rounding error of its sum included.

    ``magnitude`` is the norm that the terms would have if none of them cancelled, where the sum is
    formed by a product over all records at once; None where every record's own vector is added.
    """

    squared: torch.Tensor
    magnitude: torch.Tensor | None = None


class Contribution(ABC):
    """Per-record gradients of one parameter from one use of it. Sensitive."""

    @abstractmethod
    def norms(self) -> NormBounds:
        """Return upper bounds of the squared norms, one per record, in float64."""

    @abstractmethod
    def add_sum(self, weights: torch.Tensor, total: torch.Tensor) -> None:
        """Add Σ weight·gradient to the float64 ``total``."""

    def summed(self, weights: Weights, memory: Workspace) -> torch.Tensor | None:
        """Return the sum as one tensor in the gradients' precision, or None if it has parts."""
        return None

    @abstractmethod
    def instantiate(self) -> "Materialized":
        """Return the same gradients, written out record by record."""

    @abstractmethod
    def folded(self, rows: int) -> "Contribution":
        """Return the gradients of units of ``rows`` consecutive records: the sums over these."""


@dataclass(frozen=True)
class Materialized(Contribution):
    """One gradient per record, written out; made by :meth:`of`.

    Args:
        gradients: The gradients, [blocks, records, numbers].
        shaped: Gives a sum the parameter's shape.
    """

    gradients: torch.Tensor
    shaped: Callable[[torch.Tensor], torch.Tensor]

    @classmethod
    def of(cls, gradients: torch.Tensor) -> "Materialized":
        """Wrap gradients whose first axis is the records and whose others are the parameter's."""
        shape = gradients.shape[1:]
        return cls(gradients.reshape(1, gradients.shape[0], -1), lambda summed: summed.view(shape))

    def norms(self) -> NormBounds:
        """Return bounds for the very vectors that are added."""
        return NormBounds(sum(squared_norm_bounds(block) for block in self.gradients))  # type: ignore[arg-type]

    def add_sum(self, weights: torch.Tensor, total: torch.Tensor) -> None:
        """Add the weighted records, in one pass over them."""
        gradients = in_working_precision(self.gradients)
        weights = rounded_weights(weights, gradients.dtype)
        for part in zip(
            weights.split(_RECORDS_PER_SUM), gradients.split(_RECORDS_PER_SUM, 1), strict=True
        ):
            add_in_float64(total, self.shaped(weighted_sum(*part)))

    def summed(self, weights: Weights, memory: Workspace) -> torch.Tensor | None:
        """Return the sum if it has few enough products for the gradients' own precision."""
        if len(weights) > _RECORDS_PER_SUM:
            return None
        gradients = in_working_precision(self.gradients)
        return self.shaped(weighted_sum(weights.rounded(gradients.dtype), gradients))

    def instantiate(self) -> "Materialized":
        """Return itself."""
        return self

    def folded(self, rows: int) -> "Materialized":
        """Add up the vectors of each unit; these sums are measured and added."""
        summed = in_working_precision(self.gradients).unflatten(1, (-1, rows)).sum(2)
        return replace(self, gradients=summed)

    def added(self, other: "Materialized") -> "Materialized":
        """Return the sum of two uses, in the parameter's shape since their layouts may differ."""
        return Materialized.of(self._dense() + other._dense())

    def _dense(self) -> torch.Tensor:
        """Return [records, *shape of the parameter]."""
        return torch.stack([self.shaped(gradient) for gradient in self.gradients.unbind(1)])


@dataclass(frozen=True)
class OuterProduct(Contribution):
    """Σ_t b_t ⊗ a_t per record, not written out.

    Norms come from the two Gram matrices over time, in float64: float32 loses all digits where
    time steps cancel.

    Args:
        inputs: The inputs a, [records, time, d].
        outputs: The output gradients b, [records, time, p], for a parameter of the shape [p, d].
        of_large: Whether it is for rows of a large weight; None where it is for all rows.
    """

    inputs: torch.Tensor
    outputs: torch.Tensor
    of_large: bool | None = field(default=None, kw_only=True)

    def norms(self) -> NormBounds:
        """Return products of norms for one time step, and norms from Gram matrices for more."""
        if self.inputs.shape[1] == 1:
            return NormBounds(squared_norm_bounds(self.inputs) * self.output_norms)
        return self.certified(self.gram(), self.magnitude())

    @cached_property
    def output_norms(self) -> torch.Tensor:
        """Upper bounds of the squared norms of the output gradients.

        For one time step these are the norms of the bias's gradients.
        """
        return squared_norm_bounds(self.outputs)

    @property
    def in_float32(self) -> bool:
        """Whether a sum over several time steps is formed in float32, from shapes alone.

        It is for large weights, where float64 would take as long as the rest of the layer. The
        rounding error of a record's own terms is then part of its norm.
        """
        steps, d, p = self.inputs.shape[1], self.inputs.shape[2], self.outputs.shape[2]
        return (
            1 < steps <= PRODUCT_ROWS * PRODUCTS_PER_SUM
            and (d * p >= LARGE_WEIGHT if self.of_large is None else self.of_large)
            and torch.float64 not in (self.inputs.dtype, self.outputs.dtype)
        )

    def gram(self) -> torch.Tensor:
        """Return the squared norms as computed in float64, a few records at a time."""
        steps, d, p = self.inputs.shape[1], self.inputs.shape[2], self.outputs.shape[2]
        records = max(1, _GRAM_NUMBERS // max(1, steps * (d + p)))
        found = []
        for inputs, outputs in zip(
            self.inputs.split(records), self.outputs.split(records), strict=True
        ):
            a, b = inputs.double(), outputs.double()
            found.append((torch.bmm(a, a.mT) * torch.bmm(b, b.mT)).sum((1, 2)))
        return torch.cat(found)

    def magnitude(self) -> torch.Tensor:
        """Return the norms that the sums over time would have if nothing cancelled."""
        return (row_norms(self.inputs) * row_norms(self.outputs)).sum(1)

    def certified(
        self, squared: torch.Tensor, magnitude: torch.Tensor, more_steps: int = 0
    ) -> NormBounds:
        """Add the rounding error of the Gram matrices and that of the record's terms in a sum."""
        steps, d, p = self.inputs.shape[1], self.inputs.shape[2], self.outputs.shape[2]
        lost = (d + p + (steps + more_steps) ** 2 + 8) * 2.0**-52 * magnitude.square()
        rounding = RECORD_ROUNDING if self.in_float32 else (FLOAT64_ROWS + 8) * 2.0**-53
        own = rounding * magnitude + _NOTHING
        return NormBounds(((squared + lost).clamp(min=0).sqrt() + own).square(), magnitude)

    def add_sum(self, weights: torch.Tensor, total: torch.Tensor) -> None:
        """Add products over many records; several time steps may cancel and are apart."""
        if self.inputs.shape[1] != 1:
            self.add_steps(weights, total)
            return
        outputs, inputs = self._only_step()
        weights = rounded_weights(weights, outputs.dtype)
        for some, b, x in zip(
            *(each.split(_RECORDS_PER_SUM) for each in (weights, outputs, inputs)), strict=True
        ):
            add_in_float64(total, product_sum(some, b, x, Workspace()))

    def add_steps(self, weights: torch.Tensor, total: torch.Tensor) -> None:
        """Add what several time steps contribute, in float64 or record by record."""
        if not self.in_float32:
            self.add_sum_in_float64(weights, total)
            return
        for summed in self.record_products(weights, Workspace()):
            add_in_float64(total, summed)

    def summed(self, weights: Weights, memory: Workspace) -> torch.Tensor | None:
        """Return the sum if it has few enough products for the gradients' own precision."""
        if self.inputs.shape[1] != 1:
            return self.summed_steps(weights, memory)
        if len(weights) > _RECORDS_PER_SUM:
            return None
        outputs, inputs = self._only_step()
        return product_sum(weights.rounded(outputs.dtype), outputs, inputs, memory)

    def summed_steps(self, weights: Weights, memory: Workspace) -> torch.Tensor | None:
        """Return what several time steps contribute if it is one sum in float32."""
        if not self.in_float32 or len(weights) > self._records_per_sum:
            return None
        return next(self.record_products(weights.exact, memory))

    @property
    def _records_per_sum(self) -> int:
        """How many records are added up in float32, each in one product or a few."""
        return RECORD_PRODUCTS_PER_SUM // -(-self.inputs.shape[1] // PRODUCT_ROWS)

    def record_products(self, weights: torch.Tensor, memory: Workspace) -> Iterator[torch.Tensor]:
        """Yield sums in float32, for which every record has products of its own."""
        outputs, inputs = in_working_precision(self.outputs), in_working_precision(self.inputs)
        weights = rounded_weights(weights, outputs.dtype)
        for some, b, x in zip(
            *(each.split(self._records_per_sum) for each in (weights, outputs, inputs)),
            strict=True,
        ):
            yield record_product_sum(some, b, x, memory)

    def _only_step(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return output gradients and inputs [records, features] of the single time step."""
        return in_working_precision(self.outputs[:, 0]), in_working_precision(self.inputs[:, 0])

    def add_sum_in_float64(self, weights: torch.Tensor, total: torch.Tensor) -> None:
        """Add products in float64, whose rounding is far below the norm even if terms cancel."""
        records = max(1, FLOAT64_ROWS // max(1, self.inputs.shape[1]))
        for outputs, inputs, weight in zip(
            self.outputs.split(records),
            self.inputs.split(records),
            weights.double().split(records),
            strict=True,
        ):
            weighed = (outputs.double() * weight[:, None, None]).flatten(0, 1)
            for b, x in zip(
                weighed.split(FLOAT64_ROWS),
                inputs.double().flatten(0, 1).split(FLOAT64_ROWS),
                strict=True,
            ):
                total += b.t() @ x

    def instantiate(self, memory: Workspace | None = None) -> Materialized:
        """Write the gradients out, in fresh memory or in some that is used again."""
        b, x = in_working_precision(self.outputs).mT, in_working_precision(self.inputs)
        written = (memory or Workspace()).like(b, len(b), b.shape[1], x.shape[2])
        return Materialized.of(torch.bmm(b, x, out=written))

    def folded(self, rows: int) -> "OuterProduct":
        """Treat the rows of a unit as time steps."""
        return replace(
            self, inputs=as_steps(self.inputs, rows), outputs=as_steps(self.outputs, rows)
        )

    def joined(self, other: "OuterProduct") -> "OuterProduct":
        """Return the sum of two uses of one weight, as more time steps with all cross terms."""
        return OuterProduct(
            torch.cat([self.inputs, other.inputs], 1), torch.cat([self.outputs, other.outputs], 1)
        )


@dataclass(frozen=True)
class BiasOf(Materialized):
    """Gradients of a bias that are a factor of its weight's, so that both are measured once."""

    outer: OuterProduct

    def norms(self) -> NormBounds:
        """Return the norms that the weight needs as well."""
        return NormBounds(self.outer.output_norms)

    def folded(self, rows: int) -> Materialized:
        """Add up the vectors of each unit, which are then measured by themselves."""
        return Materialized(self.gradients, self.shaped).folded(rows)


@dataclass(frozen=True)
class Rematerialized(OuterProduct):
    """An outer product that is written out for a few records at a time, and twice.

    The first time is for the norms, the second for the sum.
    """

    records_at_once: int = 1

    def norms(self) -> NormBounds:
        """Return norms of the very gradients that are written out again for the sum."""
        return NormBounds(torch.cat([block.norms().squared for block in self._blocks()]))

    def add_sum(self, weights: torch.Tensor, total: torch.Tensor) -> None:
        """Write the gradients out again, a few records at a time, and add them."""
        for block, weight in zip(self._blocks(), weights.split(self.records_at_once), strict=True):
            block.add_sum(weight, total)

    def summed(self, weights: Weights, memory: Workspace) -> None:
        """Return None: there is a product for every few records."""
        return

    def _blocks(self) -> Iterator[Materialized]:
        """Yield the gradients of a few records at a time."""
        for inputs, outputs in zip(
            self.inputs.split(self.records_at_once),
            self.outputs.split(self.records_at_once),
            strict=True,
        ):
            yield OuterProduct(inputs, outputs).instantiate()


def as_steps(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    """Return [units, rows·time, …] for [units·rows, time, …]."""
    return tensor.unflatten(0, (-1, rows)).flatten(1, 2)
