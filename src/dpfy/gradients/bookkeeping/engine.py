"""One forward and one backward pass per chunk; norms and sums come from what layers are given.

    forward ─▶ backward (activations only) ─▶ contributions ─▶ norms ─▶ weights ─▶ weighted sums

Z. Bu et al., Differentially Private Optimization on Large Model at Small Cost, 2023. The norms are
certified upper bounds. Records that float32 cannot bound are computed by the loop engine:
docs/proofs/clipping-engines.md.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import product

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from dpfy.gradients.base import (
    BoundedSums,
    Engine,
    Examples,
    LossCall,
    LossFn,
    RecordStats,
    Summed,
    Unsupported,
    per_unit,
    returned_by,
)
from dpfy.gradients.bookkeeping.arithmetic import SUM_ROUNDING
from dpfy.gradients.bookkeeping.capture import (
    CapturedLayer,
    Observation,
    RuleRefused,
    capturing,
    layers_of,
    mixes_rows,
    observe,
    watch,
    with_layouts,
)
from dpfy.gradients.bookkeeping.functional_params import DirectUses, RecordedUses
from dpfy.gradients.bookkeeping.layers.fallback import Layouts
from dpfy.gradients.bookkeeping.layout import Layout
from dpfy.gradients.bookkeeping.live_memory import LiveMemory
from dpfy.gradients.bookkeeping.recorder import Consumer, Parts, Recorder
from dpfy.gradients.bookkeeping.strategies import (
    RAMP_ROUNDING,
    ChunkNorms,
    ClipPass,
    NormPass,
    PerGroupClip,
    StoreThenClip,
    SumPair,
)
from dpfy.gradients.bookkeeping.substitution import substituted
from dpfy.gradients.bookkeeping.together import observed
from dpfy.gradients.bookkeeping.workspace import Workspace
from dpfy.gradients.chunk import Chunk
from dpfy.gradients.loop import LoopEngine
from dpfy.gradients.losses import shown_of_each
from dpfy.gradients.synthetic import extremes, with_row_from
from dpfy.mechanisms.clipping import ClipEach, Clipping
from dpfy.sandbox.rng_isolation import bookmark
from dpfy.sandbox.torch_settings import reproducible

_SIZES = (3, 2)  # records of the passes that are looked into, and of another to learn axes from
_LOSS = "the loss"  # looked at as if it were the last layer
NUMBERS_AT_ONCE = 2**25  # that a chunk keeps for its backward pass and its sums: 128 MB in float32
_NUMBERS_PER_PARAMETER = 2  # that it may keep besides, for the sake of fewer sums
# up to this number of records a chunk may be twice as large: sums and kernels serve all at once
_FEW = 16
_BYTES = 4  # of a number, for most
_LARGEST_RECORD = 2**28  # numbers of a single record that are worth keeping for the sake of time


class CapturingEngine(Engine):
    """Base of engines that take gradients from the inputs and output gradients of layers."""

    isolation = "checked on synthetic input: no record reaches another one's place in any layer"
    isolates = False
    # and what kernels do to gradients in a block of another size
    rounding = SUM_ROUNDING + RAMP_ROUNDING + 2.0**-23

    def __init__(self, model: nn.Module, parameters: dict[str, nn.Parameter]) -> None:
        super().__init__(model, parameters)
        self.layers: list[CapturedLayer] | None = None
        self.numbers_per_record = 0  # that are in memory at the end of a backward pass, at most
        self.recomputes = False  # whether activations are computed again on the way back
        self._uses: list[int] | None = None
        self.memory = Workspace()  # that gradients and sums are written to, step after step
        self._uses_outside: list[Layouts] = []  # of parameters, outside of all layers

    def prepare(self, loss_fn: LossFn, examples: Examples) -> None:
        """Learn from synthetic records where records lie in layers, and how many fit in memory."""
        try:
            self._learn(loss_fn, examples, direct_uses=True)
        except Unsupported:
            self._learn(loss_fn, examples, direct_uses=False)
        # every chunk adds to a sum as long as the model: more records for a large one
        trained = sum(p.numel() for p in self.parameters.values())
        numbers = max(NUMBERS_AT_ONCE, _NUMBERS_PER_PARAMETER * trained)
        room = numbers // self.numbers_per_record
        self.records_at_once = max(1, room, min(_FEW, 2 * numbers // self.numbers_per_record))

    def _learn(self, loss_fn: LossFn, examples: Examples, direct_uses: bool) -> None:
        """Divide the model into layers, and learn where the records are in each.

        With ``direct_uses``, parameters that are used outside of layers are recorded use by use.
        Otherwise the module that owns them is one layer.
        """
        modules = dict(self.model.named_modules())
        if any(module._backward_hooks or module._backward_pre_hooks for module in modules.values()):
            raise Unsupported("hooks see, and may change, the gradients of all records at once")
        loss = CapturedLayer(_LOSS, self.model, None, Layouts([Layout()], ()))
        call = LossCall(self.model, loss_fn)

        def shapes(chunk: Chunk) -> Observation:
            with torch.enable_grad():
                return observe(modules, lambda: call(*chunk.arguments), values=False)

        def passed(chunk: Chunk) -> Observation:
            shown: list[torch.Tensor] = []
            # as in a step: a module may observe only what is differentiated
            with torch.enable_grad():
                seen = observe(
                    {layer.name: layer.module for layer in layers},
                    lambda: shown.append(shown_of_each(call(*chunk.arguments), chunk.size)),
                )
            seen.inputs[_LOSS] = [shown]
            return seen

        def watched(chunk: Chunk) -> Observation:
            uses = DirectUses()
            with torch.no_grad(), self._following(uses):
                return watch(layers, uses, lambda: call(*chunk.arguments))

        fewer = shapes(examples(_SIZES[1], 1))
        layers = layers_of(self.model, self.parameters, set(fewer.inputs), direct_uses)
        few = passed(examples(_SIZES[0], 1))
        layers = [with_layouts(layer, few, fewer, _SIZES) for layer in layers]
        if any(not layer.name and layer.rule is None for layer in layers):
            raise Unsupported("the model as a whole would be vectorised")
        uses = later = Observation({}, {})
        if direct_uses:
            uses = watched(examples(_SIZES[0], 1))
        if uses.inputs:
            later = watched(examples(_SIZES[1], 1))
        places = [
            with_layouts(CapturedLayer(name, self.model, None), uses, later, _SIZES)
            for name in uses.inputs
        ]
        for some, before, look in (([*layers, loss], few, passed), (places, uses, watched)):
            if some:
                _require_apart(some, before, look, examples)
        self.layers, self._uses_outside = layers, [use.layouts for use in places if use.layouts]
        self._try_rules(loss_fn, examples(_SIZES[0], 1), few, fewer)

    def _try_rules(
        self, loss_fn: LossFn, chunk: Chunk, few: Observation, fewer: Observation
    ) -> None:
        """Go through the model once; vectorise layers used in ways their rules do not cover."""
        try:
            self._uses = None
            self.numbers_per_record = self._count_numbers(loss_fn, chunk)
        except RuleRefused as refused:
            if not refused.layer:
                raise
            self.layers = [
                with_layouts(CapturedLayer(layer.name, layer.module, None), few, fewer, _SIZES)
                if layer.name == refused.layer
                else layer
                for layer in self.layers or []
            ]
            try:
                self._try_rules(loss_fn, chunk, few, fewer)
            except RuntimeError:  # torch cannot vectorise it either
                raise refused from None

    def bounded_sums(self, loss_fn: LossFn, chunk: Chunk, clipping: Clipping) -> BoundedSums:
        """Return the clipped sum of the chunk.

        Records that float32 cannot bound are computed one by one.
        """
        if not self.accepts(chunk):
            return self._exact(loss_fn, chunk, clipping)
        try:
            norms, sums = self._sums(loss_fn, chunk, clipping)
        except Unsupported:
            return self._exact(loss_fn, chunk, clipping)
        if sums is not None:
            return (
                self._completed(sums, norms, loss_fn, chunk, clipping)
                if norms.largest_exact > 0
                else sums
            )
        doubtful, others = norms.doubtful, ~norms.doubtful
        exact = self._exact(loss_fn, chunk.chosen(doubtful), clipping.chosen(doubtful))
        if bool(doubtful.all()):
            return exact
        rest = self.bounded_sums(loss_fn, chunk.chosen(others), clipping.chosen(others))
        return SumPair(rest, exact)

    @abstractmethod
    def _sums(
        self, loss_fn: LossFn, chunk: Chunk, clipping: Clipping
    ) -> tuple[ChunkNorms, BoundedSums | None]:
        """Return the norms, and the sums of what is not done exactly unless a norm is in doubt."""

    def _completed(
        self,
        sums: BoundedSums,
        norms: ChunkNorms,
        loss_fn: LossFn,
        chunk: Chunk,
        clipping: Clipping,
    ) -> BoundedSums:
        """Add to the sums the part of each record that is done exactly."""
        totals, seen = self._zeros(), sums.seen[0].norms
        for position in norms.exact.nonzero().flatten().tolist():
            part, exact = (
                float(norms.exact[position]),
                self._exact(loss_fn, chunk.record(position), clipping.of_record(position)),
            )
            for total, gradient in zip(totals, exact.gradients, strict=True):
                total.add_(gradient, alpha=part)
            seen[position].lerp_(exact.seen[0].norms[0], part)
        return SumPair(sums, Summed(totals))

    def _exact(self, loss_fn: LossFn, chunk: Chunk, clipping: Clipping) -> Summed:
        """Return the sum that the loop engine computes."""
        return LoopEngine(self.model, self.parameters).bounded_sums(loss_fn, chunk, clipping)

    def _pass(self, loss_fn: LossFn, chunk: Chunk, consumer: Consumer) -> Recorder:
        """Go forward and back once, and hand the consumer what every layer contributes."""
        if self.layers is None:
            raise Unsupported("the engine was not prepared")
        recorder = Recorder(
            len(self.parameters),
            chunk.size * chunk.rows,
            consumer,
            self._uses,
            chunk.rows,
            self.memory,
        )
        uses = RecordedUses(recorder, self._uses_outside)
        forth = bool(self._uses_outside)
        back = forth and (self.recomputes or self._uses is None)
        with (
            self._computing(recorder, uses),
            capturing(self.layers, recorder, uses),
            torch.enable_grad(),
        ):
            with uses if forth else nullcontext():  # records what is used outside of layers
                returned = returned_by(self.model, loss_fn, chunk.arguments)
            losses, recorder.stats = per_unit(returned, chunk)
            recorder.goes_back = True
            # inside of both: activation checkpointing computes parts of the forward pass again
            with uses if back else nullcontext():
                torch.autograd.grad(losses.sum(), recorder.anchor, allow_unused=True)
        recorder.finish()
        return recorder

    @contextmanager
    def _computing(self, recorder: Recorder, uses: RecordedUses) -> Iterator[None]:
        """Compute with parameters that are off the graph, which the recorder knows."""
        trained = {name: parameter.detach() for name, parameter in self.parameters.items()}
        for slot, tensor in enumerate(trained.values()):
            recorder.bind(tensor, slot)
            uses.follow(tensor)
        with substituted(self.model, self.parameters, trained):
            yield

    def _following(self, uses: DirectUses) -> AbstractContextManager[None]:
        """Let uses of the trained parameters be seen inside the block."""
        for parameter in self.parameters.values():
            uses.follow(parameter)
        return nullcontext()

    def _zeros(self) -> list[torch.Tensor]:
        """Return a float64 zero for each trained parameter."""
        return [
            torch.zeros_like(parameter, dtype=torch.float64)
            for parameter in self.parameters.values()
        ]

    def _count_numbers(self, loss_fn: LossFn, chunk: Chunk) -> int:
        """Return how many numbers a record keeps in memory; learn the uses of each parameter."""
        saved: dict[int, int] = {}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if not self._is_gathered(storage):
                numbers = storage.nbytes() // tensor.element_size()
                saved[storage._cdata] = min(tensor.numel(), numbers)
            return tensor

        consumer = self._keeping(chunk.size)
        with saved_tensors_hooks(pack, lambda tensor: tensor):
            recorder = self._pass(loss_fn, chunk, consumer)
        self._uses, self.recomputes = recorder.uses, recorder.recomputes
        for parameter in self.parameters.values():
            saved.pop(parameter.untyped_storage()._cdata, None)
        found = (sum(saved.values()) + self._kept(consumer.parts)) // chunk.size
        return max(1, found, self._peak(loss_fn, chunk) if self.recomputes else 0)

    def _keeping(self, records: int) -> StoreThenClip:
        """Return a consumer that keeps contributions until the weights are known."""
        return StoreThenClip(len(self.parameters), records, self.device)

    def _is_gathered(self, storage: torch.UntypedStorage) -> bool:
        """Whether memory is that of a parameter which is gathered for a pass."""
        return False

    def _peak(self, loss_fn: LossFn, chunk: Chunk) -> int:
        """Return how many numbers a record has in memory at most, what is recomputed included."""
        with LiveMemory() as live:
            self._pass(loss_fn, chunk, self._measuring(chunk.size))
        return live.peak // _BYTES // chunk.size

    @abstractmethod
    def _measuring(self, records: int) -> Consumer:
        """Return the consumer of the first pass of a step."""

    def _kept(self, parts: list[Parts]) -> int:
        """Return how many numbers of the contributions are kept until the weights are known."""
        return sum(
            tensor.numel()
            for by_rows in parts
            for _, part in by_rows
            for tensor in vars(part).values()
            if isinstance(tensor, torch.Tensor)
        )


def _require_apart(
    layers: list[CapturedLayer],
    before: Observation,
    look: Callable[[Chunk], Observation],
    examples: Examples,
) -> None:
    """Refuse a model in which changing one record changes what layers see of another record."""
    base, last = examples(_SIZES[0], 1), _SIZES[0] - 1
    changes = [*product((examples(_SIZES[0], 2), *extremes(base)), (0, last))]
    chunks = [with_row_from(base, other, position) for other, position in changes]
    before, found = observed(look, base, before, chunks)
    for (_, position), after in zip(changes, found, strict=True):
        if after is not None and any(
            mixes_rows(layer, before, after, position, _SIZES[0]) for layer in layers
        ):
            raise Unsupported(
                "a layer or the loss mixes records, or has them in an order of their own"
            )


class BookkeepingEngine(CapturingEngine):
    """One pass that keeps each layer's input and output gradient until the weights are known.

    Where it is cheaper, per-record gradients are kept instead. Where every group of parameters has
    a bound of its own, each group is clipped and summed as soon as it is complete.

    Args:
        model: The user's module.
        parameters: The trained parameters by name.
    """

    name = "bookkeeping"

    def prepare(self, loss_fn: LossFn, examples: Examples) -> None:
        """Prepare as other engines of this kind, and refuse records that are too large to keep."""
        super().prepare(loss_fn, examples)
        if self.numbers_per_record > _LARGEST_RECORD:
            raise Unsupported("a record's activations and gradients are too large to keep")

    @property
    def defeats_checkpointing(self) -> bool:
        """Whether only a few records fit into memory though activations are computed again."""
        return self.recomputes and (self.records_at_once or _FEW) < _FEW

    def _measuring(self, records: int) -> Consumer:
        return StoreThenClip(len(self.parameters), records, self.device)

    def _sums(
        self, loss_fn: LossFn, chunk: Chunk, clipping: Clipping
    ) -> tuple[ChunkNorms, BoundedSums | None]:
        several = isinstance(clipping.weigh, ClipEach) and len(clipping.weigh.bounds) > 1
        if several and not clipping.factors:
            each = PerGroupClip(list(self.parameters.values()), clipping, chunk.size)
            stats = self._pass(loss_fn, chunk, each).stats
            if each.norms.largest_exact == 0:
                return each.norms, each.sums(stats)
        kept = StoreThenClip(len(self.parameters), chunk.size, self.device, self.memory)
        stats = self._pass(loss_fn, chunk, kept).stats
        return kept.norms, None if kept.norms.largest_exact == 1 else kept.sums(clipping, stats)


class GhostEngine(CapturingEngine):
    """Two passes that keep only norms: the first measures records, the second weighs them.

    Both passes draw the same dropout masks. On a device both have to give the same bits, too, and a
    model with a kernel that cannot is refused.

    Args:
        model: The user's module.
        parameters: The trained parameters by name.
    """

    name = "ghost"

    def prepare(self, loss_fn: LossFn, examples: Examples) -> None:
        """Prepare as other engines of this kind, with kernels that give the same bits again."""
        with self._repeatable():
            super().prepare(loss_fn, examples)

    def _repeatable(self) -> AbstractContextManager[None]:
        return nullcontext() if self.device.type == "cpu" else reproducible()

    def _sums(
        self, loss_fn: LossFn, chunk: Chunk, clipping: Clipping
    ) -> tuple[ChunkNorms, BoundedSums | None]:
        measuring = NormPass(len(self.parameters), chunk.size, self.device)
        rewind = bookmark()
        with self._repeatable():
            stats = self._pass(loss_fn, chunk, measuring).stats
            if measuring.norms.largest_exact == 1:
                return measuring.norms, None
            rewind()
            totals, norms = self._zeros(), clipping.norms(measuring.norms.squared)
            self._pass(loss_fn, chunk, ClipPass(totals, measuring.norms.weights(clipping, norms)))
        return measuring.norms, Summed(totals, RecordStats(norms, stats))

    def _measuring(self, records: int) -> Consumer:
        return NormPass(len(self.parameters), records, self.device)

    def _kept(self, parts: list[Parts]) -> int:
        return 0
