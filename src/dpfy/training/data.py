"""From a data set to chunks, so that no record can stop, reshape or announce itself in a run.

A record that cannot be loaded or collated contributes nothing: no text, no count, no traceback.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

from dpfy.errors import DataError
from dpfy.training.chunk import Chunk, UnsupportedField
from dpfy.training.seclusion import renew_randomness

_WITNESSES = 32  # records whose shapes are looked at for the public shape; one odd record among many cannot win
_BAD = "dpfy: this record could not be loaded"

Groups = list[tuple[Chunk, list[int]]]
"""Chunks of rows of one shape each, and the places that their rows had among those that were asked for."""


@dataclass(frozen=True)
class LoadedChunk:
    """A chunk and where its records stand in the data set, for a second try one by one. Sensitive."""

    chunk: Chunk
    indices: tuple[int, ...]

    def __repr__(self) -> str:
        return "LoadedChunk(sensitive)"


class Records:
    """The private records behind a loader that treats every record alone.

    ``collate_fn`` is only ever given one record, and records of one shape are put together afterwards: whatever it
    does, it cannot mix them.
    """

    rows_per_unit = 1  # the most that one unit of privacy has in a step
    seed_words = 0  # random words that a unit needs to choose its rows by

    def __init__(self, data: Any, collate_fn: Callable[[list[Any]], Any] | None, num_workers: int) -> None:
        _check_map_style(data)
        self.data = data
        self.collate_fn = collate_fn
        self._guarded = _GuardedData(data)
        self._collate = _GuardedCollate(collate_fn)
        self._step = _Step()
        self._in_memory = type(data) is TensorDataset and collate_fn is None and num_workers == 0
        self._loader = DataLoader(self._guarded, batch_sampler=self._step, collate_fn=self._collate,
                                  num_workers=num_workers, persistent_workers=num_workers > 0,
                                  worker_init_fn=_silence_warnings)

    def __len__(self) -> int:
        return len(self.data)

    @property
    def owners(self) -> str:
        """What processes have to agree on besides the rows: here nothing."""
        return ""

    def sample(self, indices: torch.Tensor, seeds: torch.Tensor) -> "Records":
        """Return what a step sees of the drawn units, each of which drew a column of ``seeds``: here the records."""
        return self

    def chunks(self, parts: Sequence[torch.Tensor]) -> Iterator[LoadedChunk]:
        """Yield the records at the indices of each part, as one chunk or, where shapes differ, as several."""
        physical = [part for part in parts if len(part)]
        for part, groups in zip(physical, self._groups(physical), strict=True):
            for chunk, positions in groups:
                yield LoadedChunk(chunk, tuple(part[positions].tolist()))

    def alone(self, index: int) -> Chunk | None:
        """Return one record as a chunk of its own, or None if it cannot be loaded or collated."""
        groups = self._loaded([index])
        return groups[0][0] if groups else None

    def _groups(self, parts: Sequence[torch.Tensor]) -> Iterator[Groups]:
        """Yield the rows at the indices of each part, in order."""
        if self._in_memory:
            for part in parts:
                yield [(Chunk(tuple(tensor[part] for tensor in self.data.tensors), len(part)), [*range(len(part))])]
            return
        self._step.chunks = [part.tolist() for part in parts]
        try:
            yield from self._loader
        except RuntimeError:
            raise DataError("A loading worker died. Use num_workers=0, or give the workers more memory.") from None

    def _loaded(self, rows: Sequence[int]) -> Groups:
        """Return the rows at some indices, loaded in this process."""
        return self._collate([self._guarded[row] for row in rows])

    def spread(self) -> list[int]:
        """Return the indices of a few records, evenly over the data."""
        last = len(self) - 1
        return sorted({round(k * last / (_WITNESSES - 1)) for k in range(_WITNESSES)}) if last >= 0 else []

    def _witnesses(self) -> list[int]:
        """Return the rows whose shapes are looked at."""
        return self.spread()

    def example(self) -> tuple[Any, Chunk] | None:
        """Return a record of the most common shape, raw and collated alone; None if no record loads.

        The most common shape among records spread over the data is taken as public. Who would rather declare it gives
        ``example_input``.
        """
        witnesses = [(shape, record) for record in map(self._guarded.__getitem__, self._witnesses())
                     if (shape := _shape_or_none(record)) is not None]
        if not witnesses:
            return None
        common, _ = Counter(shape for shape, _ in witnesses).most_common(1)[0]
        for shape, record in witnesses:
            try:
                if shape == common:
                    return record, self._collate.alone(record)
            except UnsupportedField as error:
                raise DataError(f"A collated record has {error}. Change the data set or collate_fn.") from None
            except KeyboardInterrupt:
                raise
            except BaseException:
                continue
        return None


def visit(sample: Records, parts: Sequence[torch.Tensor], compute: Callable[[Chunk], Any],
          take: Callable[[Any], None]) -> None:
    """Compute chunks of records and take the results; where one raises, without the records that raise alone."""
    visit_loaded(sample, parts, lambda loaded: compute(loaded.chunk), take)


def visit_loaded(sample: Records, parts: Sequence[torch.Tensor], compute: Callable[[LoadedChunk], Any],
                 take: Callable[[Any], None]) -> None:
    """Do the same where it matters which records are in a chunk."""
    # Afterwards: loading workers serve one pass at a time, and a second one would end the first.
    raised = [loaded.indices for loaded in sample.chunks(parts) if not _done(loaded, compute, take)]
    for indices in raised:
        _without_culprits(sample, indices, compute, take)


def _without_culprits(sample: Records, indices: tuple[int, ...], compute: Callable[[LoadedChunk], Any],
                      take: Callable[[Any], None]) -> None:
    """Compute the chunk that there would have been without the records that raise: to the same bits."""
    alone = {index: LoadedChunk(record, (index,)) for index in indices
             if (record := sample.alone(index)) is not None}
    others = [index for index, record in alone.items() if _done(record, compute, lambda found: None)]
    if not others:
        return
    for rest in sample.chunks([torch.tensor(others)]):
        if len(others) == len(indices) or not _done(rest, compute, take):  # what raises in company alone
            for index in rest.indices:
                _done(alone[index], compute, take)


def _done(loaded: LoadedChunk, compute: Callable[[LoadedChunk], Any], take: Callable[[Any], None]) -> bool:
    """Whether a chunk could be computed and was taken; what loading did to the generators ends here."""
    renew_randomness()
    try:
        found = compute(loaded)
    except KeyboardInterrupt:
        raise
    except BaseException:  # whatever a record makes the user's code raise, SystemExit included
        return False
    take(found)
    return True


def shape_of(value: Any) -> Any:
    """Return the structure, shapes and types of a record, and none of its values."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return (tuple(value.shape), str(value.dtype))
    if isinstance(value, Mapping):
        return tuple((key, shape_of(item)) for key, item in value.items())
    if isinstance(value, list | tuple):
        return (type(value).__name__, *(shape_of(item) for item in value))
    return type(value).__name__


