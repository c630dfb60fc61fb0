"""Load rows of a data set, each as if it were alone.

A row that cannot be loaded or collated, or does not fit the declaration, contributes nothing: no
text, no count, no traceback.

Tests: tests/records/test_workers.py.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset, default_collate

from dpfy.data.arrow import ArrowRecords
from dpfy.errors import DataError
from dpfy.gradients.chunk import Chunk
from dpfy.records.kinds import check_container
from dpfy.records.workers import RowIndices, packed
from dpfy.sandbox.record_keys import set_generators
from dpfy.sandbox.rng_isolation import generator_states
from dpfy.sandbox.torch_settings import users_code

_NO_ROW = -1  # the index under which generators are set while several rows are loaded

Groups = list[tuple[Chunk, list[int]]]
"""Chunks of rows of one shape each, and the places that their rows had among those that were asked
for.
"""

Packed = list[tuple[bytes, list[int]]]


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

    def packed(self, key: bytes, rows: RowIndices) -> Packed:
        """Return the groups in a form that passes between processes; others are left out."""
        found = [(_guarded(packed, chunk), places) for chunk, places in self.groups(key, rows)]
        # The records of a group have their types in common: where it has no such form, none of them
        # has one alone.
        return [(chunk, places) for chunk, places in found if chunk is not None]

    def _together(self, key: bytes, wanted: Mapping[int, int]) -> Groups | None:
        """Return rows that were fetched in one call, or None unless all of them can be used."""
        rows = [*wanted.values()]
        if self.collate_fn is None and (load := column_loader(self.data)) is not None:
            chunk = _guarded(self._columns, load, key, rows)
            if chunk is not None:
                return [(chunk, [*wanted])]
        found = _guarded(self._fetched, key, rows) if self.together else None
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

    def _columns(
        self, load: Callable[[list[int]], Any], key: bytes, rows: list[int]
    ) -> Chunk | None:
        """Return rows that the data set gives as columns, without an item for each."""
        columns = self._called(key, load, rows)
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
        return joined((chunk, place) for chunk, place in alone if chunk is not None)

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
        return joined(
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


def joined(groups: Iterable[tuple[Chunk, list[int]]]) -> Groups:
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


def column_loader(data: Any) -> Callable[[list[int]], Any] | None:
    """Return the function by which a data set gives columns with a row for each index, or None.

    A data set of Hugging Face's `datasets` gives columns where it is asked for a list of rows. In
    torch's format they have the types that its items have.
    """
    if callable(getattr(data, "take_columns", None)):
        return data.take_columns  # type: ignore[no-any-return]
    kind = type(data)
    if (kind.__module__, kind.__name__) != ("datasets.arrow_dataset", "Dataset"):
        return None
    if data.format["type"] != "torch":
        return None

    def columns(rows: list[int]) -> Any:
        found = data[rows]
        # rows of different shapes are in a list, and are no column
        stacked = all(isinstance(each, torch.Tensor) for each in found.values())
        return found if stacked else None

    return columns


def is_stored(data: Any) -> bool:
    """Whether records are rows of tensors or Arrow files, so that no user code loads them."""
    while type(data) is Subset:
        data = data.dataset
    return type(data) in (TensorDataset, ArrowRecords)


def check_map_style(data: Any) -> None:
    """Refuse a data set that has no records at indices."""
    check_container(data)
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
