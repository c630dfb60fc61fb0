"""Where an Arrow file keeps the values of its columns, and reading rows of them from there.

A file has batches of rows, and a batch has buffers for each column: values one after the other,
bitmaps of those that are there, and the offsets of lists.

Tests: tests/data/test_arrow.py.
"""

import mmap
import os
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpfy import _validate
from dpfy.data.files import malformed
from dpfy.errors import DataError, InvalidArgument

_ABSENT = -1  # the position of a bitmap that a batch does not have, or need
_CONVERT = "Convert it with `dpfy data index`, or write it with compression=None."

Whole = npt.NDArray[np.int64]
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Column:
    """A column of an Arrow file, and what is declared about it.

    Args:
        name: The name of the column.
        length: The public length of lists that differ in length in the file: shorter ones are
            padded with ``fill``, longer ones are cut. None for numbers and fixed-size lists.
        fill: What stands for a missing value, and after the end of a short list. Without it, a
            record with a missing value cannot be loaded and contributes nothing to a step.

    >>> Column("tokens", length=128, fill=0)
    Column(name='tokens', length=128, fill=0)
    """

    name: str
    length: int | None = None
    fill: float | None = None

    def __post_init__(self) -> None:
        if self.length is not None:
            _validate.count("length", self.length)
            if self.fill is None:
                raise InvalidArgument(
                    f"Expected a fill for the column {self.name!r}, since lists shorter than its "
                    "length are padded. Give one, such as fill=0."
                )


class Layout:
    """Where the rows of all files are: the batches that they are stored in, and their buffers."""

    def __init__(self, files: Sequence[Path], columns: Sequence[Column]) -> None:
        found = [_opened(file, columns) for file in files]
        self.fields = found[0].fields
        for file, each in zip(files, found, strict=True):
            if each.fields != self.fields:
                raise malformed(
                    file,
                    "columns of other types than in the first file",
                    "the same in all files",
                    "Convert them together.",
                )
        counts = [each.counts for each in found]
        self._first = np.cumsum([0, *np.concatenate(counts)], dtype=np.int64)
        self._file = np.repeat(np.arange(len(files)), list(map(len, counts)))
        self._buffers = [
            np.concatenate([each.buffers[number] for each in found])
            for number in range(len(self.fields))
        ]
        self.rows = int(self._first[-1])
        self._handles = np.array([_handle(file) for file in files])
        weakref.finalize(self, _close, self._handles)

    def take(self, rows: Whole) -> list[Array]:
        """Return an array per column, with one row per index."""
        if len(rows) and not 0 <= rows.min() <= rows.max() < self.rows:
            raise IndexError(f"Expected indices from 0 to before {self.rows}.")
        batch = np.searchsorted(self._first, rows, side="right") - 1
        places = rows - self._first[batch]
        handles = self._handles[self._file[batch]]
        return [
            field.read(handles, places, buffers[batch])
            for field, buffers in zip(self.fields, self._buffers, strict=True)
        ]


