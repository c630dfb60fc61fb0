"""Bring records into a step: what is released before it, its policy, its draw and its weights.

:class:`IndependentSampling` serves every policy whose sample does not depend on the records;
:class:`~dpfy.run.importance_sampling.ImportanceSampling` uses all hooks.

Tests: tests/run/test_step.py.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np
import torch

from dpfy.errors import LedgerMismatch
from dpfy.gradients import ENGINES, Engine
from dpfy.gradients.base import LossFn
from dpfy.ledger import Ledger
from dpfy.ledger.events import Event, Policy
from dpfy.mechanisms.clipping import Clipping
from dpfy.mechanisms.controllers import StepConfig
from dpfy.mechanisms.gaussian_sum import GaussianSum
from dpfy.mechanisms.sampling import CyclicPoissonSampler, FixedOrderSampler, Sampler
from dpfy.noise import SecureStream
from dpfy.run.partition import BatchPartition
from dpfy.run.ranks import Ranks

if TYPE_CHECKING:
    from dpfy.run.context import StepContext


@dataclass(frozen=True)
class Sample:
    """The units of privacy that a step drew. Sensitive.

    Args:
        indices: their places in the data set.
        tags: 63 random bits of each, by which units are divided among blocks and ranks.
        seeds: random words of each, by which a user's rows are chosen; a row for each word.
    """

    indices: torch.Tensor
    tags: torch.Tensor
    seeds: torch.Tensor

    def __len__(self) -> int:
        return len(self.indices)

    def __repr__(self) -> str:
        return "Sample(sensitive)"

    @classmethod
    def drawn(cls, indices: np.ndarray, stream: SecureStream, seed_words: int) -> Self:
        """Let every drawn unit draw its tag and its seeds."""
        tags = draw_tags(stream, len(indices))
        seeds = stream.words(seed_words * len(indices)).view(np.int64)
        return cls(
            torch.from_numpy(indices.astype(np.int64, copy=False)),
            tags,
            torch.from_numpy(seeds).view(seed_words, len(indices)),
        )

    def to_bytes(self) -> bytes:
        """Return the sample as bytes, for the other ranks."""
        words = torch.cat((self.indices[None], self.tags[None], self.seeds))
        return words.numpy().tobytes()

    @classmethod
    def from_first(cls, ranks: Ranks, draw: Callable[[], Self], seed_words: int) -> Self:
        """Return on every rank the sample that ``draw`` returns on rank 0, where it is called."""
        if ranks.size == 1:
            return draw()
        return cls.from_bytes(ranks.from_first(lambda: draw().to_bytes()), seed_words)

    @classmethod
    def from_bytes(cls, drawn: bytes, seed_words: int) -> Self:
        """Return the sample that :meth:`to_bytes` wrote; no bytes are an empty sample."""
        words = np.frombuffer(bytearray(drawn), dtype=np.int64).reshape(2 + seed_words, -1)
        rows = torch.from_numpy(words)
        return cls(rows[0], rows[1], rows[2:])


def draw_tags(stream: SecureStream, count: int) -> torch.Tensor:
    """Draw 63 random bits for each of ``count`` units."""
    return torch.from_numpy((stream.words(count) >> np.uint64(1)).astype(np.int64))


class SamplingStrategy(ABC):
    """What the sampling of a plan does in a step; every hook but :meth:`draw` may do nothing."""

    engines: Mapping[str, type[Engine]] = ENGINES  # those that are exact enough for the strategy
    largest_block: int | None = None  # the most records that may share their arithmetic
    accepts_by_norm = False  # whether a record's own norm decides if it takes part
    stores_norms = False  # whether its stored norm bounds it: equal records need equal bits

    @property
    @abstractmethod
    def policy(self) -> Policy:
        """The policy that its draws may be accounted as, as the sampler itself names it."""

    @property
    def steps_per_event(self) -> int:
        """How many steps one event pays for."""
        return self.policy.steps_per_event

    def policy_at(self, step: int, config: StepConfig) -> Policy:
        """Return the policy that the event of a step, counted from 1, names."""
        return self.policy.at(step)

    def event_before(self, context: "StepContext", step: int) -> Event | None:
        """Return the event that has to be released before a step, or None."""
        return None

    def before_step(self, context: "StepContext", loss_fn: LossFn, step: int) -> None:
        """Release what has to be released before a step."""
        return

    @abstractmethod
    def draw(self, context: "StepContext", step: int) -> Sample:
        """Draw what can be drawn of a step before an engine is chosen; its event is durable."""

    def propose(
        self,
        context: "StepContext",
        sample: Sample,
        step: int,
        config: StepConfig,
        engine: Engine,
        loss_fn: LossFn,
        clipping: Clipping,
    ) -> Sample:
        """Return the records that the step differentiates, given what was drawn."""
        return sample

    def weigh(
        self, clipping: Clipping, step: int, config: StepConfig, indices: tuple[int, ...]
    ) -> Clipping:
        """Return how the records of a chunk are weighed, given how they are bounded."""
        return clipping

    def widen(self, mechanism: GaussianSum) -> GaussianSum:
        """Return the mechanism with the noise that this sampling needs on top."""
        return mechanism

    def partition(
        self,
        context: "StepContext",
        engine: Engine,
        step: int,
        noise_multiplier: float,
        ranks: int = 1,
    ) -> BatchPartition:
        """Return how the records of a step are divided, from public and released numbers."""
        return BatchPartition.planned(
            context.plan.expected_batch, context.largest_chunk(engine), ranks
        )


class IndependentSampling(SamplingStrategy):
    """Draw samples that depend on no record: Poisson, fixed-size and epoch-wise policies."""

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler

    @property
    def policy(self) -> Policy:
        """The policy of the sampler."""
        return self.sampler.policy

    def draw(self, context: "StepContext", step: int) -> Sample:
        """Draw the sample and let every drawn unit draw its tag and seeds."""
        indices = self.sampler.draw(len(context.records))
        return Sample.drawn(indices, context.streams.sampling, context.records.seed_words)


def check_next_row(ledger: Ledger, step: int) -> None:
    """Refuse a ledger whose next row of the stream is not that of a step, counted from 1."""
    if (rows := ledger.plan_count) != step - 1:
        raise LedgerMismatch(
            f"Row {step} of the stream is next in this run, and the ledger has {rows}: another run "
            "writes to it. Nothing was read; give each run its own ledger."
        )


class ScheduledSampling(IndependentSampling):
    """Draw samples from the records whose turn it is, by the number of the step.

    A step that failed or was lost keeps its records: those of the next one come next. Events pay
    for single steps.
    """

    def __init__(self, sampler: FixedOrderSampler | CyclicPoissonSampler) -> None:
        super().__init__(sampler)
        self._schedule = sampler

    @property
    def steps_per_event(self) -> int:
        """One, whatever an epoch has."""
        return 1

    def before_step(self, context: "StepContext", loss_fn: LossFn, step: int) -> None:
        """Refuse a ledger with rows of another run, which would be charged as one stream."""
        with context.ranks.together():
            if context.ranks.first:
                check_next_row(context.ledger, step)

    def draw(self, context: "StepContext", step: int) -> Sample:
        """Turn to the step, and draw its sample."""
        self._schedule.turn_to(step)
        return super().draw(context, step)
