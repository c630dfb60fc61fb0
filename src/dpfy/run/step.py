"""Take one private step, read from top to bottom.

    reserve ─▶ draw ─▶ bound ─▶ noise ─▶ release ─▶ observe

The event is durable in the ledger before a record is read. Everything between the draw and the
release is sensitive: it is never logged, printed, saved or put into an exception.
"""

from functools import partial

from dpfy.gradients import Engine
from dpfy.gradients.base import BoundedSums, LossFn
from dpfy.ledger.events import Event
from dpfy.mechanisms.clipping import Clipping
from dpfy.mechanisms.controllers import StepConfig
from dpfy.records.records import LoadedChunk, visit, visit_loaded
from dpfy.run.context import StepContext
from dpfy.run.draws import shares_of
from dpfy.run.lock_step import add_in_lock_step
from dpfy.run.microbatches import clipped_mean
from dpfy.run.noising import add_noise, begin_noise
from dpfy.run.partition import BatchPartition
from dpfy.run.released import Batch, Released
from dpfy.run.sampling_strategy import Sample
from dpfy.run.sum_accumulator import SumAccumulator
from dpfy.run.terms import event_of, mechanism_for, noise_multiplier_of, note_of, partition_for
from dpfy.sandbox.rng_isolation import isolated_rng


def take_step(context: StepContext, loss_fn: LossFn, batch: Batch) -> Released:
    """Reserve the next step of the plan, draw its sample and release its noisy sums."""
    step = context.progress.taken + 1  # a batch that nobody released is no step
    context.streams.refresh()
    context.sampling.before_step(context, loss_fn, step)
    context.noise.begin(step)
    config = context.controllers.config(step)
    event = event_of(context, step, config)
    layout = context.buffer.layout_of(step, config, context.held())
    expected = None
    if (last := context.engines.current) is not None:  # most steps have the engine of the last one
        expected = mechanism_for(context, last, step, config, layout)
        begin_noise(context, expected, layout)

    sample = Sample.from_first(
        context.ranks,
        lambda: _reserve_and_draw(context, event, step, config),
        context.records.seed_words,
    )
    batch.released, context.progress.taken = True, step

    with context.buffer.sums_for(layout) as sums:  # zeroed if the step fails
        with isolated_rng(context.streams.training):
            engine = context.engine_for(loss_fn)
            partition = partition_for(context, engine, step, config, context.ranks.size)
            mechanism = mechanism_for(context, engine, step, config, layout)
            if mechanism != expected:
                begin_noise(context, mechanism, layout)
            context.draws.begin(context, engine, sample, step, config, partition)
            clipping = layout.clipping(mechanism.grid)
            if context.division is not None:
                add_in_lock_step(
                    context, loss_fn, engine, sample, partition, clipping, config, sums
                )
            else:
                with context.ranks.together():
                    sample = context.sampling.propose(
                        context, sample, step, config, engine, loss_fn, clipping
                    )
                    _add_bounded(
                        context, loss_fn, engine, sample, partition, clipping, config, sums
                    )
        outputs, spread = add_noise(context, layout, sums, mechanism, len(sample))

    noise_multiplier = noise_multiplier_of(context, step, config)
    stddev = mechanism.stddev * spread / context.plan.divisor
    released = layout.released(outputs, batch.step, noise_multiplier, stddev)
    if context.division is not None:
        released = context.division.as_parameters(released, context.trained())
    context.controllers.observe(released)
    return released


def _reserve_and_draw(context: StepContext, event: Event, step: int, config: StepConfig) -> Sample:
    """Make the step durable, then draw its sample."""
    progress = context.progress
    if progress.prepaid == 0:
        context.ledger.reserve(event, note=note_of(config))
        progress.prepaid = context.sampling.steps_per_event
    progress.prepaid -= 1
    progress.taken = step  # whatever happens now, it is paid for
    return context.draws.draw(context, step)


def _add_bounded(
    context: StepContext,
    loss_fn: LossFn,
    engine: Engine,
    sample: Sample,
    partition: BatchPartition,
    clipping: Clipping,
    config: StepConfig,
    sums: SumAccumulator,
) -> None:
    """Add the bounded gradients of this rank's share of the sample to ``sums``."""
    if not len(sample):
        return
    records = context.draws.records(context, sample)
    shares = shares_of(context, engine, sample, config, partition)
    if config.query.slots is not None:
        sums.several = True
        for parts in shares:
            sums.add_chunk(clipped_mean(engine, loss_fn, partial(visit, records, parts), clipping))
        return

    def bounded(loaded: LoadedChunk) -> BoundedSums:
        own = context.record_bounds.clipping_for(clipping, loaded.indices)
        weighed = context.sampling.weigh(own, context.progress.taken, config, loaded.indices)
        return engine.bounded_sums(loss_fn, loaded.chunk, weighed)

    sums.several = partition.count > 1
    for parts in shares:
        visit_loaded(records, parts, bounded, sums.add_chunk)
