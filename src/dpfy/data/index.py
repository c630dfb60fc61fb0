"""Convert files of rows to Arrow files, once, so that any row can be read where it stands.

Types are declared or taken from the schema of the files. They are never guessed from values: such a
guess would let one record decide how all others are read.
"""

import csv as plain_csv
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpfy._extras import require
from dpfy.data.arrow_layout import batches_of
from dpfy.data.files import malformed, missing
from dpfy.errors import DataError, InvalidArgument

_ROWS = 2**16  # in a batch
_BLOCK = 2**22  # bytes of text that are parsed at once
_NUMBERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_TYPES = ("bool", *_NUMBERS, "float16", "float32", "float64", "string")


@dataclass(frozen=True)
class Declared:
    """A column of the Arrow file that is to be written.

    Args:
        name: Its name.
        kind: Its type, such as ``float32``; None takes that of the file.
        sources: The columns that it is made of; several become one list of fixed size.
    """

    name: str
    kind: str | None
    sources: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> "Declared":
        """Return the column that a text declares: ``name``, ``name:type`` or ``name:type=a,b,c``.

        Args:
            text: The declaration.

        Returns:
            The column.

        Raises:
            InvalidArgument: The text has another form, or the type is unknown.

        >>> Declared.of("x:float32=age,hours").sources
        ('age', 'hours')
        """
        head, joins, sources = text.partition("=")
        name, _, kind = head.partition(":")
        names = tuple(sources.split(",")) if joins else (name,)
        if not all((name, *names)) or (kind or None) not in (None, *_TYPES) or (joins and not kind):
            raise InvalidArgument(
                f"Expected a column as name, name:type or name:type=a,b,c, got {text!r}. Types are "
                f"{', '.join(_TYPES)}."
            )
        return cls(name, kind or None, names)


def index_files(
    sources: Sequence[str | Path],
    out: str | Path,
    columns: Sequence[str] = (),
    users: str | None = None,
    advance: Callable[[float], None] = lambda share: None,
) -> None:
    """Convert CSV, Parquet or Arrow files to one Arrow file that ``ArrowRecords`` reads.

    Files are read in parts, and the result appears under its name when it is complete. A cell that
    is not of the declared type becomes a missing value of its record. With ``users``, rows are
    sorted by user, in the order of the ids and each user's in the order of the files; rows without
    an id are left out. The offsets of the users' rows, for :meth:`dpfy.Users.sorted`, are written
    beside the file, as ``.users.npy``. For that, one id and one number per row are held in memory.

    Args:
        sources: The files, whose rows follow each other: ``.csv`` with a line of names at the top,
            ``.parquet``, ``.arrow`` or ``.feather``.
        out: The file to write, such as ``train.arrow``.
        columns: The columns to keep, each as ``name``, ``name:type`` or ``name:type=a,b,c``, which
            makes one list of fixed size of several columns. By default all, with the types of the
            file. CSV files have no types, so theirs must be declared.
        users: The column of user ids, whole numbers or texts.
        advance: Is told which share of the work is done.

    Raises:
        DataError: A file is missing, malformed or has no such column, or ``out`` exists or cannot
            be written. The text quotes no cell.
        InvalidArgument: A column is declared in another form, or a type of a CSV column is missing.
        MissingExtra: pyarrow is not installed.
    """
    require("pyarrow", "arrow")
    out, declared = Path(out), [Declared.of(each) for each in columns]
    files = [_Source(Path(source), declared, users) for source in sources]
    if not files:
        raise InvalidArgument("Expected one or more files to convert, got none.")
    for taken in [out, *([starts_beside(out)] if users else [])]:
        if taken.exists():
            raise DataError(f"{taken} exists. Name another file, or delete it first.")
    with _drafts(out) as draft:
        ids = _copy(files, draft(out), lambda share: advance(share / 2 if users else share))
        if users:
            order, starts = _by_user(ids, files[0].path)
            unsorted = draft(out).rename(draft(out, ".unsorted"))
            _reorder(unsorted, draft(out), order, lambda share: advance((1 + share) / 2))
            with draft(starts_beside(out)).open("wb") as file:
                np.save(file, starts)


def starts_beside(out: Path) -> Path:
    """Return the file of the offsets of users' rows that belongs to an Arrow file."""
    return out.with_suffix(".users.npy")