@dataclass(frozen=True)
class _Field:
    """How the values of a column are stored.

    ``counts`` has the number of values in a record at each level of nesting, the record first. A
    batch has a bitmap of present values for each level, and then the values; with ``offsets`` of
    some type, those of lists stand in front of the last bitmap.
    """

    column: Column
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    counts: tuple[int, ...]
    offsets: np.dtype[Any] | None = None

    def read(self, handles: Whole, places: Whole, buffers: Whole) -> Array:
        """Return the values at some places of their batches."""
        if self.offsets is not None:
            return self._lists(handles, places, buffers)
        count = self.counts[-1]
        if self.dtype.kind == "b":
            values = _bits(handles, buffers[:, -1], places * count, count)
        else:
            width = count * self.dtype.itemsize
            values = _read(handles, buffers[:, -1] + places * width, width).view(self.dtype)
        for level, each in enumerate(self.counts):
            if (buffers[:, level] != _ABSENT).any():
                gone = ~_present(handles, buffers[:, level], places * each, each)
                self._replace(values, gone.repeat(count // each, axis=1))
        return values.reshape(-1, *self.shape)

    def _lists(self, handles: Whole, places: Whole, buffers: Whole) -> Array:
        """Return lists, padded and cut to the declared length."""
        assert self.offsets is not None
        length, item, step = self.counts[-1], self.dtype.itemsize, self.offsets.itemsize
        ends = _read(handles, buffers[:, 1] + places * step, 2 * step).view(self.offsets)
        first = ends[:, 0].astype(np.int64)
        sizes = np.minimum(ends[:, 1] - first, length)
        sizes[~_present(handles, buffers[:, 0], places, 1)[:, 0]] = 0
        found = map(os.pread, *_lists(handles, sizes * item, buffers[:, -1] + first * item))
        padded = bytearray().join(each.ljust(length * item, b"\0") for each in found)
        values = np.frombuffer(padded, self.dtype).reshape(-1, length)
        gone = np.arange(length) >= sizes[:, None]
        self._replace(values, gone | ~_present(handles, buffers[:, 2], first, length))
        return values

    def _replace(self, values: Array, gone: npt.NDArray[np.bool_]) -> None:
        if not gone.any():
            return
        if self.column.fill is None:
            raise DataError(
                f"A record has no value in the column {self.column.name!r}, which declares none "
                f"for this case. Declare it, such as Column({self.column.name!r}, fill=0)."
            )
        values[gone] = self.column.fill


@dataclass(frozen=True)
class _Opened:
    """What was found in one file: the rows of each batch, and the positions of their buffers."""

    fields: tuple[_Field, ...]
    counts: list[int]
    buffers: list[Whole]


def _opened(path: Path, columns: Sequence[Column]) -> _Opened:
    """Return where a file keeps the columns; of the values themselves none is read."""
    import pyarrow as pa

    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            raise malformed(path, "an empty file", "an Arrow file")
        content = pa.py_buffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    try:
        schema, batches = batches_of(content)
        fields = tuple(_field(path, column, schema) for column in columns)
        counts: list[int] = []
        found: list[list[list[int]]] = [[] for _ in columns]
        for batch in batches:
            if not batch.num_rows:
                continue
            counts.append(batch.num_rows)
            for column, positions in zip(columns, found, strict=True):
                positions.append(_positions(path, batch.column(column.name), content))
    except pa.ArrowException:  # whose text may quote what it found
        raise malformed(path, "no readable Arrow file", "one, uncompressed", _CONVERT) from None
    buffers = [
        np.array(each, np.int64).reshape(len(counts), len(field.counts) + 1 + bool(field.offsets))
        for each, field in zip(found, fields, strict=True)
    ]
    return _Opened(fields, counts, buffers)


def batches_of(content: Any) -> tuple[Any, Iterable[Any]]:
    """Return the schema and the batches of a file, in the format of files or of streams."""
    import pyarrow as pa

    try:
        reader = pa.ipc.open_file(content)
    except pa.ArrowInvalid:
        stream = pa.ipc.open_stream(content)
        return stream.schema, stream
    return reader.schema, map(reader.get_batch, range(reader.num_record_batches))


def _field(path: Path, column: Column, schema: Any) -> _Field:
    """Return how a column is stored, by its type."""
    import pyarrow as pa

    if schema.names.count(column.name) != 1:
        raise malformed(
            path,
            f"no column, or several, of the name {column.name!r}",
            f"one of {', '.join(schema.names)}",
            "Change columns.",
        )
    kind, shape, offsets = schema.field(column.name).type, [], None
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        if column.length is None:
            raise DataError(
                f"{path}: the lists in the column {column.name!r} may differ in length. Declare a "
                f"public length for them, such as Column({column.name!r}, length=128, fill=0)."
            )
        offsets = np.dtype(np.int64 if pa.types.is_large_list(kind) else np.int32)
        kind, shape = kind.value_type, [column.length]
    elif column.length is not None:
        raise DataError(
            f"{path}: the column {column.name!r} has the type {kind}, whose length is fixed. Leave "
            "length= out."
        )
    while offsets is None and pa.types.is_fixed_size_list(kind):
        shape.append(kind.list_size)
        kind = kind.value_type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise DataError(
            f"{path}: the column {column.name!r} holds {kind}. Expected numbers, fixed-size lists "
            "of numbers, or lists of numbers with a declared length."
        )
    dtype = np.dtype(kind.to_pandas_dtype())
    if offsets is not None and dtype.kind == "b":
        raise DataError(f"{path}: the column {column.name!r} holds lists of bits. Store bytes.")
    if column.fill is not None and not _holds(dtype, column.fill):
        raise InvalidArgument(
            f"Expected the fill of the column {column.name!r} to be a value of its type {kind}, "
            f"got {column.fill}."
        )
    counts = np.cumprod([1, *shape]).tolist()
    return _Field(column, dtype, tuple(shape), tuple(counts), offsets)


def _holds(dtype: np.dtype[Any], value: float) -> bool:
    """Whether a type has a value, up to the rounding of floating-point numbers."""
    try:
        kept = np.array(value).astype(dtype)
    except (OverflowError, ValueError):
        return False
    return dtype.kind == "f" or bool(kept == value)


def _positions(path: Path, array: Any, content: Any) -> list[int]:
    """Return where a batch keeps the buffers of a column, or -1 for a bitmap that says nothing."""
    positions = []
    for buffer, needed in zip(array.buffers(), _needed(array), strict=True):
        position = buffer.address - content.address if needed and buffer is not None else _ABSENT
        if position != _ABSENT and not buffer.size:
            position = 0  # of no value, for which there is no place
        if position != _ABSENT and not 0 <= position <= content.size - buffer.size:
            raise malformed(path, "compressed columns", "plain ones", _CONVERT)
        positions.append(position)
    return positions


def _needed(array: Any) -> list[bool]:
    """Return of each buffer whether it is read: not the bitmap of a level where all is there."""
    needed = [array.null_count > 0, *([True] if hasattr(array, "offsets") else [])]
    while hasattr(array, "values"):
        array = array.values
        needed.append(array.null_count > 0)
    return [*needed, True]


def _present(handles: Whole, bitmaps: Whole, first: Whole, count: int) -> npt.NDArray[np.bool_]:
    """Return which values are there; in batches without a bitmap all of them are."""
    present = np.ones((len(first), count), dtype=bool)
    some = bitmaps != _ABSENT
    if some.any():
        present[some] = _bits(handles[some], bitmaps[some], first[some], count)
    return present


def _bits(handles: Whole, bitmaps: Whole, first: Whole, count: int) -> npt.NDArray[np.bool_]:
    """Return ``count`` bits from each bitmap, from its bit ``first`` on."""
    width = (count + 14) // 8  # also where the first bit is the last one of a byte
    found = map(os.pread, *_lists(handles, np.full(len(first), width), bitmaps + first // 8))
    content = bytearray().join(each.ljust(width, b"\0") for each in found)  # at the end of a file
    bits = np.unpackbits(
        np.frombuffer(content, np.uint8).reshape(-1, width), axis=1, bitorder="little"
    )
    return np.take_along_axis(bits, (first % 8)[:, None] + np.arange(count), axis=1).astype(bool)


def _read(handles: Whole, positions: Whole, width: int) -> npt.NDArray[np.uint8]:
    """Return ``width`` bytes at each position."""
    found = map(os.pread, handles.tolist(), repeat(width), positions.tolist())
    return np.frombuffer(bytearray().join(found), np.uint8).reshape(len(positions), width)


def _lists(*arrays: Whole) -> list[list[int]]:
    return [array.tolist() for array in arrays]


def _handle(file: Path) -> int:
    handle = os.open(file, os.O_RDONLY)
    if hasattr(os, "posix_fadvise"):  # else the system also reads what stands behind each row
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_RANDOM)
    return handle


def _close(handles: Whole) -> None:
    for handle in handles.tolist():
        os.close(handle)
