"""Bound and release a step of a sharded model: all processes go through the model together.

    chunks of this process ─┐
    or a synthetic record  ─┴─▶ pass ─▶ sums ─▶ rows to their owners ─▶ noise once ─▶ own rows

Gathering parameters takes all processes, so all make the same number of passes: one that has no
records left goes along with a synthetic record, and adds nothing.

Tests: tests/run/test_sharding.py.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from dpfy.gradients import Engine
from dpfy.gradients.base import LossFn
from dpfy.gradients.chunk import Chunk
from dpfy.gradients.sharded.engine import Doubtful, ShardedEngine
from dpfy.gradients.sharded.forming import RowSums
from dpfy.mechanisms.clipping import Clipping
from dpfy.mechanisms.controllers import StepConfig
from dpfy.mechanisms.gaussian_sum import GaussianSum
from dpfy.records.records import LoadedChunk, Records
from dpfy.run.context import StepContext
from dpfy.run.draws import shares_of
from dpfy.run.partition import BatchPartition
from dpfy.run.release_layout import ReleaseLayout
from dpfy.run.sampling_strategy import Sample
from dpfy.run.sum_accumulator import SumAccumulator
from dpfy.sandbox.rng_isolation import reseed_from_stream


def add_in_lock_step(
    context: StepContext,
    loss_fn: LossFn,
    engine: Engine,
    sample: Sample,
    partition: BatchPartition,
    clipping: Clipping,
    config: StepConfig,
    sums: SumAccumulator,
) -> None:
    """Add the bounded gradients of all processes' shares to ``sums``, each row at its owner."""
    division = context.division
    assert division is not None and isinstance(engine, ShardedEngine) and engine.filler is not None
    exchange = division.exchange_of(engine.parameters)
    gradients, statistics = sums.zeroed()
    work = _Work(engine.filler)
    if len(sample):
        records = context.draws.records(context, sample)
        (parts,) = shares_of(context, engine, sample, config, partition)
        work.take(records, parts)
    while context.ranks.any((item := work.next()) is not None):
        loaded = work.filler if item is None else item.loaded
        own = context.record_bounds.clipping_for(clipping, loaded.indices)
        weighed = context.sampling.weigh(own, context.progress.taken, config, loaded.indices)
        found = _bounded(engine, loss_fn, loaded.chunk, weighed, item, work)
        counted = found if item is not None and item.counts else None
        exchange.add(counted, gradients)
        if counted is not None:
            sums.layout.add_statistics(counted.seen, statistics)
    division.add_replicas(sums.vector[: sums.layout.numbers])


def _bounded(
    engine: ShardedEngine,
    loss_fn: LossFn,
    chunk: Chunk,
    clipping: Clipping,
    item: "_Item | None",
    work: "_Work",
) -> RowSums | None:
    """Go through the model, and return the sums of a chunk; None if a record raises in it."""
    reseed_from_stream()
    found: RowSums | None = None
    try:
        found = engine.bounded_sums(loss_fn, chunk, clipping)
    except KeyboardInterrupt:
        raise KeyboardInterrupt from None  # without a text, which may quote a record
    except Doubtful as doubtful:
        if item is not None:
            work.without(item, doubtful.records)
    except BaseException:  # whatever a record makes the user's code raise, SystemExit included
        if engine.gathering.lost is not None:
            raise engine.gathering.lost from None
        if item is not None:
            work.failed(item)
    else:
        if item is not None:
            work.passed(item)
    return found


@dataclass
class _Trials:
    """Records of a chunk in which one raised, tried one by one. Sensitive."""

    indices: tuple[int, ...]
    left: int
    fit: list[int] = field(default_factory=list)


@dataclass
class _Item:
    """A chunk to be computed: to count, or to see whether a record raises alone. Sensitive."""

    loaded: LoadedChunk
    trials: _Trials | None = None
    again: bool = False  # all of its records pass alone

    @property
    def counts(self) -> bool:
        return self.trials is None


