"""Schemas: what the columns of a table may hold, as somebody declares it.

A schema is public. It is written by hand or computed from public data, and never read off the rows
that a model is fitted to.
"""

import json
import math
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np

from dpfy import _validate
from dpfy.errors import InvalidArgument

_WHOLE = re.compile(r"[+-]?\d+(\.0*)?", re.ASCII)
_DECIMAL = re.compile(r"[+-]?\d*\.\d+", re.ASCII)
_LEAST_WIDTH = 1e-300  # of bounds: what is divided by less may overflow
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True)
class Column:
    """One column of a table: a number within bounds, or one of several categories.

    A number outside of its bounds is moved to the nearer one, and a number that is missing, not
    finite or no number at all is ``fill``. A value that is none of the categories is "other", which
    is a category of its own after the declared ones. None of this is ever reported.

    Args:
        name: The name of the column.
        bounds: The least and the largest number, for a column of numbers.
        categories: The categories as text, for a column of categories; numbers among them are
            compared as text too.
        fill: The public number that stands for a missing one; by default the middle of the bounds.
        knots: Numbers inside the bounds, increasing, at which the effect of the column on a linear
            model may bend; see :class:`~dpfy.tabular.Encoder`.

    Raises:
        InvalidArgument: If a column has neither or both of bounds and categories, or if a value is
            out of its range.

    >>> Column("age", bounds=(0, 100), knots=(25, 60)).fill
    50.0
    >>> Column("sex", categories=("Female", "Male")).is_number
    False
    """

    name: str
    bounds: tuple[float, float] | None = None
    categories: tuple[str, ...] | None = None
    fill: float | None = None
    knots: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise InvalidArgument(f"Expected name={self.name!r} to be a text of some letters.")
        if (self.bounds is None) == (self.categories is None):
            raise InvalidArgument(
                f"Expected bounds or categories for column {self.name!r}, and not both. Declare "
                "bounds = [low, high] for numbers, and a list of categories for anything else."
            )
        if self.bounds is not None:
            self._check_number(self.bounds)
        else:
            self._check_categories()

    @property
    def is_number(self) -> bool:
        """Whether the column holds numbers."""
        return self.bounds is not None

    @property
    def low(self) -> float:
        """The least number of a column of numbers."""
        return self._ends[0]

    @property
    def high(self) -> float:
        """The largest number of a column of numbers."""
        return self._ends[1]

    @property
    def _ends(self) -> tuple[float, float]:
        if self.bounds is None:
            raise InvalidArgument(f"Column {self.name!r} has categories, and no bounds.")
        return self.bounds

    def to_json(self) -> dict[str, Any]:
        """Return the column without its name, as plain JSON values."""
        if self.categories is not None:
            return {"categories": list(self.categories)}
        return {
            "bounds": list(self._ends),
            "fill": self.fill,
            **({"knots": list(self.knots)} if self.knots else {}),
        }

    def _check_number(self, bounds: Sequence[float]) -> None:
        low, high = _finite(self.name, "bounds", bounds, 2)
        if not high - low > _LEAST_WIDTH or math.isinf(high - low):
            raise InvalidArgument(
                f"Expected bounds={[low, high]} of column {self.name!r} to be increasing, with a "
                "finite distance."
            )
        knots = _finite(self.name, "knots", self.knots)
        ends = (low, *knots, high)
        if any(left >= right for left, right in pairwise(ends)):
            raise InvalidArgument(
                f"Expected knots={list(knots)} of column {self.name!r} to increase inside the "
                f"bounds {[low, high]}."
            )
        fill = low / 2 + high / 2 if self.fill is None else self.fill
        object.__setattr__(self, "bounds", (low, high))
        object.__setattr__(self, "knots", knots)
        object.__setattr__(self, "fill", _validate.real(f"fill of {self.name!r}", fill, low, high))

    def _check_categories(self) -> None:
        if isinstance(self.categories, str) or not isinstance(self.categories, Sequence):
            raise InvalidArgument(f"Expected categories of {self.name!r} to be a list of texts.")
        found = tuple(as_text(each) for each in self.categories)
        if not found or len(set(found)) < len(found):
            raise InvalidArgument(
                f"Expected one or more different categories of column {self.name!r}, got "
                f"{list(found)}."
            )
        if self.fill is not None or self.knots:
            raise InvalidArgument(
                f"Column {self.name!r} has categories: fill and knots are for numbers. A missing "
                "category is 'other'."
            )
        object.__setattr__(self, "categories", found)


