"""Losses and metrics of tasks, and of one's own, through the trainer."""

import csv
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import dpfy
from dpfy.trainer import config as configs, objectives
from dpfy.trainer.builders import named_model
from dpfy.trainer.config import TrainConfig
from dpfy.trainer.objectives import TASKS, objective_for

X = torch.randn(60, 4, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def without_report(monkeypatch):
    """Leave out the report, which takes longer than training."""
    nothing = SimpleNamespace(write=lambda folder: None)
    monkeypatch.setattr("dpfy.trainer.trainer.report", lambda *_: nothing)


class Dicts(Dataset):
    """Records as dicts, whose shape is declared."""

    def __init__(self, **columns):
        self.columns = columns
        self.example_input = {name: torch.zeros_like(each[:2]) for name, each in columns.items()}

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __getitem__(self, index):
        return {name: each[index] for name, each in self.columns.items()}


class Named(nn.Module):
    """Takes its input by name and returns an object with logits, as models of transformers do."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, features, labels=None):
        return type("Output", (), {"logits": self.layer(features)})()


class Tokens(nn.Module):
    """A model of the next token: position t sees tokens up to t alone."""

    def __init__(self):
        super().__init__()
        self.embed, self.last = nn.Embedding(7, 5), nn.Linear(5, 7)

    def forward(self, input_ids, attention_mask=None):
        return self.last(self.embed(input_ids))


def fit(tmp_path, model, train, test, loss=None, metric=None, **settings):
    torch.manual_seed(0)
    config = TrainConfig(
        **{
            "data": "own",
            "records": 60,
            "epsilon": 50.0,
            "delta": 1e-2,
            "epochs": 6,
            "batch_size": 60,  # all records: its ε is quickly computed
            "learning_rate": 0.5,
            "out": str(tmp_path),
            "name": "run",
            **settings,
        }
    )
    trainer = dpfy.Trainer(config, model=model, train=train, test=test, loss=loss, metric=metric)
    return trainer.fit()


def table(tmp_path):
    return [*csv.DictReader((tmp_path / "run" / "evaluations.csv").read_text().splitlines())]


def test_every_task_of_the_settings_has_an_objective():
    assert (*TASKS,) == configs.TASKS


def test_regression_measures_the_squared_error_of_outputs_of_any_shape(tmp_path):
    y = X @ torch.tensor([1.0, -1.0, 0.5, 0.0])
    data = TensorDataset(X, y)
    result = fit(tmp_path, nn.Linear(4, 1), data, data, task="regression")
    first, *_, last = (each.value for each in result.evaluations)
    with torch.no_grad():
        assert last == pytest.approx(float((result.model(X)[:, 0] - y).square().mean()), rel=1e-4)
    assert last < min(first, 1.0) < float(y.square().mean())
    assert result.evaluations[-1].metric == "mean squared error"
    assert [*table(tmp_path)[-1]][-1] == "mean squared error"
    assert "mean squared error on public data" in (tmp_path / "run" / "report.md").read_text()


def test_an_early_stop_waits_for_a_smaller_error(tmp_path, without_report):
    y = X @ torch.tensor([1.0, -1.0, 0.5, 0.0])
    data = TensorDataset(X, y)
    options = {"task": "regression", "early_stop": 1, "epochs": 8, "learning_rate": 0.05}
    result = fit(tmp_path, nn.Linear(4, 1), data, data, **options)
    errors = [each.value for each in result.evaluations]
    # the run ends early exactly when an error did not fall
    assert all(b < a for a, b in pairwise(errors[:-1]))
    assert result.stopped_early == (len(errors) < 8)


def test_records_may_be_dicts_and_outputs_have_logits(tmp_path, without_report):
    data = Dicts(features=X, labels=(X[:, 0] > 0).long())
    result = fit(tmp_path, Named(), data, data)
    assert result.evaluations[-1].accuracy > 0.7


def test_a_language_model_learns_from_tokens_and_from_dicts(tmp_path, without_report):
    tokens = torch.arange(8).repeat(60, 1) % 7  # after each token comes the next
    for name, data in (
        ("tuples", TensorDataset(tokens)),
        ("dicts", Dicts(input_ids=tokens, attention_mask=torch.ones_like(tokens))),
    ):
        result = fit(tmp_path, Tokens(), data, data, task="language_model", name=name)
        assert result.evaluations[-1].metric == "loss per token"
        assert result.evaluations[-1].value < 1.5 < torch.tensor(7.0).log()


def test_tokens_that_do_not_count_have_no_part_in_the_loss():
    model, tokens = Tokens(), torch.tensor([[1, 2, 3, 0, 0], [4, 5, 6, 1, 2]])
    losses = TASKS["language_model"].loss
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    whole = F.cross_entropy(model(tokens)[:, :-1].transpose(1, 2), tokens[:, 1:], reduction="none")
    expected = torch.stack([whole[0, :2].mean(), whole[1].mean()])
    torch.testing.assert_close(
        losses(model, {"input_ids": tokens, "attention_mask": mask}), expected
    )
    labels = tokens.masked_fill(mask == 0, -100)
    torch.testing.assert_close(losses(model, tokens, labels), expected)
    torch.testing.assert_close(losses(model, tokens), whole.mean(1))
    nothing = losses(model, tokens, torch.full_like(tokens, -100))
    assert nothing.tolist() == [0.0, 0.0]


def test_own_losses_and_metrics_are_given_the_model_and_the_fields(tmp_path, without_report):
    y = (X[:, :1] > 0).float()
    seen = []

    def loss(model, x, y):
        return F.binary_cross_entropy_with_logits(model(x), y, reduction="none").squeeze(1)

    def share_right(model, x, y):
        seen.append(model.training)
        return ((model(x) > 0) == (y > 0)).squeeze(1).float()

    data = TensorDataset(X, y)
    result = fit(tmp_path, nn.Linear(4, 1), data, data, loss, share_right)
    assert result.evaluations[-1].metric == "share right" and result.evaluations[-1].value > 0.7
    assert not any(seen)  # public data is evaluated
    other = fit(tmp_path, nn.Linear(4, 1), data, data, loss, name="loss")
    assert (other.evaluations[-1].metric, other.evaluations[-1].value < 0.69) == ("loss", True)


def test_an_own_loss_that_keeps_records_or_mixes_them_later_is_refused(tmp_path, without_report):
    """The checks of a loss look into what the trainer calls, as in a loop of one's own."""
    data = TensorDataset(X, (X[:, 0] > 0).long())
    kept, mixes = [], []

    def keeping(model, x, y):
        kept.append(x.detach().clone())
        return F.cross_entropy(model(x), y, reduction="none")

    def mixing(model, x, y):
        losses = F.cross_entropy(model(x), y, reduction="none")
        return losses * (1000 * x.detach().mean()) if mixes else losses

    class Later(dpfy.Callback):
        def on_step(self, step):
            mixes.append(step.step)

    with pytest.raises(dpfy.IsolationError, match="keeps something of its input"):
        fit(tmp_path, nn.Linear(4, 2), data, data, keeping, name="keeping")
    config = TrainConfig(
        data="own", records=60, epochs=2, batch_size=15, epsilon=3.0, delta=1e-3, clip=1.0,
        learning_rate=0.1, optimizer="sgd", out=str(tmp_path), name="mixing",
    )  # fmt: skip
    trainer = dpfy.Trainer(
        config, model=nn.Linear(4, 2), train=data, loss=mixing, callbacks=[Later()]
    )
    with pytest.raises(dpfy.IsolationError, match="lets one example change another"):
        trainer.fit()


def test_a_named_model_is_copied_for_every_run(tmp_path, monkeypatch):
    (tmp_path / "named_model.py").write_text("import torch\nmodel = torch.nn.Linear(2, 1)\n")
    monkeypatch.syspath_prepend(tmp_path)
    one, two = named_model("named_model:model"), named_model("named_model:model")
    nn.init.zeros_(one.weight)
    assert two.weight.abs().min() > 0


def test_settings_name_losses_and_metrics(tmp_path, monkeypatch):
    (tmp_path / "named_losses.py").write_text(
        "def loss(model, x, y): return (model(x).squeeze(1) - y).abs()\n"
        "def far(model, x, y): return (model(x).squeeze(1) - y).abs() > 1\n"
        "number = 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    config = TrainConfig(loss="named_losses:loss", metric="named_losses:far", metric_goal="min")
    found = objective_for(config)
    assert (found.metric, found.larger_is_better) == ("far", False)
    assert found.loss(nn.Flatten(), torch.ones(2, 1), torch.zeros(2)).tolist() == [1.0, 1.0]
    assert objective_for(TrainConfig(loss="named_losses:loss")).metric == "loss"
    with pytest.raises(dpfy.InvalidArgument, match=r"a function of the model .* got int"):
        objective_for(TrainConfig(loss="named_losses:number"))


def test_what_has_no_meaning_is_refused(tmp_path):
    with pytest.raises(dpfy.InvalidArgument, match="task='poetry'"):
        TrainConfig(task="poetry")
    with pytest.raises(dpfy.InvalidArgument, match="metric_goal='most'"):
        TrainConfig(metric_goal="most")
    with pytest.raises(dpfy.InvalidArgument, match="private_metrics"):
        objective_for(TrainConfig(task="regression", private_metrics=True))
    with pytest.raises(dpfy.InvalidArgument, match="Expected a record with one of labels"):
        objectives.scores_and_labels(nn.Flatten(), {"input": X})


@pytest.mark.parametrize("seen", [True, False])
def test_a_bar_is_shown_where_somebody_sees_it(tmp_path, monkeypatch, capsys, seen, without_report):
    monkeypatch.setattr("dpfy.run.progress.ProgressBar.is_seen", staticmethod(lambda: seen))
    data = TensorDataset(X, (X[:, 0] > 0).long())
    fit(tmp_path, nn.Linear(4, 2), data, data, epochs=1)
    assert ("training" in capsys.readouterr().out) == seen


def test_a_bar_is_shown_or_not_as_one_says(tmp_path, capsys, without_report):
    data = TensorDataset(X, (X[:, 0] > 0).long())
    for wanted in (True, False):
        config = TrainConfig(
            records=60, epochs=1, batch_size=60, out=str(tmp_path), name=f"bar{wanted}"
        )
        dpfy.Trainer(config, model=nn.Linear(4, 2), train=data).fit(progress=wanted)
        assert ("training" in capsys.readouterr().out) == wanted
