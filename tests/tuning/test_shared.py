"""Searches that several processes share, and searches on public data."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import dpfy
import dpfy.tuning.folder
import dpfy.tuning.search as searching
from dpfy.accounting import EnvelopeGuard
from dpfy.errors import CheckpointError, InvalidArgument, LedgerMismatch
from dpfy.tuning import (
    Choice,
    Space,
    TuneConfig,
    finish_tuning,
    resume_tuning,
    share_tuning,
    tune,
    work_on_tuning,
)
from dpfy.tuning.folder import Folder
from dpfy.tuning.trial import Outcome

MODULE = """
import torch
from torch import nn
from torch.utils.data import TensorDataset

def model():
    return nn.Linear(4, 2)

def data():
    generator = torch.Generator().manual_seed(1)
    y = torch.randint(2, (200,), generator=generator)
    x = torch.randn(200, 4, generator=generator) + 2.0 * y.unsqueeze(1)
    return TensorDataset(x[:100], y[:100]), TensorDataset(x[100:], y[100:])
"""
WORKER = """
import sys
from dpfy.tuning import work_on_tuning
print(work_on_tuning(sys.argv[1]))
"""


def blobs():
    generator = torch.Generator().manual_seed(1)
    y = torch.randint(2, (200,), generator=generator)
    return TensorDataset(torch.randn(200, 4, generator=generator) + 2.0 * y.unsqueeze(1), y)


DATA = {"model": lambda: nn.Linear(4, 2), "train": blobs(), "test": blobs()}


def config(folder, trials=3, base=None, **values):
    settings = dpfy.TrainConfig(
        **{
            "out": str(folder),
            "name": "a",
            "records": 100,
            "batch_size": 50,
            "epochs": 1,
            "data": "blobs",
            "delta": 1e-3,
            "sampling": "full",
            **(base or {}),
        }
    )
    space = Space({"learning_rate": Choice((0.1, 0.5)), "clip": Choice((0.5, 1.0))})
    return TuneConfig(
        **{
            "base": settings,
            "space": space,
            "epsilon": 3.0,
            "trials": trials,
            "accounting": "compose",
            **values,
        }
    )


@pytest.fixture
def quick(monkeypatch):
    """A given noise, and no report."""

    class Words:
        class costs:
            class headline:
                interval = None

        def write(self, folder):
            pass

    monkeypatch.setattr(searching, "calibrate_envelope", lambda *_, **__: 3.0)
    monkeypatch.setattr(
        searching, "EnvelopeGuard", lambda all, _, relation: EnvelopeGuard(all, None, relation)
    )
    monkeypatch.setattr(dpfy.tuning.folder, "report", lambda *_: Words())


def test_two_processes_share_a_search(tmp_path, monkeypatch):
    """Fails if two workers take the same trial, take more than were paid for, or if the claim
    leaves some out.
    """
    (tmp_path / "shared_blobs.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    folder = share_tuning(
        config(
            tmp_path, trials=5, base={"data": "shared_blobs:data", "model": "shared_blobs:model"}
        )
    )
    (use,) = dpfy.Ledger.read(folder / "ledger.dpl").uses
    assert use.times == 5  # before any worker
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(folder)], stdout=subprocess.PIPE, text=True
    )
    tried = searching.try_settings

    def beside_the_other(*arguments):
        while Folder(folder).begun < 2 and worker.poll() is None:
            time.sleep(0.05)
        return tried(*arguments)

    monkeypatch.setattr(searching, "try_settings", beside_the_other)
    here, there = work_on_tuning(folder), int(worker.communicate()[0])
    assert here and there and here + there == 5 and worker.returncode == 0
    assert work_on_tuning(folder) == 0
    found = finish_tuning(folder)
    assert [trial["trial"] for trial in found.trials] == [1, 2, 3, 4, 5]
    assert found.settings == max(found.trials, key=lambda trial: trial["score"])["settings"]
    assert found.accuracy == max(trial["score"] for trial in found.trials)
    assert 2.95 < found.with_tuning <= 3.0 and dpfy.Ledger.read(folder / "ledger.dpl").uses == (
        use,
    )
    assert not list(folder.glob("trial-*"))
    with pytest.raises(InvalidArgument, match="has ended"):
        work_on_tuning(folder)


def test_what_a_lost_worker_had_begun_is_not_taken_again(tmp_path, quick, monkeypatch):
    folder, tried = share_tuning(config(tmp_path), **DATA), searching.try_settings

    def killed(*_):
        raise SystemExit

    monkeypatch.setattr(searching, "try_settings", killed)
    with pytest.raises(SystemExit):
        work_on_tuning(folder, **DATA)
    with pytest.raises(InvalidArgument, match="nothing to release"):
        finish_tuning(folder, **DATA)
    monkeypatch.setattr(searching, "try_settings", tried)
    told = []
    assert work_on_tuning(folder, **DATA, tell=lambda *now: told.append(now)) == 2
    assert told == [(1, 3), (2, 3), (3, 3)]
    assert [trial["trial"] for trial in finish_tuning(folder, **DATA).trials] == [2, 3]


def test_a_search_whose_trials_were_all_lost_says_so(tmp_path, quick):
    """Fails if one is sent to start workers that would find nothing."""
    folder = share_tuning(config(tmp_path, trials=1), **DATA)
    assert Folder(folder).claim(1) == 1
    with pytest.raises(InvalidArgument, match="All of them were begun"):
        finish_tuning(folder, **DATA)


def test_an_older_ledger_is_not_reported_at_the_end(tmp_path, quick):
    """Fails if trials that were run are left out of what is claimed."""
    folder = share_tuning(config(tmp_path, trials=2), **DATA)
    fewer = share_tuning(config(tmp_path, trials=1, base={"name": "b"}), **DATA)
    assert work_on_tuning(folder, **DATA) == 2
    for name in ("ledger.dpl", "ledger.dpl.head"):
        (fewer / name).replace(folder / name)
    with pytest.raises(LedgerMismatch, match="not all of them were paid for"):
        finish_tuning(folder, **DATA)
    assert not (folder / "model.safetensors").exists()


def test_what_a_lost_declaration_left_does_not_make_a_search_shared(tmp_path, quick):
    """Fails if workers can take trials beside those that the only process runs: twice what was paid
    for.
    """
    (tmp_path / "a.new" / "claims").mkdir(parents=True)
    (tmp_path / "a.new" / "trial-1.json").write_text("{}")
    folder = Folder.create(tmp_path / "a", config(tmp_path), 3.0)
    assert not folder.shared and [path.name for path in folder.path.iterdir()] == ["search.json"]


def test_the_end_takes_a_better_trial_that_comes_at_the_last_moment(tmp_path, monkeypatch):
    """Fails if the best trial is released without the model that a worker has just let go of."""
    folder, better = Folder(tmp_path), nn.Linear(2, 1)
    folder.keep(Outcome({"clip": 1.0}, 0.5, nn.Linear(2, 1)), 1)
    come = iter([True])

    class Rebuilt:
        def __init__(self):
            if next(come, False):
                folder.keep(Outcome({"clip": 2.0}, 0.9, better), 2)
            self.model = nn.Linear(2, 1)

    found = folder.best(Rebuilt)
    assert found.settings == {"clip": 2.0} and found.model.weight.equal(better.weight)
    (tmp_path / "trial-2.safetensors").unlink()
    with pytest.raises(CheckpointError, match="trial 2"):
        folder.best(Rebuilt)


def test_a_worker_that_comes_after_the_end_leaves_nothing(tmp_path, monkeypatch):
    """Fails if files that vanish while they are listed stop a worker, or if its own stay."""
    (tmp_path / "tuning.json").write_text("{}")
    listed = Path.glob
    monkeypatch.setattr(
        Path, "glob", lambda self, pattern: [*listed(self, pattern), self / "trial-9.json"]
    )
    Folder(tmp_path).keep(Outcome({"clip": 1.0}, 0.5, nn.Linear(2, 1)), 1)
    assert [path.name for path in tmp_path.iterdir()] == ["tuning.json"]


def test_nobody_takes_a_trial_after_the_end_or_before_it_is_paid_for(tmp_path, quick, monkeypatch):
    folder = share_tuning(config(tmp_path), **DATA)
    taken = iter([1])
    with monkeypatch.context() as patched:
        patched.setattr(Folder, "claim", lambda self, trials: next(taken, None))
        assert work_on_tuning(folder, **DATA) == 1
    finish_tuning(folder, **DATA)
    assert Folder(folder).claim(3) is None
    monkeypatch.setattr(dpfy.Ledger, "reserve", lambda *_: None)
    unpaid = share_tuning(config(tmp_path, base={"name": "b"}), **DATA)
    with pytest.raises(LedgerMismatch, match="not all of them were paid for"):
        work_on_tuning(unpaid, **DATA)
    assert Folder(unpaid).begun == 0


def test_workers_whose_data_make_another_plan_are_refused(tmp_path, quick):
    """Fails if a worker runs steps that are not those of the ledger."""
    folder = share_tuning(config(tmp_path), **DATA)
    declared = json.loads((folder / "search.json").read_text())
    declared["search"]["base"]["batch_size"] = 25
    declared["search"]["base"]["sampling"] = "poisson"
    (folder / "search.json").write_text(json.dumps(declared))
    with pytest.raises(LedgerMismatch, match="make other ones here"):
        work_on_tuning(folder, **DATA)
    assert Folder(folder).begun == 0


def test_models_of_worse_trials_go_whoever_finishes_last(tmp_path):
    """Fails if a worker removes the model of a trial that is better than its own."""
    folder, model = Folder(tmp_path), nn.Linear(2, 1)
    for number, score in ((2, 0.5), (3, 0.9), (1, 0.9), (4, 0.2)):
        folder.keep(Outcome({"clip": 1.0}, score, model), number)
    assert [path.name for path in tmp_path.glob("*.safetensors")] == [
        "trial-1.safetensors"
    ]  # the first of equals


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"accounting": "select", "trials": 10}, "workers would see it"),
        ({"proposals": "bayesian"}, "need storage="),
    ],
)
def test_searches_that_cannot_be_shared_are_refused(tmp_path, values, says):
    with pytest.raises(InvalidArgument, match=says):
        share_tuning(config(tmp_path, **values), **DATA)
    assert not list(tmp_path.iterdir())


def test_shared_searches_and_others_are_not_taken_for_each_other(tmp_path, quick, monkeypatch):
    folder = share_tuning(config(tmp_path), **DATA)
    with pytest.raises(InvalidArgument, match="--work"):
        resume_tuning(folder, **DATA)
    monkeypatch.setattr(searching._Search, "run", lambda self, folder, *_: folder.path)
    alone = tune(config(tmp_path, base={"name": "b"}), **DATA)
    with pytest.raises(InvalidArgument, match="not shared"):
        work_on_tuning(alone, **DATA)


def test_a_search_on_public_data_charges_nothing_and_says_so(tmp_path):
    """Fails if it keeps a ledger, divides the noise among trials, or claims something for what it
    looked at.
    """
    told = []
    found = tune(config(tmp_path, accounting="public"), **DATA, tell=lambda *now: told.append(now))
    assert told[-1] == (3, 3) and len(found.trials) == 3
    assert found.with_tuning == 0 and 2.95 < found.final_run <= 3.0
    assert not list(found.folder.glob("*.dpl"))
    text = (found.folder / "report.md").read_text()
    assert "Nothing was charged" in text and "public data only" in text
    charged, run = json.loads((found.folder / "tuning.json").read_text())["guarantees"]
    assert (
        charged["epsilon"] == 0
        and "nothing is charged" in charged["covers"]
        and "private records" in run["covers"]
    )
    assert (
        json.loads((found.folder / "settings.json").read_text())["clip"] == found.settings["clip"]
    )
    with pytest.raises(InvalidArgument, match="score='public'"):
        config(tmp_path, accounting="public", score="private")


def test_bayesian_workers_learn_through_the_storage(tmp_path, quick):
    """Fails if a worker keeps what its trials scored to itself."""
    optuna = pytest.importorskip("optuna")
    storage = f"sqlite:///{tmp_path}/study.db"
    folder = share_tuning(config(tmp_path, trials=2, proposals="bayesian", storage=storage), **DATA)
    assert work_on_tuning(folder, **DATA) == 2
    found = optuna.load_study(study_name="a", storage=storage)
    assert [trial.value for trial in found.trials] == [
        trial["score"] for trial in Folder(folder).trials()
    ]


@pytest.mark.parametrize(
    ("name", "address", "says"),
    [
        ("taken", "sqlite:///{}/study.db", "of another search"),
        ("b", "nonsense", "address of a database"),
    ],
)
def test_a_storage_that_cannot_serve_is_refused_before_anything_is_paid_for(
    tmp_path, quick, name, address, says
):
    """Fails if workers find out, or if proposals learn from trials that the ledger does not
    have.
    """
    optuna = pytest.importorskip("optuna")
    optuna.create_study(study_name="taken", storage=f"sqlite:///{tmp_path}/study.db")
    with pytest.raises(InvalidArgument, match=says):
        share_tuning(
            config(
                tmp_path,
                base={"name": name},
                proposals="bayesian",
                storage=address.format(tmp_path),
            ),
            **DATA,
        )
    assert not (tmp_path / name).exists()
