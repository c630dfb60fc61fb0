"""What is published of PATE follows from its settings, and the page shows what was measured."""

import pytest

from experiments import pate

RUNS = [
    (pate.Setting(**{**entry["setting"], "seeds": tuple(entry["setting"]["seeds"])}), run)
    for entry in pate.read()
    for run in entry["runs"]
]


@pytest.mark.parametrize(("setting", "run"), RUNS, ids=lambda each: getattr(each, "name", ""))
def test_a_published_epsilon_is_that_of_the_plan(setting, run):
    assert setting in pate.SETTINGS
    guarantee = setting.plan.guarantee
    assert run["epsilon"] == pytest.approx(guarantee.claim(setting.delta), rel=1e-9)
    if setting.method:
        for name, (epsilon, _) in pate._GROUPS.items():
            assert run["groups"][name] <= epsilon
    else:
        assert run["epsilon"] <= setting.epsilon
    bought = "asked" if setting.mechanism == "gnmax" else "labels"  # equal inputs share a label
    assert run[bought] <= setting.plan.most_answers


def labels(name: str) -> float:
    runs = [run["labels"] for setting, run in RUNS if setting.name == name]
    return sum(runs) / len(runs)


def test_targets_are_reached():
    for setting, run in RUNS:
        if setting.name == "mnist":
            assert run["accuracy"] >= 98.0 and run["epsilon"] <= 2.6 and run["seconds"] < 3600
        if setting.name == "adult":
            assert run["accuracy"] >= 83.7 and run["epsilon"] <= 3.6
    assert labels("mnist-weight") >= 3 * labels("mnist-strictest")


def test_the_page_shows_the_results():
    assert pate.table(pate.read()) in pate.PAGE.read_text(encoding="utf-8")
    assert not list(pate.missing())
