"""Load chunks of a data set, so that no record can stop, reshape or announce itself in a run.

A record that cannot be loaded or collated, or does not fit the declaration, contributes nothing:
no text, no count, no traceback.

Tests: tests/records/test_workers.py.
"""

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch.utils.data import TensorDataset

from dpfy.gradients.chunk import Chunk
from dpfy.noise import SecureStream
from dpfy.records.rows import (
    Groups,
    Loading,
    Packed,
    check_map_style,
    fetches_together,
    joined,
)
from dpfy.records.workers import Pass, RowIndices, Workers
from dpfy.sandbox.record_keys import KEY_BYTES
from dpfy.sandbox.rng_isolation import bookmark, reseed_from_stream

_WITNESSES = 32  # records that are looked at where processes compare their data sets


@dataclass(frozen=True)
class LoadedChunk:
    """A chunk and the indices of its records, for a second try one by one. Sensitive."""

    chunk: Chunk
    indices: tuple[int, ...]

    def __repr__(self) -> str:
        return "LoadedChunk(sensitive)"


class Records:
    """The private records of a data set, each loaded alone.

    ``collate_fn`` is given one record at a time, and records of one shape are joined afterwards:
    whatever it does, it cannot mix them. While a record is loaded and collated, the generators
    have states that follow from a secret key and from the record's index.

    Args:
        data: A map-style data set.
        collate_fn: The user's collate function, or None for torch's default.
        num_workers: The number of processes that load records; 0 loads them in this process.
        example: The declared example; records that do not fit it are left out.
        stream: The secret stream that keys are drawn from; by default a fresh one.
    """

    rows_per_unit = 1  # the most that one unit of privacy has in a step
    seed_words = 0  # random words that a unit needs to choose its rows by

    def __init__(
        self,
        data: Any,
        collate_fn: Callable[[list[Any]], Any] | None,
        num_workers: int,
        example: Chunk | None = None,
        stream: SecureStream | None = None,
    ) -> None:
        check_map_style(data)
        self.data = data
        self.loading = Loading(data, collate_fn, example)
        self.num_workers = num_workers
        self._in_memory = type(data) is TensorDataset and collate_fn is None and num_workers == 0
        self._stream = stream if stream is not None else SecureStream(purpose="training")
        self._key = self._fresh_key()
        self._workers = Workers(num_workers, self.loading.packed, data) if num_workers else None
        self._begun: list[Pass[Packed]] = []

    def __len__(self) -> int:
        return len(self.data)

    @property
    def owners(self) -> str:
        """What processes have to agree on besides the rows: nothing for records."""
        return ""

    def sample(self, indices: torch.Tensor, seeds: torch.Tensor) -> Self:
        """Return what a step sees of the drawn units: for records, these records.

        Each unit has a column of random words in ``seeds``.
        """
        return self.fresh()

    def fresh(self) -> Self:
        """Return the same records under a fresh secret key, so that augmentation draws anew."""
        return self.keyed(self._fresh_key())

    def keyed(self, key: bytes) -> Self:
        """Return the same records under a key."""
        keyed = object.__new__(type(self))  # copy.copy goes a long way round
        vars(keyed).update(vars(self), _key=key, _begun=[])
        return keyed

    def _fresh_key(self) -> bytes:
        return self._stream.words(KEY_BYTES // 8).tobytes()

    def begin(self, several: Sequence[Sequence[torch.Tensor]]) -> None:
        """Let the workers load what later calls of :meth:`chunks` ask for, in this order.

        What was begun before and is no longer wanted is given up.
        """
        if self._workers is None:
            return
        wanted = [[rows.tolist() for rows in self._rows(parts)] for parts in several]
        if [each.parts for each in self._begun] != wanted:
            for each in self._begun:
                each.close()
            self._begun = [self._workers.begin(self._key, parts) for parts in wanted]

    def chunks(self, parts: Sequence[torch.Tensor]) -> Iterator[LoadedChunk]:
        """Yield the records of each part as one chunk or, where shapes differ, as several."""
        physical = self._rows(parts)
        for part, groups in zip(physical, self._groups(physical), strict=True):
            rows = part.tolist()
            for chunk, positions in groups:
                yield LoadedChunk(chunk, tuple(map(rows.__getitem__, positions)))

    def alone(self, index: int) -> Chunk | None:
        """Return one record as a chunk, or None if it cannot be loaded or does not fit."""
        groups = self._loaded([index])
        return groups[0][0] if groups else None

    def _rows(self, parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the rows of each part that has some."""
        return [part for part in parts if len(part)]

    def _passing(self, workers: Workers[Packed], parts: list[RowIndices]) -> Pass[Packed]:
        """Return the pass over some parts: one that was begun, or a new one."""
        for place, each in enumerate(self._begun):
            if each.parts == parts:
                return self._begun.pop(place)
        return workers.begin(self._key, parts)

    def _groups(self, parts: Sequence[torch.Tensor]) -> Iterator[Groups]:
        """Yield the rows at the indices of each part, in order."""
        if self._in_memory:
            for part in parts:
                rows = Chunk(
                    tuple(tensor[part].detach() for tensor in self.data.tensors), len(part)
                )
                yield [(rows, [*range(len(part))])]
        elif self._workers is not None:
            for found in self._passing(self._workers, [part.tolist() for part in parts]):
                groups = [(pickle.loads(chunk), places) for some in found for chunk, places in some]
                yield groups if len(found) == 1 else joined(groups)
        else:
            for part in parts:
                back = bookmark() if self.loading.runs_code else lambda: None
                try:
                    groups = self.loading.groups(self._key, part.tolist())
                finally:
                    # what user code drew, or seeded, has no part in the masks that come after it
                    back()
                yield groups

    def load_together(self) -> None:
        """Let the data set load several rows in one call, where it can.

        *Assumes* that what it gives for a row does not depend on the other rows, which
        :func:`dpfy.checks.mixing.refuse_mixing` tests before it calls this.
        """
        self.loading.together = fetches_together(self.data)
        self.close()  # processes that are running would not know

    def close(self) -> None:
        """End the loading processes; they are started again when needed."""
        if self._workers is not None:
            self._workers.close()

    def _loaded(self, rows: Sequence[int]) -> Groups:
        """Return the rows at some indices."""
        return next(iter(self._groups([torch.tensor(rows, dtype=torch.int64)])))

    def witnesses(self, count: int) -> list[int]:
        """Return a few rows of the data set, each of another unit."""
        return self.spread(count)

    def spread(self, count: int = _WITNESSES) -> list[int]:
        """Return the indices of a few records, evenly over the units."""
        last = len(self) - 1
        return sorted({round(k * last / (count - 1)) for k in range(count)}) if last >= 0 else []


def visit(
    sample: Records,
    parts: Sequence[torch.Tensor],
    compute: Callable[[Chunk], Any],
    take: Callable[[Any], None],
) -> None:
    """Compute chunks of records and take the results, without records that raise alone."""
    visit_loaded(sample, parts, lambda loaded: compute(loaded.chunk), take)


def visit_loaded(
    sample: Records,
    parts: Sequence[torch.Tensor],
    compute: Callable[[LoadedChunk], Any],
    take: Callable[[Any], None],
) -> None:
    """Do the same where it matters which records are in a chunk."""
    # Afterwards: loading workers serve one pass at a time, and a second one would end the first.
    raised = [loaded.indices for loaded in sample.chunks(parts) if not _done(loaded, compute, take)]
    for indices in raised:
        _without_culprits(sample, indices, compute, take)


def _without_culprits(
    sample: Records,
    indices: tuple[int, ...],
    compute: Callable[[LoadedChunk], Any],
    take: Callable[[Any], None],
) -> None:
    """Compute the chunk without the records that raise, with the bits it has without them."""
    alone = {
        index: LoadedChunk(record, (index,))
        for index in indices
        if (record := sample.alone(index)) is not None
    }
    others = [
        index for index, record in alone.items() if _done(record, compute, lambda found: None)
    ]
    if not others:
        return
    for rest in sample.chunks([torch.tensor(others)]):
        # what raises in company alone
        if len(others) == len(indices) or not _done(rest, compute, take):
            for index in rest.indices:
                _done(alone[index], compute, take)


def _done(
    loaded: LoadedChunk, compute: Callable[[LoadedChunk], Any], take: Callable[[Any], None]
) -> bool:
    """Whether a chunk was computed and taken; generators are reseeded after its loading."""
    reseed_from_stream()
    try:
        found = compute(loaded)
    except KeyboardInterrupt:
        raise KeyboardInterrupt from None  # without a text, which may quote a record
    except BaseException:  # whatever a record makes the user's code raise, SystemExit included
        return False
    take(found)
    return True
