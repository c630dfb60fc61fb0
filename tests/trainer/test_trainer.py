"""The trainer: a folder with everything, nothing private in it, and a way back after any
interruption.
"""

import csv
import json
import math
from pathlib import Path

import pytest
import torch
from runs import chosen_device
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import TensorDataset

import dpfy
import dpfy.trainer.trainer
from dpfy.run.callbacks import Evaluation, Step
from dpfy.trainer.trainer import resume_training

FILES = {
    "checkpoint.safetensors",
    "config.json",
    "evaluations.csv",
    "ledger.dpl",
    "ledger.dpl.head",
    "model.safetensors",
    "progress.jsonl",
    "report.html",
    "report.json",
    "report.md",
}


def blobs(n, seed):
    """Two classes that a line separates."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(2, (n,), generator=generator)
    return TensorDataset(torch.randn(n, 4, generator=generator) + 2.0 * y.unsqueeze(1), y)


def config(folder, **settings):
    return dpfy.TrainConfig(
        **{
            "out": str(folder),
            "name": "a",
            "records": 400,
            "batch_size": 100,
            "epochs": 3,
            "data": "blobs",
            "clip": 1.0,
            "learning_rate": 0.5,
            "delta": 1e-3,
            "device": None if (device := chosen_device()) == "cpu" else device,
            **settings,
        }
    )


def trainer(folder, callbacks=(), model=None, **settings):
    torch.manual_seed(0)
    return dpfy.Trainer(
        config(folder, **settings),
        model=model or nn.Linear(4, 2),
        train=blobs(400, 1),
        test=blobs(200, 2),
        callbacks=callbacks,
    )


class Listener(dpfy.Callback):
    def __init__(self, interrupt_at=None):
        self.heard, self.interrupt_at = [], interrupt_at

    def on_step(self, step):
        self.heard.append(step)
        if step.step == self.interrupt_at:
            raise KeyboardInterrupt

    def on_evaluation(self, evaluation):
        self.heard.append(evaluation)


def test_a_run_leaves_model_ledger_and_report(tmp_path):
    listener = Listener()
    result = trainer(tmp_path, [listener]).fit()
    assert {path.name for path in result.folder.iterdir()} == FILES
    assert result.evaluations[-1].accuracy > 0.9
    assert 2.9 < result.claim <= 3.0 and result.claim == result.spent.upper
    assert dpfy.account(dpfy.Ledger.read(tmp_path / "a" / "ledger.dpl")).claim(1e-3) == result.claim
    assert [type(heard) for heard in listener.heard].count(Step) == 12
    assert [heard.step for heard in listener.heard if isinstance(heard, Evaluation)] == [4, 8, 12]
    rows = list(csv.DictReader((tmp_path / "a" / "evaluations.csv").read_text().splitlines()))
    assert [float(row["accuracy"]) for row in rows] == [
        evaluation.accuracy for evaluation in result.evaluations
    ]
    assert json.loads((tmp_path / "a" / "report.json").read_text())["facts"]["name"] == "a"


def test_an_existing_folder_is_never_overwritten(tmp_path):
    (tmp_path / "a").mkdir()
    with pytest.raises(dpfy.InvalidArgument, match="--resume"):
        trainer(tmp_path).fit()


def test_an_interrupted_run_is_saved_and_resumed_to_the_end(tmp_path):
    with pytest.raises(dpfy.TrainingInterrupted, match="dpfy train --resume"):
        trainer(tmp_path, [Listener(interrupt_at=6)], ema=0.5, lr_schedule="cosine").fit()
    resumed = trainer(tmp_path, ema=0.5, lr_schedule="cosine")
    result = resumed.resume()
    assert [evaluation.step for evaluation in result.evaluations] == [4, 8, 12]
    assert dpfy.Ledger.read(tmp_path / "a" / "ledger.dpl").count == 12
    assert result.claim <= 3.0 and resumed.optimizer.param_groups[0]["lr"] < 0.1


class Killed(BaseException):
    """Stands for the end of the process: nothing catches it and nothing is tidied up."""


def killed(monkeypatch, owner, name):
    def die(*_, **__):
        raise Killed

    monkeypatch.setattr(owner, name, die)


@pytest.mark.parametrize(
    ("owner", "name", "left"),
    [
        (dpfy.trainer.trainer, "privatize", {"config.json"}),
        (dpfy.trainer.trainer, "tell", {"config.json", "ledger.dpl", "ledger.dpl.head"}),
        (
            dpfy.Trainer,
            "_save",
            {"config.json", "evaluations.csv", "ledger.dpl", "ledger.dpl.head", "progress.jsonl"},
        ),
    ],
)
def test_a_run_that_was_killed_before_its_first_checkpoint_can_be_resumed(
    tmp_path, monkeypatch, owner, name, left
):
    with monkeypatch.context() as patched, pytest.raises(Killed):
        killed(patched, owner, name)
        trainer(tmp_path).fit()
    assert {path.name for path in (tmp_path / "a").iterdir()} == left
    result = trainer(tmp_path).resume()
    assert {path.name for path in result.folder.iterdir()} == FILES
    assert dpfy.Ledger.read(tmp_path / "a" / "ledger.dpl").count == 12 and result.claim <= 3.0


def test_killed_while_its_folder_is_made_a_run_simply_starts(tmp_path, monkeypatch):
    with monkeypatch.context() as patched, pytest.raises(Killed):
        killed(patched, Path, "write_text")
        trainer(tmp_path).fit()
    assert not (tmp_path / "a").exists()
    trainer(tmp_path).fit()
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_steps_without_a_checkpoint_are_lost_and_stay_spent(tmp_path, capsys):
    with pytest.raises(dpfy.TrainingInterrupted):
        trainer(tmp_path, [Listener(interrupt_at=6)]).fit()
    (tmp_path / "a" / "checkpoint.safetensors").unlink()
    listener = Listener()
    trainer(tmp_path, [listener]).resume()
    assert "6 steps were paid for and are lost; 6 of 12 are left" in capsys.readouterr().out
    assert [heard.step for heard in listener.heard if isinstance(heard, Step)] == [
        7,
        8,
        9,
        10,
        11,
        12,
    ]
    assert dpfy.Ledger.read(tmp_path / "a" / "ledger.dpl").count == 12


def test_a_finished_model_is_not_replaced_by_a_new_beginning(tmp_path):
    trainer(tmp_path).fit()
    (tmp_path / "a" / "checkpoint.safetensors").unlink()
    with pytest.raises(dpfy.CheckpointError, match="no checkpoint"):
        trainer(tmp_path).resume()


def test_a_beginning_with_other_settings_is_refused(tmp_path, monkeypatch):
    with monkeypatch.context() as patched, pytest.raises(Killed):
        killed(patched, dpfy.Trainer, "_save")
        trainer(tmp_path).fit()
    with pytest.raises(dpfy.CheckpointError, match="another plan"):
        trainer(tmp_path, epochs=4).resume()


@pytest.mark.parametrize("anchor", ["missing/x.head", "folder", "other.head"])
def test_a_bad_anchor_leaves_nothing_and_the_run_can_start(tmp_path, anchor):
    (tmp_path / "folder").mkdir()
    trainer(tmp_path, name="other", anchor=str(tmp_path / "other.head")).fit()
    with pytest.raises(dpfy.LedgerError):
        trainer(tmp_path, anchor=str(tmp_path / anchor)).fit()
    assert not (tmp_path / "a").exists()
    assert trainer(tmp_path, anchor=str(tmp_path / "good.head")).fit().claim <= 3.0


def test_early_stopping_claims_the_whole_plan(tmp_path):
    result = trainer(tmp_path, epochs=20, learning_rate=1e-9, early_stop=2).fit()
    assert result.stopped_early and len(result.evaluations) == 3
    assert result.spent.upper < result.claim <= 3.0 and result.claim > 2.9


def test_the_average_of_the_weights_is_what_is_evaluated_and_saved(tmp_path):
    subject = trainer(tmp_path, ema=0.9)
    subject.fit()
    saved = load_file(tmp_path / "a" / "model.safetensors")
    assert torch.equal(saved["weight"], subject.average.module.weight.cpu())
    assert not torch.equal(saved["weight"], subject.model.weight.cpu())


@pytest.mark.parametrize(
    ("schedule", "last"), [("constant", 1.0), ("linear", 1 / 12), ("cosine", 0.017)]
)
def test_learning_rates_follow_the_schedule(tmp_path, schedule, last):
    listener = Listener()
    trainer(tmp_path, [listener], lr_schedule=schedule, warmup_steps=2).fit()
    rates = [heard.learning_rate for heard in listener.heard if isinstance(heard, Step)]
    assert rates[0] == pytest.approx(0.25) and rates[-1] == pytest.approx(0.5 * last, rel=0.02)


def test_own_data_needs_a_declared_size_and_a_model(tmp_path):
    with pytest.raises(dpfy.InvalidArgument, match="records="):
        dpfy.Trainer(config(tmp_path, records=None), model=nn.Linear(4, 2), train=blobs(10, 1))
    with pytest.raises(dpfy.InvalidArgument, match="model="):
        dpfy.Trainer(config(tmp_path), train=blobs(10, 1))


def test_resuming_what_is_not_a_run_is_one_clear_error(tmp_path):
    with pytest.raises(dpfy.CheckpointError, match="no run"):
        resume_training(tmp_path)


def test_without_public_data_nothing_is_evaluated(tmp_path):
    result = dpfy.Trainer(
        config(tmp_path, early_stop=1), model=nn.Linear(4, 2), train=blobs(400, 1)
    ).fit()
    assert result.evaluations == () and not result.stopped_early


def test_groups_samplers_and_private_metrics_come_from_the_settings(tmp_path):
    seen = []

    class Watch(dpfy.Callback):
        def on_step(self, step):
            seen.append(dict(step.metrics))

    config = dpfy.TrainConfig(
        epochs=2,
        out=str(tmp_path),
        name="x",
        groups="layer",
        sampling="fixed_size",
        relation="replace_one",
        private_metrics=True,
        epsilon=50.0,
    )
    result = dpfy.Trainer(config, callbacks=[Watch()]).fit()
    assert result.spent.upper <= 50.0 and all(
        set(metrics) == {"accuracy", "loss"} for metrics in seen
    )
    page = (result.folder / "report.md").read_text(encoding="utf-8")
    for text in ("accuracy (bound 1)", r"fixed\_size", "replace-one", "2: 0.707107, 4: 0.707107"):
        assert text in page


def test_clipping_and_noise_come_from_the_settings(tmp_path):
    plan = trainer(tmp_path, clipping="quantile:0.7", noise_schedule="exponential:0.1").plan
    assert plan.controllers == (dpfy.QuantileClipping(0.7),)
    assert plan.noise_at(5) == pytest.approx(plan.noise_at(1) * math.exp(-0.1))
    assert 2.9 < dpfy.account(plan).claim(1e-3) <= 3.0
    plan = trainer(tmp_path, clipping="automatic:0.5", groups="tensor", epochs=1).plan
    assert [leaf.gamma for leaf in plan.query.leaves] == [0.5, 0.5]
    plan = trainer(tmp_path, clip_schedule="step:0.5:1", epochs=1).plan
    assert [controller.tag for controller in plan.controllers] == ["clip_schedule"]
    assert [
        each.tag
        for each in trainer(
            tmp_path, clipping="adaclip", noise_schedule="norm", epochs=1
        ).plan.controllers
    ] == ["adaclip", "norm_noise"]


def test_noise_that_follows_public_accuracy_ends_the_run_with_the_budget_and_survives_a_resume(
    tmp_path,
):
    settings = {
        "noise_schedule": "validation:0.5:1.0",
        "epochs": 10,
    }  # no rise exceeds 1: halved at every evaluation
    with pytest.raises(dpfy.TrainingInterrupted):
        trainer(tmp_path, [Listener(interrupt_at=6)], **settings).fit()
    listener = Listener()
    resumed = trainer(tmp_path, [listener], **settings)
    result = resumed.resume()
    ledger = dpfy.Ledger.read(tmp_path / "a" / "ledger.dpl")
    first = resumed.plan.event.queries[0].stddev
    noises = [run.event.queries[0].stddev / first for run in ledger.uses]
    assert noises[:2] == [1.0, 0.5] and noises == [0.5**place for place in range(len(noises))]
    assert ledger.count == result.evaluations[-1].step < resumed.plan.steps == 40
    assert result.claim == pytest.approx(3.0) and result.claim <= 3.0 and not result.stopped_early
    report = (tmp_path / "a" / "report.md").read_text()
    assert (
        "Rényi filter" in report and "validation decay, factor 0.5, threshold 1, window 3" in report
    )


def test_noise_that_follows_public_accuracy_needs_public_data(tmp_path):
    with pytest.raises(dpfy.InvalidArgument, match="needs public data"):
        dpfy.Trainer(
            config(tmp_path, noise_schedule="validation"),
            model=nn.Linear(4, 2),
            train=blobs(400, 1),
        )
