"""One forward and one backward pass for a whole chunk; norms and sums from what each layer saw.

    forward ─▶ backward (activations only) ─▶ contributions ─▶ norms ─▶ weights ─▶ one weighed sum per parameter

Z. Bu et al., Differentially Private Optimization on Large Model at Small Cost, 2023. The norms are certified and what
float32 cannot bound is done exactly: docs/proofs/clipping-engines.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call

from dpfy.mechanisms.clipping import Clipping
from dpfy.training.chunk import Chunk
from dpfy.training.engines.base import BoundedSums, Engine, Examples, LossCall, LossFn, Unsupported
from dpfy.training.engines.bookkeeping.capture import Unit, capturing, mixes_rows, observe, units_of, with_layouts
from dpfy.training.engines.bookkeeping.contributions import Contribution
from dpfy.training.engines.bookkeeping.tape import Span, Tape, region
from dpfy.training.engines.loop import LoopEngine
from dpfy.training.losses import per_example
from dpfy.training.synthetic import with_row_from

_CANCELLATION = 64.0  # terms whose norms add up to more than this many times the norm of their sum are done exactly
_SIZES = (3, 5)
_NUMBERS_AT_ONCE = 2**25  # that a chunk keeps for its backward pass and its sums: 128 MB in float32

Parts = list[list[tuple[Span, Contribution]]]


class BookkeepingEngine(Engine):
    """Keeps each layer's input and output gradient, or the gradients themselves where that is cheaper."""

    name = "bookkeeping"
    isolation = "checked on synthetic input: no record reaches another one's place in any layer"
    isolates = False
    rounding = 2.0**-20

    def __init__(self, model: nn.Module, parameters: dict[str, nn.Parameter]) -> None:
        super().__init__(model, parameters)
        self.units: list[Unit] | None = None

    def prepare(self, loss_fn: LossFn, examples: Examples) -> None:
        """Learn where the records are in every layer, and how many of them fit into memory, on synthetic records."""
        modules = dict(self.model.named_modules())

        def passed(chunk: Chunk):  # type: ignore[no-untyped-def]
            with torch.no_grad():
                return observe(modules, lambda: loss_fn(*chunk.arguments))

        few, many = (passed(examples(size, 1)) for size in _SIZES)
        units = [with_layouts(unit, few, many, _SIZES)
                 for unit in units_of(self.model, self.parameters, set(few.inputs))]
        if any(not unit.name and unit.rule is None for unit in units):
            raise Unsupported("the model as a whole would be vectorised")
        for position in range(_SIZES[0]):
            changed = passed(with_row_from(examples(_SIZES[0], 1), examples(_SIZES[0], 2), position))
            if any(mixes_rows(unit, few, changed, position, _SIZES[0]) for unit in units):
                raise Unsupported("a layer has records in an order of their own")
        self.units = units
        self.records_at_once = max(1, _NUMBERS_AT_ONCE // self._numbers_per_record(loss_fn, examples(_SIZES[0], 1)))

    def bounded_sums(self, loss_fn: LossFn, chunk: Chunk, clipping: Clipping) -> BoundedSums:
        """Return the clipped sum of the chunk; records that float32 cannot bound are done one by one."""
        try:
            parts = self._contributions(loss_fn, chunk)
        except Unsupported:
            return self._exact(loss_fn, chunk, clipping)
        squared, doubtful = _norms(parts, chunk.size)
        if bool(doubtful.any()):
            del parts
            exact = self._exact(loss_fn, chunk.chosen(doubtful), clipping)
            if bool(doubtful.all()):
                return exact
            return _Both(self.bounded_sums(loss_fn, chunk.chosen(~doubtful), clipping), exact)
        return _Weighed(parts, clipping.weights(squared))

    def _exact(self, loss_fn: LossFn, chunk: Chunk, clipping: Clipping) -> BoundedSums:
        return LoopEngine(self.model, self.parameters).bounded_sums(loss_fn, chunk, clipping)

    def _contributions(self, loss_fn: LossFn, chunk: Chunk) -> Parts:
        """Return what every layer contributes, after one pass forward and one back."""
        if self.units is None:
            raise Unsupported("the engine was not prepared")
        trained = {name: parameter.detach() for name, parameter in self.parameters.items()}
        buffers = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        state = {f"model.{name}": tensor for name, tensor in (trained | buffers).items()}
        tape = Tape(trained, chunk.size)
        with capturing(self.units, tape), torch.enable_grad():
            returned = functional_call(LossCall(self.model, loss_fn), state, chunk.arguments)
            torch.autograd.grad(per_example(returned, chunk.size).sum(), tape.anchor, allow_unused=True)
        return tape.contributions()

    def _numbers_per_record(self, loss_fn: LossFn, chunk: Chunk) -> int:
        """How many numbers a record keeps in memory at the end of the backward pass, at most."""
        saved: dict[int, int] = {}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            saved[storage.data_ptr()] = storage.nbytes() // tensor.element_size()
            return tensor

        with saved_tensors_hooks(pack, lambda tensor: tensor):
            parts = self._contributions(loss_fn, chunk)
        for parameter in self.parameters.values():
            saved.pop(parameter.untyped_storage().data_ptr(), None)
        kept = sum(tensor.numel() for by_rows in parts for _, part in by_rows for tensor in vars(part).values()
                   if isinstance(tensor, torch.Tensor))
        return max(1, (sum(saved.values()) + kept) // chunk.size)


def _norms(parts: Parts, records: int) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Return bounds of the squared norms for each parameter, and which records have to be done exactly."""
    squared, doubtful = [], torch.zeros(records, dtype=torch.bool)
    for by_rows in parts:
        total = torch.zeros(records, dtype=torch.float64)
        for _, contribution in by_rows:
            norms = contribution.norms()
            total += norms.squared
            if norms.magnitude is not None:
                doubtful |= norms.magnitude > _CANCELLATION * norms.squared.sqrt()
        doubtful |= ~total.isfinite()
        squared.append(total)
    return squared, doubtful


@dataclass(frozen=True)
class _Weighed(BoundedSums):
    """Contributions and their weights, summed when there is a place for the sum."""

    parts: Parts
    weights: Sequence[torch.Tensor]

    def add_to(self, totals: Sequence[torch.Tensor]) -> None:
        """Add one weighed sum per parameter, and let go of what it was made from."""
        for total, by_rows, weights in zip(totals, self.parts, self.weights, strict=True):
            while by_rows:
                rows, contribution = by_rows.pop()
                contribution.add_sum(weights, region(total, rows))


@dataclass(frozen=True)
class _Both(BoundedSums):
    one: BoundedSums
    other: BoundedSums

    def add_to(self, totals: Sequence[torch.Tensor]) -> None:
        self.one.add_to(totals)
        self.other.add_to(totals)
