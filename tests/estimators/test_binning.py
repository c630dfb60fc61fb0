import numpy as np
import pytest

from dpfy.estimators.binning import Binning, cell_counts, counted_rows, declared_schema
from dpfy.estimators.declarations import Features
from dpfy.tabular import Column, Schema


def test_numbers_are_cut_at_knots_and_evenly_and_categories_are_bins():
    schema = Schema((Column("a", bounds=(0, 4), knots=(1, 3)), Column("b", categories=("x", "y"))))
    binning = Binning(schema, 2)
    assert np.array_equal(binning.cuts[0], [1, 2, 3]) and binning.cuts[1] is None
    assert binning.sizes == (4, 3)
    found = binning.positions({"a": [-9, 1, 2.5, 4, "?"], "b": ["y", "x", None, 3, "y"]})
    assert np.array_equal(found, [[0, 1, 2, 3, 2], [1, 0, 2, 2, 1]])


def test_bounds_are_a_schema_of_plain_numbers():
    features = Features(bounds=(0, [1, 2]))
    schema = declared_schema(features, 2)
    assert [each.bounds for each in schema] == [(0, 1), (0, 2)]
    x = np.array([[0.2, 1], [np.inf, 1], [0.1, np.nan]])
    assert counted_rows(features, x).tolist() == [True, False, False]
    table = {"a": [1, np.nan]}
    assert counted_rows(Features(schema=Schema((Column("a", bounds=(0, 1)),))), table).all()


@pytest.mark.parametrize("rows", [0, 5, 2**16 + 3])
def test_weights_are_summed_by_cell(rows):
    cells = np.arange(rows) % 3
    assert np.array_equal(
        cell_counts(cells, 4, np.full(rows, 0.5)), np.bincount(cells, minlength=4) * 0.5
    )
