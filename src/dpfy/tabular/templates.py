"""Begin a schema: a template with the names of columns, or one that public data fills."""

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfy.errors import InvalidArgument
from dpfy.tabular.schema import Column, Schema, key_text
from dpfy.tabular.tables import as_floats, header_of, raw_columns, text_of

_MISSING = ("", "?", "na", "nan", "none", "null")
_MOST_CATEGORIES = 1000
_QUANTILES = (0.2, 0.4, 0.6, 0.8)


def template(path: str | os.PathLike[str]) -> str:
    """Return a schema to be filled in, with the names of a file's columns and nothing else of it.

    No row is read, so not even the kind of a column is guessed: whether somebody has a text in a
    column of numbers is private. The names of the columns are taken to be public.

    Args:
        path: The file, ``.csv`` or ``.parquet``.

    Returns:
        The template, as TOML with every column commented out.

    Raises:
        DataError: If the file cannot be read.
    """
    lines = [
        f"# Columns of {Path(path).name}, of which only the names were read.",
        "# For each column that is to be used, keep one of its two lines, remove the '#', and",
        "# declare what is publicly known: the bounds of numbers, or the categories of anything",
        "# else. Numbers outside of their bounds are clamped; other categories are 'other'.",
        "# Numbers may have knots, where their effect on a linear model bends, as",
        "# knots = [25, 40, 60], and a fill for missing ones, as fill = 0.",
        "[columns]",
    ]
    for name in header_of(path):
        lines += [
            f"# {key_text(name)} = {{ bounds = [0, 100] }}",
            f'# {key_text(name)} = {{ categories = ["a", "b"] }}',
        ]
    return "\n".join(lines) + "\n"


def schema_from_public(table: Any, names: tuple[str, ...]) -> Schema:
    """Return the schema that *public* data suggests: never call it with private rows.

    A column is one of numbers if nine tenths of its cells are, with the least and the largest as
    bounds and knots at the fifths; otherwise its texts are the categories.

    Args:
        table: A public table, as :func:`~dpfy.tabular.columns_of` takes it.
        names: The columns to describe.

    Returns:
        The schema.

    Raises:
        InvalidArgument: If a column is constant or has too many categories; leave it out.

    >>> schema_from_public({"a": [1, 2, 3, "?"], "b": ["x", "y", "x", ""]}, ("a", "b")).names
    ('a', 'b')
    """
    return Schema(tuple(_described(name, raw_columns(table, (name,))[name]) for name in names))


def _described(name: str, values: NDArray[Any]) -> Column:
    texts = [text for each in values.tolist() if (text := text_of(each)) is not None]
    present = [text for text in texts if text.lower() not in _MISSING]
    numbers = as_floats(np.array(present, dtype=object))
    finite = numbers[np.isfinite(numbers)]
    if len(finite) >= 0.9 * len(present) and len(np.unique(finite)) > 1:
        low, high = float(finite.min()), float(finite.max())
        knots = np.unique(np.quantile(finite, _QUANTILES))
        inside = tuple(float(each) for each in knots if low < each < high)
        return Column(name, bounds=(low, high), knots=inside)
    categories = sorted(set(present))
    if not 1 <= len(categories) <= _MOST_CATEGORIES:
        raise InvalidArgument(
            f"The public column {name!r} has {len(categories)} categories; expected 1 to "
            f"{_MOST_CATEGORIES}. Leave it out, or declare it by hand."
        )
    return Column(name, categories=tuple(categories))
