"""Naive Bayes: sums of classes, agreement with scikit-learn without noise, odd tables."""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra.numpy import arrays
from sklearn import naive_bayes

from dpfy.errors import InvalidArgument
from dpfy.estimators import CategoricalNB, GaussianNB
from dpfy.estimators.naive_bayes import category_statistics, class_sums, normal_statistics
from dpfy.tabular import Column, Schema

RNG = np.random.default_rng(0)
Y = RNG.integers(0, 3, 3000)
X = np.clip(RNG.normal(Y[:, None] * 0.3 - 0.3, [0.2, 0.3], (3000, 2)), -1, 1)
CODES = np.clip(RNG.integers(0, 3, (3000, 2)) + (Y[:, None] == 2), 0, 3)


def test_with_little_noise_normals_are_those_of_scikit_learn():
    model = GaussianNB(1e4, bounds=(-1, 1), classes=[0, 1, 2]).fit(X, Y)
    exact = naive_bayes.GaussianNB().fit(X, Y)
    assert model.predict_proba(X) == pytest.approx(exact.predict_proba(X), abs=0.05)
    assert model.predict_log_proba(X[:5]) == pytest.approx(np.log(model.predict_proba(X[:5])))


def test_with_little_noise_categories_are_those_of_scikit_learn():
    model = CategoricalNB(1e4, n_categories=4, classes=[0, 1, 2]).fit(CODES, Y)
    exact = naive_bayes.CategoricalNB(min_categories=5).fit(CODES, Y)
    assert model.predict_proba(CODES) == pytest.approx(exact.predict_proba(CODES), abs=0.02)


def test_at_epsilon_1_both_are_near_their_best():
    normal = GaussianNB(1.0, bounds=(-1, 1), classes=[0, 1, 2], insecure_test_key=1).fit(X, Y)
    assert normal.score(X, Y) > naive_bayes.GaussianNB().fit(X, Y).score(X, Y) - 0.03
    codes = CategoricalNB(1.0, n_categories=4, classes=[0, 1, 2], insecure_test_key=1).fit(CODES, Y)
    assert codes.score(CODES, Y) > naive_bayes.CategoricalNB().fit(CODES, Y).score(CODES, Y) - 0.03


@given(rows=arrays(float, (4, 3), elements=st.floats(-1, 1)))
def test_statistics_of_a_row_are_bounded(rows):
    assert (np.linalg.norm(normal_statistics(rows), axis=1) <= 3**0.5 * (1 + 1e-15)).all()
    codes = (rows > 0).astype(int) + (rows > 0.5)
    assert np.linalg.norm(category_statistics(codes, (3, 3, 3)), axis=1) == pytest.approx(3**0.5)


def test_rows_are_summed_by_class_and_strangers_by_none():
    rows = np.array([[1.0], [2.0], [4.0], [8.0]])
    assert class_sums(rows, np.array([0, 1, 0, -1]), 3).tolist() == [[5], [2], [0]]


SCHEMA = Schema((Column("a", bounds=(0, 1), knots=(0.3,)), Column("b", categories=("x", "y"))))


def test_numbers_of_a_schema_are_cut_at_their_knots():
    table = {"a": RNG.uniform(0, 1, 4000), "b": RNG.choice(["x", "y", "?"], 4000)}
    y = (table["a"] > 0.3) & (table["b"] != "x")
    model = CategoricalNB(5.0, schema=SCHEMA, classes=[False, True], insecure_test_key=1)
    model.fit(table, y)
    assert model.score(table, y) > 0.85


def test_declarations_that_do_not_fit_are_refused():
    with pytest.raises(InvalidArgument, match=r"'b' has categories\. Use CategoricalNB"):
        GaussianNB(schema=SCHEMA, classes=[0, 1]).fit({"a": [1], "b": ["x"]}, [0])
    for given_options in ({}, {"schema": SCHEMA, "n_categories": 2}):
        with pytest.raises(InvalidArgument, match="either schema= or n_categories="):
            CategoricalNB(classes=[0, 1], **given_options).fit([[1]], [0])


@pytest.mark.parametrize(
    "model",
    [GaussianNB(bounds=(0, 1), classes=[0, 1]), CategoricalNB(n_categories=2, classes=[0, 1])],
    ids=["gaussian", "categorical"],
)
@pytest.mark.parametrize(
    ("x", "y"),
    [
        (np.ones((1, 2)), [1]),
        (np.full((4, 2), np.nan), [0, 1, 0, 1]),
        (np.ones((4, 2)), [1] * 4),
        (np.ones((4, 2)), [9] * 4),
    ],
    ids=["one row", "all NaN", "one class", "no class"],
)
def test_odd_tables_are_fitted_like_any_other(model, x, y):
    assert np.isfinite(model.fit(x, y).predict_proba(np.ones((3, 2)))).all()
