"""Sample by importance in a step: which records are proposed, and the weight of each gradient.

Norms, guesses and coins are sensitive and stay with the sampler. Proof: docs/proofs/dpis.md.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from dpfy.errors import InvalidArgument
from dpfy.gradients import EXACT_NORMS, Engine
from dpfy.gradients.base import LossFn
from dpfy.ledger.events import Event, ImportanceSchedule, Policy
from dpfy.mechanisms.clipping import Clipping
from dpfy.mechanisms.controllers import StepConfig
from dpfy.mechanisms.gaussian_sum import GaussianSum
from dpfy.mechanisms.importance_bounds import (
    MARGIN,
    MAX_BLOCK_RECORDS,
    co_batched_for,
    rounding_allowance,
)
from dpfy.mechanisms.sampling.importance import ImportanceSampler
from dpfy.noise import SecureStream
from dpfy.plans.plan import Plan
from dpfy.run import norm_sums
from dpfy.run.context import StepContext
from dpfy.run.partition import BatchPartition
from dpfy.run.sampling_strategy import Sample, SamplingStrategy


class ImportanceSampling(SamplingStrategy):
    """Propose records by the norms that their gradients had, and accept them by those they have.

    Args:
        plan: a plan with importance sampling.
        stream: the generator of samples.
        engine: the name of the wanted engine.
        ranks: the number of processes.
        parameters: the trained parameters, by name.

    Raises:
        InvalidArgument: if the engine, the processes, the parameters' type or the noise do not
            allow it.
    """

    engines = EXACT_NORMS
    largest_block = MAX_BLOCK_RECORDS
    accepts_by_norm = True

    def __init__(
        self,
        plan: Plan,
        stream: SecureStream,
        engine: str,
        ranks: int,
        parameters: Mapping[str, nn.Parameter],
    ) -> None:
        assert isinstance(plan.sampling, ImportanceSchedule)
        _check(plan, plan.sampling, engine, ranks, parameters)
        self.sampler = ImportanceSampler(plan.sampling, plan.clip, stream)

    @property
    def policy(self) -> Policy:
        """The schedule of ratios and rates."""
        return self.sampler.policy

    def policy_at(self, step: int, config: StepConfig) -> Policy:
        """Return the policy of a step, at the rate that follows released norms if there is one."""
        policy = self.sampler.policy.at(step)
        return policy if config.draw is None else replace(policy, rate=config.draw.rate)

    def event_before(self, context: StepContext, step: int) -> Event | None:
        """Return the release of norms that an epoch begins with, if the plan follows them."""
        return norm_sums.due_before(context, step)

    def before_step(self, context: StepContext, loss_fn: LossFn, step: int) -> None:
        """Release the norms that are due before a step."""
        if norm_sums.due_before(context, step):
            norm_sums.release_norms(context, self.sampler, loss_fn, step)

    def draw(self, context: StepContext, step: int) -> Sample:
        """Draw nothing yet: what is proposed depends on norms, which need an engine."""
        return Sample.drawn(np.empty(0, dtype=np.int64), context.streams.sampling, 0)

    def propose(
        self,
        context: StepContext,
        sample: Sample,
        step: int,
        config: StepConfig,
        engine: Engine,
        loss_fn: LossFn,
        clipping: Clipping,
    ) -> Sample:
        """Return the proposed records.

        Once in an epoch all norms are computed before. They stay with the sampler, and are computed
        again after a resume.
        """
        sampler = self.sampler
        if config.draw is not None:
            sampler.follow(config.draw)
        if sampler.due(step):
            sampler.learn(step, norm_sums.all_norms(context, engine, loss_fn, clipping))
        indices = sampler.draw(step, len(context.records))
        return Sample.drawn(indices, context.streams.sampling, 0)

    def weigh(
        self, clipping: Clipping, step: int, config: StepConfig, indices: tuple[int, ...]
    ) -> Clipping:
        """Return the clipping that weighs each proposed record by its norm and its coin."""
        return replace(clipping, weigh=Weighing(self.sampler, step, config.query.bound, indices))

    def widen(self, mechanism: GaussianSum) -> GaussianSum:
        """Return the mechanism with the noise that hides what proposals do to others' rounding."""
        return with_rounding_allowance(mechanism)

    def partition(
        self,
        context: StepContext,
        engine: Engine,
        step: int,
        noise_multiplier: float,
        ranks: int = 1,
    ) -> BatchPartition:
        """Return blocks for the expected number of proposals, as large as the noise allows."""
        largest = context.largest_chunk(engine, co_batched_for(noise_multiplier))
        return BatchPartition.planned(expected_proposals(self.sampler, step), largest, ranks)


