"""Synthetic tables: columns by name, which may be published, and a file of them."""

import csv
import os
from pathlib import Path
from typing import Any

from numpy.typing import NDArray


class SyntheticTable(dict[str, NDArray[Any]]):
    """The columns of a synthetic table, by name, as ``pandas.DataFrame`` takes them.

    Numbers are float64, or int64 in columns of whole numbers. Categories are texts, and None stands
    for what is none of the declared ones.

    >>> import numpy as np
    >>> print(SyntheticTable({"age": np.array([30, 41]), "job": np.array(["cook", None])}).to_csv())
    age,job
    30,cook
    41,
    """

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(next(iter(self.values()), ()))

    def to_csv(self, path: str | os.PathLike[str] | None = None) -> str | None:
        """Write the table as CSV, with a line of names at the top.

        Args:
            path: The file; None returns the text.

        Returns:
            The text, or None if it went to a file.
        """
        if path is None:
            from io import StringIO

            buffer = StringIO()
            self._write(buffer)
            return buffer.getvalue().rstrip("\n")
        with Path(path).open("w", newline="", encoding="utf-8") as file:
            self._write(file)
        return None

    def _write(self, file: Any) -> None:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(self)
        columns = [
            [f"{each:.8g}" for each in column] if column.dtype.kind == "f" else column.tolist()
            for column in self.values()
        ]
        writer.writerows(zip(*columns, strict=True))
