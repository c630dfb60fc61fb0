"""Hold what a step is given: the plan, the private records, the ledger, and a value for each slot.

A new method of private training is a new value for one of the slots of :class:`StepContext`, not a
branch in the step.

Tests: tests/run/test_step.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import nn

from dpfy._process import Opener
from dpfy.errors import LedgerError
from dpfy.gradients import Engine
from dpfy.gradients.base import LossFn
from dpfy.ledger import Ledger
from dpfy.noise import NoiseStrategy, SecureStream
from dpfy.plans.plan import Plan
from dpfy.records.example import Declared
from dpfy.records.records import Records
from dpfy.run.controller_states import ControllerStates
from dpfy.run.ranks import Ranks
from dpfy.run.record_bounds import RecordBounds, UniformBounds
from dpfy.run.sharding import Division
from dpfy.run.sum_accumulator import SumBuffer

if TYPE_CHECKING:
    from dpfy.run.draws import Draws
    from dpfy.run.engine_choice import EngineChoice
    from dpfy.run.sampling_strategy import SamplingStrategy


@dataclass(frozen=True)
class Streams:
    """Keep a cryptographic generator for each purpose, so that no draw reveals another."""

    noise: SecureStream
    sampling: SecureStream
    training: SecureStream

    def refresh(self) -> None:
        """Give each generator a new key, as a restored copy of the machine has the old ones."""
        for stream in (self.noise, self.sampling, self.training):
            stream.refresh()


@dataclass
class Progress:
    """Count the steps of a plan.

    Args:
        handed_out: steps whose batch the run has yielded.
        taken: steps that are paid for and behind the run.
        prepaid: steps that the event that was reserved last still pays for.
    """

    handed_out: int
    taken: int
    prepaid: int = 0


@dataclass(frozen=True)
class StepContext:
    """Everything that a step, a recipe, a checkpoint or a query of losses works with.

    Args:
        plan: what was planned.
        model: the model that is trained.
        parameters: the parameters that the optimizers hold, by name.
        records: the private records.
        example: what was declared about the shape of a record.
        open_ledger: the ledger, on the rank that writes it; None on all other ranks.
        ranks: the processes of the run.
        streams: the cryptographic generators.
        sampling: how records come into a step.
        draws: when samples are drawn: each in its step, or one step ahead.
        noise: the noise that is added to sums.
        controllers: what is chosen from released values.
        engines: which engine differentiates the records.
        progress: how far the run has come.
        record_bounds: how far each record may move a sum.
        max_physical_batch: the most rows in memory at once; None for as many as suit the engine.
        strict: whether no release may rest on an allowance.
        buffer: the memory in which sums are formed.
        opener: the process of the run; its forks release nothing.
        division: how a sharded model is divided among the processes; None for one that is whole.
    """

    plan: Plan
    model: nn.Module
    parameters: Mapping[str, nn.Parameter]
    records: Records
    example: Declared
    open_ledger: Ledger | None
    ranks: Ranks
    streams: Streams
    sampling: "SamplingStrategy"
    draws: "Draws"
    noise: NoiseStrategy
    controllers: ControllerStates
    engines: "EngineChoice"
    progress: Progress
    record_bounds: RecordBounds = field(default_factory=UniformBounds)
    max_physical_batch: int | None = None
    strict: bool = False
    buffer: SumBuffer = field(default_factory=SumBuffer)
    opener: Opener = field(default_factory=Opener)
    division: Division | None = None

    def __repr__(self) -> str:
        return "StepContext(sensitive)"  # it holds the records and the generators

    @property
    def ledger(self) -> Ledger:
        """The ledger of the run, which rank 0 has."""
        if self.open_ledger is None:
            raise LedgerError(
                "The ledger of this run, and what was spent, are with rank 0. Ask there, and send "
                "the answer to the other ranks if they need it."
            )
        return self.open_ledger

    def require_opener(self) -> None:
        """Refuse to release in a fork, which has a copy of the steps that are paid for.

        Raises:
            LedgerError: in every process but the one that opened the run.
        """
        self.opener.require(
            "This run",
            "release from it",
            "Its steps are paid for once. Release in the process that opened it, or begin a run "
            "with a ledger of its own in this one.",
        )

    def close(self) -> None:
        """Close the ledger, and end the threads and processes of noise and loading."""
        self.noise.close()
        self.records.close()
        if self.open_ledger is not None:
            self.open_ledger.close()

    def trained(self) -> dict[str, nn.Parameter]:
        """Return the parameters that are not frozen by now."""
        return {name: p for name, p in self.parameters.items() if p.requires_grad}

    def held(self) -> Mapping[str, torch.Tensor]:
        """Return what this process releases of the trained parameters: its rows, or all of it."""
        trained = self.trained()
        return trained if self.division is None else self.division.rows_of(trained)

    def engine_for(self, loss_fn: LossFn) -> Engine:
        """Return the engine for a loss function as it is now; no record influences the choice."""
        return self.engines.engine_for(self, loss_fn)

    def largest_chunk(self, engine: Engine | None, limit: int | None = None) -> int | None:
        """Return how many units of privacy may be in memory at once.

        Args:
            engine: the engine in use, whose own limit counts.
            limit: a limit of rows by the sampling strategy; None for its own.

        Returns:
            The smallest of all limits in units of privacy; None if there is none.
        """
        limits = [
            each
            for each in (
                self.max_physical_batch,
                engine and engine.records_at_once,
                limit or self.sampling.largest_block,
            )
            if each
        ]
        return max(1, min(limits) // self.records.rows_per_unit) if limits else None
