"""Principal components: those of the covariance without noise, and defined on odd tables."""

import numpy as np
import pytest
from public_tables import CALIFORNIA_BOUNDS, california
from sklearn import decomposition

from dpfy.errors import InvalidArgument
from dpfy.estimators import PCA


def test_with_little_noise_components_are_those_of_the_covariance():
    x = np.clip(california(3000)[0], *CALIFORNIA_BOUNDS)[:, [0, 1, 5]]
    bounds = tuple([each[place] for place in (0, 1, 5)] for each in CALIFORNIA_BOUNDS)
    model, exact = PCA(2, 1e6, bounds=bounds).fit(x), decomposition.PCA(2).fit(x)
    assert np.abs(model.components_ @ exact.components_.T) == pytest.approx(np.eye(2), abs=0.01)
    assert model.explained_variance_ == pytest.approx(exact.explained_variance_, rel=0.01)
    ratio = exact.explained_variance_ratio_
    assert model.explained_variance_ratio_ == pytest.approx(ratio, abs=0.01)
    assert model.mean_ == pytest.approx(exact.mean_, rel=0.01)
    assert np.abs(model.transform(x)) == pytest.approx(np.abs(exact.transform(x)), abs=0.2)
    back = model.inverse_transform(model.transform(x))
    assert np.abs(back - x).mean() < 1
    assert list(model.get_feature_names_out()) == ["pca0", "pca1"]


def test_at_epsilon_1_the_first_direction_is_found():
    rng = np.random.default_rng(0)
    direction = np.array([0.6, 0.8, 0, 0, 0])
    x = rng.normal(size=(5000, 1)) * direction + rng.normal(size=(5000, 5)) * 0.2
    model = PCA(1, 1.0, data_norm=3.0, insecure_test_key=1).fit(x)
    assert abs(model.components_[0] @ direction) > 0.99


@pytest.mark.parametrize("kept", [0, 4, 1.5])
def test_the_number_of_components_fits_the_columns(kept):
    with pytest.raises(InvalidArgument, match="n_components"):
        PCA(kept, data_norm=1.0).fit(np.ones((5, 3)))


@pytest.mark.parametrize(
    "x", [np.ones((1, 3)), np.full((4, 3), np.nan), np.zeros((4, 3))], ids=["one", "NaN", "zero"]
)
def test_odd_tables_are_fitted_like_any_other(x):
    model = PCA(data_norm=1.0).fit(x)
    assert np.isfinite(model.components_).all() and (model.explained_variance_ >= 0).all()
    assert model.components_ @ model.components_.T == pytest.approx(np.eye(3), abs=1e-9)
