"""Load chunks of a data set, so that no record can stop, reshape or announce itself in a run.

A record that cannot be loaded or collated, or does not fit the declaration, contributes nothing:
no text, no count, no traceback.

Tests: tests/records/test_workers.py.
"""

import copy
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset, default_collate

from dpfy.data.arrow import ArrowRecords
from dpfy.errors import DataError
from dpfy.gradients.chunk import Chunk
from dpfy.noise import SecureStream
from dpfy.records.workers import Pass, RowIndices, Workers, packed
from dpfy.sandbox.record_keys import KEY_BYTES, set_generators
from dpfy.sandbox.rng_isolation import bookmark, generator_states, reseed_from_stream
from dpfy.sandbox.torch_settings import users_code

_WITNESSES = 32  # records that are looked at where processes compare their data sets
_NO_ROW = -1  # the index under which generators are set while several rows are loaded

Groups = list[tuple[Chunk, list[int]]]
"""Chunks of rows of one shape each, and the places that their rows had among those that were asked
for.
"""

_Packed = list[tuple[bytes, list[int]]]


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
        self._begun: list[Pass[_Packed]] = []

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
        keyed = copy.copy(self)
        keyed._key, keyed._begun = key, []
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
                yield LoadedChunk(chunk, tuple(rows[position] for position in positions))

    def alone(self, index: int) -> Chunk | None:
        """Return one record as a chunk, or None if it cannot be loaded or does not fit."""
        groups = self._loaded([index])
        return groups[0][0] if groups else None

    def _rows(self, parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the rows of each part that has some."""
        return [part for part in parts if len(part)]

    def _passing(self, workers: Workers[_Packed], parts: list[RowIndices]) -> Pass[_Packed]:
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
                yield groups if len(found) == 1 else _joined(groups)
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


def shape_of(value: Any) -> Any:
    """Return the structure, shapes and types of a record, and none of its values."""
    if isinstance(value, torch.Tensor):  # first, since it is asked for every field of every row
        return value.shape, value.dtype
    if isinstance(value, Mapping):
        return tuple(value), tuple(map(shape_of, value.values()))
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return (tuple(value.shape), str(value.dtype))
    if isinstance(value, list | tuple):
        return type(value).__name__, tuple(map(shape_of, value))
    return type(value).__name__


class Loading:
    """Loads and collates rows, each under its own key; rows that fail or do not fit are dropped.

    With ``together``, the data set loads a part in one call of ``__getitems__``, or of
    ``take_columns``, which gives columns with a row for each index and no object per row. A part
    counts only if every row of it loads, collates and fits; otherwise each of its rows is loaded
    alone. *Formal guarantee*: all rows are those that ``data[i]`` gives if this call gives the
    same for each of its rows, draws random numbers, or raises. Where the call is the user's code,
    :meth:`Records.load_together` has to allow it.
    """

    def __init__(
        self, data: Any, collate_fn: Callable[[list[Any]], Any] | None, example: Chunk | None
    ) -> None:
        self.data, self.collate_fn, self.example = data, collate_fn, example
        self.runs_code = not is_stored(data) or collate_fn is not None
        self.together = not self.runs_code and fetches_together(data)

    def groups(self, key: bytes, rows: RowIndices) -> Groups:
        """Return chunks with the positions of their records in ``rows``."""
        wanted = {place: row for place, row in enumerate(rows) if row is not None}
        with users_code():
            together = self._together(key, wanted) if self.together and len(wanted) > 1 else None
            return self._one_by_one(key, wanted) if together is None else together

    def packed(self, key: bytes, rows: RowIndices) -> _Packed:
        """Return the groups in a form that passes between processes; others are left out."""
        found = [(_guarded(packed, chunk), places) for chunk, places in self.groups(key, rows)]
        # The records of a group have their types in common: where it has no such form, none of them
        # has one alone.
        return [(chunk, places) for chunk, places in found if chunk is not None]

    def _together(self, key: bytes, wanted: Mapping[int, int]) -> Groups | None:
        """Return rows that were fetched in one call, or None unless all of them can be used."""
        rows = [*wanted.values()]
        if self.collate_fn is None and hasattr(self.data, "take_columns"):
            chunk = _guarded(self._columns, key, rows)
            return None if chunk is None else [(chunk, [*wanted])]
        found = _guarded(self._fetched, key, rows)
        if found is None:
            return None
        fetched = dict(zip(wanted, found, strict=True))
        if self.collate_fn is None:
            alike = _guarded(_by_shape, fetched)
            groups = self._stacked(fetched, alike) if alike is not None else []
        else:

            def record(place: int) -> Any:
                set_generators(key, wanted[place])
                return fetched[place]

            groups = self._each_collated(wanted, record)
        # A missing value in one row may change the type of the whole column.
        return groups if sum(len(places) for _, places in groups) == len(wanted) else None

    def _columns(self, key: bytes, rows: list[int]) -> Chunk | None:
        """Return rows that the data set gives as columns, without an item for each."""
        columns = self._called(key, self.data.take_columns, rows)
        return None if columns is None else self._collated(lambda _: columns, rows)

    def _fetched(self, key: bytes, rows: list[int]) -> Sequence[Any] | None:
        """Return what one call gives for rows, or None if it is not one item for each."""
        found = self._called(key, self.data.__getitems__, rows)
        return found if isinstance(found, list | tuple) and len(found) == len(rows) else None

    def _called(self, key: bytes, load: Callable[[list[int]], Any], rows: list[int]) -> Any:
        """Return what a function gives for rows, or None if it draws random numbers for it.

        The generators start from a state that depends on no row. Code that draws from them would
        give a row other numbers than the row has alone; it is not called again.
        """
        if not self.runs_code:
            return load(rows)
        set_generators(key, _NO_ROW)
        before = generator_states()
        found = load(rows)
        self.together = generator_states() == before
        return found if self.together else None

    def _one_by_one(self, key: bytes, wanted: Mapping[int, int]) -> Groups:
        """Return the rows that load and collate, those of one shape in a chunk."""
        if self.collate_fn is not None:
            return self._each_collated(wanted, lambda place: self._record(key, wanted[place]))
        records: dict[int, Any] = {}
        shapes: dict[Any, list[int]] = {}
        for place, row in wanted.items():
            if (found := _guarded(self._with_shape, key, row)) is not None:
                records[place], shape = found
                shapes.setdefault(shape, []).append(place)
        return self._stacked(records, shapes)

    def _each_collated(self, places: Iterable[int], record: Callable[[int], Any]) -> Groups:
        """Return the records that load, each of which the user's function has collated alone."""
        alone = ((_guarded(self._alone, record, place), [place]) for place in places)
        return _joined((chunk, place) for chunk, place in alone if chunk is not None)

    def _record(self, key: bytes, row: int) -> Any:
        if self.runs_code:
            set_generators(key, row)
        return self.data[row]

    def _alone(self, record: Callable[[int], Any], place: int) -> Chunk | None:
        assert self.collate_fn is not None
        return self._collated(self.collate_fn, [record(place)])

    def _with_shape(self, key: bytes, row: int) -> tuple[Any, Any]:
        """Return a record and its hashable shape, whatever its attributes do when read."""
        record = self._record(key, row)
        shape = shape_of(record)
        hash(shape)
        return record, shape

    def _stacked(self, records: Mapping[int, Any], alike: Mapping[Any, list[int]]) -> Groups:
        """Collate records of one shape by stacking, which treats every record alone."""
        return [group for places in alike.values() for group in self._of_one_shape(records, places)]

    def _of_one_shape(self, records: Mapping[int, Any], places: list[int]) -> Groups:
        together = _guarded(self._collated, default_collate, [records[place] for place in places])
        if together is not None:
            return [(together, places)]
        return _joined(
            (chunk, [place])
            for place in places
            if (chunk := _guarded(self._collated, default_collate, [records[place]])) is not None
        )

    def _collated(self, collate_fn: Callable[[list[Any]], Any], records: list[Any]) -> Chunk | None:
        """Return records of one shape as a chunk, if they fit the declaration."""
        chunk = Chunk.of(collate_fn(records), len(records))
        return chunk if self.example is None or chunk.fits(self.example) else None


def _by_shape(records: Mapping[int, Any]) -> dict[Any, list[int]]:
    """Return the places of the records of each shape."""
    alike: dict[Any, list[int]] = {}
    for place, record in records.items():
        alike.setdefault(shape_of(record), []).append(place)
    return alike


def _guarded(function: Callable[..., Any], *args: Any) -> Any:
    """Return the result of user code for a record, or None if it raises; interruptions pass."""
    try:
        return function(*args)
    except KeyboardInterrupt:
        raise KeyboardInterrupt from None
    except BaseException:  # SystemExit included
        return None


def _joined(groups: Iterable[tuple[Chunk, list[int]]]) -> Groups:
    """Join chunks of one signature, in the order of their positions."""
    alike: dict[Any, Groups] = {}
    for chunk, places in groups:
        alike.setdefault(chunk.signature, []).append((chunk, places))
    return [_in_order(group) for group in alike.values()]


def _in_order(groups: Groups) -> tuple[Chunk, list[int]]:
    """Join chunks of one signature."""
    chunk = Chunk.joined([chunk for chunk, _ in groups])
    places = [place for _, some in groups for place in some]
    if (ordered := sorted(places)) == places:
        return chunk, places
    return chunk.taken(torch.from_numpy(np.argsort(places)), 1), ordered


def fetches_together(data: Any) -> bool:
    """Whether a data set loads several rows in one call; a ``Subset`` has to pass it on."""
    while type(data) is Subset:
        data = data.dataset
    return any(callable(getattr(data, name, None)) for name in ("__getitems__", "take_columns"))


def is_stored(data: Any) -> bool:
    """Whether records are rows of tensors or Arrow files, so that no user code loads them."""
    while type(data) is Subset:
        data = data.dataset
    return type(data) in (TensorDataset, ArrowRecords)


def check_map_style(data: Any) -> None:
    """Refuse a data set that has no records at indices."""
    if isinstance(data, DataLoader):
        raise DataError(
            "Expected a data set, got a DataLoader. Pass loader.dataset: the run draws its own "
            "Poisson samples, because the guarantee is only valid for the sampler that it records."
        )
    if isinstance(data, IterableDataset):
        raise DataError(
            "Expected a map-style data set, got an IterableDataset. Poisson sampling includes each "
            "record independently, which needs random access; give the data set __len__ and "
            "__getitem__."
        )
    if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        raise DataError(
            "Expected a map-style data set with __len__ and __getitem__, got "
            f"{type(data).__name__}."
        )
