"""The isolation probe: one example must not influence another one's loss, now or at a later step.

It runs on synthetic input of the public shape, so whatever it says is about the model and never
about a record.
"""

import random
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any

import torch
from torch import nn

from dpfy.checks.collation import check_collation
from dpfy.checks.company import (
    COARSE,
    are_consistent,
    check_alone,
    check_many,
    check_memory,
    check_neighbours,
)
from dpfy.checks.culprits import refusal
from dpfy.checks.dataflow import Draws, Mixed, check_dataflow
from dpfy.checks.free_memory import give_back
from dpfy.checks.oracle import agrees_elsewhere, engine_sums, have_equal_sums, oracle_sums
from dpfy.checks.places import at, stopped_at
from dpfy.checks.preconditions import check_layers
from dpfy.checks.side_doors import REMEDY, SideDoors
from dpfy.checks.trial import SEED, SIZES, Trial
from dpfy.checks.undisturbed import undisturbed, without_dropout
from dpfy.checks.vmap_check import refuses_tracing, traceable_recurrence
from dpfy.errors import IsolationError
from dpfy.gradients import ENGINES, Engine
from dpfy.gradients.base import LossCall
from dpfy.gradients.bookkeeping.engine import CapturingEngine
from dpfy.gradients.bookkeeping.workspace import Workspace
from dpfy.gradients.chunk import Chunk
from dpfy.gradients.losses import per_example, shown_of_each
from dpfy.gradients.synthetic import extremes
from dpfy.sandbox.dropout import are_covered, covered_masks
from dpfy.sandbox.output import suppress_output
from dpfy.sandbox.rng_isolation import (
    GeneratorUse,
    device_states,
    fix_seed,
    numpy_state,
    watched_generators,
)
from dpfy.sandbox.torch_settings import certified

__all__ = ["Probe", "check_collation"]

_NONE = (GeneratorUse(), False)  # of generators is used, and moves
_MANY = 33  # records, more than code that looks at the size of a batch is likely to call few


