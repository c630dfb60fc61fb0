"""Declarations are checked before rows are read; maps of rows are public and bounded."""

import warnings

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra.numpy import arrays

from dpfy.errors import InvalidArgument
from dpfy.estimators import declarations, linear
from dpfy.estimators.declarations import (
    Features,
    in_columns,
    label_positions,
    resolve_classes,
    with_intercept,
)
from dpfy.tabular import Column, Schema

FLOATS = arrays(float, (4, 3), elements=st.floats())
MAPS = [
    Features(data_norm=2.0),
    Features(bounds=(-1, 3)),
    Features(bounds=([0, 0, 0], [1, 2, 1e9])),
]


@pytest.mark.parametrize("features", MAPS)
@given(x=FLOATS)
def test_rows_are_mapped_one_by_one_into_the_unit_ball(features, x):
    vectors, known = features.rows(x)
    assert (np.linalg.norm(vectors, axis=1) <= 1 + 1e-15).all()
    assert known.tolist() == np.isfinite(x).all(axis=1).tolist()
    assert (vectors[~known] == 0).all()
    assert np.array_equal(features.rows(x[:1])[0], vectors[:1])
    extended = with_intercept(vectors, known, features)
    assert (np.linalg.norm(extended, axis=1) <= 1 + 1e-15).all() and (extended[~known] == 0).all()


@pytest.mark.parametrize("features", MAPS)
def test_coefficients_in_units_of_columns_give_the_same_scores(features):
    x = np.random.default_rng(0).uniform(0, 1, (20, 3))
    weights = np.random.default_rng(1).normal(size=(2, 4))
    vectors, known = features.rows(x)
    coefficients, intercepts = in_columns(weights, features)
    scores = features.clamped(x) @ coefficients.T + intercepts
    assert scores == pytest.approx(with_intercept(vectors, known, features) @ weights.T)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "got 0 of them"),
        ({"bounds": (0, 1), "data_norm": 1.0}, "got 2 of them"),
        ({"schema": "adult.toml"}, "Schema.read"),
        ({"data_norm": 0}, "data_norm=0"),
        ({"data_norm": float("inf")}, "data_norm=inf"),
        ({"bounds": (1, 1)}, "low < high"),
        ({"bounds": (0, float("inf"))}, "low < high"),
        ({"bounds": 3}, "low < high"),
        ({"bounds": "seen"}, "low < high"),
    ],
)
def test_a_missing_or_wrong_declaration_says_how(given, says):
    with pytest.raises(InvalidArgument, match=says):
        Features(**given)


@given(x=FLOATS)
def test_observed_bounds_are_recorded_as_such(x):
    features = Features(bounds="observed")
    assert "outside of the guarantee" in features.ground.text
    features.observe(x)
    vectors = features.rows(x)[0]
    assert np.isfinite(vectors).all() and (np.linalg.norm(vectors, axis=1) <= 1 + 1e-15).all()


@pytest.mark.parametrize("classes", [None, "some", 3, [0, 0]])
def test_classes_are_declared(classes):
    with pytest.raises(InvalidArgument, match="classes"):
        resolve_classes(classes, np.array([0, 1]))


@pytest.mark.parametrize(
    ("labels", "classes", "found"),
    [
        ([0, 1, 2, np.nan, np.inf, 0.5], [0, 1], [0, 1, -1, -1, -1, -1]),
        (["b", "a", None, "c"], ["a", "b"], [1, 0, -1, -1]),
        (["1", "0", "2"], [0, 1], [1, 0, -1]),
        ([True, False], [False, True], [1, 0]),
        ([3, 1], [1, 3], [1, 0]),
        ([[1], {}], [0, 1], [-1, -1]),
    ],
)
def test_a_label_that_was_not_declared_has_no_position(labels, classes, found):
    y = np.empty(len(labels), dtype=object)
    y[:] = labels
    y = y if any(isinstance(each, str | list | None) for each in labels) else np.array(labels)
    assert label_positions(y, resolve_classes(classes, y)).tolist() == found


def test_a_schema_maps_tables():
    features = Features(schema=Schema((Column("a", bounds=(0, 1)),)))
    vectors, known = features.rows({"a": [0.25, None]})
    assert vectors.tolist() == [[0.75, 0.25], [0.5, 0.5]] and known.all()
    assert features.width({"a": []}) == 2 and features.count({"a": [1, 2]}) == 2


LABELS = {
    "int": ([0, 1], [0, 1]),
    "float": ([0.0, 1.0], [0, 1]),
    "bool": ([False, True], [0, 1]),
    "bool by name": ([False, True], [False, True]),
    "int by truth": ([0, 1], [False, True]),
    "text": (["no", "yes"], ["no", "yes"]),
    "digits": (["0", "1"], [0, 1]),
    "number by text": ([0.0, 1.0], ["0", "1"]),
}
ODD = [
    "x",
    None,
    b"x",
    2**70,
    1j,
    [2, 3],
    np.complex128(1),
    "a" * 1000,
    float("nan"),
    np.array([1]),
]


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: type(odd).__name__)
@pytest.mark.parametrize("kind", LABELS)
def test_no_label_decides_how_the_others_are_read(kind, odd) -> None:
    labels, classes = LABELS[kind]
    known = np.unique(np.asarray(classes))
    plain = declarations.label_positions(np.asarray(labels), known)
    assert plain.tolist() == [0, 1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        given = declarations._one_dimensional([*labels, odd])
        assert declarations.label_positions(given, known)[:2].tolist() == [0, 1]
        mixed = np.array([*labels, "x"])  # of which numpy makes texts
        assert declarations.label_positions(mixed, known)[:2].tolist() == [0, 1]


@pytest.mark.parametrize("bounds", [(1e16, 1e16 + 2), (-1.0, 1.7e308), (0.0, 5e-324), (-3.0, 3.0)])
def test_targets_are_bounded_whatever_the_bounds(bounds) -> None:
    with np.errstate(all="ignore"):
        scaled, _ = linear._unit(np.array([-1e300, 0.0, 1.0, *bounds, 1.7e308]), *bounds)
    assert np.all(np.abs(scaled) <= 1)


@pytest.mark.parametrize("bounds", ["observed", (0, 1)])
def test_the_ledger_says_where_bounds_come_from(bounds) -> None:
    features = declarations.Features(bounds=bounds)
    features.observe(np.array([[0.0], [1.0]]))
    assert ("read off the rows" in features.ground.text) == (bounds == "observed")
