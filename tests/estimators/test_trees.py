import numpy as np
import pytest
from hypothesis import given, strategies as st

from dpfy.errors import InvalidArgument
from dpfy.estimators import RandomTrees
from dpfy.estimators.binning import Binning
from dpfy.estimators.trees import Forest, leaf_counts, score_vectors
from dpfy.tabular import Column, Schema

SCHEMA = Schema(
    (
        Column("a", bounds=(0, 1)),
        Column("b", bounds=(0, 9), knots=(2, 5)),
        Column("c", categories=("x", "y", "z")),
    )
)


def table(rows, seed=0):
    random = np.random.default_rng(seed)
    x = {
        "a": random.uniform(size=rows),
        "b": random.uniform(0, 9, rows),
        "c": random.choice(["x", "y", "z"], rows),
    }
    return x, ((x["b"] > 2).astype(int) + ((x["c"] == "y") & (x["b"] > 5)))


def forest(depth=3, trees=4):
    random = np.random.RandomState(0)
    return Forest.grow(Binning(SCHEMA, 4, refine=False), trees, depth, random)


@pytest.mark.parametrize("classes", [2, 3])
def test_trees_learn_classes(classes):
    x, y = table(20_000)
    y = np.minimum(y, classes - 1)
    model = RandomTrees(
        2.0, schema=SCHEMA, classes=range(classes), insecure_test_key=3, random_state=0
    ).fit(x, y)
    test, labels = table(4000, seed=1)
    assert model.score(test, np.minimum(labels, classes - 1)) > 0.93
    probabilities = model.predict_proba(test)
    assert probabilities.shape == (4000, classes)
    assert np.allclose(probabilities.sum(axis=1), 1)
    rates = np.bincount(y, minlength=classes) / len(y)
    assert np.allclose(probabilities.mean(axis=0), rates, atol=0.04)


def test_the_depth_follows_rows_and_epsilon():
    depths = [
        RandomTrees(epsilon, schema=SCHEMA, classes=[0, 1], n_estimators=2).fit(*table(rows)).depth_
        for epsilon, rows in ((1.0, 0), (1.0, 1000), (0.1, 1000), (10.0, 5000))
    ]
    assert depths == [1, 5, 3, 8]


def test_trees_are_public_and_do_not_depend_on_rows():
    models = [
        RandomTrees(schema=SCHEMA, classes=[0, 1], depth=3, n_estimators=4, random_state=5).fit(
            *table(100, seed)
        )
        for seed in (0, 1)
    ]
    assert np.array_equal(models[0].forest_.right, models[1].forest_.right)
    assert not np.array_equal(models[0].leaf_scores_, models[1].leaf_scores_)


def test_every_row_is_in_the_leaf_that_its_answers_lead_to():
    trees, (x, _) = forest(), table(50)
    bins, leaves = trees.binning.positions(x), trees.leaves(x)
    for tree in range(4):
        for row in range(50):
            node = 0
            for _ in range(trees.depth):
                column = trees.columns[tree, node]
                node = 2 * node + (2 if trees.right[tree, node, bins[column, row]] else 1)
            assert leaves[tree, row] == node - 7


def test_counts_are_those_of_leaves_and_classes():
    leaves = np.array([[0, 1, 1, 0], [1, 1, 1, 1]])
    found = leaf_counts(leaves, np.array([0, 1, 1, -1]), 2, 2)
    assert np.array_equal(found, [[[1, 0], [0, 2]], [[0, 0], [1, 2]]])


def test_rates_without_noise_are_shares_and_with_it_those_of_the_parents():
    trees = forest(depth=1, trees=1)
    counts = np.array([[[30.0, 10.0], [0.0, 60.0]]])
    exact = trees.rates(counts, 1e-9)
    assert np.allclose(np.diff(exact[0], axis=1)[0], np.log(1 / 3))
    assert np.allclose(np.diff(exact[0], axis=1)[1], -np.log(0.002))  # an empty class
    shrunk = trees.rates(counts, 1e9)
    assert np.allclose(shrunk, 0, atol=1e-6)
    between = np.diff(trees.rates(counts, 10.0)[0], axis=1).ravel()
    assert np.log(1 / 3) < between[0] < between[1] < -np.log(0.002)


@given(st.floats(0, 1e6), st.integers(2, 5), st.integers(0, 100))
def test_vectors_of_scores_have_norms_of_at_most_one(scale, classes, seed):
    random = np.random.default_rng(seed)
    rates = random.normal(size=(3, 4, classes)) * scale
    vectors = score_vectors(rates, random.integers(0, 4, (3, 20)))
    assert np.linalg.norm(vectors, axis=1).max() <= 1 + 1e-12


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"n_estimators": 0}, "n_estimators"),
        ({"depth": 0}, "depth"),
        ({"depth": 17}, "depth"),
        ({"classes": [0]}, "two or more classes"),
    ],
)
def test_settings_out_of_range_are_refused(given, match):
    with pytest.raises(InvalidArgument, match=match):
        RandomTrees(**{"schema": SCHEMA, "classes": [0, 1], **given}).fit(*table(10))
