"""The benchmark of estimators compares what it says, and the page shows what it found."""

import math

import numpy as np
import pytest
from benchmarks import _peers, estimators as benchmark
from benchmarks.estimators import CELLS, Cell
from sklearn.cluster import KMeans
from sklearn.linear_model import LogisticRegression


def test_cells_have_names_of_their_own_and_models_that_exist():
    import dpfy.estimators

    assert len({cell.key for cell in CELLS}) == len(CELLS)
    for cell in CELLS:
        if cell.library == "dpfy":
            wanted = getattr(dpfy.estimators, cell.model)._get_param_names()
            assert {*cell.settings, "insecure_test_key"} <= set(wanted)
        elif cell.library != "scikit-learn":
            assert cell.library in benchmark.NEEDS and cell.model in _peers.MODELS


def test_the_page_shows_the_results_and_nothing_older():
    page = benchmark.PAGE.read_text(encoding="utf-8")
    shown = page.partition(benchmark.BEGIN)[2].partition(benchmark.END)[0]
    assert shown == benchmark.tables(benchmark.read())


def test_tables_have_means_deviations_and_ratios():
    runs = [
        {"seconds": 1.0, "accuracy": 80.0, "auc": 0.8},
        {"seconds": 2.0, "accuracy": 84.0, "auc": 0.9},
    ]
    found = {
        "adult | dpfy | LogisticRegression, solver=gd | 0.5": runs,
        "digits | scikit-learn | KMeans | inf": [{"seconds": 0.0, "inertia": 50.0}] * 2,
        "digits | diffprivlib | KMeans | 1": [{"seconds": 0.0, "inertia": 100.0}] * 2,
    }
    text = benchmark.tables(found)
    assert "| **dpfy** | LogisticRegression, solver=gd | – | 82.0 ± 2.8 / 0.850 | – | 1.5 |" in text
    assert "| diffprivlib | KMeans | – | – | 2.00 ± 0.00 | 0.0 |" in text
    assert "KMeans, not private | 1.00 ± 0.00 | 1.00 ± 0.00 | 1.00 ± 0.00 |" in text


def test_figures_are_those_of_the_test_rows():
    x = np.array([[-2.0], [-1.0], [1.0], [2.0]])
    data = {"x": x, "y": np.array([0, 0, 1, 1]), "x_test": x, "y_test": np.array([0, 1, 1, 1])}
    found = _peers.measured(LogisticRegression(), data, "adult")
    assert found["accuracy"] == 75.0 and found["auc"] == pytest.approx(1.0)
    model = KMeans(2, n_init=1, random_state=0)
    assert _peers.measured(model, {"x": x}, "digits")["inertia"] == pytest.approx(1.0)
    assert model.inertia_ == pytest.approx(1.0)


def test_results_are_kept_in_order_and_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(benchmark, "RESULTS", tmp_path / "found.json")
    assert benchmark.read() == {}
    first, last = CELLS[0].key, CELLS[-1].key
    benchmark.write({last: [], first: [], "forgotten": []})
    assert list(benchmark.read()) == [first, last]
    assert [path.name for path in tmp_path.iterdir()] == ["found.json"]
    assert Cell("dpfy", "KMeans", "digits", math.inf).key == "digits | dpfy | KMeans | inf"
