"""The command runs what it is asked, says what it lacks, and stops in time."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from dpfy.accounting import account
from dpfy.ledger import Ledger
from experiments import __main__ as command, table
from experiments.cell import Cell
from experiments.training import Deadline

CELLS = tuple(
    Cell(
        "digits",
        "digits",
        epsilon=epsilon,
        network="digits-mlp",
        rate=0.3,
        steps=4,
        clip=1.0,
        learning_rate=0.5,
        found="by hand",
        seeds=(0, 1),
    )
    for epsilon in (1.0, 3.0)
)
MNIST = replace(CELLS[0], experiment="images", data="mnist", network="mnist-cnn")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of its own, with two experiments."""
    page = tmp_path / table.PAGE
    page.parent.mkdir(parents=True)
    page.write_text(f"{table.BEGIN}{table.END}", encoding="utf-8")
    monkeypatch.delenv("DPFY_DATA", raising=False)
    monkeypatch.setattr(command, "HERE", tmp_path / "experiments")
    monkeypatch.setattr(command, "CELLS", (*CELLS, MNIST))
    monkeypatch.setattr(command, "NAMES", ("digits", "images"))
    monkeypatch.setattr(command, "cells_of", lambda name: CELLS if name == "digits" else (MNIST,))
    return tmp_path / "experiments"


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        command.main(arguments)
    return int(ended.value.code or 0)


def entries(home: Path, folder: str = "results") -> list[dict[str, object]]:
    file = home / folder / "digits.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else []


def test_run_trains_what_is_missing_and_list_shows_it(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("run", "digits", "--epsilon", "3", "--seeds", "1") == 0
    assert "digits ε 3 seed 1: step 4 of 4, ε 3.00" in capsys.readouterr().out
    (first,) = entries(home)
    assert call("run", "digits", "--epsilon", "3") == 0
    assert "digits ε 3 seed 1: " in (said := capsys.readouterr().out) and "from before" in said
    (both,) = entries(home)
    assert both["accuracy"][1] == first["accuracy"][0] and len(both["accuracy"]) == 2  # type: ignore[index,arg-type]
    call("list")
    listed = capsys.readouterr().out
    assert "2 of 2 done" in listed and "not run" in listed
    page = (home.parent / table.PAGE).read_text(encoding="utf-8")
    assert "not run" not in page.splitlines()[-2]


def test_again_begins_with_a_ledger_of_its_own(home: Path) -> None:
    ledger = home / "state" / "digits" / "1-0" / "ledger.dpl"
    call("run", "digits", "--epsilon", "1", "--seeds", "0")
    before = ledger.read_bytes()
    call("run", "digits", "--epsilon", "1", "--seeds", "0", "--again")
    assert ledger.read_bytes() != before and len(entries(home)) == 1


def test_a_result_keeps_the_interval_and_the_head_of_its_ledger(home: Path) -> None:
    call("run", "digits", "--epsilon", "1", "--seeds", "0")
    ledger = Ledger.read(home / "state" / "digits" / "1-0" / "ledger.dpl")
    (entry,) = entries(home)
    (run,) = entry["config"]["runs"]  # type: ignore[index]
    assert run["ledger_head"] == ledger.head_hash
    assert (run["epsilon_lower"], run["epsilon"]) == account(ledger).epsilon(1e-5)


def test_a_result_stays_where_its_ledger_is_gone(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call("run", "digits", "--epsilon", "1", "--seeds", "0")
    shutil.rmtree(home / "state")  # as in a fresh clone
    capsys.readouterr()
    assert call("run", "digits", "--epsilon", "1", "--seeds", "0") == 0
    assert "from before" in capsys.readouterr().out
    assert call("list") == 0 and "1 of 2 done" in capsys.readouterr().out
    assert call("run", "digits", "--epsilon", "1", "--seeds", "0", "--again") == 0
    assert (home / "state" / "digits" / "1-0" / "ledger.dpl").exists()


def test_time_is_up_and_the_same_command_goes_on(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command.sys, "argv", ["experiments", "run", "digits", "--again"])
    seconds = iter(
        range(0, 10**6, 1000)
    )  # every look at the clock takes this long, whatever a step takes
    monkeypatch.setattr(
        command, "Deadline", lambda minutes: Deadline(minutes, clock=lambda: next(seconds))
    )
    assert call("run", "digits", "--epsilon", "1", "--seeds", "0", "--minutes", "50") == 0
    assert "Go on with: python -m experiments run digits\n" in capsys.readouterr().out
    assert entries(home) == []
    call("list")
    assert "seed 0: 2 steps" in capsys.readouterr().out
    monkeypatch.setattr(command, "Deadline", Deadline)
    assert call("run", "digits", "--epsilon", "1", "--seeds", "0") == 0
    (entry,) = entries(home)
    assert entry["config"]["runs"][0]["steps"] == 4  # type: ignore[index]


def test_an_interruption_says_how_to_go_on(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command.Training, "go_on", interrupted)
    assert call("run", "digits") == 130
    assert "Go on with: python -m experiments" in capsys.readouterr().err


def test_selection_stays_out_of_the_results(home: Path) -> None:
    assert (
        call("run", "digits", "--epsilon", "1", "--seeds", "0", "--validate", "--set", "clip=0.5")
        == 0
    )
    (entry,) = entries(home, "selection")
    assert entry["config"]["clip"] == 0.5 and entry["config"]["runs"][0]["curve"]  # type: ignore[index]
    assert not (home / "results").exists()


def test_quick_leaves_no_trace_and_leaves_out_what_has_no_data(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("run", "--quick") == 0
    said = capsys.readouterr().out
    assert "digits ε 1 seed 0: " in said and "images: left out. The data set 'mnist'" in said
    assert not (home / "results").exists() and not (home / "state").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (("run", "digit"), 2, "There are digits, images."),
        (("run", "digits", "--epsilon", "2"), 2, "there are 1, 3"),
        (("run", "digits", "--epsilon", "one"), 2, "numbers between commas"),
        (("run", "digits", "--seeds", "0,x"), 2, "numbers between commas"),
        (("run", "digits", "--set", "clip=0.5"), 2, "--validate"),
        (("run", "images"), 1, "--data-dir, a folder with one folder per data set, such as mnist/"),
        (("run", "images", "--quick"), 1, "DPFY_DATA"),
        (("run", "images", "--data-dir", "/nowhere"), 1, "/nowhere/mnist"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(
    home: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    code: int,
    sentence: str,
) -> None:
    assert call(*arguments) == code
    assert sentence in " ".join(capsys.readouterr().err.split())
    assert not (home / "state").exists()


def test_table_writes_the_page(home: Path) -> None:
    assert call("table") == 0
    assert "not run" in (home.parent / table.PAGE).read_text(encoding="utf-8")
