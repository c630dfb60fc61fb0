"""Read tables, and clean their columns by a declared schema.

What a cell holds never raises and never shows: only names, shapes and kinds of tables do.
"""

import csv
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfy._extras import require
from dpfy.errors import DataError, InvalidArgument
from dpfy.tabular.schema import Column, Schema, as_text

_LONGEST_CELL = 2**31 - 1  # the largest limit that every platform takes


def columns_of(table: Any, schema: Schema) -> dict[str, NDArray[Any]]:
    """Return the declared columns of a table, cleaned: clamped numbers, and numbers of categories.

    Every row is cleaned by itself, by the schema alone. A column of numbers becomes float64 within
    its bounds; a column of categories becomes the position of the category, where the number of
    declared categories stands for "other".

    Args:
        table: A pandas or polars frame, a pyarrow table, a numpy array with named fields, a dict of
            columns, or a two-dimensional array or list of rows with the columns of the schema, in
            their order.
        schema: The declared columns.

    Returns:
        One array for each column of the schema, all of the same length.

    Raises:
        InvalidArgument: If the table has another form, lacks a column, or has columns of different
            lengths. The text quotes no cell.

    >>> schema = Schema((Column("age", bounds=(0, 100)), Column("sex", categories=("F", "M"))))
    >>> columns_of({"age": [30, 140, None], "sex": ["M", "F", "?"]}, schema)
    {'age': array([ 30., 100.,  50.]), 'sex': array([1, 0, 2])}
    """
    raw = raw_columns(table, schema.names)
    return {each.name: _clean(raw[each.name], each) for each in schema}


def require_columns(table: Any, names: tuple[str, ...]) -> bool:
    """Check that a table has the named columns, without a look at its cells.

    Args:
        table: The table, as :func:`columns_of` takes it.
        names: The names of the columns.

    Returns:
        Whether the columns of the table have names.

    Raises:
        InvalidArgument: If a column is missing, or if rows without names have another number.
    """
    known = _names(table)
    if known is None:
        # of lists no row decides: each is filled up or cut
        shape = getattr(table, "shape", (0, len(names)))
        if len(shape) != 2 or shape[1] != len(names):
            raise InvalidArgument(
                f"Expected a table with the {len(names)} columns of the schema, got an array with "
                f"{shape[1] if len(shape) > 1 else 'no'} columns. Give a data frame, a dict of "
                "columns or an array with named fields."
            )
        return False
    lacking = [name for name in names if name not in known]
    if lacking:
        raise InvalidArgument(
            f"The table has no column {lacking[0]!r}, which the schema declares. Its columns are "
            f"{', '.join(map(str, known))}."
        )
    return True


def row_count(table: Any, names: tuple[str, ...]) -> int:
    """Return the number of rows of a table with the named columns, all of the same length."""
    if not require_columns(table, names):
        return len(table)
    lengths = {len(table[name]) for name in names}
    if len(lengths) > 1:
        raise InvalidArgument("Expected all columns of a table to have the same length.")
    return lengths.pop()


