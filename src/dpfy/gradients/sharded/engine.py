"""Book-keeping for sharded models: every record is on one process, which sees each layer whole.

Tests: tests/gradients/sharded/test_engine.py.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import ClassVar

import torch

from dpfy.gradients.base import (
    Engine,
    Examples,
    LossFn,
    RecordStats,
    Unsupported,
)
from dpfy.gradients.bookkeeping.contributions import LARGE_WEIGHT, Contribution, OuterProduct
from dpfy.gradients.bookkeeping.costs import cheapest_kept
from dpfy.gradients.bookkeeping.engine import NUMBERS_AT_ONCE, BookkeepingEngine
from dpfy.gradients.bookkeeping.functional_params import DirectUses, RecordedUses
from dpfy.gradients.bookkeeping.recorder import Consumer, Recorder
from dpfy.gradients.bookkeeping.strategies import StoreThenClip
from dpfy.gradients.bookkeeping.substitution import substituted
from dpfy.gradients.chunk import Chunk
from dpfy.gradients.sharded.forming import RowSums
from dpfy.gradients.sharded.gather import Gathering
from dpfy.mechanisms.clipping import Clipping

_NUMBERS_PER_OWN = 8  # of a chunk for each own parameter: what it takes with Adam and its sum


class _KeepRows(StoreThenClip):
    """Keeps contributions in forms of which rows can be summed without the others."""

    def form(self, outer: OuterProduct) -> Contribution:
        """Return a product of a large weight as it is, and others in the cheapest form.

        Gradients that are written out would leave room for fewer records in a pass, and every pass
        takes messages as long as the model.
        """
        if outer.inputs.shape[2] * outer.outputs.shape[2] >= LARGE_WEIGHT:
            return outer
        return cheapest_kept(outer, self._memory)


class Doubtful(Unsupported):
    """Records of a chunk that float32 cannot bound; the others are to be computed without them.

    Args:
        records: Which they are. Sensitive.
    """

    def __init__(self, records: torch.Tensor) -> None:
        super().__init__("float32 cannot bound a record")
        self.records = records


def records_in_room(parameters: int, owners: int, numbers_per_record: int) -> int:
    """Return how many records a pass may have: for their sake there are fewer messages.

    Args:
        parameters: The trained parameters of the whole model.
        owners: The processes that they are divided among.
        numbers_per_record: What a record keeps in memory.
    """
    numbers = max(NUMBERS_AT_ONCE, _NUMBERS_PER_OWN * parameters // owners)
    return max(1, numbers // numbers_per_record)


class CountingEngine(BookkeepingEngine):
    """Book-keeping that keeps what it would keep of a sharded model."""

    def _keeping(self, records: int) -> StoreThenClip:
        return _KeepRows(len(self.parameters), records, self.device, self.memory)


class ShardedEngine(CountingEngine):
    """Book-keeping on whole parameters that are gathered module by module.

    What float32 cannot bound is not computed in another way, as that would take messages that
    depend on a record: such a record contributes less, down to nothing. So a record's share is
    (1 − λ) times that of a single process before the exact part is added, which is in the ball.

    Args:
        model: The user's module.
        parameters: The trained parameters by name.
    """

    gathering: ClassVar[Gathering]
    rounding = BookkeepingEngine.rounding + 2.0**-23  # of the sums that travel

    def __init__(self, model: torch.nn.Module, parameters: dict[str, torch.nn.Parameter]) -> None:
        super().__init__(model, parameters)
        self.owned = self.gathering.shards.of_trained(parameters.values())
        self.expected: list[int] | None = None
        self.filler: Chunk | None = None

    @property
    def device(self) -> torch.device:
        """The device of the trained parameters."""
        return self.owned[0].local.device

    def prepare(self, loss_fn: LossFn, examples: Examples) -> None:
        """Prepare as in one process, and learn in which order a pass gathers parameters."""
        self.expected = None
        with self.gathering.standing():
            super().prepare(loss_fn, examples)
            trained = sum(p.numel() for p in self.parameters.values())
            self.records_at_once = records_in_room(
                trained, self.owned[0].owners, self.numbers_per_record
            )
            self.filler = examples(1, 1)
            self.gathering.begin()
            self._pass(loss_fn, self.filler, self._keeping(1))
            self.expected = self.gathering.finish()

    def bounded_sums(self, loss_fn: LossFn, chunk: Chunk, clipping: Clipping) -> RowSums:
        """Return the clipped sum of the chunk, to be formed by rows.

        Every process calls this at the same time, whatever records it has. However the pass ends,
        this one has gathered what the others wait for.

        Raises:
            Doubtful: If records must be left out, and the others computed again.
        """
        if self.expected is None:
            raise Unsupported("the engine was not prepared")
        with self.gathering.standing() as gathering:
            gathering.expected = self.expected
            gathering.begin()
            try:
                kept = self._keeping(chunk.size)
                stats = self._pass(loss_fn, chunk, kept).stats
            finally:
                if gathering.lost is None:
                    gathering.finish()
                gathering.expected = None
        if kept.norms.largest_exact == 1:
            raise Doubtful(kept.norms.doubtful)
        norms = clipping.norms(kept.norms.squared)
        weights = kept.norms.weights(clipping, norms)
        return RowSums(kept.parts, weights, (RecordStats(norms, stats),), self.owned, self.memory)

    @contextmanager
    def _computing(self, recorder: Recorder, uses: RecordedUses) -> Iterator[None]:
        """Let whole parameters stand for the trained ones while they are gathered."""
        with self._listening(uses, recorder), substituted(self.model, {}, {}):
            yield

    def _following(self, uses: DirectUses) -> AbstractContextManager[None]:
        """Let uses of trained parameters be seen while they are gathered."""
        return self._listening(uses)

    @contextmanager
    def _listening(self, uses: DirectUses, recorder: Recorder | None = None) -> Iterator[None]:
        """Tell of every trained parameter when it is gathered and when it is dropped."""
        slots = {id(p): slot for slot, p in enumerate(self.parameters.values())}

        def gathered(parameter: torch.nn.Parameter, whole: torch.Tensor) -> None:
            if (slot := slots.get(id(parameter))) is not None:
                uses.follow(whole)
                if recorder is not None:
                    recorder.bind(whole, slot)

        def dropped(parameter: torch.nn.Parameter, whole: torch.Tensor) -> None:
            uses.unfollow(whole)
            if recorder is not None:
                recorder.forget(whole)

        with self.gathering.standing() as gathering:
            gathering.drop_all()  # nobody was told of what is there
            gathering.on_gather, gathering.on_drop = gathered, dropped
            try:
                yield
            finally:
                gathering.drop_all()
                gathering.on_gather = gathering.on_drop = None

    def _is_gathered(self, storage: torch.UntypedStorage) -> bool:
        return self.gathering.has(storage)

    def _measuring(self, records: int) -> Consumer:
        return self._keeping(records)


def engines_of(gathering: Gathering) -> Mapping[str, type[Engine]]:
    """Return the engines that serve a sharded model, by name."""
    return {ShardedEngine.name: type("ShardedEngine", (ShardedEngine,), {"gathering": gathering})}