def _shape_or_none(record: Any) -> Any:
    """The hashable shape of a record that can be used, whatever its attributes do when they are looked at."""
    try:
        if isinstance(record, str) and record == _BAD:
            return None
        shape = shape_of(record)
        hash(shape)
        return shape
    except KeyboardInterrupt:
        raise
    except BaseException:
        return None


class _GuardedData(Dataset[Any]):
    """Loads records; one that raises, whatever it raises, becomes a mark."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __getitem__(self, index: int) -> Any:
        try:
            return self.data[index]
        except KeyboardInterrupt:
            raise
        except BaseException:
            return _BAD


class _GuardedCollate:
    """Collates records of one shape together; what does not fit, even alone, is left out."""

    def __init__(self, collate_fn: Callable[[list[Any]], Any] | None) -> None:
        self.collate_fn = collate_fn

    def alone(self, record: Any) -> Chunk:
        """Return one record as a chunk, or raise whatever prevents it."""
        return Chunk.of((self.collate_fn or default_collate)([record]), 1)

    def __call__(self, records: Sequence[Any]) -> Groups:
        """Return chunks with the positions of their records."""
        if self.collate_fn is not None:
            return self._joined(records, range(len(records)))
        groups: dict[Any, list[int]] = {}
        for position, record in enumerate(records):
            if (shape := _shape_or_none(record)) is not None:
                groups.setdefault(shape, []).append(position)
        collated: Groups = []
        for positions in groups.values():
            try:  # the default stacks, and stacking treats every record alone
                chunk = Chunk.of(default_collate([records[p] for p in positions]), len(positions))
                collated.append((chunk, positions))
            except KeyboardInterrupt:
                raise
            except BaseException:
                collated += self._joined(records, positions)
        return collated

    def _joined(self, records: Sequence[Any], positions: Sequence[int]) -> Groups:
        """Collate records one by one and join those of one signature."""
        groups: dict[Any, list[tuple[Chunk, int]]] = {}
        for position in positions:
            try:
                if _shape_or_none(records[position]) is not None:
                    chunk = self.alone(records[position])
                    groups.setdefault(chunk.signature, []).append((chunk, position))
            except KeyboardInterrupt:
                raise
            except BaseException:
                continue
        return [(Chunk.joined([chunk for chunk, _ in group]), [position for _, position in group])
                for group in groups.values()]


class _Step:
    """The batch sampler of the loader: the chunks of the step under way."""

    def __init__(self) -> None:
        self.chunks: list[list[int]] = []

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.chunks)

    def __len__(self) -> int:
        return len(self.chunks)


def _silence_warnings(_: int) -> None:
    """In a loading worker: a warning may name the record that caused it."""
    warnings.simplefilter("ignore")


def _check_map_style(data: Any) -> None:
    if isinstance(data, DataLoader):
        raise DataError("Expected a data set, got a DataLoader. Pass loader.dataset: the run draws its own Poisson "
                        "samples, because the guarantee is only valid for the sampler that it records.")
    if isinstance(data, IterableDataset):
        raise DataError("Expected a map-style data set, got an IterableDataset. Poisson sampling includes each record "
                        "independently, which needs random access; give the data set __len__ and __getitem__.")
    if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        raise DataError(f"Expected a map-style data set with __len__ and __getitem__, got {type(data).__name__}.")
