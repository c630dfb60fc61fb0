"""Curves of perplexity: what they are compared with, how they are kept, and what is published."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

import dpfy
from dpfy.data import UserSource
from experiments import plots, shakespeare

FOUND = {
    "baselines": {"characters": 24.0, "pairs": 11.0},
    "curves": [
        {"setting": {"epsilon": None}, "curve": [[0, 98.0], [10, 20.0], [20, 9.0]], "spent": None},
        {"setting": {"epsilon": 8.0}, "curve": [[0, 98.0], [10, 25.0], [20, 15.0]], "spent": 8.0},
    ],
}


def source(*texts: list[int]) -> UserSource:
    """Roles that say the same in training and behind it."""
    roles = tuple(TensorDataset(torch.tensor([text]), torch.tensor([text])) for text in texts)
    return UserSource(
        name="tiny",
        train=roles,
        test=roles,
        users=len(roles),
        classes=4,
        input_shape=(len(texts[0]),),
        description="Two characters in turn.",
    )


def test_frequencies_know_pairs_better_than_characters() -> None:
    found = shakespeare.baselines(source([2, 3] * 50, [3, 2] * 50))
    assert found["characters"] == pytest.approx(2.0, rel=1e-2)
    assert found["pairs"] == pytest.approx(1.0, rel=1e-2)


def test_padding_counts_for_nothing() -> None:
    found = shakespeare.baselines(source([2, 3] * 50 + [0, 0]))
    assert found == pytest.approx(shakespeare.baselines(source([2, 3] * 50)))


def test_nothing_was_measured_before_the_first_curve(monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setattr(shakespeare, "RESULTS", tmp_path / "none.json")
    assert shakespeare.read() == {"baselines": {}, "curves": []}


def test_the_plot_names_every_curve_and_baseline(tmp_path: Path) -> None:
    plots.draw_perplexity(FOUND, tmp_path / "plot.svg")
    text = (tmp_path / "plot.svg").read_text(encoding="utf-8")
    for label in ("no privacy", "ε = 8", "frequencies of characters", "frequencies of pairs"):
        assert label in text


def test_published_curves_have_the_settings_of_the_module_and_stay_within_their_epsilon() -> None:
    for curve in shakespeare.read()["curves"]:
        setting, steps = shakespeare.Setting(**curve["setting"]), [s for s, _ in curve["curve"]]
        assert setting == shakespeare.Setting(setting.epsilon)
        assert steps == sorted(steps) and steps[-1] == setting.steps
        assert all(1 < value < math.inf for _, value in curve["curve"])
        assert (curve["spent"] is None) == (setting.epsilon is None)
        assert setting.epsilon is None or 0 < curve["spent"] <= setting.epsilon


@pytest.mark.slow
def test_published_epsilons_are_those_of_their_settings() -> None:
    for curve in shakespeare.read()["curves"]:
        setting = shakespeare.Setting(**curve["setting"])
        if setting.epsilon is not None:
            plan = shakespeare.plan_for(setting, 1341)
            spent = dpfy.account(plan.envelope).claim(setting.delta)
            assert spent == pytest.approx(curve["spent"], abs=1e-6)


def test_roles_in_a_fixed_order_are_users_with_correlated_noise() -> None:
    setting = shakespeare.Setting(8.0, steps=34)
    plan = shakespeare.ftrl_plan_for(setting, 1341)
    assert plan.unit == "user" and plan.correlation is not None
    assert plan.event.stream.participations == 2  # 17 steps are an epoch
    assert dpfy.account(plan).claim(setting.delta) <= 8.0