def raw_columns(table: Any, names: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    """Return named columns of a table as they are, each as an array of the same length."""
    if require_columns(table, names):
        row_count(table, names)
        return {name: _array(table[name]) for name in names}
    if hasattr(table, "shape"):
        rows = np.asarray(table)
        return {name: rows[:, number] for number, name in enumerate(names)}
    filled = [_cells(row, len(names)) for row in table]
    return {name: as_objects([row[number] for row in filled]) for number, name in enumerate(names)}


def read_table(path: str | os.PathLike[str]) -> dict[str, NDArray[Any]]:
    """Read a CSV or Parquet file as a dict of columns.

    CSV files have a line of names at the top; their cells are texts, which a schema makes numbers
    or categories of. A row with too few or too many cells is filled up or cut, as any other cell
    that is missing. The file is assumed to be well-formed: a quotation mark that is never closed
    makes one cell of all that follows.

    Args:
        path: The file, ``.csv`` or ``.parquet``. Parquet needs the extra ``arrow``.

    Returns:
        The columns of the file, by name.

    Raises:
        DataError: If the file is missing, of another form, or cannot be read. The text quotes no
            cell.
        MissingExtra: If pyarrow is needed and not installed.
    """
    path = Path(path)
    readers = {".csv": _read_csv, ".parquet": _read_parquet}
    if path.suffix not in readers:
        raise DataError(f"{path}: expected a file of the form {', '.join(readers)}.")
    try:
        return readers[path.suffix](path)
    except OSError as error:
        raise DataError(
            f"{path}: {error.strerror or 'content that cannot be read'}. Check the path and the "
            "file."
        ) from None


def header_of(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Return the names of a file's columns; no row is read.

    Raises:
        DataError: If the file is missing, of another form, or cannot be read.
    """
    path = Path(path)
    try:
        if path.suffix == ".csv":
            with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
                return tuple(name.strip() for name in next(csv.reader(file), []))
        if path.suffix == ".parquet":
            require("pyarrow", "arrow")
            from pyarrow import parquet

            return tuple(parquet.read_schema(path).names)
    except (OSError, ValueError, csv.Error) as error:  # whose texts may quote what was read
        cause = getattr(error, "strerror", None) or "content that cannot be read"
        raise DataError(f"{path}: {cause}. Check the path and the file.") from None
    raise DataError(f"{path}: expected a file of the form .csv or .parquet.")


def _read_csv(path: Path) -> dict[str, NDArray[Any]]:
    names = header_of(path)
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        reader = csv.reader(file)
        next(reader, None)
        limit = csv.field_size_limit(_LONGEST_CELL)  # no cell may stop the others
        try:
            # an empty line is a missing cell if there is one column, and else no row
            rows = [_cells(row, len(names)) for row in reader if row or len(names) == 1]
        except csv.Error:  # whose text quotes what was read
            raise DataError(f"{path}: content that cannot be read. Repair the file.") from None
        finally:
            csv.field_size_limit(limit)
    columns = zip(*rows, strict=True) if rows else [()] * len(names)
    return {
        name: np.array(column, dtype=object) for name, column in zip(names, columns, strict=True)
    }


def _cells(row: Any, count: int) -> list[Any]:
    """Return so many cells of a row: cut, or filled up with None; all None if it is no row."""
    is_row = isinstance(row, list | tuple) or (isinstance(row, np.ndarray) and row.ndim == 1)
    cells = list(row)[:count] if is_row else []
    return [*cells, *[None] * (count - len(cells))]


def _read_parquet(path: Path) -> dict[str, NDArray[Any]]:
    require("pyarrow", "arrow")
    import pyarrow as pa
    from pyarrow import parquet

    try:
        table = parquet.read_table(path)
    except pa.ArrowException:
        raise DataError(f"{path}: content that cannot be read. Repair the file.") from None
    return {name: _array(table[name]) for name in table.column_names}


def _names(table: Any) -> list[str] | None:
    """Return the names of the columns of a table, or None for rows without names."""
    if isinstance(table, Mapping):
        return list(table)
    if isinstance(table, np.ndarray):
        return None if table.dtype.names is None else list(table.dtype.names)
    names = getattr(table, "column_names", None)  # pyarrow; also data sets of Hugging Face
    if names is None:
        names = getattr(table, "columns", None)  # pandas and polars
    return None if names is None else list(names)


def _array(column: Any) -> NDArray[Any]:
    """Return a column as a one-dimensional array; texts stay Python objects."""
    if hasattr(column, "to_pylist"):  # pyarrow, whose own conversion may refuse missing values
        column = _cells_of(column)
    found = np.asarray(column) if isinstance(column, np.ndarray) else _objects(column)
    if found.ndim != 1:
        raise InvalidArgument(
            f"Expected columns of one dimension, got one of {found.ndim}. Split it first."
        )
    return found


def _cells_of(column: Any) -> list[Any]:
    """Return the cells of an Arrow column; one that Python has no value for is missing."""
    try:
        return list(column.to_pylist())
    except Exception:  # no cell may stop the others
        return [_cell(each) for each in column]


def _cell(scalar: Any) -> Any:
    try:
        return scalar.as_py()
    except Exception:
        return None


def _objects(column: Any) -> NDArray[Any]:
    kind = getattr(getattr(column, "dtype", None), "kind", "O")
    if kind in "biuf" and hasattr(column, "to_numpy"):
        return np.asarray(column.to_numpy())
    return as_objects(list(column))


def as_objects(values: Sequence[Any]) -> NDArray[np.object_]:
    """Return an array of the very objects, whatever they are."""
    found = np.empty(len(values), dtype=object)
    for place, value in enumerate(values):
        found[place] = value
    return found


def _clean(values: NDArray[Any], column: Column) -> NDArray[Any]:
    if column.categories is not None:
        return _codes(values, column.categories)
    numbers = as_floats(values)
    assert column.fill is not None  # as the column leaves it
    return np.clip(np.where(np.isfinite(numbers), numbers, column.fill), column.low, column.high)


def _codes(values: NDArray[Any], categories: tuple[str, ...]) -> NDArray[np.int64]:
    """Return the positions of categories; everything else is one past the last."""
    position: dict[str | None, int] = {
        category: number for number, category in enumerate(categories)
    }
    return np.array(
        [position.get(text_of(each), len(categories)) for each in values.tolist()],
        dtype=np.int64,
    )


def text_of(value: object) -> str | None:
    """Return a cell as the text of a category, or None if it has none."""
    try:
        return None if value is None else as_text(value)
    except Exception:  # a cell may be any object, and no cell may stop the others
        return None


def as_floats(values: NDArray[Any]) -> NDArray[np.float64]:
    """Return numbers as float64 of the same shape; what is no number is NaN, silently.

    >>> as_floats(np.array([["1", None], [" 2.5", "?"]], dtype=object))
    array([[1. , nan],
           [2.5, nan]])
    """
    if values.dtype.kind in "biuf":
        with np.errstate(all="ignore"):
            return values.astype(np.float64)
    with warnings.catch_warnings():  # a warning about a cell would show
        warnings.simplefilter("ignore")
        flat = [_float(each) for each in values.reshape(-1).tolist()]
    return np.array(flat, dtype=np.float64).reshape(values.shape)


def _float(value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except Exception:  # a cell may be any object, and no cell may stop the others
        return float("nan")