@contextmanager
def _drafts(out: Path) -> Iterator[Callable[..., Path]]:
    """Name drafts of files, which replace the files when the block ends well, ``out`` as last."""
    made: dict[Path, Path] = {}

    def draft(path: Path, purpose: str = "") -> Path:
        found = path.with_name(f"{path.name}{purpose}.tmp")
        made[found] = path
        return found

    try:
        yield draft
        for found, path in sorted(made.items(), key=lambda each: each[1] == out):
            if found == draft(path):
                with found.open("rb") as file:
                    os.fsync(file.fileno())
                found.replace(path)
    except OSError as error:
        raise DataError(
            f"{out} could not be written: {error.strerror or type(error).__name__}. Check its "
            "folder and the free space."
        ) from None
    finally:
        for found in made:
            with suppress(FileNotFoundError):
                found.unlink()


class _Source:
    """A file of rows, and the columns of the result that it gives."""

    def __init__(self, path: Path, declared: Sequence[Declared], users: str | None) -> None:
        import pyarrow as pa

        self.path, self.users = path, users
        readers = {".csv": _csv, ".parquet": _parquet, ".arrow": _arrow, ".feather": _arrow}
        if path.suffix not in readers:
            raise DataError(f"{path}: expected a file of the form {', '.join(readers)}.")
        if not path.is_file():
            raise missing(path)
        with self._guarded():
            self.types, self._read = readers[path.suffix](path)
        self.columns = list(declared) or [Declared(name, None, (name,)) for name in self.types]
        used = [*(name for each in self.columns for name in each.sources), users]
        self.names = [*dict.fromkeys(name for name in used if name is not None)]
        for name in self.names:
            if name not in self.types:
                raise DataError(
                    f"{path}: found no column {name!r}. Name one of the columns of the file."
                )
        self.schema = pa.schema([(each.name, self._type(each)) for each in self.columns])

    def _type(self, column: Declared) -> Any:
        import pyarrow as pa

        kind = self.types[column.sources[0]] if column.kind is None else _type_of(column.kind)
        if kind is None:
            raise InvalidArgument(
                f"{self.path}: a CSV file has no types, and they are not guessed from values. "
                "Declare all columns that you need, as name:float32."
            )
        return kind if len(column.sources) == 1 else pa.list_(kind, len(column.sources))

    def parts(self) -> Iterator[tuple[float, Any, Any]]:
        """Yield the share of the file that was read, the columns of a part, and its user ids."""
        import pyarrow as pa

        with self._guarded():
            for share, batch in self._read(self.names):
                columns = [
                    _column([batch.column(name) for name in column.sources], kind)
                    for column, kind in zip(self.columns, self.schema.types, strict=True)
                ]
                ids = batch.column(self.users) if self.users else None
                yield share, pa.record_batch(columns, schema=self.schema), ids

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        import pyarrow as pa

        try:
            yield
        except (pa.ArrowException, OSError, plain_csv.Error):  # whose texts quote what was read
            raise malformed(
                self.path,
                "content that cannot be read",
                f"a whole {self.path.suffix} file with equally many fields in every row",
                "Repair the file.",
            ) from None


Read = Callable[[list[str]], Iterator[tuple[float, Any]]]


def _csv(path: Path) -> tuple[dict[str, Any], Read]:
    """Return the columns of a CSV file, which have no type, and what reads some of them."""
    import pyarrow as pa
    from pyarrow import csv

    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        names = next(plain_csv.reader(file), [])

    def read(wanted: list[str]) -> Iterator[tuple[float, Any]]:
        size = path.stat().st_size
        with path.open("rb") as file:
            reader = csv.open_csv(
                file,
                read_options=csv.ReadOptions(use_threads=False, block_size=_BLOCK),
                convert_options=csv.ConvertOptions(
                    include_columns=wanted,
                    column_types=dict.fromkeys(wanted, pa.string()),
                    strings_can_be_null=True,
                    check_utf8=False,
                ),
            )
            for batch in reader:
                yield file.tell() / size, batch

    return dict.fromkeys(names), read


def _parquet(path: Path) -> tuple[dict[str, Any], Read]:
    """Return the types of a Parquet file's columns, and what reads some of them."""
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        schema = file.schema_arrow

    def read(wanted: list[str]) -> Iterator[tuple[float, Any]]:
        with parquet.ParquetFile(path) as file:
            done = 0
            for batch in file.iter_batches(_ROWS, columns=wanted):
                done += batch.num_rows
                yield done / file.metadata.num_rows, batch

    return dict(zip(schema.names, schema.types, strict=True)), read


