"""The importance sampler at work in a step: who is proposed, and what the gradients of whom
weigh.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from dpfy.errors import InvalidArgument
from dpfy.gradients import EXACT_NORMS, Engine
from dpfy.gradients.base import BoundedSums, LossFn
from dpfy.ledger.events import ImportanceSchedule
from dpfy.mechanisms.clipping import Clipping
from dpfy.mechanisms.gaussian_sum import GaussianSum
from dpfy.mechanisms.importance_bounds import (
    MARGIN,
    MAX_BLOCK_RECORDS,
    co_batched_for,
    rounding_allowance,
)
from dpfy.mechanisms.sampling.importance import ImportanceSampler
from dpfy.noise import SecureStream
from dpfy.plans import Plan
from dpfy.records.records import Records, visit_loaded
from dpfy.run.partition import BatchPartition


def importance_for(
    plan: Plan,
    stream: SecureStream,
    engine: str,
    ranks: int,
    parameters: Mapping[str, nn.Parameter],
) -> ImportanceSampler | None:
    """Return the sampler of a plan with importance sampling, and None for any other."""
    if not isinstance(plan.sampling, ImportanceSchedule):
        return None
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
    for place, ratio in enumerate(plan.sampling.ratios):  # rather than in a step that was paid for
        noise = plan.noise_at(1 + place * plan.sampling.length)
        with_rounding_allowance(
            GaussianSum(ratio * plan.clip, noise, dimension, co_batched_for(noise))
        )
    return ImportanceSampler(plan.sampling, plan.clip, stream)


def expected_proposals(sampler: ImportanceSampler, step: int) -> float:
    """Return about how many records are proposed for a step if norms are what its ratio says: for
    sizes of blocks.

    The mean of min(slack·norm, 1) is at most that of the mean norm.
    """
    policy = sampler.policy
    return policy.batch_size * min(policy.slack, 1 / policy.ratio_at(step)) / (1 - MARGIN)


class Weighing:
    """The weights of one chunk of proposed records, in its order; engines ask for one record or for
    several.
    """

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


def propose(
    sampler: ImportanceSampler,
    stream: SecureStream,
    step: int,
    records: Records,
    engine: Engine,
    loss_fn: LossFn,
    clipping: Clipping,
    largest: int | None,
) -> bytes:
    """Return the indices of the records that are proposed for a step, and the lots they drew, as
    bytes.

    Once in an epoch all norms are computed before. They stay with the sampler, and are computed
    anew after a resume.
    """
    if sampler.due(step):
        sampler.learn(
            step,
            all_norms(
                records, engine, loss_fn, clipping, sampler.policy.population, stream, largest
            ),
        )
    drawn = sampler.draw(step, len(records))
    return drawn.tobytes() + _lots(stream, len(drawn)).numpy().tobytes()


def all_norms(
    records: Records,
    engine: Engine,
    loss_fn: LossFn,
    clipping: Clipping,
    population: int,
    stream: SecureStream,
    largest: int | None,
) -> np.ndarray:
    """Return the norms of all records, zero of those that have none; records draw blocks as those
    of a step do.
    """
    norms = torch.zeros(len(records), dtype=torch.float64)
    indices, tags = torch.arange(len(records)), _lots(stream, len(records))
    blocks = BatchPartition.planned(
        population, min(largest or MAX_BLOCK_RECORDS, MAX_BLOCK_RECORDS)
    )
    measuring = replace(clipping, weigh=torch.zeros_like)
    places = blocks.of(tags)
    order = places.argsort(stable=True)
    groups = indices[order].split(places.bincount(minlength=blocks.count).tolist())
    parts = [part for block in groups if len(block) for part in blocks.divided(block, tags[block])]

    def take(found: tuple[tuple[int, ...], BoundedSums]) -> None:
        norms[list(found[0])] = torch.cat([some.norms[:, 0] for some in found[1].seen]).sqrt().cpu()

    visit_loaded(
        records.fresh(),
        parts,
        lambda loaded: (loaded.indices, engine.bounded_sums(loss_fn, loaded.chunk, measuring)),
        take,
    )
    return norms.numpy()


def with_rounding_allowance(mechanism: GaussianSum) -> GaussianSum:
    """Return the mechanism with as much more noise as hides what a proposal does to the last bits
    of others.

    They move before their sum is rounded, and it then by up to a lattice step in every coordinate;
    with more noise the lattice may be twice as coarse.
    """
    lattice = 2 * math.sqrt(mechanism.dimension) * mechanism.grid / mechanism.bound
    room = rounding_allowance(
        mechanism.noise_multiplier, lattice + mechanism.co_batched * mechanism.rounding
    )
    return replace(mechanism, bound=mechanism.bound * room)


def _lots(stream: SecureStream, count: int) -> torch.Tensor:
    return torch.from_numpy((stream.words(count) >> np.uint64(1)).astype(np.int64))
