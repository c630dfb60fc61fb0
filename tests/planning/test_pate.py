"""What a budget buys is known beforehand: labels, and the lead that is heard through the noise."""

import math

import numpy as np
import pytest

import dpfy
from dpfy.planning import forecast_labels
from dpfy.planning.pate import SHARES, lead_for


def test_as_many_labels_are_forecast_as_are_given():
    found = forecast_labels(
        classes=2, parts=9, mechanism="gnmax", answer_noise=6, epsilon=2, delta=1e-5
    )
    plan = dpfy.pate(classes=2, parts=9, mechanism="gnmax", answer_noise=6, epsilon=2, delta=1e-5)
    labels = plan.ask(dpfy.Teachers([None] * 9), np.arange(40.0)[:, None])
    assert found.labels == (plan.most_answers,) * 3 == ((labels >= 0).sum(),) * 3
    assert found.epsilon(1e-5) == plan.guarantee.claim(1e-5)


def test_fewer_labels_with_less_consensus():
    found = forecast_labels(classes=10, epsilon=2.6, delta=1e-5)
    assert list(found.labels) == sorted(found.labels, reverse=True)
    assert found.to_json()["labels"] == [
        [share, labels] for share, labels in zip(SHARES, found.labels, strict=True)
    ]


@pytest.mark.parametrize("mechanism", ["gnmax", "lnmax"])
def test_the_lead_is_heard(mechanism):
    plan = forecast_labels(classes=2, parts=40, mechanism=mechanism, answer_noise=8, answers=9).plan
    lead, rng = lead_for(plan, 0.05), np.random.default_rng(0)
    draw = rng.normal if mechanism == "gnmax" else rng.laplace
    noise = draw(scale=8, size=(2, 10**6))
    wrong = (noise[0] - noise[1] > lead).mean()
    assert wrong == pytest.approx(0.05, abs=5.1 * math.sqrt(0.05 / 10**6))  # false alarms: 4e-7


def test_too_few_teachers_are_told():
    assert not forecast_labels(classes=10, parts=40, epsilon=3, delta=1e-5).audible
    found = forecast_labels(
        classes=10, groups={"strict": (1.0, 0.34), "open": (3.0, 0.66)}, delta=1e-5
    )
    assert found.audible and found.gain > 3
