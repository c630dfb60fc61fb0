"""Records in the columns of Arrow files, read from disk when they are asked for.

Rows are read by position and not through a memory map: a map counts every page that was touched
as memory of the process, and on kernels with large pages that is two megabytes for each row.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from dpfy._extras import require
from dpfy.data.arrow_layout import Column, Layout
from dpfy.data.files import malformed, missing
from dpfy.errors import InvalidArgument

_SUFFIXES = (".arrow", ".feather")


class ArrowRecords(Dataset[tuple[torch.Tensor, ...]]):
    """The rows of Arrow files, as tuples of one tensor per column, in the order of the columns.

    Columns hold numbers, fixed-size lists of numbers, or lists with a declared length, so that all
    records have one shape. It is read off the types in the files, which are taken as public, and
    never off a value. Rows are read from disk when they are asked for: memory does not grow with
    their number. A run reads a chunk at once, without a Python object per row.

    Args:
        path: An uncompressed Arrow file (``.arrow``, or ``.feather`` version 2), a folder of such
            files, or several files. Their rows follow each other, those of a folder by name.
        columns: The columns of a record, by name or as :class:`Column`.

    Raises:
        DataError: A file is missing, compressed or no Arrow file, or a column is missing or of
            another type.
        MissingExtra: pyarrow is not installed.

    *Formal guarantee*: a record is a function of its own row and of the declared columns.

    >>> import pyarrow, tempfile
    >>> table = pyarrow.table({"x": [0.5, None], "tokens": [[4, 5, 6], [7]]})
    >>> path = Path(tempfile.mkdtemp()) / "train.arrow"
    >>> with pyarrow.ipc.new_file(path, table.schema) as writer:
    ...     writer.write(table)
    >>> data = ArrowRecords(path, [Column("x", fill=-1), Column("tokens", length=2, fill=0)])
    >>> data[1]
    (tensor(-1., dtype=torch.float64), tensor([7, 0]))
    """

    def __init__(
        self, path: str | Path | Sequence[str | Path], columns: Sequence[str | Column]
    ) -> None:
        require("pyarrow", "arrow")
        if isinstance(columns, str) or not columns:
            raise InvalidArgument("Expected the names of one or more columns, such as ['x', 'y'].")
        self.files = tuple(_files(path))
        self.columns = tuple(Column(each) if isinstance(each, str) else each for each in columns)
        self._layout = Layout(self.files, self.columns)

    def __reduce__(self) -> Any:
        return type(self), (self.files, self.columns)  # another process opens the files itself

    @property
    def example_input(self) -> tuple[torch.Tensor, ...]:
        """One record of zeros, of the shape that all have."""
        return tuple(
            torch.from_numpy(np.zeros((1, *field.shape), field.dtype))
            for field in self._layout.fields
        )

    def __len__(self) -> int:
        return self._layout.rows

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[torch.Tensor, ...]]:
        return list(zip(*self.take_columns(indices), strict=True))

    def take_columns(self, indices: Sequence[int]) -> tuple[torch.Tensor, ...]:
        """Return the rows at some indices, as one tensor per column.

        Args:
            indices: The rows, in any order.

        Returns:
            The columns, with one row per index.

        Raises:
            DataError: A value is missing for which the column declares no fill.
            IndexError: There is no such row.
        """
        return tuple(map(torch.from_numpy, self._layout.take(np.asarray(indices, np.int64))))


def _files(path: str | Path | Sequence[str | Path]) -> list[Path]:
    """Return the files that a path, or several, stand for."""
    given = [path] if isinstance(path, str | Path) else list(path)
    files: list[Path] = []
    for each in map(Path, given):
        inside = sorted(file for file in each.glob("*") if file.suffix in _SUFFIXES)
        if not (inside if each.is_dir() else each.is_file()):
            raise (
                missing(each)
                if not each.is_dir()
                else malformed(
                    each, "no Arrow file", "*.arrow or *.feather", "Name another folder."
                )
            )
        files += inside if each.is_dir() else [each]
    if not files:
        raise InvalidArgument("Expected the path of one or more Arrow files, got none.")
    return files
