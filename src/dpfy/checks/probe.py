"""The isolation probe: one example must not influence another one's loss, now or at a later step.

It runs on synthetic input of the public shape, so whatever it says is about the model and never
about a record.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import torch
from torch import nn

from dpfy.checks.collation import check_collation
from dpfy.checks.culprits import first_moved, first_unlike_alone, outputs_of, refusal
from dpfy.checks.dataflow import Draws, Mixed, check_dataflow
from dpfy.checks.loss_state import Reader, changed
from dpfy.checks.places import at, stopped_at
from dpfy.checks.preconditions import check_layers, check_statistics, without_scalers
from dpfy.checks.tolerance import are_equal, are_equal_sums
from dpfy.checks.undisturbed import undisturbed, without_dropout
from dpfy.checks.vmap_check import refuses_tracing, traceable_recurrence
from dpfy.errors import IsolationError, LossError
from dpfy.gradients import ENGINES, Engine, LoopEngine, Summed
from dpfy.gradients.base import LossCall, LossFn, Substitutes
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
                self._check_losses()
                self._check_neighbours()
                self._check_memory()
            if output.written:
                raise IsolationError(
                    "loss_fn or the model writes to stdout, stderr or a log, where it would speak "
                    f"of private records. Leave that out. {_REMEDY}"
                )
            if (name := written()) is not None:
                raise refusal(
                    self.model, name.rpartition(".")[0], f"writes to {name!r} whenever it is called"
                )
            self._check_side_doors()
            return self._agreeing_engine(engine, isolating)

    def check_size(self, largest: int) -> None:
        """Refuse a loss that treats a chunk of the largest size unlike a few examples."""
        with certified(), undisturbed(self.model), without_dropout(self.model):
            many, coarse = self._input(largest, 1), max(self._shortest, _COARSE)
            if not self._is_random() and not self._same(
                self._losses(many)[:3], self._losses(many.part(0, 3)), coarse
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
                return not other._mixing()
        except Exception:  # it cannot be judged: one at a time
            return False

    def made_up(self) -> Chunk:
        """Return a few synthetic records."""
        return self._input(_SIZES[-1])

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

    @property
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

    def _losses(self, chunk: Chunk, seed: int = 0) -> torch.Tensor:
        """Return losses and statistics of a chunk, with the randomness of dropout held fixed."""
        fix_seed(_SEED + seed)
        try:
            # as in a step: a module may observe only what is differentiated
            with torch.enable_grad(), without_scalers():
                returned = LossCall(self.model, self.loss_fn)(*chunk.arguments)
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

    def _check_losses(self) -> None:
        """Compute the losses of batches of several sizes."""
        for size in _SIZES:
            self._losses(self._input(size))

    def _check_neighbours(self) -> None:
        """Refuse a model in which changing one example changes another one's loss.

        This is tried at several sizes, scales and positions.
        """
        for size, scale in product(_SIZES, _SCALES):
            base, other = self._input(size, 1, scale), self._input(size, 2, scale)
            losses = self._losses(base)
            for position in sorted({0, size // 2, size - 1}):
                changed = with_row_from(base, other, position)
                rest = [row for row in range(size) if row != position]
                if not self._same(losses[rest], self._losses(changed)[rest]):
                    culprit = first_moved(
                        self._outputs(base), self._outputs(changed), rest, self._equal
                    )
                    raise refusal(self.model, culprit, "lets one example change another one's loss")

    def _check_alone(self) -> None:
        """Refuse a loss that differs between an example alone, in a batch and in a large batch.

        The loss must not be random. Kernels for another number of examples round differently, in
        half precision by as much as its precision.
        """
        shortest = self._shortest
        for size, scale in product(_SIZES, _SCALES):
            base = self._input(size, 1, scale)
            alone = torch.cat([self._losses(base.record(row)) for row in range(size)])
            if not self._same(self._losses(base), alone, shortest):
                culprit = first_unlike_alone(
                    self._outputs(base), self._outputs(base.record(0)), base.size, self._equal
                )
                raise refusal(
                    self.model, culprit, "gives an example another loss alone than in a batch"
                )
        many = self._input(_MANY, 1)
        if not self._same(self._losses(many)[:3], self._losses(many.part(0, 3)), shortest):
            raise refusal(
                self.model,
                None,
                "gives an example another loss in a large batch than in a small one",
            )

    def _check_memory(self) -> None:
        """Refuse a loss that changes once other records were seen."""
        first = self._losses(self._input(3))
        for scale in _SCALES:
            self._losses(self._input(5, 3, scale))
        if not self._same(first, self._losses(self._input(3))):
            raise refusal(self.model, None, "keeps state between steps that changes later losses")

    def _check_side_doors(self) -> None:
        """Refuse a model or loss that keeps what it saw, even where no loss shows it."""
        self._losses(self._input(3, 4))
        reader = Reader(self.model)
        before = reader.read(self.loss_fn, everything=True)
        ordinary = [self._input(3, 5), self._input(3, 6, 1.0 / 16)]
        for number, chunk in enumerate(
            (*ordinary, self._input(3, 7, 4.0), *extremes(self._input(3, 8)))
        ):
            try:
                self._losses(chunk)
            except BaseException as error:
                if number < len(ordinary) or isinstance(error, KeyboardInterrupt):
                    raise
                continue  # numbers above 1 need not be valid
            if (way := changed(before, reader.read(self.loss_fn, everything=True))) is not None:
                raise IsolationError(
                    f"A call of loss_fn changes {way}: it keeps something of its input, which "
                    f"would leave without noise. Keep nothing between calls. {_REMEDY}"
                )

    def _randomness(self) -> GeneratorUse:
        """Return what the loss does to generators, once its imports are done: they may seed."""
        chunk = self._input(3)
        for _ in range(2):
            fix_seed(_SEED)
            with (
                watched_generators() as found,
                Draws() as draws,
                covered_masks(),
                torch.enable_grad(),
            ):
                LossCall(self.model, self.loss_fn)(*chunk.arguments)
        return replace(found, seeded=found.seeded or draws.own, masks=draws.masks)

    def _is_random(self) -> bool:
        """Whether the loss depends on the seed."""
        chunk = self._input(3)
        return not self._same(self._losses(chunk, seed=1), self._losses(chunk, seed=2))

    def _agreeing_engine(self, wanted: str, isolating: bool) -> Engine:
        """Return the first engine that is safe and agrees with the loop engine."""
        names = [*self.engines] if wanted == "auto" else [wanted]
        doubts = self.doubts(isolating)
        with without_dropout(self.model):
            random = self._is_random()
            if not random:
                self._check_alone()
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
                    continue
                if engine.defeats_checkpointing and wanted == "auto" and "ghost" in names:
                    reason = "keeps the activations that the model recomputes to save memory"
                    continue
                if (random and engine.isolates) or self._equal_sums(found, expected):
                    return engine
                reason = (
                    "cannot be compared with one example at a time: the loss draws random numbers"
                    if random
                    else "does not give the gradients that one example at a time gives"
                )
        raise IsolationError(f"Engine {wanted!r} {reason}. Use engine='loop'.")

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
            else self._mixing()
        )

        def doubt(engine: Engine) -> str:
            if randomness.seeded and not engine.one_by_one:
                return (
                    "the loss seeds a generator or has its own, whose numbers depend on a "
                    "record's place"
                )
            return "" if engine.isolates else of_chunks

        return doubt

    def _mixing(self) -> str:
        """Return why the loss must not be called on a whole chunk, or nothing."""
        if (refused := refuses_tracing(self.model, self.loss_fn, self._input(3))) is not None:
            return f"values of the input may decide what is computed{at(refused.place)}"
        call = LossCall(self.model, self.loss_fn)

        def losses(chunk: Chunk) -> torch.Tensor:
            fix_seed(_SEED)
            return per_example(call(*chunk.arguments), chunk.size)

        try:
            with traceable_recurrence(self.model), torch.enable_grad():
                check_dataflow(losses, lambda size, seed: self._input(size, seed))
        except Mixed as mixed:
            return f"{mixed}{at(mixed.place or stopped_at(mixed))}"
        return ""

    def _oracle_sums(self) -> list[torch.Tensor]:
        """Return the sums of the loop engine; refuse a loss that no parameter takes part in."""
        oracle, call = LoopEngine(self.model, self.parameters), LossCall(self.model, self.loss_fn)
        try:
            state = Substitutes(self.model, self.parameters)
            if all(
                gradient is None for gradient in oracle.gradients(call, state, self._input(1))[0]
            ):
                raise LossError(
                    "No trainable parameter takes part in the loss. loss_fn must call the very "
                    "model that was given to privatize, not a copy, a compiled or a wrapped one."
                )
            return self._sums(oracle)
        except RuntimeError as error:
            remedy = (
                " Give torch.utils.checkpoint.checkpoint use_reentrant=False."
                if "use_reentrant" in str(error)
                else ""
            )
            raise LossError(
                f"The loss of one synthetic example cannot be differentiated ({error}).{remedy}"
            ) from None

    def _sums(self, engine: Engine) -> list[torch.Tensor]:
        """Return the clipped sums in the model's precision, as large models need the memory.

        Losses are scaled up, each by its own factor, so that every record is clipped: a sum
        without clipping would be the same if gradients were counted for the wrong record.
        """
        fix_seed(_SEED)
        clipping = Clipping(clip_to(1.0), _GRID, (0,) * len(self.parameters))
        chunk = self._input(len(_FACTORS))

        def scaled(*fields: Any) -> torch.Tensor:
            losses = per_example(self.loss_fn(*fields[:-1]), len(fields[-1]))
            return losses * fields[-1].to(losses.device)

        sums = engine.bounded_sums(
            scaled, Chunk((*chunk.arguments, torch.tensor(_FACTORS)), chunk.size), clipping
        )
        if isinstance(sums, Summed):
            totals = sums.gradients
        else:
            totals = [torch.zeros_like(p, dtype=torch.float64) for p in self.parameters.values()]
            sums.add_to(totals)
        return [
            total.to(p.dtype) for total, p in zip(totals, self.parameters.values(), strict=True)
        ]

    def _outputs(self, chunk: Chunk) -> dict[str, torch.Tensor]:
        """Return the first output of every module on a chunk, in the order of execution."""
        return outputs_of(self.model, lambda: self._losses(chunk))
