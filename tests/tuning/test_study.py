"""Searches on public data that workers share through a database of Optuna's.

Several processes at once are in tests/servers/test_shared_studies.py.
"""

import itertools
import json
from pathlib import Path

import pytest
from torch import nn

import dpfy.tuning.search as searching
from dpfy import TrainConfig
from dpfy.budgets.runs import without_password
from dpfy.errors import CheckpointError, InvalidArgument
from dpfy.tuning import (
    Choice,
    Space,
    TuneConfig,
    Uniform,
    finish_tuning,
    share_tuning,
    work_on_tuning,
)
from dpfy.tuning.study import StudyFolder
from dpfy.tuning.trial import Outcome

optuna = pytest.importorskip("optuna")


@pytest.fixture(autouse=True)
def quick(monkeypatch, tmp_path):
    """A given noise, and trials that score their clip bound; every third one fails."""
    calls = itertools.count(1)

    def tried(config, settings, *_):
        failed = next(calls) % 3 == 0
        return Outcome(
            settings,
            -float("inf") if failed else settings["clip"],
            nn.Linear(1, 1),
            "bookkeeping",
            "checked",
            "RuntimeError" if failed else None,
        )

    monkeypatch.setattr(searching, "calibrate_envelope", lambda *_, **__: 3.0)
    monkeypatch.setattr(searching, "try_settings", tried)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def storage(tmp_path):
    return f"sqlite:///{tmp_path}/study.db"


def declared(storage, **values):
    settings = TrainConfig(data="digits", epochs=1, batch_size=512, delta=1e-5, name="wide")
    space = Space({"clip": Uniform(0.1, 1.0), "momentum": Choice((0.0, 0.9))})
    values = {"accounting": "public", "trials": 8, "storage": storage} | values
    return TuneConfig(settings, space, epsilon=3.0, **values)


@pytest.mark.parametrize("proposals", ["random", "bayesian"])
def test_workers_take_each_trial_once_and_the_best_is_released(storage, tmp_path, proposals):
    """Fails if a trial is run twice, is lost, or if a folder is needed by more than the last."""
    address = share_tuning(declared(storage, proposals=proposals))
    assert address == f"{storage}#wide" and not (tmp_path / "runs").exists()
    first = StudyFolder.at(address)
    first.proposing(first.search()[0], seed=1)
    assert first.claim(8) == 1  # by a worker that is lost
    assert work_on_tuning(address) == 7 and work_on_tuning(address) == 0
    found = finish_tuning(address)
    assert [trial["trial"] for trial in found.trials] == [2, 3, 4, 5, 6, 7, 8]
    scored = [trial for trial in found.trials if trial["score"] is not None]
    assert found.settings == max(scored, key=lambda trial: trial["score"])["settings"]
    assert found.folder.samefile(tmp_path / "runs" / "wide") and found.with_tuning == 0
    kept = json.loads((found.folder / "settings.json").read_text())
    assert kept["clip"] == found.settings["clip"]
    with pytest.raises(InvalidArgument, match="has ended"):
        work_on_tuning(address)


def test_the_last_trial_is_run_by_one_of_two_workers_that_ask_at_once(storage, monkeypatch):
    """Fails if a database that counts trials before it adds one lets too many run."""
    address = share_tuning(declared(storage, trials=1))
    one, other = StudyFolder.at(address), StudyFolder.at(address)
    monkeypatch.setattr(StudyFolder, "begun", 0)
    assert (one.claim(1), other.claim(1)) == (1, None)


def test_a_failed_trial_is_kept_and_scores_lowest(storage):
    """Fails if a failure is repeated, chosen, or taught to the study as a score."""
    address = share_tuning(declared(storage, trials=12))
    assert work_on_tuning(address) == 12
    trials = StudyFolder.at(address).trials()
    failed = [trial for trial in trials if trial["failure"]]
    assert [trial["trial"] for trial in failed] == [3, 6, 9, 12]
    assert all(trial["score"] == -float("inf") for trial in failed)
    best = max((trial for trial in trials if trial not in failed), key=lambda each: each["score"])
    assert finish_tuning(address).settings == best["settings"]


def test_a_search_without_finished_trials_is_not_ended(storage):
    address = share_tuning(declared(storage))
    with pytest.raises(InvalidArgument, match="nothing to release"):
        finish_tuning(address)
    assert work_on_tuning(address) == 8


def test_what_is_no_shared_search_is_refused(storage):
    optuna.create_study(study_name="other", storage=storage)
    with pytest.raises(CheckpointError, match="no shared search"):
        work_on_tuning(f"{storage}#other")
    for address, says in (
        (f"{storage}#lost", "a study that it has"),
        (storage, "address of a shared search"),
        ("nonsense://place#name", "address of a database"),
    ):
        with pytest.raises(InvalidArgument, match=says):
            work_on_tuning(address)


def test_a_password_is_neither_kept_nor_shown(storage):
    """Fails if the database's password reaches the study, an error or the command line."""
    assert without_password("postgresql+psycopg://me:secret@host/db#a") == (
        "postgresql+psycopg://me:***@host/db#a"
    )
    assert without_password(storage) == storage
    address = share_tuning(declared(storage))
    assert StudyFolder.at(address).search()[0].storage is None
    with pytest.raises(InvalidArgument, match="Optuna cannot use") as refused:
        share_tuning(declared("postgresql+psycopg://me:secret@/no?host=/nowhere"))
    assert "secret" not in str(refused.value)


def test_only_searches_on_public_data_are_spread_by_a_storage(storage, tmp_path):
    """Fails if a search that pays for its trials is begun without the ledger in its folder."""
    with pytest.raises(InvalidArgument, match="their number and scores are secret"):
        declared(storage, accounting="select")
    with pytest.raises(InvalidArgument, match="job list of a scheduler"):
        share_tuning(declared(None, accounting="select"))
    folder = share_tuning(declared(storage, accounting="compose", trials=2))
    assert folder == Path("runs/wide")
    assert (folder / "ledger.dpl").exists()
