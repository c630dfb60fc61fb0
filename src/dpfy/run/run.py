"""A plan bound to a model, data and a ledger: the way of one step.

    reserve the event ─▶ draw the sample ─▶ bounded sums, chunk by chunk ─▶ noise ─▶ Released ─▶ p.grad

Everything left of ``Released`` is sensitive: it is never logged, printed, saved or put into an
exception text.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import nn

from dpfy.accounting import account
from dpfy.checks.mixing import refuse_mixing
from dpfy.checks.probe import Probe
from dpfy.errors import (
    BatchAlreadyReleased,
    DivergenceError,
    InvalidArgument,
    LedgerError,
    LedgerMismatch,
)
from dpfy.gradients import ENGINES, EXACT_NORMS, PER_RECORD_GRADIENTS, Engine
from dpfy.gradients.base import LossFn
from dpfy.ledger import Ledger
from dpfy.ledger.events import Event, Sampled
from dpfy.mechanisms.clipping import Clipping
from dpfy.mechanisms.controllers import StepConfig
from dpfy.mechanisms.controllers.base import by_name
from dpfy.mechanisms.gaussian_sum import GaussianSum
from dpfy.mechanisms.importance_bounds import MAX_BLOCK_RECORDS, co_batched_for
from dpfy.mechanisms.sampling import sampler_for
from dpfy.mechanisms.sampling.importance import ImportanceSampler
from dpfy.mechanisms.statistics import shared_rounding
from dpfy.noise import LatticeGaussian, SecureStream
from dpfy.plans import Plan
from dpfy.records.example import Declared
from dpfy.records.records import Records, visit, visit_loaded
from dpfy.run.basis import record_basis
from dpfy.run.controller_states import ControllerStates
from dpfy.run.engine_choice import EngineChoice
from dpfy.run.gate import Gate, is_finite
from dpfy.run.importance_sampling import (
    Weighing,
    expected_proposals,
    importance_for,
    propose,
    with_rounding_allowance,
)
from dpfy.run.microbatches import clipped_mean
from dpfy.run.norm_sums import due_before, extra_releases, release_norms
from dpfy.run.partition import BatchPartition, drawn_from, even_parts
from dpfy.run.ranks import Ranks, check_same_records
from dpfy.run.release_layout import ReleaseLayout, rehearse
from dpfy.run.released import Released
from dpfy.run.sum_accumulator import SumAccumulator
from dpfy.sandbox.rng_isolation import isolated_rng
from dpfy.sandbox.torch_settings import certified
from dpfy.types import Interval


class Batch:
    """An opaque promise of one sample; it is drawn, and records are read, only when it is
    released.
    """

    __slots__ = ("_released", "_run", "step")

    def __init__(self, run: "Run", step: int) -> None:
        self._run = run
        self._released = False
        self.step = step

    def __repr__(self) -> str:
        return f"Batch(step={self.step})"


@dataclass(frozen=True)
class Streams:
    """Separate generators, so that no draw of the one says anything about the other."""

    noise: SecureStream
    sampling: SecureStream
    training: SecureStream

    def refresh(self) -> None:
        """Give each a new key before a release draws from it: a restored copy of the machine has
        the old ones.
        """
        for stream in (self.noise, self.sampling, self.training):
            stream.refresh()


class Run:
    """The steps of a plan. Iterate over it, call :meth:`backward` for every batch, then
    ``opt.step()``.

    *Formal guarantee*: whatever is computed from the released gradients, the plan and public data
    satisfies the (ε, δ)-differential privacy of the registered plan, for its unit and relation;
    ``spent`` reads what was used of it so far, and is all there is to claim if nobody looked before
    stopping. Every release is durable in the ledger before a record is read for it.

    *Assumes*: the generator's key stays secret; ``loss_fn`` and the data set keep what they see to
    themselves. With several processes, these and the network between them are trusted, and all are
    given the same data set.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: tuple[torch.optim.Optimizer, ...],
        parameters: dict[str, nn.Parameter],
        records: Records,
        plan: Plan,
        ledger: Ledger | None,
        streams: Streams,
        engine: str,
        example: Declared,
        ranks: Ranks,
        max_physical_batch: int | None = None,
        strict: bool = False,
    ) -> None:
        self.plan = plan
        self.strict = strict  # whether no release may rest on an allowance
        self.model = model
        self.optimizers = optimizers
        self.restored: dict[str, Any] = {}  # what ``save`` was given as ``extra``, after a resume
        self.lost_steps = 0  # paid for before a crash and not part of the model that was resumed
        self._ledger = ledger
        self._ranks = ranks
        self._next_step = int(
            ranks.from_first(
                lambda: (
                    b"%d"
                    % min(
                        (self.ledger.plan_count - extra_releases(plan, self.ledger))
                        * plan.sampling.steps_per_event,
                        plan.steps,
                    )
                )
            )
        )
        self._taken = self._next_step
        self._paid_steps = 0  # of the event that was reserved last
        self._parameters = parameters
        self._steering = ControllerStates(plan, parameters, engine)
        self._gate = Gate(optimizers, parameters)
        self._records = records
        self._example = example
        self._max_physical_batch = max_physical_batch
        self._streams = streams
        self._importance = importance_for(plan, streams.sampling, engine, ranks.size, parameters)
        self._sampler = self._importance or sampler_for(plan.sampling, streams.sampling)
        self._noise = LatticeGaussian(streams.noise)
        engines = (
            EXACT_NORMS
            if self._importance is not None
            else PER_RECORD_GRADIENTS
            if self._steering.needs_gradients
            else ENGINES
        )
        self._choice = EngineChoice(
            engine,
            engines,
            model,
            example,
            plan.query.statistics,
            ranks,
            self._look_at_data,
            self._approve,
        )
        self._buffer: torch.Tensor | None = None
        self._closed = False

    # Walking through the plan

    @property
    def steps_left(self) -> int:
        """How many batches the plan still has to give."""
        return self.plan.steps - self._next_step

    @property
    def steps_taken(self) -> int:
        """How many steps of the plan are paid for and behind this run."""
        return self._taken

    @property
    def exhausted(self) -> bool:
        """Whether noise is chosen from outputs and the filter has no room for the next step:
        iteration ends there.
        """
        if not self.plan.adaptive:
            return False
        step = self._taken + 1
        event = due_before(self, step) or self._event(step, self._steering.setting(step))
        return bool(
            self._ranks.from_first(lambda: b"" if self.ledger.admits(event) else b"refused")
        )

    def __iter__(self) -> Iterator[Batch]:
        return self._until(self.plan.steps)

    def __len__(self) -> int:
        return self.steps_left

    def epochs(self) -> Iterator[Iterator[Batch]]:
        """Yield one iterator of batches per epoch: as many steps as see each record once in
        expectation.
        """
        length = self.plan.steps_per_epoch
        for epoch in range(self._next_step // length, math.ceil(self.plan.steps / length)):
            if self.exhausted:
                return
            yield self._until(min((epoch + 1) * length, self.plan.steps))

    def _until(self, last: int) -> Iterator[Batch]:
        while self._next_step < last and not self.exhausted:
            self._next_step += 1
            yield Batch(self, self._next_step)

    def measured(self, value: float) -> None:
        """Tell the controllers of the plan what was measured on public data, such as an accuracy.

        *Assumes*: no private record had a part in it other than through the model. Of several
        processes all are told the same.
        """
        self._steering.on_public_metric(value)

    # One step

    def backward(self, loss_fn: LossFn, batch: Batch) -> Released:
        """Release the batch and add the result to ``p.grad``, where ``loss.backward()`` would have
        put its own.

        ``loss_fn`` is called once per physical chunk with the collated fields and returns the
        vector of per-example losses, or :class:`~dpfy.Losses`. Modules that follow released
        statistics of their input, such as :class:`~dpfy.models.PrivateBatchNorm`, take them in, and
        optimizers that have to know of the noise are told.
        """
        with certified():
            self._gate.check("run.backward()")
            released = self.release(loss_fn, batch)
            self._add_to_gradients(released)
        for module in self.model.modules():
            if callable(absorb := getattr(module, "absorb", None)):
                absorb(released.statistics)
        return released

    def _add_to_gradients(self, released: Released) -> None:
        """Put the released gradients where the optimizers look for them."""
        for optimizer in self.optimizers:
            if callable(expect_noise := getattr(optimizer, "expect_noise", None)):
                expect_noise(
                    {self._parameters[name]: stddev for name, stddev in released.stddevs.items()}
                )
        for name, gradient in released.gradients.items():
            parameter = self._parameters[name]
            parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
        self._gate.mark_released()

    def release(self, loss_fn: LossFn, batch: Batch) -> Released:
        """Reserve the step, draw the sample and return its noisy gradients; model and ``p.grad``
        stay as they are.
        """
        with certified():  # whatever torch is set to around it; one thread of a process at a time
            self._check_ready(batch)
            self._streams.refresh()
            step = self._taken + 1  # a batch that nobody released is no step
            if due_before(self, step):
                release_norms(self, loss_fn, step)
            released = self._released(loss_fn, step, batch)
            self._steering.observe(released)
            return released

    def _released(self, loss_fn: LossFn, step: int, batch: Batch) -> Released:
        """Pay for the step, draw, sum up, add noise."""
        setting = self._steering.setting(step)
        event, query = self._event(step, setting), setting.query
        pieces = ReleaseLayout(query, self._trained(), query.due(step), setting.coordinates)
        drawn = self._ranks.from_first(lambda: self._reserved_draw(event, step, setting))
        batch._released, self._taken = True, step
        sums: SumAccumulator | None = None
        try:
            with isolated_rng(self._streams.training):
                engine = self._engine_for(loss_fn)
                blocks = self._blocks(engine, step, setting, self._ranks.size)
                mechanism = self._mechanism(engine, step, setting, pieces)
                sums = SumAccumulator(
                    pieces, self._room(pieces), several=blocks.count > 1 or query.slots is not None
                )
                with self._ranks.together():
                    if (
                        self._ranks.first
                    ):  # while the engine is at work; the noise of a step is used in it or never
                        self._noise.prefetch(sum(pieces.sizes), mechanism.stddev, mechanism.grid)
                    clipping = pieces.clipping(mechanism.grid)
                    drawn = self._proposed(engine, loss_fn, step, setting, clipping, drawn)
                    self._add_sums(pieces, sums, engine, loss_fn, drawn, blocks, clipping)
            outputs = self._noised(pieces, sums, mechanism, len(drawn) // (8 * self._drawn_words))
        except BaseException:
            if sums is not None:
                sums.forget()  # a step that fails leaves no sum without noise in memory
            raise
        gradients, statistics = pieces.named(outputs)
        return Released(
            gradients,
            batch.step,
            statistics,
            self.plan.noise_at(step) * setting.noise,
            by_name(query.leaves),
            pieces.stddevs(mechanism.stddev / self.plan.divisor),
        )

    def _noised(
        self, pieces: ReleaseLayout, sums: SumAccumulator, mechanism: GaussianSum, records: int
    ) -> list[torch.Tensor]:
        """Add the sums of all ranks up, and return them with the noise of rank 0 on every rank."""
        if self._ranks.size > 1:
            self._ranks.sum_to_first(sums.vector)
        outputs = pieces.outputs(sums.tensors)
        with self._ranks.together():
            if self._ranks.first:
                if pieces.completes:
                    pieces.complete(sums.vector, records, self.plan.divisor)
                mechanism.release_pieces(
                    sums.tensors, pieces.factors(self.plan.divisor), outputs, self._noise
                )
            else:
                sums.forget()
        self._ranks.share(outputs)
        return outputs

    def _proposed(
        self,
        engine: Engine,
        loss_fn: LossFn,
        step: int,
        setting: StepConfig,
        clipping: Clipping,
        drawn: bytes,
    ) -> bytes:
        """Return the sample; with importance sampling it depends on what the engine finds."""
        if self._importance is None:
            return drawn
        if setting.draw is not None:
            self._importance.follow(setting.draw)
        return propose(
            self._importance,
            self._streams.sampling,
            step,
            self._records,
            engine,
            loss_fn,
            clipping,
            self._largest_chunk(engine),
        )

    @property
    def _drawn_words(self) -> int:
        """The 64-bit words of a drawn unit: its index, its lot, and what it chooses its rows by."""
        return 2 + self._records.seed_words

    def _reserved_draw(self, event: Event, step: int, setting: StepConfig) -> bytes:
        """Make the step durable, then draw its sample."""
        if self._paid_steps == 0:
            self.ledger.reserve(event, note={"clip": setting.query.bound})
            self._paid_steps = self._sampler.policy.steps_per_event
        self._paid_steps -= 1
        self._taken = step  # whatever happens now, it is paid for
        return self._draw()

    def _draw(self) -> bytes:
        """Draw a sample: the bytes of all indices, then of all lots and seeds."""
        if isinstance(self._sampler, ImportanceSampler):
            return b""
        drawn = self._sampler.draw(len(self._records)).astype(np.int64, copy=False)
        tags = (self._streams.sampling.words(len(drawn)) >> np.uint64(1)).astype(np.int64)
        seeds = self._streams.sampling.words(self._records.seed_words * len(drawn))
        return drawn.tobytes() + tags.tobytes() + seeds.tobytes()

    def _room(self, pieces: ReleaseLayout) -> torch.Tensor:
        """Return a flat float64 vector for all sums, whatever it holds.

        It is kept, as fresh memory costs more than the sums themselves. After a step it holds what
        was released, or zeros on ranks that release nothing; after one that failed it is as
        sensitive as the sums.
        """
        size = sum(pieces.sizes)
        if self._buffer is None or len(self._buffer) < size:
            device = next(iter(pieces.parameters.values())).device
            self._buffer = torch.empty(size, dtype=torch.float64, device=device)
        return self._buffer[:size]

    def _trained(self) -> dict[str, nn.Parameter]:
        """The parameters under the gate that are not frozen by now."""
        return {name: p for name, p in self._parameters.items() if p.requires_grad}

    def _mechanism(
        self, engine: Engine, step: int, setting: StepConfig, pieces: ReleaseLayout
    ) -> GaussianSum:
        """The mechanism of this step; its noise depends on the plan, what was released, the model
        and the engine.
        """
        query = setting.query
        dimension = sum(p.numel() for p in self._parameters.values()) + sum(
            each.size for each in query.due(step)
        )
        if query.slots is not None:  # a slot shares its arithmetic with no other
            co_batched, rounding = 0, 0.0
        # with more ranks there are more blocks, and none is expected to be larger: the noise is the
        # same
        else:
            blocks = self._blocks(engine, step, setting)
            additions = (
                blocks.count**2 * 2.0**-50
            )  # in float64, of blocks: felt by companions where blocks are many
            co_batched, rounding = (
                blocks.largest,
                shared_rounding(query, step, engine.rounding + additions),
            )
        norm_rounding = pieces.norm_rounding(self.plan.divisor)
        reach, roundings = (
            query.joint_sensitivity(step),
            1 if query.least_sample is None and not norm_rounding else 2,
        )
        mechanism = GaussianSum(
            reach + norm_rounding,
            self._noise_multiplier(step, setting),
            dimension,
            co_batched,
            rounding,
            roundings,
        )
        return mechanism if self._importance is None else with_rounding_allowance(mechanism)

    def _event(self, step: int, setting: StepConfig) -> Event:
        """The event that the sampler at hand and the query license, compared with the one that was
        planned.
        """
        noise, rate = (
            self.plan.noise_at(step) * setting.noise,
            None if setting.draw is None else setting.draw.rate,
        )
        planned = self.plan.event_at(step, setting.noise, rate)
        due = step if self._sampler.policy.steps_per_event == 1 else 1
        policy, queries = self._sampler.policy.at(step), setting.query.sum_queries(noise, due)
        if rate is not None:
            policy = replace(policy, rate=rate)  # type: ignore[type-var]
        event = Sampled(policy, queries, adaptive=self.plan.adaptive)
        if event != planned:
            raise LedgerMismatch(
                "The query that is about to run is not the event of the plan; nothing was read."
            )
        return event

    def _largest_chunk(
        self, engine: Engine | None, co_batched: int = MAX_BLOCK_RECORDS
    ) -> int | None:
        """How many units may be in memory at once, by the user's and the engine's limits of
        rows.
        """
        limits = [
            limit
            for limit in (
                self._max_physical_batch,
                engine and engine.records_at_once,
                self._importance and co_batched,
            )
            if limit
        ]
        return max(1, min(limits) // self._records.rows_per_unit) if limits else None

    def _blocks(
        self, engine: Engine, step: int, setting: StepConfig, ranks: int = 1
    ) -> BatchPartition:
        """How the records that a step computes on are divided, from public and released numbers."""
        if self._importance is None:
            return BatchPartition.planned(
                self.plan.expected_batch, self._largest_chunk(engine), ranks
            )
        largest = self._largest_chunk(engine, co_batched_for(self._noise_multiplier(step, setting)))
        return BatchPartition.planned(expected_proposals(self._importance, step), largest, ranks)

    def _noise_multiplier(self, step: int, setting: StepConfig) -> float:
        """The noise of a step over what one record may add to all of its sums."""
        return self.plan.noise_at(step) * setting.noise / setting.query.joint_sensitivity(step)

    def _check_ready(self, batch: Batch) -> None:
        if self._closed:
            raise InvalidArgument("This run is closed. Open another with dpfy.privatize.")
        if not isinstance(batch, Batch) or batch._run is not self:
            raise InvalidArgument("Expected a batch that iterating over this run yielded.")
        if batch._released:
            raise BatchAlreadyReleased(
                f"The batch of step {batch.step} was released already. One sample licenses one "
                "release: take the next batch of the run."
            )
        if not self._trained():
            raise InvalidArgument(
                "Every parameter is frozen by now: there is no gradient to release."
            )
        if not all(is_finite(p) for p in self._parameters.values()):
            raise DivergenceError(
                "The released model has non-finite parameters: training diverged. Lower the "
                "learning rate; the ledger keeps what was spent."
            )

    def _add_sums(
        self,
        pieces: ReleaseLayout,
        sums: SumAccumulator,
        engine: Engine,
        loss_fn: LossFn,
        drawn: bytes,
        blocks: BatchPartition,
        clipping: Clipping,
    ) -> None:
        """Add the bounded sums of this rank's share of the drawn records."""
        if not drawn:
            return
        indices, tags, *_ = words = torch.frombuffer(bytearray(drawn), dtype=torch.int64).view(
            self._drawn_words, -1
        )
        sample = self._records.sample(indices, words[2:])
        slots = self.plan.query.slots
        places = blocks.of(tags) if slots is None else drawn_from(slots, tags)
        # By lot and not by block: however large its blocks are, no rank takes a record that is
        # another's.
        owners = drawn_from(self._ranks.size, tags) if slots is None else places % self._ranks.size
        groups = [places == place for place in places[owners == self._ranks.rank].unique()]
        if slots is None:
            parts = [
                part for block in groups for part in blocks.divided(indices[block], tags[block])
            ]
            parts.sort(
                key=len, reverse=True
            )  # what was freed of a large chunk has room for a smaller one
            visit_loaded(
                sample,
                parts,
                lambda loaded: engine.bounded_sums(
                    loss_fn,
                    loaded.chunk,
                    self._weighing(clipping, loaded.indices, pieces.query.bound),
                ),
                sums.take,
            )
        else:
            for slot in groups:
                parts = even_parts(indices[slot], self._largest_chunk(engine))
                sums.take(clipped_mean(engine, loss_fn, partial(visit, sample, parts), clipping))

    def _weighing(self, clipping: Clipping, indices: tuple[int, ...], bound: float) -> Clipping:
        """How the records of a chunk are weighed: by their norms, and by their own coins if these
        were proposed.
        """
        if self._importance is None:
            return clipping
        return replace(clipping, weigh=Weighing(self._importance, self._taken, bound, indices))

    def _engine_for(self, loss_fn: LossFn) -> Engine:
        """The engine for this loss as it is now; no record has a part in the choice."""
        return self._choice.engine_for(loss_fn, self._trained())

    def _look_at_data(self) -> None:
        """Refuse data sets that differ from rank to rank, and before the first step those that mix
        records.
        """
        check_same_records(self._ranks, self._records)
        with self._ranks.together():
            if self._choice.current is None:
                refuse_mixing(self._records)

    def _approve(self, probe: Probe, engine: Engine) -> None:
        """Record what steps with this engine rest on, and clip synthetic records as the plan
        says.
        """
        record_basis(self, probe, engine)
        step = max(1, self._taken)
        setting = self._steering.setting(step)
        if not engine.isolates:
            probe.check_size(self._blocks(engine, step, setting).largest)
        rehearse(
            engine,
            probe.loss_fn,
            probe.made_up(),
            ReleaseLayout(
                setting.query,
                probe.parameters,
                () if setting.query.slots else setting.query.statistics,
                setting.coordinates,
            ),
        )

    # What was spent, and the gate

    @property
    def ledger(self) -> Ledger:
        """The ledger of the run; of several processes rank 0 has it."""
        if self._ledger is None:
            raise LedgerError(
                "The ledger of this run, and what was spent, are with rank 0. Ask there, and send "
                "the answer to the other ranks if they need it."
            )
        return self._ledger

    @property
    def declared(self) -> str:
        """Who declared the shape of records: example_input, the data set, or tensors that are
        stacked.
        """
        return self._example.how

    @property
    def isolation(self) -> str:
        """How it is known that one record cannot influence another one's gradient."""
        return "not probed yet" if self._choice.current is None else self._choice.current.isolation

    @property
    def engine(self) -> str:
        """The name of the engine in use; what was asked for until the first release has probed the
        model.
        """
        return self._choice.wanted if self._choice.current is None else self._choice.current.name

    @property
    def largest_chunk(self) -> int | None:
        """The most units in memory at once, by your limit and that of the engine in use; None if
        there is neither.
        """
        return self._largest_chunk(self._choice.current)

    def spent(self, delta: float) -> Interval:
        """Return the ε of all that was reserved so far, as a certified interval; under a filter, of
        its limit.
        """
        return account(self.ledger).epsilon(delta)

    def postprocessing(self) -> AbstractContextManager[None]:
        """Allow deliberate edits of released gradients inside the block."""
        return self._gate.vouched("run.postprocessing()")

    def public(self) -> AbstractContextManager[None]:
        """Allow gradients of public data, from plain ``loss.backward()``, inside the block."""
        return self._gate.vouched("run.public()")

    def save(self, directory: str | Path, extra: Mapping[str, Any] | None = None) -> Path:
        """Write a checkpoint of the model, the optimizers and ``extra`` to ``directory``, for
        :func:`dpfy.resume`.

        ``extra`` holds plain values or objects with a ``state_dict``, such as a scheduler. No state
        of the noise or of the sampling is saved: a resumed run draws fresh ones.
        """
        from dpfy.run.checkpoint import save  # it builds on this module

        return save(self, directory, extra)

    def close(self) -> None:
        """Remove the gate and close the ledger; the model and the optimizer are as they were."""
        if not self._closed:
            self._closed = True
            self._gate.close()
            self._noise.close()
            self._records.close()
            if self._ledger is not None:
                self._ledger.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
