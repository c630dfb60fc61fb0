"""Bound what each record of a sample adds to the sums of a step, chunk by chunk.

Tests: tests/run/test_run.py, tests/run/test_microbatches.py.
"""

from functools import partial

from dpfy.gradients import Engine
from dpfy.gradients.base import BoundedSums, LossFn
from dpfy.mechanisms.clipping import Clipping
from dpfy.mechanisms.controllers import StepConfig
from dpfy.records.records import LoadedChunk, visit, visit_loaded
from dpfy.run.context import StepContext
from dpfy.run.microbatches import clipped_mean
from dpfy.run.partition import BatchPartition, drawn_from, even_parts
from dpfy.run.sampling_strategy import Sample
from dpfy.run.sum_accumulator import SumAccumulator


def add_bounded(
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
    slots = config.query.slots
    records = context.records.sample(sample.indices, sample.seeds)
    if slots is not None:
        sums.several = True
        places = drawn_from(slots, sample.tags)
        for slot in places[places % context.ranks.size == context.ranks.rank].unique():
            parts = even_parts(sample.indices[places == slot], context.largest_chunk(engine))
            sums.add_chunk(clipped_mean(engine, loss_fn, partial(visit, records, parts), clipping))
        return

    def bounded(loaded: LoadedChunk) -> BoundedSums:
        own = context.record_bounds.clipping_for(clipping, loaded.indices)
        weighed = context.sampling.weigh(own, context.progress.taken, config, loaded.indices)
        return engine.bounded_sums(loss_fn, loaded.chunk, weighed)

    sums.several = partition.count > 1
    # Owners follow from tags and not from blocks: whatever the size of blocks, ranks share nothing.
    mine = drawn_from(context.ranks.size, sample.tags) == context.ranks.rank
    parts = partition.parts(sample.indices, sample.tags, mine)
    parts.sort(key=len, reverse=True)  # the memory of a large chunk has room for a smaller one
    visit_loaded(records, parts, bounded, sums.add_chunk)