@dataclass(frozen=True)
class Schema:
    """The declared columns of a table, in order.

    Columns of a table that the schema does not name are not read.

    *Assumes* that nothing in it was computed from the private rows.

    Args:
        columns: The columns; their names differ.

    Raises:
        InvalidArgument: If two columns share a name, or if there is none.

    >>> schema = Schema((Column("age", bounds=(0, 100)), Column("sex", categories=("F", "M"))))
    >>> schema.names, Schema.from_json(schema.to_json()) == schema
    (('age', 'sex'), True)
    >>> print(schema.to_toml())
    [columns]
    age = { bounds = [0.0, 100.0], fill = 50.0 }
    sex = { categories = ["F", "M"] }
    """

    columns: tuple[Column, ...]

    def __post_init__(self) -> None:
        columns = tuple(self.columns)
        if not columns or not all(isinstance(each, Column) for each in columns):
            raise InvalidArgument("Expected a schema to hold one or more columns.")
        if len({each.name for each in columns}) < len(columns):
            raise InvalidArgument("Expected the columns of a schema to have different names.")
        object.__setattr__(self, "columns", columns)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns, in order."""
        return tuple(each.name for each in self.columns)

    def __iter__(self) -> Iterator[Column]:
        """Iterate over the columns."""
        return iter(self.columns)

    def __len__(self) -> int:
        """Return the number of columns."""
        return len(self.columns)

    def __getitem__(self, name: str) -> Column:
        """Return the column of a name."""
        for each in self.columns:
            if each.name == name:
                return each
        raise InvalidArgument(
            f"Expected a column of the schema, got {name!r}. It has {', '.join(self.names)}."
        )

    def without(self, *names: str) -> "Schema":
        """Return the schema without some of its columns, such as the target."""
        for name in names:
            self[name]
        return Schema(tuple(each for each in self.columns if each.name not in names))

    def to_json(self) -> dict[str, Any]:
        """Return the schema as plain JSON values."""
        return {"columns": {each.name: each.to_json() for each in self.columns}}

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Return the schema that :meth:`to_json` wrote, or that a TOML file holds.

        Raises:
            InvalidArgument: If there are unknown fields, or a column is not valid.
        """
        columns = value.get("columns") if isinstance(value, Mapping) else None
        if not isinstance(value, Mapping) or not isinstance(columns, Mapping) or len(value) > 1:
            raise InvalidArgument(
                "Expected a schema with one table, [columns], that names each column."
            )
        return cls(tuple(_column(str(name), each) for name, each in columns.items()))

    def to_toml(self) -> str:
        """Return the schema as TOML, one line for each column."""
        lines = [
            f"{key_text(each.name)} = {{ {_inline(each.to_json())} }}" for each in self.columns
        ]
        return "\n".join(["[columns]", *lines])

    @classmethod
    def from_toml(cls, text: str) -> Self:
        """Return the schema of a TOML text.

        Raises:
            InvalidArgument: If the text is no TOML, or no schema.
        """
        try:
            return cls.from_json(tomllib.loads(text))
        except tomllib.TOMLDecodeError as error:
            raise InvalidArgument(f"Expected a schema in TOML: {error}.") from None

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """Return the schema of a file, ``.toml`` or ``.json``.

        Raises:
            InvalidArgument: If the file holds no schema.
        """
        text = Path(path).read_text(encoding="utf-8")
        if Path(path).suffix != ".json":
            return cls.from_toml(text)
        try:
            return cls.from_json(json.loads(text))
        except json.JSONDecodeError as error:
            raise InvalidArgument(f"Expected a schema in JSON: {error}.") from None


def as_text(value: object) -> str:
    """Return a category as text; numbers are written alike, whether they come as texts or not.

    Whoever reads a file makes numbers of a column of digits, and texts if one row has another
    one: no row may decide which category the others have.

    >>> as_text(3.0), as_text("03"), as_text("1.50"), as_text(" yes ")
    ('3', '3', '1.5', 'yes')
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = str(value).strip()
    if _WHOLE.fullmatch(text):
        return str(int(text.partition(".")[0]))
    return repr(float(text)) if _DECIMAL.fullmatch(text) else text


def _column(name: str, value: object) -> Column:
    known = ("bounds", "categories", "fill", "knots")
    if not isinstance(value, Mapping) or not set(value) <= set(known):
        raise InvalidArgument(
            f"Expected column {name!r} to be a table with fields among {', '.join(known)}."
        )
    fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in value.items()}
    return Column(name, **fields)


def _finite(name: str, what: str, values: object, count: int | None = None) -> tuple[float, ...]:
    """Return finite numbers, as many as ``count`` if it is given."""
    if (
        isinstance(values, str)
        or not isinstance(values, Sequence)
        or count
        not in (
            None,
            len(values),
        )
    ):
        raise InvalidArgument(
            f"Expected {what} of column {name!r} to be a list of {count or 'any number of'} "
            f"numbers, got {values!r}."
        )
    return tuple(
        _validate.real(
            f"{what} of {name!r}", each, -math.inf, math.inf, open_low=True, open_high=True
        )
        for each in values
    )


def key_text(name: str) -> str:
    """Return the name of a column as a key of TOML."""
    return name if _BARE_KEY.fullmatch(name) else _text(name)


def _inline(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} = {_text(value)}" for key, value in values.items())


def _text(value: object) -> str:
    """Return a text, number or list as TOML, which writes them as JSON does."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
