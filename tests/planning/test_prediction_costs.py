"""What the planner of predictions says before anything is spent."""

import math

import numpy as np
import pytest

from dpfy.errors import InvalidArgument
from dpfy.planning import predictions, right_with_lead
from dpfy.plans.prediction import PredictionPlan

BUDGET = {"parts": 250, "epsilon": 2.6, "delta": 1e-5, "classes": 10}


@pytest.mark.parametrize(
    "more", [{}, {"threshold": 200, "check_noise": 150.0}, {"classes": None, "bounds": (0.0, 5.0)}]
)
@pytest.mark.parametrize("answers", [1, 7, 300])
def test_noise_is_the_least_that_buys_the_answers(answers, more):
    found = predictions(answers=answers, **{**BUDGET, **more})
    settings = {**BUDGET, **more}
    assert PredictionPlan(noise=found.plan.noise, **settings).answers == answers
    assert PredictionPlan(noise=found.plan.noise * (1 - 1e-6), **settings).answers == answers - 1
    assert 2.599 < found.epsilon <= 2.6


def test_answers_are_those_of_the_plan():
    found = predictions(noise=40, **BUDGET)
    assert found.answers == PredictionPlan(noise=40, **BUDGET).answers
    assert found.to_json()["answers"] == found.answers and found.epsilon <= 2.6


def test_training_is_cheaper_from_the_first_answer_beyond_its_epsilon():
    found = predictions(noise=40, trained_epsilon=0.5, **BUDGET)
    within = {**BUDGET, "epsilon": 0.5}
    assert predictions(noise=40, **within).answers == found.training_cheaper_from - 1
    assert predictions(noise=40, **BUDGET).training_cheaper_from is None


def test_answers_are_right_as_often_as_in_a_simulation():
    noise = np.random.default_rng(3).normal(size=(200_000, 10)) * 40
    noise[:, 0] += 70
    share = np.mean(noise.argmax(axis=1) == 0)  # 5 standard deviations are below 0.006
    assert right_with_lead(70, 40, 10) == pytest.approx(share, abs=0.006)
    assert right_with_lead(70, 40, 2) == pytest.approx(0.5 * (1 + math.erf(70 / 80)), abs=1e-9)


def test_regression_has_the_error_of_a_mean():
    found = predictions(noise=50, **{**BUDGET, "classes": None, "bounds": (0.0, 1.0)})
    assert found.error == 50 / 250 and found.right_at_best is None


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({}, "noise= or answers="),
        ({"noise": 4, "answers": 4}, "noise= or answers="),
        ({"answers": 0}, "answers=0"),
        ({"answers": 9000, "threshold": 2, "check_noise": 3.0}, "alone exceed"),
        ({"noise": 4, "trained_epsilon": 0.0}, "trained_epsilon=0.0"),
    ],
)
def test_bad_questions_are_refused(settings, text):
    with pytest.raises(InvalidArgument, match=text):
        predictions(**BUDGET, **settings)
