"""Take one private step, read from top to bottom.

    reserve ─▶ draw ─▶ bound ─▶ noise ─▶ release ─▶ observe

The event is durable in the ledger before a record is read. Everything between the draw and the
release is sensitive: it is never logged, printed, saved or put into an exception.
"""

import torch

from dpfy.errors import LedgerMismatch
from dpfy.gradients.base import LossFn
from dpfy.ledger.events import Event, Sampled
from dpfy.mechanisms.controllers import StepConfig
from dpfy.mechanisms.gaussian_sum import GaussianSum
from dpfy.run.bounding import add_bounded
from dpfy.run.context import StepContext
from dpfy.run.noise_scale import mechanism_for, partition_for
from dpfy.run.release_layout import ReleaseLayout
from dpfy.run.released import Batch, Released
from dpfy.run.sampling_strategy import Sample
from dpfy.run.sum_accumulator import SumAccumulator
from dpfy.sandbox.rng_isolation import isolated_rng


def take_step(context: StepContext, loss_fn: LossFn, batch: Batch) -> Released:
    """Reserve the next step of the plan, draw its sample and release its noisy sums."""
    step = context.progress.taken + 1  # a batch that nobody released is no step
    context.streams.refresh()
    context.sampling.before_step(context, loss_fn, step)
    config = context.controllers.config(step)
    event = event_of(context, step, config)
    due = config.query.due(step)
    layout = ReleaseLayout(config.query, context.trained(), due, config.coordinates)

    drawn = context.ranks.from_first(lambda: _reserve_and_draw(context, event, step, config))
    batch.released, context.progress.taken = True, step
    sample = Sample.from_bytes(drawn, context.records.seed_words)

    with context.buffer.sums_for(layout) as sums:  # zeroed if the step fails
        with isolated_rng(context.streams.training):
            engine = context.engine_for(loss_fn)
            partition = partition_for(context, engine, step, config, context.ranks.size)
            mechanism = mechanism_for(context, engine, step, config, layout)
            with context.ranks.together():
                if context.ranks.first:  # drawn while the engine works; used in this step or never
                    context.noise.prefetch(layout.size, mechanism.stddev, mechanism.grid)
                clipping = layout.clipping(mechanism.grid)
                sample = context.sampling.propose(
                    context, sample, step, config, engine, loss_fn, clipping
                )
                add_bounded(context, loss_fn, engine, sample, partition, clipping, config, sums)
        outputs = _add_noise(context, layout, sums, mechanism, len(sample))

    released = layout.released(
        outputs,
        batch.step,
        noise_multiplier=context.plan.noise_at(step) * config.noise,
        stddev=mechanism.stddev / context.plan.divisor,
    )
    context.controllers.observe(released)
    return released


def event_of(context: StepContext, step: int, config: StepConfig) -> Event:
    """Return the event that the sampler and the query at hand license; it must be the planned one.

    Args:
        context: the context of the run.
        step: the step, counted from 1.
        config: what the step is run with.

    Returns:
        The event to reserve.

    Raises:
        LedgerMismatch: if what is about to run is not the event of the plan.
    """
    plan, sampling = context.plan, context.sampling
    rate = None if config.draw is None else config.draw.rate
    due = step if sampling.steps_per_event == 1 else 1
    queries = config.query.sum_queries(plan.noise_at(step) * config.noise, due)
    event = Sampled(sampling.policy_at(step, config), queries, adaptive=plan.adaptive)
    if event != plan.event_at(step, config.noise, rate):
        raise LedgerMismatch(
            "The query that is about to run is not the event of the plan; nothing was read."
        )
    return event


def _reserve_and_draw(context: StepContext, event: Event, step: int, config: StepConfig) -> bytes:
    """Make the step durable, then draw its sample."""
    progress = context.progress
    if progress.prepaid == 0:
        context.ledger.reserve(event, note={"clip": config.query.bound})
        progress.prepaid = context.sampling.steps_per_event
    progress.prepaid -= 1
    progress.taken = step  # whatever happens now, it is paid for
    return context.sampling.draw(context).to_bytes()


def _add_noise(
    context: StepContext,
    layout: ReleaseLayout,
    sums: SumAccumulator,
    mechanism: GaussianSum,
    records: int,
) -> list[torch.Tensor]:
    """Add up the sums of all ranks; return them with rank 0's noise on every rank."""
    divisor, ranks = context.plan.divisor, context.ranks
    if ranks.size > 1:
        ranks.sum_to_first(sums.vector)
    outputs = layout.outputs(sums.tensors)
    with ranks.together():
        if ranks.first:
            if layout.completes:
                layout.complete(sums.vector, records, divisor)
            factors = layout.factors(divisor)
            mechanism.release_pieces(sums.tensors, factors, outputs, context.noise)
        else:
            sums.zero()
    ranks.share(outputs)
    return outputs
