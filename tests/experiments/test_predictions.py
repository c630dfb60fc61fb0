"""The published predictions: within their budget, as right as the page says, and planned as run."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from dpfy import Teachers
from dpfy.planning import predictions
from experiments import predictions as experiment

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "private-prediction.md"
RESULTS = json.loads(experiment.RESULTS.read_text(encoding="utf-8"))


def test_published_answers_are_within_the_budget_and_right():
    runs = RESULTS["runs"]
    assert [run["first"] for run in runs] == [0, 300, 600, 900, 1200]
    assert all(run["answers"] == 300 and run["epsilon"] <= 2.6 for run in runs)
    assert all(run["right"] >= 0.96 for run in runs)
    assert RESULTS["right"] == pytest.approx(np.mean([run["right"] for run in runs]))


def test_published_plan_is_what_the_planner_says():
    found = predictions(
        parts=250, epsilon=2.6, delta=1e-5, answers=300, classes=10, trained_epsilon=0.5
    )
    assert {**RESULTS["planned"], "right_at_best": 0} == pytest.approx(
        {**found.to_json(), "right_at_best": 0}
    )


def test_page_quotes_the_results():
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    shares = [100 * run["right"] for run in RESULTS["runs"]]
    quoted = re.search(r"were right in ([\d.]+) % \(([\d.]+) to ([\d.]+) %\)", text)
    assert [float(each) for each in quoted.groups()] == [
        round(each, 1) for each in (100 * RESULTS["right"], min(shares), max(shares))
    ]


def test_service_of_its_own_answers_its_part(tmp_path, monkeypatch):
    class First:
        def predict(self, x):
            return x[:, 0]

    monkeypatch.setattr(experiment, "STATE", tmp_path)
    labels = np.arange(600) % 10
    inputs = np.stack([labels, np.arange(600)], axis=1)
    found = experiment.answered(Teachers([First()] * 1000), inputs, labels, 1, noise=40.0)
    assert found["first"] == 300 and found["answers"] == 300 and found["right"] == 1.0