class _Work:
    """The chunks of one process in one step, and what becomes of those in which a record raises.

    Such a chunk is computed again without the records that raise alone, with the bits that it has
    without them: :func:`dpfy.records.records.visit_loaded` does the same in one process. Chunks of
    another shape than declared are computed record by record.

    Args:
        filler: A synthetic record, for passes in which there is nothing left to do.
    """

    def __init__(self, filler: Chunk) -> None:
        self.filler = LoadedChunk(filler, (0,))
        self._records: Records | None = None
        self._loaded: Iterator[LoadedChunk] = iter(())
        self._waiting: deque[_Item] = deque()
        self._raised: deque[tuple[int, ...]] = deque()

    def take(self, records: Records, parts: list[torch.Tensor]) -> None:
        """Begin with the parts of a sample."""
        self._records, self._loaded = records, records.chunks(parts)

    def next(self) -> _Item | None:
        """Return what is to be computed next; None if nothing is left."""
        while True:
            if self._waiting:
                return self._waiting.popleft()
            loaded = next(self._loaded, None)
            if loaded is not None:
                self._add(loaded)
            elif self._raised:  # afterwards: loading processes serve one pass at a time
                self._try_each(self._raised.popleft())
            else:
                return None

    def passed(self, item: _Item) -> None:
        """Note that a chunk was computed."""
        if item.trials is not None:
            item.trials.fit += item.loaded.indices
            self._tried(item.trials)

    def failed(self, item: _Item) -> None:
        """Note that a record of a chunk raised."""
        if item.trials is not None:
            self._tried(item.trials)
        elif item.again:
            self._each_alone(item.loaded.indices)
        elif len(item.loaded.indices) > 1:
            self._raised.append(item.loaded.indices)

    def without(self, item: _Item, left_out: torch.Tensor) -> None:
        """Compute a chunk again without some of its records, which contribute nothing."""
        if item.trials is not None:
            self._tried(item.trials)
            return
        kept = [
            index
            for index, out in zip(item.loaded.indices, left_out.tolist(), strict=True)
            if not out
        ]
        if kept and len(kept) < len(item.loaded.indices):
            self._load(kept)

    def _add(self, loaded: LoadedChunk, again: bool = False) -> None:
        """Add a chunk, in single records unless it has the declared shape."""
        if loaded.chunk.signature[1:] == self.filler.chunk.signature[1:]:
            self._waiting.append(_Item(loaded, again=again))
            return
        for place, index in enumerate(loaded.indices):
            self._waiting.append(_Item(LoadedChunk(loaded.chunk.record(place), (index,))))

    def _try_each(self, indices: tuple[int, ...]) -> None:
        """Try every record of a chunk alone."""
        found = [each for index in indices if (each := self._alone(index)) is not None]
        trials = _Trials(indices, len(found))
        self._waiting.extend(_Item(each, trials) for each in found)

    def _tried(self, trials: _Trials) -> None:
        """Compute the records that pass alone, once all are tried."""
        trials.left -= 1
        if trials.left or not trials.fit:
            return
        if len(trials.fit) == len(trials.indices):  # it raises in company alone
            self._each_alone(tuple(trials.fit))
        else:
            self._load(trials.fit)

    def _load(self, indices: list[int]) -> None:
        assert self._records is not None
        for loaded in self._records.chunks([torch.tensor(indices)]):
            self._add(loaded, again=True)

    def _each_alone(self, indices: tuple[int, ...]) -> None:
        found = [each for index in indices if (each := self._alone(index)) is not None]
        self._waiting.extend(map(_Item, found))

    def _alone(self, index: int) -> LoadedChunk | None:
        assert self._records is not None
        record = self._records.alone(index)
        return None if record is None else LoadedChunk(record, (index,))


def add_noise_to_rows(
    context: StepContext,
    layout: ReleaseLayout,
    sums: SumAccumulator,
    mechanism: GaussianSum,
    records: int,
) -> tuple[list[torch.Tensor], float]:
    """Return the own rows with noise that this process draws, and statistics with rank 0's.

    Of the processes that have the same rows, the first draws the noise and tells the others.
    """
    division, ranks, divisor = context.division, context.ranks, context.plan.divisor
    assert division is not None
    vector, count = sums.vector, len(layout.parameters)
    ranks.sum_to_first(vector[layout.numbers :])
    if layout.completes:
        layout.complete(vector, records, divisor, division.norm_of)
    outputs, factors = layout.outputs(sums.tensors), layout.factors(divisor)
    own = slice(None) if ranks.first else slice(count)
    with ranks.together():
        if division.shards.releases:
            mechanism.release_pieces(sums.tensors[own], factors[own], outputs[own], context.noise)
        else:
            sums.zero()
        if not ranks.first:
            vector[layout.numbers :].zero_()
    division.from_first_replica(outputs[:count])
    ranks.share([*outputs[count:], spread := torch.tensor(context.noise.spread).double()])
    return outputs, float(spread)
