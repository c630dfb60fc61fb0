"""The isolation probe: one example must not influence another one's loss, now or at a later step.

It runs on synthetic input of the public shape, so whatever it says is about the model and never
about a record.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any

import torch
from torch import nn

from dpfy.checks.collation import check_collation
from dpfy.checks.culprits import first_moved, first_unlike_alone, outputs_of, refusal
from dpfy.checks.dataflow import Draws, Mixed, check_dataflow
from dpfy.checks.forward import Forward
from dpfy.checks.loss_state import Reader, Readings, changed
from dpfy.checks.places import at, stopped_at
from dpfy.checks.preconditions import check_layers, check_statistics, without_scalers
from dpfy.checks.tolerance import are_equal, are_equal_sums, squared_norm
from dpfy.checks.undisturbed import undisturbed, without_dropout
from dpfy.checks.vmap_check import alone_at_once, refuses_tracing, traceable_recurrence
from dpfy.errors import IsolationError, LossError
from dpfy.gradients import ENGINES, Engine, LoopEngine
from dpfy.gradients.base import LossCall, LossFn, Originals
from dpfy.gradients.chunk import Chunk
from dpfy.gradients.losses import per_example, shown_of_each, statistics_of
from dpfy.gradients.synthetic import extremes, synthetic, with_row_from
from dpfy.mechanisms.clipping import Clipping, clip_to
from dpfy.mechanisms.query import Statistic
from dpfy.sandbox.dropout import are_covered, covered_masks
from dpfy.sandbox.output import suppress_output
from dpfy.sandbox.rng_isolation import GeneratorUse, fix_seed, watched_generators
from dpfy.sandbox.torch_settings import certified

__all__ = ["Probe", "check_collation"]

_SIZES = (2, 3, 5)
_SCALES = (1.0, 1.0 / 16)
_SEED = 20181216
_GRID = 2.0**-40
_FACTORS = (2.0**12, 2.0**8, 2.0**16)  # of losses; powers of two, which change no digit
# the precision to which records in chunks of very different sizes agree, statistics included
_COARSE = 2.0**-12
_MANY = 33  # records, more than code that looks at the size of a batch is likely to call few
_REMEDY = (
    "What is to be known of the records is released as a statistic: dpfy.Losses(loss, stats={...})."
)


@dataclass(frozen=True)
class Probe:
    """The judge of one model and one loss function, on synthetic input.

    Args:
        model: The user's module.
        parameters: The trained parameters by name.
        loss_fn: The user's loss function.
        example: A chunk of the public shape of the records.
        declared: Whether the values of ``example`` are valid and public, not its shape alone.
        statistics: The statistics that the plan releases.
        engines: The engines to choose from, in the order of preference.
    """

    model: nn.Module
    parameters: dict[str, nn.Parameter]
    loss_fn: LossFn
    example: Chunk
    declared: bool
    statistics: tuple[Statistic, ...] = ()
    engines: Mapping[str, type[Engine]] = field(default_factory=lambda: ENGINES)
    _compared: list[int] = field(default_factory=list, init=False, repr=False, compare=False)

    def choose(self, engine: str, isolating: bool = False) -> Engine:
        """Return the engine to use, after every check has passed.

        With ``isolating``, the engine must be one that isolates records by construction.

        Raises:
            IsolationError: The model or the loss mixes records, keeps or prints what it sees, or
                no engine
                serves it.
            LossError: The loss fails on synthetic input or returns something else than expected.
        """
        check_layers(self.model)
        with certified(), undisturbed(self.model) as written:
            with suppress_output() as output:
                doors = _SideDoors(self)
                bases = self._base_losses(doors)
                if not self._are_consistent(bases):
                    self._check_neighbours()
                self._check_memory(bases)
            if output.written:
                raise IsolationError(
                    "loss_fn or the model writes to stdout, stderr or a log, where it would speak "
                    f"of private records. Leave that out. {_REMEDY}"
                )
            if (name := written()) is not None:
                raise refusal(
                    self.model, name.rpartition(".")[0], f"writes to {name!r} whenever it is called"
                )
            self._check_side_doors(doors)
            if self._keeps_apart and not self._random:
                # on numbers of scale 1 every operation was observed, with each record changed
                self._check_neighbours(_SIZES[1:2], self._scales[1:])
            else:
                self._check_neighbours()
            return self._agreeing_engine(engine, isolating, bases)

    def check_size(self, largest: int) -> None:
        """Refuse a loss that treats a chunk of the largest size unlike a few examples."""
        if largest <= max(self._compared, default=0):  # when the engine was chosen
            return
        with certified(), undisturbed(self.model), without_dropout(self.model):
            precision = self._shortest if largest <= _MANY else max(self._shortest, _COARSE)
            self._check_many(largest, precision)

    def _check_many(self, size: int, precision: float) -> None:
        """Refuse a loss that gives examples other losses among ``size`` than among three."""
        self._compared.append(size)
        many = self._input(size, 1)
        if not self._random and not self._same(
            self._losses(many)[:3], self._losses(many.part(0, 3)), precision
        ):
            raise refusal(
                self.model,
                None,
                "gives an example another loss in a large batch than in a small one",
            )

    def is_safe_for(self, chunk: Chunk) -> bool:
        """Whether records of another shape than declared, such as shorter ones, do not mix."""
        try:
            other = replace(self, example=self.example.cut_to(chunk))
            with certified(), undisturbed(self.model):
                other._check_neighbours()
                return not other._mixing
        except Exception:  # it cannot be judged: one at a time
            return False

    def made_up(self, records: int = _SIZES[-1]) -> Chunk:
        """Return a few synthetic records."""
        return self._input(records)

    def _equal(self, a: torch.Tensor, b: torch.Tensor, precision: float | None = None) -> bool:
        """Whether numbers are equal up to the rounding of kernels in a precision."""
        return are_equal(a, b, precision or self._precision)

    def _equal_sums(self, found: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
        """Whether sums are equal as vectors, up to the rounding of the shortest floats."""
        return are_equal_sums(found, expected, self._shortest)

    @property
    def _precision(self) -> float:
        """The coarsest precision of the parameters."""
        return max(torch.finfo(p.dtype).eps for p in self.parameters.values())

    @cached_property
    def _shortest(self) -> float:
        """The coarsest precision of outputs of layers, which autocast makes coarser."""
        found = {
            output.dtype
            for output in self._outputs(self._input(2)).values()
            if output.is_floating_point()
        }
        return max(self._precision, *(torch.finfo(dtype).eps for dtype in found), 0.0)

    def _input(self, size: int, seed: int = 0, scale: float = 1.0) -> Chunk:
        """Return synthetic records."""
        return synthetic(self.example, size, _SEED + seed, scale, declared=self.declared)

    def _base(self, size: int, scale: float = 1.0) -> Chunk:
        """Return the first of the records that losses are compared on, in memory of their own."""
        return self._input(_SIZES[-1], 1, scale).part(0, size)

    @cached_property
    def _forward(self) -> Forward:
        """How the loss is called where nothing is differentiated."""
        return Forward()

    @cached_property
    def _scales(self) -> tuple[float, ...]:
        """The scales of numbers to try: one if there are only whole numbers, which have none."""
        ones, others = (self._base(_SIZES[-1], scale).leaves() for scale in _SCALES)
        same = all(
            torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
            for a, b in zip(ones, others, strict=True)
        )
        return _SCALES[:1] if same else _SCALES

    def _losses(self, chunk: Chunk, seed: int = 0) -> torch.Tensor:
        """Return losses and statistics of a chunk, with the randomness of dropout held fixed."""
        call = LossCall(self.model, self.loss_fn)
        try:
            # as in a step: a module may observe only what is differentiated
            with torch.enable_grad(), without_scalers():
                returned = self._forward.call(lambda: call(*chunk.arguments), _SEED + seed)
        except LossError:
            raise
        except Exception as error:
            raise LossError(
                f"loss_fn fails on synthetic input of the public shape ({type(error).__name__}: "
                f"{error}){at(stopped_at(error))}. If valid input has to look otherwise (labels, "
                "token ids, lengths of sequences), pass example_input= a collated batch of "
                "synthetic but valid examples."
            ) from None
        shown = shown_of_each(returned, chunk.size)
        if not bool(shown[:, 0].isfinite().all()):
            raise LossError(
                "The loss is not finite on synthetic input, so the model cannot be judged. If "
                "valid input has to look otherwise (for CTC, lengths that leave room for the "
                "targets), pass example_input= a collated batch of synthetic but valid examples."
            )
        check_statistics(self.statistics, statistics_of(returned))
        return shown

    def _same(self, a: torch.Tensor, b: torch.Tensor, precision: float | None = None) -> bool:
        """Whether losses and statistics are equal, each by its own scale."""
        return a.shape == b.shape and all(
            self._equal(one, other, precision)
            for one, other in zip(a.unbind(1), b.unbind(1), strict=True)
        )

    def _base_losses(self, doors: "_SideDoors | None" = None) -> "_BaseLosses":
        """Return the losses of batches of several sizes and scales; the smaller are parts."""
        found = {}
        for size, scale in product(_SIZES, self._scales):
            found[size, scale] = self._losses(self._base(size, scale))
            if doors is not None:
                doors.look()
        return found

    def _are_consistent(self, bases: "_BaseLosses") -> bool:
        """Whether records have the same losses in batches of other sizes, dropout aside."""
        return self._varies or all(
            self._same(losses, bases[_SIZES[-1], scale][:size], _COARSE)
            for (size, scale), losses in bases.items()
        )

    @cached_property
    def _keeps_apart(self) -> bool:
        """Whether it is known of every operation on the way to the losses that it mixes nothing.

        Recurrent layers are not looked into.
        """
        if any(isinstance(module, nn.RNNBase) for module in self.model.modules()):
            return False
        try:
            return not self._mixing
        except Exception:  # it cannot be judged in this way
            return False

    def _check_neighbours(
        self, sizes: tuple[int, ...] = _SIZES, scales: tuple[float, ...] | None = None
    ) -> None:
        """Refuse a model in which changing one example changes another one's loss.

        This is tried at several sizes, scales and positions.
        """
        for size, scale in product(sizes, self._scales if scales is None else scales):
            base, other = self._base(size, scale), self._input(size, 2, scale)
            losses = self._losses(self._base(size, scale))
            for position in sorted({0, size // 2, size - 1}):
                changed = with_row_from(base, other, position)
                rest = [row for row in range(size) if row != position]
                if not self._same(losses[rest], self._losses(changed)[rest]):
                    culprit = first_moved(
                        self._outputs(base), self._outputs(changed), rest, self._equal
                    )
                    raise refusal(self.model, culprit, "lets one example change another one's loss")

    def _check_alone(self, bases: "_BaseLosses") -> None:
        """Refuse a loss that differs between an example alone, in a batch and in a large batch.

        The loss must not be random. Kernels for another number of examples round differently, in
        half precision by as much as its precision. ``bases`` are losses with dropout, which may be
        others.
        """
        for scale in self._scales:
            alone = self._alone(self._base(_SIZES[-1], scale))
            for size in _SIZES:
                base = self._base(size, scale)
                if not (
                    self._same(bases[size, scale], alone[:size], self._shortest)
                    or self._same(self._losses(base), alone[:size], self._shortest)
                ):
                    culprit = first_unlike_alone(
                        self._outputs(base), self._outputs(base.record(0)), base.size, self._equal
                    )
                    raise refusal(
                        self.model, culprit, "gives an example another loss alone than in a batch"
                    )

    def _alone(self, chunk: Chunk) -> torch.Tensor:
        """Return losses and statistics of each record by itself.

        Vectorised, the loss is given one record as well, and all of them take one pass.
        """
        fix_seed(_SEED)
        found = alone_at_once(self.model, self.loss_fn, chunk)
        if found is None:
            return torch.cat([self._losses(chunk.record(row)) for row in range(chunk.size)])
        return found

    def _check_memory(self, bases: "_BaseLosses") -> None:
        """Refuse a loss that changes once other records were seen."""
        self._losses(self._input(3, 3, self._scales[-1]))
        if not self._same(bases[3, 1.0], self._losses(self._base(3))):
            raise refusal(self.model, None, "keeps state between steps that changes later losses")

    def _check_side_doors(self, doors: "_SideDoors") -> None:
        """Refuse a model or loss that keeps what it saw, even where no loss shows it."""
        for chunk in (self._input(3, 7, 4.0), *extremes(self._input(3, 8))):
            try:
                self._losses(chunk)
            except KeyboardInterrupt:
                raise
            except BaseException:  # numbers above 1 need not be valid
                continue
            doors.look()
        if doors.way is not None:
            raise IsolationError(
                f"A call of loss_fn changes {doors.way}: it keeps something of its input, which "
                f"would leave without noise. Keep nothing between calls. {_REMEDY}"
            )

    def _randomness(self) -> GeneratorUse:
        """Return what the loss does to generators, once its imports are done: they may seed."""
        found = self._generators_used()
        return self._generators_used() if found != GeneratorUse() else found

    def _generators_used(self) -> GeneratorUse:
        """Return what one call of the loss does to generators."""
        chunk = self._input(3)
        fix_seed(_SEED)
        with watched_generators() as found, Draws() as draws, covered_masks(), torch.enable_grad():
            LossCall(self.model, self.loss_fn)(*chunk.arguments)
        return replace(found, seeded=found.seeded or draws.own, masks=draws.masks)

    @cached_property
    def _varies(self) -> bool:
        """Whether the loss depends on the seed."""
        return self._depends_on_seed()

    @cached_property
    def _random(self) -> bool:
        """Whether the loss depends on the seed without dropout."""
        with without_dropout(self.model):
            return self._varies and self._depends_on_seed()

    def _depends_on_seed(self) -> bool:
        chunk = self._input(3)
        return not self._same(self._losses(chunk, seed=1), self._losses(chunk, seed=2))

    def _agreeing_engine(self, wanted: str, isolating: bool, bases: "_BaseLosses") -> Engine:
        """Return the first engine that is safe and agrees with the loop engine."""
        names = [*self.engines] if wanted == "auto" else [wanted]
        doubts = self.doubts(isolating)
        random = self._random
        with without_dropout(self.model):
            if not random:
                self._check_alone(bases)
            expected = self._oracle_sums()
            reason = ""
            for name in names:
                engine = self.engines[name](self.model, self.parameters)
                if doubt := doubts(engine):
                    reason = f"is not safe here: {doubt}"
                    continue
                if random and self.statistics and not engine.isolates:
                    reason = "cannot be trusted with statistics of a loss that draws random numbers"
                    continue
                try:
                    engine.prepare(self.loss_fn, self._input)
                    found = self._sums(engine)
                except Exception as error:
                    reason = (
                        f"fails on synthetic input ({type(error).__name__}: {error})"
                        f"{at(stopped_at(error))}"
                    )
                    if self._mixes_devices(error):  # another engine would hide it
                        raise IsolationError(
                            f"Engine {name!r} {reason}. The model's device is at fault, and not "
                            "the model: please report it, and name another engine until then."
                        ) from None
                    continue
                if engine.defeats_checkpointing and wanted == "auto" and "ghost" in names:
                    reason = "keeps the activations that the model recomputes to save memory"
                    continue
                if (random and engine.isolates) or self._equal_sums(found, expected):
                    if not engine.isolates:
                        at_once = min(engine.records_at_once or _MANY, _MANY)
                        self._check_many(at_once, self._shortest)
                    return engine
                reason = (
                    "cannot be compared with one example at a time: the loss draws random numbers"
                    if random
                    else "does not give the gradients that one example at a time gives"
                )
        raise IsolationError(f"Engine {wanted!r} {reason}. Use engine='loop'.")

    def _mixes_devices(self, error: Exception) -> bool:
        """Whether an engine failed because of the model's device, and not because of the model."""
        return any(not p.is_cpu for p in self.parameters.values()) and bool(
            re.search("same device|different devices|device type tensor", str(error))
        )

    def doubts(self, isolating: bool = False) -> Callable[[Engine], str]:
        """Return a function that says why an engine must not be given this loss, or nothing."""
        randomness = self._randomness()
        if randomness.masks and not are_covered():
            raise IsolationError(
                "The model draws masks inside of attention, between recurrent layers or by "
                "torch.bernoulli, which on this processor come from a generator of 31 bits. Set "
                "dropout=0 there, and put nn.Dropout layers or torch.rand in their place."
            )
        of_chunks = (
            "the loss has become another one too often to be judged each time"
            if isolating
            else "the loss draws from Python's or numpy's generators and may decide by them"
            if randomness.in_python
            else ""
            if all(engine.isolates for engine in self.engines.values())
            else self._mixing
        )

        def doubt(engine: Engine) -> str:
            if randomness.seeded and not engine.one_by_one:
                return (
                    "the loss seeds a generator or has its own, whose numbers depend on a "
                    "record's place"
                )
            return "" if engine.isolates else of_chunks

        return doubt

    @cached_property
    def _mixing(self) -> str:
        """Return why the loss must not be called on a whole chunk, or nothing."""
        if (refused := refuses_tracing(self.model, self.loss_fn, self._input(3))) is not None:
            return f"values of the input may decide what is computed{at(refused.place)}"
        call = LossCall(self.model, self.loss_fn)

        def losses(chunk: Chunk) -> torch.Tensor:
            fix_seed(_SEED)
            returned = call(*chunk.arguments)
            shown_of_each(returned, chunk.size)  # a use of all that is returned
            return per_example(returned, chunk.size)

        try:
            with traceable_recurrence(self.model), torch.enable_grad():
                check_dataflow(losses, lambda size, seed: self._input(size, seed))
        except Mixed as mixed:
            return f"{mixed}{at(mixed.place or stopped_at(mixed))}"
        return ""

    def _oracle_sums(self) -> list[torch.Tensor]:
        """Return clipped sums of gradients that plain autograd computes one record at a time.

        A loss that no parameter takes part in is refused. Of a large model there are never more
        than two gradients in memory.
        """
        loss_fn, chunk, clipping = self._clipped()
        oracle, call = LoopEngine(self.model, self.parameters), LossCall(self.model, loss_fn)
        state, sums = Originals(self.model, self.parameters), None
        try:
            for position in range(chunk.size):
                found, _ = oracle.gradients_at(call, state, chunk, position)
                if all(gradient is None for gradient in found):
                    raise LossError(
                        "No trainable parameter takes part in the loss. loss_fn must call the very "
                        "model that was given to privatize, not a copy, a compiled or a wrapped "
                        "one."
                    )
                sums = _with_clipped(sums, found, self.parameters.values(), clipping)
        except RuntimeError as error:
            remedy = (
                " Give torch.utils.checkpoint.checkpoint use_reentrant=False."
                if "use_reentrant" in str(error)
                else ""
            )
            raise LossError(
                f"The loss of one synthetic example cannot be differentiated ({error}).{remedy}"
            ) from None
        assert sums is not None
        return sums

    def _sums(self, engine: Engine) -> list[torch.Tensor]:
        """Return the clipped sums of an engine, as it forms them in a step of one chunk."""
        loss_fn, chunk, clipping = self._clipped()
        fix_seed(_SEED)
        # memory that is not touched where the engine forms the sum in its own
        totals = [torch.empty_like(p, dtype=torch.float64) for p in self.parameters.values()]
        return engine.bounded_sums(loss_fn, chunk, clipping).formed_in(totals)

    def _clipped(self) -> tuple[LossFn, Chunk, Clipping]:
        """Return loss, records and clipping by which engines are compared.

        Losses are scaled up, each by its own factor, so that every record is clipped: a sum
        without clipping would be the same if gradients were counted for the wrong record.
        """
        clipping = Clipping(clip_to(1.0), _GRID, (0,) * len(self.parameters))
        chunk = self._input(len(_FACTORS))

        def scaled(*fields: Any) -> torch.Tensor:
            losses = per_example(self.loss_fn(*fields[:-1]), len(fields[-1]))
            return losses * fields[-1].to(losses.device)

        return scaled, Chunk((*chunk.arguments, torch.tensor(_FACTORS)), chunk.size), clipping

    def _outputs(self, chunk: Chunk) -> dict[str, torch.Tensor]:
        """Return the first output of every module on a chunk, in the order of execution."""
        return outputs_of(self.model, lambda: self._losses(chunk))