def _arrow(path: Path) -> tuple[dict[str, Any], Read]:
    """Return the types of an Arrow file's columns, and what reads some of them."""
    import pyarrow as pa

    with pa.memory_map(str(path)) as file:
        schema, _ = batches_of(file)

    def read(wanted: list[str]) -> Iterator[tuple[float, Any]]:
        with pa.memory_map(str(path)) as file:
            for batch in batches_of(file)[1]:
                yield file.tell() / file.size(), batch.select(wanted)

    return dict(zip(schema.names, schema.types, strict=True)), read


def _type_of(kind: str) -> Any:
    import pyarrow as pa

    return pa.bool_() if kind == "bool" else getattr(pa, kind)()


def _column(arrays: list[Any], kind: Any) -> Any:
    """Return a column of the result: an array of its type, or several side by side."""
    import pyarrow as pa

    if len(arrays) == 1:
        return _typed(arrays[0], kind)
    typed = [_typed(array, kind.value_type) for array in arrays]
    zero = pa.scalar(0).cast(kind.value_type)
    values = np.stack([each.fill_null(zero).to_numpy(zero_copy_only=False) for each in typed], 1)
    gone = np.stack([each.is_null().to_numpy(zero_copy_only=False) for each in typed], 1)
    leaves = pa.array(values.reshape(-1), kind.value_type, mask=gone.reshape(-1))
    return pa.FixedSizeListArray.from_arrays(leaves, type=kind)


def _typed(array: Any, kind: Any) -> Any:
    """Return values of a type; one that has no such form is missing, and no other changes."""
    import pyarrow as pa

    try:
        return array.cast(kind)
    except pa.ArrowException:
        return pa.array([_cell(each, kind) for each in array], kind)


def _cell(value: Any, kind: Any) -> Any:
    import pyarrow as pa

    try:
        return value.cast(kind).as_py()
    except (pa.ArrowException, UnicodeDecodeError):
        return None


def _copy(files: Sequence[_Source], out: Path, advance: Callable[[float], None]) -> list[Any]:
    """Write the rows of files one after the other, and return their user ids, if asked for."""
    import pyarrow as pa

    schema, ids = files[0].schema, []
    for each in files:
        if each.schema != schema:
            raise malformed(
                each.path,
                "columns of other names or types than in the first file",
                "the same in all files",
                "Declare the columns.",
            )
    with pa.OSFile(str(out), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        for number, each in enumerate(files):
            for share, batch, users in each.parts():
                for first in range(0, batch.num_rows, _ROWS):
                    writer.write_batch(batch.slice(first, _ROWS))
                ids += [] if users is None else [users]
                advance((number + share) / len(files))
    return ids


def _by_user(ids: list[Any], path: Path) -> tuple[Any, Any]:
    """Return the order of rows by user, and where each user's begin."""
    import pyarrow as pa
    from pyarrow import compute

    found = pa.chunked_array(ids or [pa.array([], pa.int64())])
    if not (pa.types.is_integer(found.type) or pa.types.is_string(found.type)):
        raise malformed(
            path, f"user ids of the type {found.type}", "whole numbers or texts", "Convert them."
        )
    order = compute.sort_indices(found)[: len(found) - found.null_count]  # stable, nulls last
    ordered = found.combine_chunks().take(order)
    changes = compute.not_equal(ordered[1:], ordered[:-1]).to_numpy(zero_copy_only=False)
    bounds = np.arange(0, len(order) + 1, max(1, len(order)))  # 0 and, if there are rows, the end
    return order.to_numpy(), np.insert(bounds, 1, np.flatnonzero(changes) + 1).astype(np.int64)


def _reorder(source: Path, out: Path, order: Any, advance: Callable[[float], None]) -> None:
    """Write the rows of a file in another order, with one batch of them in memory at a time."""
    import pyarrow as pa

    with pa.memory_map(str(source)) as file:
        reader = pa.ipc.open_file(file)
        batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
        first = np.cumsum([0, *(batch.num_rows for batch in batches)])
        with pa.OSFile(str(out), "wb") as target, pa.ipc.new_file(target, reader.schema) as writer:
            for begin in range(0, len(order), _ROWS):
                rows = order[begin : begin + _ROWS].astype(np.int64)
                home = np.searchsorted(first, rows, side="right") - 1
                grouped = np.argsort(home, kind="stable")
                pieces = [
                    batches[each].take(pa.array(rows[home == each] - first[each]))
                    for each in np.unique(home)
                ]
                joined = pa.Table.from_batches(pieces).combine_chunks()
                writer.write_table(joined.take(pa.array(np.argsort(grouped))))
                advance(min(begin + _ROWS, len(order)) / len(order))
