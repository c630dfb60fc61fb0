"""Release sums of gradient norms before the first step of an epoch, for importance sampling.

    reserve ─▶ count records ─▶ norms of all ─▶ noise ─▶ clip bound, ratio and noise of the epoch

The norms stay with the sampler as guesses, as they do where nothing about them is released.

Tests: tests/run/test_importance_sampling.py.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dpfy.accounting.individual_filter import IndividualFilter, leaves_records_out
from dpfy.gradients import Engine
from dpfy.gradients.base import BoundedSums, LossFn
from dpfy.ledger import Ledger
from dpfy.ledger.events import Event, ImportanceSchedule
from dpfy.mechanisms.clipping import Clipping
from dpfy.mechanisms.controllers import Draw, NormSumSampling
from dpfy.mechanisms.controllers.norm_sum import WIDEST_CLIP, size_of
from dpfy.mechanisms.gaussian_sum import GaussianSum
from dpfy.mechanisms.importance_bounds import MAX_BLOCK_RECORDS, MOVED, followed
from dpfy.mechanisms.sampling.importance import ImportanceSampler
from dpfy.noise import NoiseStrategy
from dpfy.plans import Plan
from dpfy.plans.dpis import noise_of_epoch
from dpfy.records.records import visit_loaded
from dpfy.run.partition import BatchPartition
from dpfy.run.release_layout import ReleaseLayout
from dpfy.run.sampling_strategy import draw_tags
from dpfy.sandbox.rng_isolation import isolated_rng

if TYPE_CHECKING:
    from dpfy.run.context import StepContext

_STEPS = 2**24  # of a bound: sums of shares are whole numbers of them, and exact for 2^29 records
_MOST = 64.0  # declared numbers of records: more are summed as so many


def norms_followed(plan: Plan) -> NormSumSampling | None:
    """Return the controller of a plan that follows released norms."""
    return next((each for each in plan.controllers if isinstance(each, NormSumSampling)), None)


def extra_releases(plan: Plan, ledger: Ledger) -> int:
    """Return how many releases of the ledger, since the plan was registered, are no steps."""
    beside = {run.event for run in plan.extra_events}
    individual = isinstance(plan.filter, IndividualFilter)
    if not (beside or individual):
        return 0
    found, before = 0, ledger.count - ledger.plan_count
    for run in ledger.uses:
        counted, before = max(0, run.times - before), max(0, before - run.times)
        step = leaves_records_out(run.event) if individual else run.event not in beside
        found += 0 if step else counted
    return found


def due_before(context: "StepContext", step: int) -> Event | None:
    """Return what has to be released before a step, or None."""
    controller = norms_followed(context.plan)
    return (
        None
        if controller is None or not controller.due(_state(context, controller), step)
        else controller.event
    )


def release_norms(
    context: "StepContext",
    sampler: ImportanceSampler,
    loss_fn: LossFn,
    step: int,
) -> None:
    """Release the sums of norms of an epoch, after the number of records if that is not public.

    *Formal guarantee*: every event is on stable storage, and the ledger's guard has admitted it,
    before a record is read for it; nothing but the noised sums leaves, and the clip bound, rate and
    noise of the steps follow from them.

    Proof: docs/proofs/dpis.md.
    """
    controller = norms_followed(context.plan)
    assert controller is not None
    context.streams.refresh()
    state = dict(_state(context, controller))
    declared = sampler.policy.population
    if (
        controller.size_event is not None
        and controller.size_stddev is not None
        and state["size"] is None
    ):
        context.ledger.reserve(controller.size_event)
        counted = noised(
            min(len(context.records), _MOST * declared), controller.size_stddev, context.noise
        )
        state["size"] = size_of(declared, counted)
    size = state["size"] or float(declared)
    context.ledger.reserve(controller.event)
    norms = _norms(context, loss_fn)

    def released(clip: float, floor: float) -> float:
        total = norm_sum(norms, clip, floor, _MOST * declared)
        return noised(total, controller.stddev, context.noise, MAX_BLOCK_RECORDS)

    if controller.clip_factor is not None:
        planned = context.plan.clip
        state["clip"] = controller.clip_of(planned, released(WIDEST_CLIP * planned, 0.0) / size)
    total = released(state["clip"], sampler.policy.floor)
    state["ratio"], state["rate"] = followed(sampler.policy.batch_size, total, size)
    state["since"] = step
    state["noise"] = noise_of_epoch(context.plan, state, size, context.ledger.uses)
    sampler.follow(Draw(state["rate"], state["clip"]))
    sampler.learn(step, norms)
    context.controllers.load_state_dict({**context.controllers.state_dict(), controller.tag: state})


def all_norms(
    context: "StepContext", engine: Engine, loss_fn: LossFn, clipping: Clipping
) -> np.ndarray:
    """Return the norms of all records, zero for those that have none.

    Records draw their blocks as those of a step do.
    """
    records = context.records
    norms = torch.zeros(len(records), dtype=torch.float64)
    tags = draw_tags(context.streams.sampling, len(records))
    schedule = context.sampling.policy
    assert isinstance(schedule, ImportanceSchedule)
    partition = BatchPartition.planned(schedule.population, context.largest_chunk(engine))
    measuring = replace(clipping, weigh=torch.zeros_like)

    def take(found: tuple[tuple[int, ...], BoundedSums]) -> None:
        norms[list(found[0])] = torch.cat([some.norms[:, 0] for some in found[1].seen]).sqrt().cpu()

    visit_loaded(
        records.fresh(),
        partition.parts(torch.arange(len(records)), tags),
        lambda loaded: (loaded.indices, engine.bounded_sums(loss_fn, loaded.chunk, measuring)),
        take,
    )
    return norms.numpy()


def norm_sum(norms: np.ndarray, clip: float, floor: float, most: float) -> float:
    """Return Σ clamp(norm/clip, floor, 1), or ``most`` if that is less.

    NaN counts as the floor and infinity as 1. Each term is a whole number of small steps, so the
    sum is exact and a further record adds at most 1.

    >>> norm_sum(np.array([0.0, 0.5, 3.0, np.nan]), clip=2.0, floor=0.125, most=100.0)
    1.5
    """
    shares = np.clip(np.nan_to_num(norms / clip, nan=0.0, posinf=1.0), floor, 1.0)
    return min(float(np.rint(shares * _STEPS).sum()) / _STEPS, most)


def noised(total: float, stddev: float, noise: NoiseStrategy, co_batched: int = 0) -> float:
    """Add noise to a sum of sensitivity 1.

    An allowance covers the rounding error in up to ``co_batched`` other records.
    """
    mechanism = GaussianSum(1.0, stddev, 1, co_batched, MOVED + 1 / _STEPS)
    return float(mechanism.release(torch.tensor([total], dtype=torch.float64), noise))


def _norms(context: "StepContext", loss_fn: LossFn) -> np.ndarray:
    """Return the norms of all records."""
    with isolated_rng(context.streams.training):
        engine = context.engine_for(loss_fn)
        clipping = ReleaseLayout(context.plan.query, context.trained(), ()).clipping(grid=1.0)
        norms = all_norms(context, engine, loss_fn, clipping)
    context.require_opener()  # the loss may have forked
    return norms


def _state(context: "StepContext", controller: NormSumSampling) -> dict[str, Any]:
    return context.controllers.state_dict()[controller.tag]
