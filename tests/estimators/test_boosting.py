import numpy as np
import pytest
from hypothesis import given, strategies as st
from sklearn.metrics import roc_auc_score

from dpfy.errors import InvalidArgument
from dpfy.estimators import ExplainableBoosting
from dpfy.estimators.boosting import merged, random_leaves
from dpfy.tabular import Column, Schema

SCHEMA = Schema((Column("a", bounds=(-3, 3)), Column("b", categories=("no", "yes"))))


def table(rows, seed=0):
    """Labels that no straight line of the number finds."""
    random = np.random.default_rng(seed)
    numbers, names = random.normal(size=rows), random.choice(["no", "yes"], rows)
    odds = 3 * np.abs(numbers) - 3 + 2 * (names == "yes")
    return {"a": numbers, "b": names}, (random.logistic(size=rows) < odds).astype(int)


def boosting(**given):
    return ExplainableBoosting(
        **{"schema": SCHEMA, "classes": [0, 1], "insecure_test_key": 1, "random_state": 0, **given}
    )


def test_functions_show_what_the_columns_do():
    model = boosting().fit(*table(8000))
    number, name = model.feature_functions_["a"], model.feature_functions_["b"]
    middle = np.searchsorted(number.cuts, 0.0)
    assert number.values[middle] < -0.8 < 0.8 < min(number.values[0], number.values[-1])
    assert name.labels == ("no", "yes", "other")
    assert name.values[1] - name.values[0] == pytest.approx(2, abs=0.7)
    assert len(number.labels) == len(number.values) == len(number.cuts) + 1
    assert number.importance > name.importance > 0.3
    test, labels = table(4000, seed=1)
    assert roc_auc_score(labels, model.decision_function(test)) > 0.85


def test_contributions_add_up_and_are_centred():
    x, y = table(8000)
    model = boosting().fit(x, y)
    parts = model.contributions(x)
    assert np.allclose(parts.sum(axis=1) + model.intercept_, model.decision_function(x))
    assert np.abs(parts.mean(axis=0)).max() < 0.05
    assert np.allclose(model.predict_proba(x).sum(axis=1), 1)
    assert model.predict_proba(x)[:, 1].mean() == pytest.approx(y.mean(), abs=0.03)
    assert np.array_equal(model.predict(x) == 1, model.predict_proba(x)[:, 1] > 0.5)


def test_the_band_is_the_noise_of_one_round():
    """After one round a value is one sum over a count, so its band is the noise itself.

    3 values of 150 fits: a variance beyond ±45 % has a chance below 10⁻⁹; a band of ⅔ or 3/2 of the
    right one would be off by 56 % or more.
    """
    found = []
    for key in range(150):
        model = boosting(rounds=1, insecure_test_key=key).fit(*table(0))
        function = model.feature_functions_["b"]
        mean = function.values - function.values.mean() * 0
        found.append((mean - model.feature_functions_["b"].values.mean()) / function.stddev)
    spread = (
        np.var(np.concatenate(found)) * 3 / 2
    )  # one of three degrees of freedom is centred away
    assert spread == pytest.approx(1, abs=0.45)


def test_labels_keep_their_names():
    x, y = table(3000)
    model = boosting(classes=["poor", "rich"]).fit(x, np.array(["poor", "rich"])[y])
    assert set(model.predict(x)) == {"poor", "rich"}
    assert model.score(x, np.array(["poor", "rich"])[y]) > 0.75


def test_functions_are_drawn_with_their_noise(tmp_path):
    pytest.importorskip("matplotlib")
    model = boosting(rounds=3).fit(*table(500))
    figure = model.plot()
    assert sorted(axes.get_title() for axes in figure.axes) == ["a", "b"]
    figure.savefig(tmp_path / "functions.svg")
    assert len(model.plot(["b"]).axes) == 1
    with pytest.raises(InvalidArgument, match="There are a, b"):
        model.plot(["c"])


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"rounds": 0}, "rounds"),
        ({"learning_rate": -1.0}, "learning_rate"),
        ({"leaves": 1}, "leaves"),
        ({"max_bins": 1}, "max_bins"),
        ({"classes": [0, 1, 2]}, "binary"),
        ({"classes": [0]}, "one class"),
    ],
)
def test_settings_out_of_range_are_refused(given, match):
    with pytest.raises(InvalidArgument, match=match):
        boosting(**given).fit(*table(10))


@given(st.lists(st.floats(-50, 100), min_size=1, max_size=40), st.floats(0.1, 200))
def test_merged_bins_are_neighbours_with_rows_enough(counts, least):
    groups = merged(np.array(counts), least)
    assert groups[0] == 0 and set(np.diff(groups)) <= {0, 1}
    totals = np.bincount(groups, counts)
    assert len(totals) == 1 or (totals[:-1] >= least * (1 - 1e-9)).all()


@given(st.integers(1, 40), st.integers(2, 8), st.booleans(), st.integers(0, 1000))
def test_leaves_are_a_partition_without_empty_parts(bins, leaves, ordered, seed):
    found = random_leaves(bins, leaves, ordered, np.random.RandomState(seed))
    assert set(found) == set(range(min(bins, leaves)))
    assert not ordered or (np.diff(found) >= 0).all()
