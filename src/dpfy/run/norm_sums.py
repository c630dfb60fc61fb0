"""Sums of norms that are released before the first step of an epoch, and what follows from them.

    reserve the events ─▶ count records ─▶ norms of all of them ─▶ noise ─▶ clip bound, ratio, noise of the epoch

The norms stay with the sampler as guesses, as they do where nothing about them is released.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dpfy.gradients.base import LossFn
from dpfy.ledger import Ledger
from dpfy.ledger.events import Event
from dpfy.mechanisms.controllers import Draw, NormSumSampling
from dpfy.mechanisms.controllers.norm_sum import WIDEST_CLIP, size_of
from dpfy.mechanisms.gaussian_sum import GaussianSum
from dpfy.mechanisms.importance_bounds import MAX_BLOCK_RECORDS, MOVED, followed
from dpfy.noise import Noise
from dpfy.plans import Plan
from dpfy.plans.dpis import noise_of_epoch
from dpfy.run.importance_sampling import all_norms
from dpfy.run.release_layout import ReleaseLayout
from dpfy.sandbox.rng_isolation import isolated_rng

if TYPE_CHECKING:
    from dpfy.run.run import Run

_STEPS = 2**24  # of a bound: sums of shares are whole numbers of them, and exact for 2^29 records
_MOST = 64.0  # declared numbers of records: more are summed as so many


def norms_followed(plan: Plan) -> NormSumSampling | None:
    """Return the controller of a plan that follows released norms."""
    return next((each for each in plan.controllers if isinstance(each, NormSumSampling)), None)


def extra_releases(plan: Plan, ledger: Ledger) -> int:
    """Return how many releases the ledger holds, since the plan was registered, that are none of
    its steps.
    """
    beside = {run.event for run in plan.extra_events}
    if not beside:
        return 0
    found, before = 0, ledger.count - ledger.plan_count
    for run in ledger.uses:
        counted, before = max(0, run.times - before), max(0, before - run.times)
        found += counted if run.event in beside else 0
    return found


def due_before(run: "Run", step: int) -> Event | None:
    """Return what has to be released before a step, or None."""
    controller = norms_followed(run.plan)
    return (
        None
        if controller is None or not controller.due(_state(run, controller), step)
        else controller.event
    )


def release_norms(run: "Run", loss_fn: LossFn, step: int) -> None:
    """Release the sums of norms of an epoch, after the number of records if that is not public.

    *Formal guarantee*: every event is on stable storage, and the ledger's guard has admitted it,
    before a record is read for it; nothing but the noised sums leaves, and the clip bound, rate and
    noise of the steps follow from them.

    Proof: docs/proofs/dpis.md.
    """
    controller, sampler = norms_followed(run.plan), run._importance
    assert controller is not None and sampler is not None
    run._streams.refresh()
    state = dict(_state(run, controller))
    declared = sampler.policy.population
    if (
        controller.size_event is not None
        and controller.size_stddev is not None
        and state["size"] is None
    ):
        run.ledger.reserve(controller.size_event)
        counted = noised(
            min(len(run._records), _MOST * declared), controller.size_stddev, run._noise
        )
        state["size"] = size_of(declared, counted)
    size = state["size"] or float(declared)
    run.ledger.reserve(controller.event)
    norms = _norms(run, loss_fn, declared)

    def released(clip: float, floor: float) -> float:
        total = norm_sum(norms, clip, floor, _MOST * declared)
        return noised(total, controller.stddev, run._noise, MAX_BLOCK_RECORDS)

    if controller.clip_factor is not None:
        planned = run.plan.clip
        state["clip"] = controller.clip_of(planned, released(WIDEST_CLIP * planned, 0.0) / size)
    total = released(state["clip"], sampler.policy.floor)
    state["ratio"], state["rate"] = followed(sampler.policy.batch_size, total, size)
    state["since"] = step
    state["noise"] = noise_of_epoch(run.plan, state, size, run.ledger.uses)
    sampler.follow(Draw(state["rate"], state["clip"]))
    sampler.learn(step, norms)
    run._steering.load_state_dict({**run._steering.state_dict(), controller.tag: state})


def norm_sum(norms: np.ndarray, clip: float, floor: float, most: float) -> float:
    """Return Σ clamp(norm/clip, floor, 1), or ``most`` if that is less; what is not finite counts
    as the floor or 1.

    Each term is a whole number of small steps, so the sum is exact and one record more adds at most
    1.

    >>> norm_sum(np.array([0.0, 0.5, 3.0, np.nan]), clip=2.0, floor=0.125, most=100.0)
    1.5
    """
    shares = np.clip(np.nan_to_num(norms / clip, nan=0.0, posinf=1.0), floor, 1.0)
    return min(float(np.rint(shares * _STEPS).sum()) / _STEPS, most)


def noised(total: float, stddev: float, noise: Noise, co_batched: int = 0) -> float:
    """Return a sum in which one record more counts at most 1, and moves so many others in their
    last bits.
    """
    mechanism = GaussianSum(1.0, stddev, 1, co_batched, MOVED + 1 / _STEPS)
    return float(mechanism.release(torch.tensor([total], dtype=torch.float64), noise))


def _norms(run: "Run", loss_fn: LossFn, declared: int) -> np.ndarray:
    """The norms of all records."""
    with isolated_rng(run._streams.training):
        engine = run._engine_for(loss_fn)
        clipping = ReleaseLayout(run.plan.query, run._trained(), ()).clipping(grid=1.0)
        return all_norms(
            run._records,
            engine,
            loss_fn,
            clipping,
            declared,
            run._streams.sampling,
            run._largest_chunk(engine),
        )


def _state(run: "Run", controller: NormSumSampling) -> dict[str, Any]:
    return run._steering.state_dict()[controller.tag]
