"""From a data set to chunks, so that no record can stop, reshape or announce itself in a run.

A record that cannot be loaded or collated contributes nothing: no text, no count, no traceback.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

from dpfy.errors import DataError
from dpfy.training.chunk import Chunk

_SHAPE_WITNESSES = 32  # records whose shapes are looked at for the public shape; one odd record cannot win
_BAD = "dpfy: this record could not be loaded"


@dataclass(frozen=True)
class LoadedChunk:
    """A chunk and where its records stand in the data set, for a second try one by one. Sensitive."""

    chunk: Chunk
    indices: tuple[int, ...]

    def __repr__(self) -> str:
        return "LoadedChunk(sensitive)"


class Records:
    """The private records behind a loader that treats every record alone."""

    def __init__(self, data: Any, collate_fn: Callable[[list[Any]], Any] | None, num_workers: int,
                 max_physical_batch: int) -> None:
        _check_map_style(data)
        self.data = data
        self.collate_fn = collate_fn
        self.max_physical_batch = max_physical_batch
        self._collate = _GuardedCollate(collate_fn)
        self._step = _Step()
        self._in_memory = type(data) is TensorDataset and collate_fn is None and num_workers == 0
        self._loader = DataLoader(_GuardedData(data), batch_sampler=self._step, collate_fn=self._collate,
                                  num_workers=num_workers, persistent_workers=num_workers > 0)

    def __len__(self) -> int:
        return len(self.data)

    def chunks(self, indices: torch.Tensor) -> Iterator[LoadedChunk]:
        """Yield the chosen records in chunks of at most ``max_physical_batch``; none for an empty sample."""
        physical = [part for part in indices.split(self.max_physical_batch) if len(part)]
        if self._in_memory:
            for part in physical:
                arguments = tuple(tensor[part] for tensor in self.data.tensors)
                yield LoadedChunk(Chunk(arguments, len(part)), tuple(part.tolist()))
            return
        self._step.chunks = [part.tolist() for part in physical]
        try:
            for part, groups in zip(physical, self._loader, strict=True):
                for collated, positions in groups:
                    yield LoadedChunk(Chunk.of(collated, len(positions)), tuple(part[list(positions)].tolist()))
        except RuntimeError:
            raise DataError("A loading worker died. Use num_workers=0, or give the workers more memory.") from None

    def alone(self, index: int) -> Chunk | None:
        """Return one record as a chunk of its own, or None if it cannot be loaded or collated."""
        groups = self._collate([_GuardedData(self.data)[index]])
        return Chunk.of(groups[0][0], 1) if groups else None

    def example(self) -> tuple[Any, Chunk] | None:
        """Return a record of the most common shape, raw and collated alone; None if no record loads."""
        size = len(self)
        guarded = _GuardedData(self.data)
        spread = {round(k * (size - 1) / (_SHAPE_WITNESSES - 1)) for k in range(_SHAPE_WITNESSES)}
        positions = sorted(spread) if size else []
        loaded = [record for record in map(guarded.__getitem__, positions) if record is not _BAD]
        if not loaded:
            return None
        most_common, _ = Counter(map(shape_of, loaded)).most_common(1)[0]
        record = next(record for record in loaded if shape_of(record) == most_common)
        groups = self._collate([record])
        return (record, Chunk.of(groups[0][0], 1)) if groups else None


def shape_of(value: Any) -> Any:
    """Return the structure, shapes and types of a record, and none of its values."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return (tuple(value.shape), str(value.dtype))
    if isinstance(value, Mapping):
        return tuple((key, shape_of(item)) for key, item in value.items())
    if isinstance(value, list | tuple):
        return (type(value).__name__, *(shape_of(item) for item in value))
    return type(value).__name__


class _GuardedData(Dataset):
    """Loads records; one that raises becomes a mark."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __getitem__(self, index: int) -> Any:
        try:
            return self.data[index]
        except Exception:
            return _BAD


class _GuardedCollate:
    """Collates records, and one by one where they do not fit together; what does not fit alone is left out."""

    def __init__(self, collate_fn: Callable[[list[Any]], Any] | None) -> None:
        self.collate_fn = collate_fn

    def __call__(self, records: Sequence[Any]) -> list[tuple[Any, list[int]]]:
        groups: dict[Any, list[int]] = {}
        for position, record in enumerate(records):
            if isinstance(record, str) and record == _BAD:
                continue
            # Records of different public shapes (declared buckets) cannot be stacked: each shape is a group.
            key = shape_of(record) if self.collate_fn is None else None
            groups.setdefault(key, []).append(position)
        collated = []
        for positions in groups.values():
            whole = self._try([records[p] for p in positions])
            if whole is not None:
                collated.append((whole, positions))
            else:
                alone = ((self._try([records[p]]), [p]) for p in positions)
                collated.extend((one, position) for one, position in alone if one is not None)
        return collated

    def _try(self, records: list[Any]) -> Any:
        try:
            collated = (self.collate_fn or default_collate)(records)
            return collated if Chunk.of(collated, len(records)).is_batched() else None
        except Exception:
            return None


class _Step:
    """The batch sampler of the loader: the chunks of the step under way."""

    def __init__(self) -> None:
        self.chunks: list[list[int]] = []

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.chunks)

    def __len__(self) -> int:
        return len(self.chunks)


def _check_map_style(data: Any) -> None:
    if isinstance(data, DataLoader):
        raise DataError("Expected a data set, got a DataLoader. Pass loader.dataset: the run draws its own Poisson "
                        "samples, because the guarantee is only valid for the sampler that it records.")
    if isinstance(data, IterableDataset):
        raise DataError("Expected a map-style data set, got an IterableDataset. Poisson sampling includes each record "
                        "independently, which needs random access; give the data set __len__ and __getitem__.")
    if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        raise DataError(f"Expected a map-style data set with __len__ and __getitem__, got {type(data).__name__}.")