@dataclass(frozen=True)
class Probe(Trial):
    """The judge of one model and one loss function, on synthetic input.

    Args:
        model: The user's module.
        parameters: The trained parameters by name.
        loss_fn: The user's loss function.
        example: A chunk of the public shape of the records.
        declared: Whether the values of ``example`` are valid and public, not its shape alone.
        statistics: The statistics that the plan releases.
        gathering: The whole parameters of a sharded model; None for one that is whole.
        engines: The engines to choose from, in the order of preference.

    Attributes:
        passed_over: Why each of the engines before the chosen one was not taken, by name.
    """

    engines: Mapping[str, type[Engine]] = field(default_factory=lambda: ENGINES)
    passed_over: dict[str, str] = field(default_factory=dict, init=False, repr=False, compare=False)
    _compared: list[int] = field(default_factory=list, init=False, repr=False, compare=False)
    _written: list[Callable[[], str | None]] = field(
        default_factory=list, init=False, repr=False, compare=False
    )

    @contextmanager
    def undisturbed(self) -> Iterator[Callable[[], str | None]]:
        """Leave model and generators as they were; yield a function that names changed state.

        A copy of a large model takes as long as several passes over it, so that one serves all
        checks inside the outermost block.
        """
        if self._written:
            yield self._written[0]
            return
        with undisturbed(self.model) as written:
            self._written.append(written)
            try:
                yield written
            finally:
                self._written.clear()

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
        with certified(), self.undisturbed() as written, self._standing():
            with suppress_output() as output:
                doors = SideDoors(self.model, self.loss_fn)
                for size, scale in product(SIZES, self.scales):
                    self.base_losses(size, scale)
                    doors.look()
                if not are_consistent(self):
                    check_neighbours(self)
                check_memory(self)
            if output.written:
                raise IsolationError(
                    "loss_fn or the model writes to stdout, stderr or a log, where it would speak "
                    f"of private records. Leave that out. {REMEDY}"
                )
            if (name := written()) is not None:
                raise refusal(
                    self.model, name.rpartition(".")[0], f"writes to {name!r} whenever it is called"
                )
            few = self.input(SIZES[0], 8)
            doors.check(self.losses, (self.input(SIZES[0], 7, 4.0), *extremes(few)))
            if self._keeps_apart and not self.random:
                # on numbers of scale 1 every operation was observed, with each record changed
                check_neighbours(self, SIZES[1:2], self.scales[1:])
            else:
                check_neighbours(self)
            return self._agreeing_engine(engine, isolating)

    def check_size(self, largest: int) -> None:
        """Refuse a loss that treats a chunk of the largest size unlike a few examples."""
        if largest <= max(self._compared, default=0):  # when the engine was chosen
            return
        with certified(), self.undisturbed(), self._standing(), self._without_masks():
            shortest = self.shortest
            self._check_many(largest, shortest if largest <= _MANY else max(shortest, COARSE))

    def _check_many(self, size: int, precision: float) -> None:
        """Refuse a loss that gives examples other losses in a batch of this size."""
        self._compared.append(size)
        check_many(self, size, precision)

    def is_safe_for(self, chunk: Chunk) -> bool:
        """Whether records of another shape than declared, such as shorter ones, do not mix."""
        try:
            other = replace(self, example=self.example.cut_to(chunk))
            with certified(), undisturbed(self.model):
                check_neighbours(other)
                return not other._mixing
        except Exception:  # it cannot be judged: one at a time
            return False

    def made_up(self, records: int = SIZES[-1]) -> Chunk:
        """Return a few synthetic records."""
        return self.input(records)

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

    @property
    def draws_random_numbers(self) -> bool:
        """Whether computing a loss moves a generator, as dropout does."""
        return self._randomness[1]

    @cached_property
    def _randomness(self) -> tuple[GeneratorUse, bool]:
        """What the loss does to generators, and whether one moves.

        It is looked at once the loss's imports are done, which may seed and draw.
        """
        found = self._generators_used()
        return found if found == _NONE else self._generators_used()

    def _generators_used(self) -> tuple[GeneratorUse, bool]:
        """Return what one call of the loss does to generators, and whether one moves."""
        chunk = self.input(SIZES[0])
        fix_seed(SEED)
        before = _generators()
        with watched_generators() as found, Draws() as draws, covered_masks(), torch.enable_grad():
            LossCall(self.model, self.loss_fn)(*chunk.arguments)
        use = replace(found, seeded=found.seeded or draws.own, masks=draws.masks)
        return use, _generators() != before

    def _agreeing_engine(self, wanted: str, isolating: bool) -> Engine:
        """Return the first engine that is safe and agrees with the loop engine."""
        names = [*self.engines] if wanted == "auto" else [wanted]
        doubts = self.doubts(isolating)
        random = self.random
        with self._without_masks():
            if not random:
                check_alone(self)
            memory = Workspace()
            give_back(self.parameters.values())
            expected = oracle_sums(self, memory)
            give_back(self.parameters.values())
            reason = ""
            for place, name in enumerate(names):
                if place:
                    self.passed_over[names[place - 1]] = reason
                engine = self.engines[name](self.model, self.parameters)
                if isinstance(engine, CapturingEngine):
                    engine.memory = memory
                if doubt := doubts(engine):
                    reason = f"is not safe here: {doubt}"
                    continue
                if random and self.statistics and not engine.isolates:
                    reason = "cannot be trusted with statistics of a loss that draws random numbers"
                    continue
                try:
                    engine.prepare(self.loss_fn, self.input)
                    found = engine_sums(self, engine)
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
                if (
                    (random and engine.isolates)
                    or have_equal_sums(self, found, expected)
                    or (not random and agrees_elsewhere(self, engine, memory))
                ):
                    del found, expected
                    give_back(self.parameters.values())
                    if not engine.isolates:
                        at_once = min(engine.records_at_once or _MANY, _MANY)
                        self._check_many(at_once, self.shortest)
                    return engine
                reason = (
                    "cannot be compared with one example at a time: the loss draws random numbers"
                    if random
                    else "does not give the gradients that one example at a time gives"
                )
        remedy = (
            "Use engine='loop'."
            if self.gathering is None
            else "A sharded model has no other engine; one that every process has as a whole does."
        )
        raise IsolationError(f"Engine {wanted!r} {reason}. {remedy}")

    def _standing(self) -> AbstractContextManager[Any]:
        """Return a context in which a sharded model computes as one that is whole does."""
        return nullcontext() if self.gathering is None else self.gathering.standing()

    def _without_masks(self) -> AbstractContextManager[None]:
        """Return a context without dropout, in which Python is asked about every operation.

        There is nothing to switch off if no generator was moved, seeded or put back.
        """
        return nullcontext() if self._randomness == _NONE else without_dropout(self.model)

    def _mixes_devices(self, error: Exception) -> bool:
        """Whether an engine failed because of the model's device, and not because of the model."""
        return any(not p.is_cpu for p in self.parameters.values()) and bool(
            re.search("same device|different devices|device type tensor", str(error))
        )

    def doubts(self, isolating: bool = False) -> Callable[[Engine], str]:
        """Return a function that says why an engine must not be given this loss, or nothing."""
        randomness, _ = self._randomness
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
        if self.alone_traced is None:
            refused = refuses_tracing(self.model, self.loss_fn, self.input(SIZES[0]))
            if refused is not None:
                return f"values of the input may decide what is computed{at(refused.place)}"
        call = LossCall(self.model, self.loss_fn)

        def losses(chunk: Chunk) -> torch.Tensor:
            fix_seed(SEED)
            with self.forward.dropping():
                returned = call(*chunk.arguments)
            shown_of_each(returned, chunk.size)  # a use of all that is returned
            return per_example(returned, chunk.size)

        try:
            with traceable_recurrence(self.model), torch.enable_grad():
                check_dataflow(losses, self.input)
        except Mixed as mixed:
            return f"{mixed}{at(mixed.place or stopped_at(mixed))}"
        return ""


def _generators() -> tuple[Any, ...]:
    """Return the states of all generators in a form that can be compared."""
    return (
        random.getstate(),
        numpy_state(),
        *(state.numpy().tobytes() for state in (torch.get_rng_state(), *device_states())),
    )
