"""A transformer of scikit-learn that encodes rows by a declared schema alone."""

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dpfy._extras import require
from dpfy.errors import InvalidArgument
from dpfy.tabular.schema import Column, Schema
from dpfy.tabular.tables import columns_of

require("sklearn", "estimators")
from sklearn.base import BaseEstimator, TransformerMixin  # noqa: E402


class Encoder(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Encode a table for linear models, in rows of an ℓ2 norm of at most 1.

    A column of categories becomes one number for each category and one for "other", of which one
    is 1. A column of numbers becomes one number for each end of its bounds and for each of its
    knots: the hat functions, which are 1 at their own knot, 0 at all others and straight lines in
    between. Every column thus is a few numbers from 0 to 1 with the sum 1, so a linear model of
    them is a straight line in each number that bends at the knots. All are divided by the root of
    the number of columns.

    *Formal guarantee*: nothing is computed from more than one row, and ``fit`` looks at none. Each
    row has an ℓ2 norm of at most 1, whatever its cells are: numbers from 0 to 1 with the sum 1 have
    at most the norm 1 (docs/proofs/estimators.md).

    Args:
        schema: The declared columns.

    >>> schema = Schema((Column("age", bounds=(0, 100), knots=(50,)),))
    >>> Encoder(schema).fit_transform({"age": [0, 75, "?"]})
    array([[1. , 0. , 0. ],
           [0. , 0.5, 0.5],
           [0. , 1. , 0. ]])
    """

    def __init__(self, schema: Schema) -> None:
        self.schema = schema

    def fit(self, X: Any = None, y: Any = None) -> Self:
        """Check the schema; no row is looked at.

        Args:
            X: Not used.
            y: Not used.

        Returns:
            The encoder itself.

        Raises:
            InvalidArgument: If there is no schema.
        """
        require_schema(self.schema)
        return self

    def transform(self, X: Any) -> NDArray[np.float64]:
        """Return the encoded rows of a table.

        Args:
            X: A table, as :func:`~dpfy.tabular.columns_of` takes it.

        Returns:
            One row for each row of the table.

        Raises:
            InvalidArgument: If the table lacks a column, or has another form.
        """
        schema = require_schema(self.schema)
        columns = columns_of(X, schema)
        parts = [encode(columns[each.name], each) for each in schema]
        return np.concatenate(parts, axis=1) / np.sqrt(len(schema))

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[np.object_]:
        """Return the names of the encoded numbers, such as ``sex=M`` and ``age@50``.

        Args:
            input_features: Not used.

        Returns:
            One name for each number of an encoded row.
        """
        names = [name for each in require_schema(self.schema) for name in feature_names(each)]
        return np.array(names, dtype=object)

    def __sklearn_is_fitted__(self) -> bool:
        """Return True: there is nothing to fit."""
        return True

    def __sklearn_tags__(self) -> Any:
        """Return the tags of scikit-learn: rows may hold anything, and no fit is needed."""
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        tags.input_tags.allow_nan = tags.input_tags.string = tags.input_tags.categorical = True
        return tags


def require_schema(schema: object) -> Schema:
    """Return ``schema`` if it is one."""
    if not isinstance(schema, Schema):
        raise InvalidArgument(
            f"Expected schema to be a dpfy.tabular.Schema, got {type(schema).__name__}. Read one "
            "with Schema.read, or write one with `dpfy schema init`."
        )
    return schema


def encode(values: NDArray[Any], column: Column) -> NDArray[np.float64]:
    """Return a cleaned column as non-negative numbers with the sum 1."""
    if column.categories is not None:
        return np.eye(len(column.categories) + 1)[values]
    places = np.array([column.low, *column.knots, column.high])
    left = np.clip(np.searchsorted(places, values, side="right") - 1, 0, len(places) - 2)
    share = (values - places[left]) / (places[left + 1] - places[left])
    found = np.zeros((len(values), len(places)))
    rows = np.arange(len(values))
    found[rows, left], found[rows, left + 1] = 1 - share, share
    return found


def feature_names(column: Column) -> list[str]:
    """Return the names of the numbers that a column becomes."""
    if column.categories is not None:
        return [f"{column.name}={each}" for each in (*column.categories, "other")]
    return [f"{column.name}@{each:g}" for each in (column.low, *column.knots, column.high)]
