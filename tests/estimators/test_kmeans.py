import numpy as np
import pytest
from sklearn.cluster import KMeans as PublicKMeans
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA

from dpfy.errors import InvalidArgument
from dpfy.estimators import KMeans
from dpfy.tabular import Column, Schema


def mixture(clusters, columns, rows, spread, seed=0):
    random = np.random.default_rng(seed)
    centres = random.uniform(-0.7, 0.7, (clusters, columns))
    x = centres[random.integers(0, clusters, rows)] + random.normal(size=(rows, columns)) * spread
    return np.clip(x, -1, 1)


def ratio(x, clusters, bounds, **given):
    """The mean inertia of five private fits, over that of scikit-learn."""
    least = PublicKMeans(clusters, n_init=10, random_state=0).fit(x).inertia_
    fits = [
        KMeans(
            clusters, delta=1e-5, bounds=bounds, insecure_test_key=key, random_state=key, **given
        )
        for key in range(5)
    ]
    return np.mean([-each.fit(x).score(x) for each in fits]) / least


def test_inertia_is_near_that_of_scikit_learn_on_digits():
    x = PCA(4, random_state=0).fit_transform(load_digits().data)
    assert ratio(x, 10, (-36, 36)) < 1.10


@pytest.mark.parametrize("epsilon", [1.0, 1000.0])
def test_inertia_is_near_that_of_scikit_learn_on_mixtures(epsilon):
    assert ratio(mixture(8, 10, 5000, 0.1), 8, (-1, 1), epsilon=epsilon) < 1.02
    assert ratio(mixture(5, 10, 3000, 0.2), 5, (-1, 1), epsilon=epsilon) < 1.02


@pytest.mark.parametrize("method", ["synopsis", "hybrid"])
@pytest.mark.parametrize("columns", [1, 2, 3])
def test_grids_are_clustered_too(method, columns):
    assert ratio(mixture(4, columns, 6000, 0.08), 4, (-1, 1), method=method) < 1.15


def test_public_centres_are_where_iterations_begin():
    x = mixture(2, 2, 4000, 0.05, seed=4)
    exact = PublicKMeans(2, n_init=3, random_state=0).fit(x).cluster_centers_
    init = exact[::-1] + 0.1
    model = KMeans(2, bounds=(-1, 1), init=init, insecure_test_key=0, iterations=5).fit(x)
    assert np.allclose(model.cluster_centers_, exact[::-1], atol=0.03)
    assert np.array_equal(model.predict(x), model.transform(x).argmin(axis=1))


def test_columns_keep_their_units():
    schema = Schema((Column("a", bounds=(1000, 3000)), Column("b", bounds=(0, 5))))
    random = np.random.default_rng(0)
    centres = np.repeat([[1500.0, 1], [2500.0, 4]], 1000, axis=0)
    x = centres + random.normal(size=(2000, 2)) * [50, 0.1]
    model = KMeans(2, schema=schema, insecure_test_key=0, random_state=0)
    model.fit({"a": x[:, 0], "b": x[:, 1], "c": ["?"] * 2000})
    found = model.cluster_centers_[np.argsort(model.cluster_centers_[:, 0])]
    assert np.allclose(found[:, 0], [1500, 2500], atol=30)
    assert not hasattr(model, "labels_") and not hasattr(model, "inertia_")
    assert list(model.get_feature_names_out()) == ["kmeans0", "kmeans1"]


def test_iterations_follow_rows_epsilon_and_clusters():
    x = np.zeros((1000, 1))
    given = {"bounds": (-1, 1), "insecure_test_key": 0}
    assert KMeans(5, **given).fit(x).n_iter_ == 20
    assert KMeans(10, **given).fit(x).n_iter_ == 10
    assert KMeans(10, 0.1, **given).fit(x).n_iter_ == 5
    assert KMeans(10, iterations=3, **given).fit(x).n_iter_ == 3
    assert KMeans(10, method="synopsis", **given).fit(x).n_iter_ == 0


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"n_clusters": 0}, "n_clusters"),
        ({"iterations": 0}, "iterations"),
        ({"method": "saf"}, "method"),
        ({"method": "hybrid"}, "at most 3 columns"),
        ({"init": "random"}, "packing"),
        ({"init": np.zeros((3, 3))}, "shape"),
        ({"init": np.full((2, 4), np.nan)}, "finite"),
    ],
)
def test_settings_out_of_range_are_refused(given, match):
    with pytest.raises(InvalidArgument, match=match):
        KMeans(**{"n_clusters": 2, "bounds": (-1, 1), **given}).fit(np.zeros((5, 4)))


def test_categories_are_refused():
    schema = Schema((Column("a", categories=("x",)),))
    with pytest.raises(InvalidArgument, match="without"):
        KMeans(2, schema=schema).fit({"a": ["x"]})