def _with_clipped(
    sums: list[torch.Tensor] | None,
    found: tuple[torch.Tensor | None, ...],
    parameters: Iterable[torch.Tensor],
    clipping: Clipping,
) -> list[torch.Tensor]:
    """Add the clipped gradient of one record to sums, in float32 at least; sums may be changed."""
    gradients = [
        torch.zeros_like(p) if g is None else g.to_dense()
        for g, p in zip(found, parameters, strict=True)
    ]
    norms = clipping.norms(
        [torch.tensor([squared_norm(g)], dtype=torch.float64) for g in gradients]
    )
    weights = [float(weight) for weight in clipping.weights(norms)]
    wide = [g.to(torch.promote_types(g.dtype, torch.float32)) for g in gradients]
    if sums is None:
        # in memory of their own: autograd gives parameters that are added views of one gradient
        return [
            g * weight if weight else torch.zeros_like(g)
            for g, weight in zip(wide, weights, strict=True)
        ]
    for total, g, weight in zip(sums, wide, weights, strict=True):
        if weight:  # 0·inf would be NaN
            total.add_(g, alpha=weight)
    return sums


_BaseLosses = dict[tuple[int, float], torch.Tensor]
"""Losses and statistics of the same records, by the size of the batch and the scale of numbers."""


class _SideDoors:
    """Compares what a loss can read besides its records before and after calls of it."""

    def __init__(self, probe: Probe) -> None:
        self.way: str | None = None  # to the first value that was found changed
        self._reader = Reader(probe.model)
        self._loss_fn = probe.loss_fn
        self._before: Readings | None = None

    def look(self) -> None:
        """Read everything; the first reading is after a call that may have imported something."""
        if self.way is not None:
            return
        now = self._reader.read(self._loss_fn, everything=True)
        if self._before is None:
            self._before = now
        self.way = changed(self._before, now)
