"""A trainer of labels draws them once, trains on nothing else, and says what it protects."""

import json

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import dpfy
from dpfy import Ledger, TrainConfig, Trainer
from dpfy.errors import InvalidArgument, TrainingInterrupted
from dpfy.labels import release as release_module
from dpfy.trainer import label_trainer
from dpfy.trainer.label_trainer import LabelTrainer
from dpfy.trainer.trainer import resume_training

METHODS = ("rr", "lp-mst:2", "lp-mst-truth:2", "alibi", "cluster:4")


def data(count=60, classes=3):
    y = torch.arange(count) % classes
    return TensorDataset(torch.eye(classes)[y] * 4, y)


def config(tmp_path, **changes):
    values = {
        "protect": "labels",
        "records": 60,
        "classes": 3,
        "epsilon": 20.0,
        "epochs": 4.0,
        "batch_size": 16,
        "learning_rate": 0.2,
        "out": str(tmp_path),
        "name": "run",
    }
    return TrainConfig(**{**values, **changes})


def trainer(tmp_path, train=None, **changes):
    torch.manual_seed(0)
    train = data() if train is None else train
    return Trainer(config(tmp_path, **changes), model=nn.Linear(3, 3), train=train, test=data(30))


@pytest.mark.parametrize("method", METHODS)
def test_each_method_trains_and_reports_labels_alone(method, tmp_path):
    made = trainer(tmp_path, label_method=method)
    assert isinstance(made, LabelTrainer)
    result = made.fit()
    assert result.unit == "label" and result.claim <= 20 * (1 + 1e-9)
    assert result.evaluations[-1].accuracy > 0.9
    report = json.loads((tmp_path / "run" / "report.json").read_text(encoding="utf-8"))
    assert report["guarantee"]["unit"] == "label"
    text = (tmp_path / "run" / "report.md").read_text(encoding="utf-8")
    assert "label-differentially private" in text and "Features are not protected" in text
    assert "clip" not in text.lower().split("## declared facts")[1].split("## the ledger")[0]
    assert (tmp_path / "run" / "model.safetensors").exists()


def test_true_labels_are_read_once_and_never_trained_on(tmp_path, monkeypatch):
    """With noise that hides everything, labels of training are no nearer to the true ones."""
    seen = []
    fit = label_trainer.likelihood_loss

    def watched(scores, likelihood):
        seen.append(likelihood)
        return fit(scores, likelihood)

    monkeypatch.setattr(label_trainer, "likelihood_loss", watched)
    made = trainer(tmp_path, label_method="rr", epsilon=1e-3, epochs=1.0, batch_size=60)
    made._y.fill_(1)
    made.fit()
    # with probability 1 - 3·(2/3)^60, up to a thousandth, all three classes are there
    assert set(seen[0].argmax(1).tolist()) == {0, 1, 2}
    assert len(seen) == 1 and seen[0].max() < 0.334  # and hardly told from each other


@pytest.mark.parametrize("method", METHODS)
def test_a_resumed_run_uses_the_same_noisy_labels(method, tmp_path, monkeypatch):
    made, saved = trainer(tmp_path, label_method=method), []

    def interrupted(*arguments):
        raise TrainingInterrupted("now", 2)

    with monkeypatch.context() as broken:
        broken.setattr(LabelTrainer, "_train_last", interrupted)
        with pytest.raises(TrainingInterrupted):
            made.fit()
    files = sorted((tmp_path / "run").glob("ledger.dpl.labels*"))
    saved = [file.read_bytes() for file in files]
    again = trainer(tmp_path, label_method=method)
    again._y.fill_(0)  # other labels would give other noisy ones, if they were read
    again.resume()
    assert [file.read_bytes() for file in files] == saved and saved
    assert Ledger.read(tmp_path / "run" / "ledger.dpl").count == 1


def test_an_interrupted_run_can_be_started_again_by_the_same_command(tmp_path):
    first = trainer(tmp_path).fit(resume_if_exists=True)
    again = trainer(tmp_path).fit(resume_if_exists=True)
    assert again.claim == first.claim
    lines = (tmp_path / "run" / "evaluations.csv").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 1 + len(again.evaluations)
    with pytest.raises(InvalidArgument, match="another epsilon"):
        trainer(tmp_path, epsilon=1.0).fit(resume_if_exists=True)
    with pytest.raises(InvalidArgument, match="exists"):
        trainer(tmp_path).fit()


def test_a_run_from_its_folder_goes_on_with_its_settings(tmp_path):
    settings = TrainConfig(
        protect="labels", label_method="rr", epochs=1.0, out=str(tmp_path), name="run"
    )
    first = Trainer(settings).fit()
    assert resume_training(tmp_path / "run").claim == first.claim


def test_lost_labels_are_a_refusal_that_keeps_the_ledger(tmp_path, monkeypatch):
    def crash(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(release_module, "write_state", crash)
        with pytest.raises(KeyboardInterrupt):
            trainer(tmp_path).fit()
    with pytest.raises(dpfy.BudgetExhausted):
        trainer(tmp_path).resume()
    assert Ledger.read(tmp_path / "run" / "ledger.dpl").count == 1


def test_labels_that_are_no_classes_are_trained_on_as_class_0(tmp_path):
    x = torch.eye(3)[torch.arange(60) % 3]
    bad = TensorDataset(x, torch.full((60,), float("nan")))
    assert trainer(tmp_path, bad, label_method="rr").fit().evaluations


@pytest.mark.parametrize("count", [0, 1])
@pytest.mark.parametrize("method", METHODS)
def test_no_record_and_one_record(count, method, tmp_path):
    few = TensorDataset(torch.ones(count, 3), torch.zeros(count, dtype=torch.int64))
    assert trainer(tmp_path, few, label_method=method).fit().claim <= 20 * (1 + 1e-9)


def test_early_stopping_looks_at_public_data(tmp_path):
    result = trainer(tmp_path, label_method="rr", learning_rate=1e-9, early_stop=1).fit()
    assert result.stopped_early and len(result.evaluations) == 2


def test_what_labels_need_is_asked_for(tmp_path):
    class Other(torch.utils.data.Dataset):
        def __len__(self):
            return 2

    with pytest.raises(InvalidArgument, match="TensorDataset of features and labels"):
        trainer(tmp_path, Other())
    with pytest.raises(InvalidArgument, match="needs classes="):
        trainer(tmp_path, classes=None, data="mine:data")
    with pytest.raises(InvalidArgument, match="no unit_of="):
        Trainer(config(tmp_path), model=nn.Linear(3, 3), train=data(), unit_of=[0] * 60)
    assert not (tmp_path / "run").exists()
