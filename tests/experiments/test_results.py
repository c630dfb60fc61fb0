"""Results have the published form, and tables say what is there and what is not."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dpfy.accounting import account
from dpfy.run.checkpoint import FILE as CHECKPOINT
from experiments import federated, labels, pate, plots, predictions, shakespeare, table
from experiments.cell import Cell
from experiments.configs import CELLS
from experiments.features import FEATURES
from experiments.methods import accounting, make_plan
from experiments.results import Place, same_settings
from experiments.training import LEDGER, Outcome

ROOT = Path(__file__).parents[2]
CELL = Cell(
    "tiny",
    "digits",
    epsilon=3.0,
    network="digits-mlp",
    rate=0.3,
    steps=8,
    clip=1.0,
    learning_rate=0.5,
    target=90.0,
    reference="A paper",
    found="by hand",
)
_RECORDS = 60_000  # any number: rates are settings, and ε depends on nothing else
KEYS = {
    "experiment",
    "data",
    "method",
    "features",
    "epsilon",
    "delta",
    "accounting",
    "accuracy",
    "seconds",
    "config",
}


def outcome(seed: int, accuracy: float, **others: float) -> Outcome:
    facts = {
        "epsilon": 2.9991,
        "epsilon_lower": 2.9989,
        "epsilon_rdp": 3.25,
        "noise_multiplier": 2.0,
        "steps": 8,
        "lost_steps": 0,
        "seconds": 10.0,
        "ledger_head": f"{seed:064x}",
        **others,
    }
    return Outcome(seed, accuracy, **facts)  # type: ignore[arg-type]


def test_an_entry_has_the_published_form(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.record(CELL, outcome(0, 91.0))
    (entry,) = json.loads((tmp_path / "results" / "tiny.json").read_text())
    assert set(entry) == KEYS
    assert [entry[name] for name in ("data", "method", "features", "accounting")] == [
        "digits",
        "dpsgd",
        "raw",
        "pld",
    ]
    assert (entry["epsilon"], entry["accuracy"], entry["seconds"]) == (2.9991, [91.0], 10.0)
    assert entry["config"]["epsilon_rdp"] == 3.25 and entry["config"]["learning_rate"] == 0.5
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["tiny.json"]


def test_seeds_join_an_entry_and_replace_themselves(tmp_path: Path) -> None:
    place = Place(tmp_path)
    for seed, accuracy in ((1, 80.0), (0, 91.0), (1, 92.0)):
        place.record(CELL, outcome(seed, accuracy, epsilon=2.5 + seed / 4))
    (entry,) = place.read("tiny")
    assert (entry["accuracy"], entry["config"]["seeds"], entry["seconds"]) == (
        [91.0, 92.0],
        [0, 1],
        20.0,
    )
    assert entry["epsilon"] == 2.75  # the largest that one of them may claim
    assert place.finished(CELL) == {0: 91.0, 1: 92.0}


def test_other_settings_replace_an_entry_and_another_epsilon_does_not(tmp_path: Path) -> None:
    place, changed = Place(tmp_path), replace(CELL, clip=0.5)
    place.record(CELL, outcome(0, 91.0))
    place.record(replace(CELL, epsilon=1.0), outcome(0, 70.0))
    assert place.finished(changed) == {}  # a number of the old settings is none of the new ones
    place.record(changed, outcome(1, 92.0))
    assert [(entry["config"]["epsilon"], entry["accuracy"]) for entry in place.read("tiny")] == [
        (1.0, [70.0]),
        (3.0, [92.0]),
    ]


def test_selection_keeps_every_try_and_leaves_results_alone(tmp_path: Path) -> None:
    place, changed = Place(tmp_path, validate=True), replace(CELL, clip=0.5)
    place.record(CELL, outcome(0, 91.0))
    place.record(changed, outcome(0, 92.0))
    assert len(place.read("tiny")) == 2 and not (tmp_path / "results").exists()
    assert (
        len({place.state(cell, 0) for cell in (CELL, changed)} | {Place(tmp_path).state(CELL, 0)})
        == 3
    )


def test_a_recorded_run_keeps_its_ledger(tmp_path: Path) -> None:
    place = Place(tmp_path)
    folder = place.state(CELL, 0)
    folder.mkdir(parents=True)
    for name in (LEDGER, CHECKPOINT):
        (folder / name).touch()
    place.record(CELL, outcome(0, 91.0))
    assert [path.name for path in folder.iterdir()] == [LEDGER]


def test_the_table_shows_what_is_reached_and_what_is_not_run(tmp_path: Path) -> None:
    place, other = Place(tmp_path), replace(CELL, epsilon=1.0, target=None)
    place.record(CELL, outcome(0, 89.0, lost_steps=2))
    place.record(CELL, outcome(1, 90.0))
    shown = table.markdown(place, [other, CELL])
    assert "| digits | 1 | – | not run | – | 0 of 3 | – | – | – |" in shown
    assert "| digits | 3 | 90.0 | 89.50 ± 0.71 | −0.50 | 2 of 3 | 3.000 | 3.250 | 10 |" in shown
    assert "A paper" in shown and shown.count("Settings: by hand") == 1
    assert "ε 3, seed 0: 2 of 8 steps were paid for and lost" in shown
    changed = table.markdown(place, [replace(CELL, clip=0.5)])
    assert "89.50 ± 0.71 (older settings)" in changed


def test_claims_are_rounded_up() -> None:
    assert [table.claim(value) for value in (2.9291, 2.93, 2.9300001, 0.98)] == [
        "2.930",
        "2.930",
        "2.931",
        "0.980",
    ]


def test_update_replaces_what_stands_between_the_marks(tmp_path: Path) -> None:
    page = tmp_path / table.PAGE
    page.parent.mkdir(parents=True)
    page.write_text(f"before\n{table.BEGIN}old\n{table.END}after\n", encoding="utf-8")
    place = Place(tmp_path / "experiments")
    table.update(place)
    assert page.read_text(encoding="utf-8") == (
        f"before\n{table.BEGIN}{table.markdown(place)}{table.END}after\n"
    )
    page.write_text("no marks", encoding="utf-8")
    with pytest.raises(ValueError, match="no marks"):
        table.update(place)


def test_the_plot_says_what_is_not_run(tmp_path: Path) -> None:
    plots.draw_accuracy(Place(tmp_path), tmp_path / "plot.svg", [CELL])
    assert "not run yet" in (tmp_path / "plot.svg").read_text(encoding="utf-8")


def test_the_plot_shows_targets_and_every_seed(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.record(CELL, outcome(0, 91.0))
    plots.draw_accuracy(place, tmp_path / "plot.svg", [CELL])
    drawn = (tmp_path / "plot.svg").read_text(encoding="utf-8")
    assert "dpfy, every seed" in drawn and "to reach" in drawn and "not run yet" not in drawn


def test_the_plot_on_the_way_is_of_the_best_try_with_the_network(tmp_path: Path) -> None:
    selection, other = Place(tmp_path, validate=True), replace(CELL, epsilon=1.0)
    tries = (
        (CELL, 80.0),
        (replace(CELL, clip=0.5), 91.0),
        (replace(other, network="mnist-cnn"), 92.0),
    )
    for cell, accuracy in tries:
        selection.record(
            cell, replace(outcome(0, accuracy), curve=((4, 2.0, 70.0), (8, 3.0, accuracy)))
        )
    best = plots._best_try(selection, CELL)
    assert best is not None and best["accuracy"] == [91.0]
    plots.draw_spending(Place(tmp_path), tmp_path / "plot.svg", [CELL, other])
    drawn = (tmp_path / "plot.svg").read_text(encoding="utf-8")
    assert "planned for ε = 3" in drawn and "planned for ε = 1" not in drawn


def test_the_plot_of_noise_shows_what_plans_are_calibrated_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[float, int]] = []

    def noise(rate: float, steps: int, epsilon: float) -> float:
        asked.append((rate, steps))
        return 3.0

    monkeypatch.setattr(plots, "noise_multiplier", noise)
    plots.draw_noise(tmp_path / "plot.svg")
    assert (0.01, 6000) in asked and (0.01, 200) in asked and (1.0, 60) in asked
    assert "equal steps (200)" in (tmp_path / "plot.svg").read_text(encoding="utf-8")


def test_the_page_shows_the_results() -> None:
    text = (ROOT / table.PAGE).read_text(encoding="utf-8")
    found = text.partition(table.BEGIN)[2].partition(table.END)[0]
    assert found == table.markdown(Place(ROOT / "experiments")), "run python -m experiments table"


CURVES = (federated, labels, pate, predictions, shakespeare)  # whose results have another form


def published() -> list[tuple[str, dict[str, Any]]]:
    """Every entry of every file of results, with the name of the file; curves are elsewhere."""
    return [
        (file.name, entry)
        for file in sorted((ROOT / "experiments" / "results").iterdir())
        if file not in {each.RESULTS for each in CURVES}
        for entry in json.loads(file.read_text(encoding="utf-8"))
    ]


@pytest.mark.parametrize(
    ("name", "entry"),
    published(),
    ids=lambda value: str(value) if isinstance(value, str) else f"{value['config']['epsilon']:g}",
)
def test_every_published_result_has_the_published_form(name: str, entry: dict[str, Any]) -> None:
    assert set(entry) == KEYS and name == f"{entry['experiment']}.json"
    config = entry["config"]
    assert (entry["experiment"], config["epsilon"]) in {
        (cell.experiment, cell.epsilon) for cell in CELLS
    }
    assert entry["data"] in ("mnist", "fashion-mnist", "cifar-10", "imdb", "adult", "digits")
    assert entry["features"] in FEATURES and entry["accounting"] == accounting(
        entry["config"]["method"]
    )
    assert isinstance(entry["method"], str) and 0 < entry["delta"] < 1e-4 and entry["seconds"] > 0
    assert 0 < entry["epsilon"] <= config["epsilon"] and config["records"] is None
    assert len(entry["accuracy"]) == len(set(config["seeds"])) > 0
    assert all(isinstance(value, float) and 0 < value < 100 for value in entry["accuracy"])
    for run in config["runs"]:
        assert 0 <= run["epsilon_lower"] <= run["epsilon"] <= entry["epsilon"]
        assert run["steps"] >= config["steps"] and re.fullmatch("[0-9a-f]{64}", run["ledger_head"])


def test_every_published_run_had_a_ledger_of_its_own() -> None:
    heads = [run["ledger_head"] for _, entry in published() for run in entry["config"]["runs"]]
    assert len(set(heads)) == len(heads)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "entry"),
    published(),
    ids=lambda value: str(value) if isinstance(value, str) else f"{value['config']['epsilon']:g}",
)
def test_every_published_epsilon_is_that_of_its_settings(name: str, entry: dict[str, Any]) -> None:
    cell = next(
        cell
        for cell in CELLS
        if (cell.experiment, cell.epsilon) == (entry["experiment"], entry["config"]["epsilon"])
    )
    assert same_settings(entry, cell)
    plan = make_plan(cell, _RECORDS).calibrate(epsilon=cell.epsilon, delta=cell.delta)
    noise = entry["config"]["noise_multiplier"]
    if plan.adaptive:  # the filter ends the run at its budget, and the noise follows the records
        assert entry["epsilon"] == pytest.approx(cell.epsilon, rel=1e-9)
        assert noise == pytest.approx(plan.noise_at(1), rel=1e-3)
        return
    assert noise == pytest.approx(plan.noise_at(1), rel=1e-6)
    assert account(plan.envelope).claim(cell.delta) == pytest.approx(entry["epsilon"], abs=1e-6)


def test_results_name_no_folder_of_a_machine() -> None:
    for folder in ("results", "selection"):
        for path in (ROOT / "experiments" / folder).iterdir():
            assert str(ROOT.resolve()).encode() not in path.read_bytes(), path.name
