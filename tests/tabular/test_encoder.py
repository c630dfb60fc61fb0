"""Rows are encoded one by one, by the schema alone, with a norm of at most 1."""

import pickle

import numpy as np
import pytest
from hypothesis import given, strategies as st
from sklearn.base import clone

from dpfy.errors import InvalidArgument
from dpfy.tabular import Column, Encoder, Schema

SCHEMA = Schema(
    (
        Column("a", bounds=(-1, 1), knots=(-0.9, 0.25)),
        Column("b", bounds=(0, 1e6), fill=0),
        Column("c", categories=("x", "y")),
    )
)
CELLS = st.one_of(st.none(), st.floats(), st.sampled_from(["x", "y", "z", "0.5"]))


@given(rows=st.lists(st.tuples(CELLS, CELLS, CELLS), min_size=1, max_size=5))
def test_rows_have_a_norm_of_at_most_1_and_columns_add_up(rows):
    found = Encoder(SCHEMA).fit_transform(rows)
    assert found.shape == (len(rows), 4 + 2 + 3)
    assert (found >= 0).all()
    assert (np.linalg.norm(found, axis=1) <= 1 + 1e-15).all()
    for part in (found[:, :4], found[:, 4:6], found[:, 6:]):
        assert part.sum(axis=1) == pytest.approx(3**-0.5)
    assert np.array_equal(Encoder(SCHEMA).transform(rows[:1]), found[:1])


@given(value=st.floats(-1, 1))
def test_numbers_are_interpolated_between_knots(value):
    knots = np.array([-1, -0.9, 0.25, 1])
    found = Encoder(SCHEMA.without("b", "c")).transform({"a": [value]})
    assert found @ knots == pytest.approx([value], abs=1e-12)
    assert np.count_nonzero(found) <= 2


def test_names_say_which_number_is_which():
    names = list(Encoder(SCHEMA).get_feature_names_out())
    assert names == [
        *("a@-1", "a@-0.9", "a@0.25", "a@1"),
        *("b@0", "b@1e+06"),
        *("c=x", "c=y", "c=other"),
    ]


def test_nothing_is_fitted():
    encoder = Encoder(SCHEMA)
    before = dict(vars(encoder))
    encoder.fit({"a": [1.0]})
    assert vars(encoder) == before
    assert clone(encoder).schema == pickle.loads(pickle.dumps(encoder)).schema == SCHEMA


def test_an_encoder_needs_a_schema():
    with pytest.raises(InvalidArgument, match="dpfy schema init"):
        Encoder(None).fit()
