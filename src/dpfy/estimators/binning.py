"""Cut the columns of a table into bins that a declaration fixes, for models of counts."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfy.estimators.declarations import Features, Floats
from dpfy.estimators.fitting import summed
from dpfy.tabular.schema import Column, Schema
from dpfy.tabular.tables import as_floats, columns_of

Positions = NDArray[np.int64]


class Binning:
    """A public map from rows of a table to one bin for each column.

    Categories are bins of their own, and "other" is the last of them. A column of numbers is cut
    at its knots, and into intervals of equal length.

    *Formal guarantee*: each row is mapped by itself, by declarations alone, whatever its cells
    hold.

    Args:
        schema: The declared columns.
        bins: The number of intervals of equal length of a column of numbers, at least 2.
        refine: Whether columns that have knots are cut into such intervals too.
    """

    def __init__(self, schema: Schema, bins: int, refine: bool = True) -> None:
        self.schema = schema
        self.cuts = tuple(
            _cuts(each, bins if refine or not each.knots else 1) if each.is_number else None
            for each in schema
        )
        self.sizes = tuple(
            len(each.categories or ()) + 1 if cuts is None else len(cuts) + 1
            for each, cuts in zip(schema, self.cuts, strict=True)
        )

    def positions(self, table: Any) -> Positions:
        """Return the bin of each row in each column.

        Args:
            table: A table, as :func:`~dpfy.tabular.columns_of` takes it.

        Returns:
            One row for each column, and one entry in it for each row of the table.
        """
        columns = columns_of(table, self.schema)
        found = [
            columns[each.name]
            if cuts is None
            else np.searchsorted(cuts, columns[each.name], side="right")
            for each, cuts in zip(self.schema, self.cuts, strict=True)
        ]
        return np.stack(found).astype(np.int64)


def declared_schema(features: Features, width: int) -> Schema:
    """Return the declared schema, or one that says the same as bounds of plain numbers.

    Under bounds, a model predicts for a cell that is no finite number as for their middle.

    Args:
        features: What is declared.
        width: The number of columns of a plain table.

    Returns:
        The schema.

    Raises:
        InvalidArgument: If the bounds are too far apart for float64.
    """
    if features.schema is not None:
        return features.schema
    lows, highs = (np.broadcast_to(each, (width,)) for each in plain_bounds(features))
    ends = zip(lows, highs, strict=True)
    return Schema(tuple(Column(f"x{number}", bounds=each) for number, each in enumerate(ends)))


def plain_bounds(features: Features) -> tuple[Floats, Floats]:
    """Return the bounds of plain numbers, for a model that has no use for a data norm."""
    assert isinstance(features.bounds, tuple)  # as the features are declared and observed
    return features.bounds


def counted_rows(features: Features, table: Any) -> NDArray[np.bool_]:
    """Return which rows count: under bounds, those of finite numbers; under a schema, all."""
    if features.schema is not None:
        return np.ones(features.count(table), dtype=bool)
    return np.asarray(np.isfinite(as_floats(np.asarray(table))).all(axis=1))


def cell_counts(positions: Positions, size: int, weights: Floats) -> Floats:
    """Return the sum of the rows' weights in each of ``size`` cells.

    A row is in one cell, so it moves one entry, by its weight.
    """

    def block(cells: Positions, values: Floats) -> Floats:
        return np.bincount(cells, values, minlength=size).astype(np.float64, copy=False)

    total: Floats = summed(block, positions, weights)
    return total


def _cuts(column: Column, bins: int) -> Floats:
    """Return the numbers at which a new bin begins."""
    inner = np.linspace(column.low, column.high, bins + 1)[1:-1]
    found = np.unique(np.concatenate([inner, np.array(column.knots, dtype=np.float64)]))
    return found[(found > column.low) & (found < column.high)]