def _check(
    plan: Plan,
    schedule: ImportanceSchedule,
    engine: str,
    ranks: int,
    parameters: Mapping[str, nn.Parameter],
) -> None:
    """Refuse what importance sampling has no proof for, before a step is paid for."""
    if engine not in ("auto", *EXACT_NORMS):
        names = " or ".join(map(repr, EXACT_NORMS))
        raise InvalidArgument(
            "Importance sampling accepts records by the norm of the very gradient that is summed; "
            f"engine {engine!r} bounds norms from above instead. Use {names}."
        )
    if ranks > 1:
        raise InvalidArgument(
            f"Importance sampling runs in one process, got {ranks}: guesses of norms are not "
            "shared. Use dpfy.dpsgd with several."
        )
    if coarse := next(
        (p.dtype for p in parameters.values() if torch.finfo(p.dtype).bits < 32), None
    ):
        raise InvalidArgument(
            "Importance sampling tosses coins by norms, of which others may move last bits only; "
            f"{coarse} has too few of them. Use float32."
        )
    dimension = sum(p.numel() for p in parameters.values())
    for place, ratio in enumerate(schedule.ratios):
        noise = plan.noise_at(1 + place * schedule.length)
        with_rounding_allowance(
            GaussianSum(ratio * plan.clip, noise, dimension, co_batched_for(noise))
        )


def expected_proposals(sampler: ImportanceSampler, step: int) -> float:
    """Return about how many records are proposed for a step, if norms are as its ratio says.

    The mean of min(slack·norm, 1) is at most that of the mean norm.
    """
    policy = sampler.policy
    return policy.batch_size * min(policy.slack, 1 / policy.ratio_at(step)) / (1 - MARGIN)


class Weighing:
    """Weigh the proposed records of one chunk, in its order, one or several at a time."""

    def __init__(
        self, sampler: ImportanceSampler, step: int, bound: float, indices: tuple[int, ...]
    ) -> None:
        self._sampler = sampler
        self._step = step
        self._bound = bound
        self._waiting = np.array(indices, dtype=np.int64)

    def __call__(self, squared_norms: torch.Tensor) -> torch.Tensor:
        """Return the weights of the next records."""
        indices, self._waiting = np.split(self._waiting, [len(squared_norms)])
        norms = squared_norms[:, 0].sqrt().double().cpu().numpy()
        weights = self._sampler.weights(self._step, indices, norms, self._bound)
        return torch.from_numpy(weights).to(squared_norms).unsqueeze(1)


def with_rounding_allowance(mechanism: GaussianSum) -> GaussianSum:
    """Return the mechanism with enough noise to hide the rounding error of co-batched records.

    Their contributions move before the sum is rounded, which then moves by up to a lattice step in
    every coordinate; with more noise the lattice may be twice as coarse.
    """
    lattice = 2 * math.sqrt(mechanism.dimension) * mechanism.grid / mechanism.bound
    room = rounding_allowance(
        mechanism.noise_multiplier, lattice + mechanism.co_batched * mechanism.rounding
    )
    return replace(mechanism, bound=mechanism.bound * room)
