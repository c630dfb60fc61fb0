"""Budgets of groups from settings: what the text means, what is refused, and what a run tells."""

import csv
import json

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import dpfy
from dpfy.errors import CheckpointError, InvalidArgument
from dpfy.ledger import Ledger
from dpfy.trainer.callbacks import Evaluation, Step
from dpfy.trainer.config import TrainConfig
from dpfy.trainer.group_budgets import named_budgets
from dpfy.trainer.trainer import resume_training
from dpfy.tuning import Space, TuneConfig

TEXT = "strict=1:.5,open=3:.5"
MODULE = """
import torch
from torch import nn
from torch.utils.data import TensorDataset

levels = ["strict", "open"] * 100


def data():
    generator = torch.Generator().manual_seed(1)
    y = torch.randint(2, (200,), generator=generator)
    rows = TensorDataset(torch.randn(200, 4, generator=generator) + 2.0 * y.unsqueeze(1), y)
    return rows, rows


def model():
    return nn.Linear(4, 2)
"""


def test_a_text_declares_each_group():
    found = named_budgets("strict=1:.34, usual = 2:.43,open=3:.23")
    assert found == {"strict": (1.0, 0.34), "usual": (2.0, 0.43), "open": (3.0, 0.23)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Expected budgets as name=epsilon:share"),
        ("strict", "got 'strict' for group 'strict'"),
        ("strict=1", "got 'strict=1' for group 'strict'"),
        ("=1:1", "Expected budgets as"),
        ("strict=1:.5,", "Expected budgets as"),
        ("strict=one:1", "epsilon of group 'strict' to be a number, got 'one'"),
        ("strict=1:half", "share of group 'strict' to be a number, got 'half'"),
        ("strict=0:1", "epsilon of group 'strict'=0.0"),
        ("strict=-1:1", "epsilon of group 'strict'=-1.0"),
        ("strict=inf:1", "epsilon of group 'strict'=inf"),
        ("strict=1:0,open=3:1", "share of group 'strict'=0.0"),
        ("strict=1:.5,strict=3:.5", "got two for 'strict'"),
        ("strict=1:.5,open=3:.4", r"add up to 1, got 0\.9 \('strict': 0\.5, 'open': 0\.4\)"),
    ],
)
def test_what_is_malformed_is_refused_by_the_name_of_the_group(text, message):
    with pytest.raises(InvalidArgument, match=message):
        TrainConfig(budgets=text)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"groups_of": "a:b"}, "Expected budgets= with groups_of='a:b'"),
        ({"individual": "scale"}, "Expected budgets= with individual='scale'"),
        ({"budgets": TEXT, "individual": "both"}, "sample"),
        ({"budgets": TEXT, "epsilon": 2.0}, "no epsilon=2.0 with budgets.*each group has one"),
        ({"budgets": TEXT, "sampling": "full"}, "no sampling='full' with budgets"),
        ({"budgets": TEXT, "noise_schedule": "time:1"}, "no noise_schedule='time:1'"),
        ({"budgets": TEXT, "algorithm": "line_search"}, "no algorithm='line_search'"),
        ({"budgets": TEXT, "individual": "scale", "groups": "layer"}, "individual='sample'"),
        ({"budgets": TEXT, "individual": "scale", "private_metrics": True}, "private_metrics"),
    ],
)
def test_settings_that_do_not_go_with_groups_are_refused(settings, message):
    with pytest.raises(InvalidArgument, match=message):
        TrainConfig(**settings)


def test_reports_list_the_budgets_and_no_epsilon_of_all():
    listed = TrainConfig(budgets=TEXT).hyperparameters()
    assert listed["budgets"] == TEXT and "epsilon" not in listed
    assert TrainConfig().hyperparameters()["epsilon"] == 3.0


def test_a_search_refuses_groups():
    with pytest.raises(InvalidArgument, match="one budget for all records"):
        TuneConfig(TrainConfig(budgets=TEXT), Space.parse(["clip=0.5,1"]), epsilon=3.0)


class Heard(dpfy.Callback):
    def __init__(self):
        self.steps: list[Step] = []
        self.evaluations: list[Evaluation] = []

    def on_step(self, step):
        self.steps.append(step)

    def on_evaluation(self, evaluation):
        self.evaluations.append(evaluation)


def trainer(folder, callbacks=(), group_of=("strict", "open") * 100, **settings):
    generator = torch.Generator().manual_seed(1)
    y = torch.randint(2, (200,), generator=generator)
    rows = TensorDataset(torch.randn(200, 4, generator=generator) + 2.0 * y.unsqueeze(1), y)
    values = {
        "out": str(folder),
        "name": "a",
        "data": "own",
        "records": 200,
        "batch_size": 50,
        "epochs": 1,
        "delta": 1e-3,
        "clip": 0.5,
        "budgets": TEXT,
        "individual": "scale",  # which is calibrated sooner
        **settings,
    }
    return dpfy.Trainer(
        dpfy.TrainConfig(**values),
        model=nn.Linear(4, 2),
        train=rows,
        test=rows,
        group_of=group_of,
        callbacks=callbacks,
    )


@pytest.mark.parametrize("method", ["sample", "scale"])
def test_a_run_keeps_each_groups_budget_and_names_whose_a_number_is(tmp_path, method):
    heard = Heard()
    made = trainer(tmp_path, [heard], individual=method)
    policy = made.plan.sampling
    varied, same = (
        (policy.rates, policy.bounds) if method == "sample" else (policy.bounds, policy.rates)
    )
    assert varied[0] < varied[1] and same[0] == same[1]
    result = made.fit()
    found = dpfy.account(result.folder / "ledger.dpl")
    expected = {name: each.claim(1e-3) for name, each in found.groups.items()}
    assert result.groups == {name: each.upper for name, each in result.spent.groups.items()}
    assert result.groups == expected == heard.evaluations[-1].groups == heard.steps[-1].groups
    assert 0.99 < expected["strict"] <= 1.0 and 2.97 < expected["open"] <= 3.0
    assert result.claim == result.spent.upper == heard.steps[-1].epsilon == expected["open"]
    with (result.folder / "evaluations.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert float(row["epsilon of strict"]) == expected["strict"]
    assert float(row["epsilon"]) == float(row["epsilon of open"]) == expected["open"]
    stated = json.loads((result.folder / "report.json").read_text())
    assert [each["epsilon"] for each in stated["guarantee"]["groups"]] == list(expected.values())
    assert "epsilon" not in stated["facts"]["hyperparameters"]


def test_labels_and_budgets_need_each_other(tmp_path):
    with pytest.raises(InvalidArgument, match="give groups_of="):
        trainer(tmp_path, group_of=None)
    with pytest.raises(InvalidArgument, match="Groups of records need budgets="):
        trainer(tmp_path, budgets=None, individual="sample")
    with pytest.raises(InvalidArgument, match="'open'"):  # nobody is in it
        trainer(tmp_path, group_of=["strict"] * 200).fit()
    assert not (tmp_path / "a").exists()


def test_a_run_from_settings_is_resumed_with_its_groups(tmp_path, monkeypatch):
    (tmp_path / "groupdata.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "dpfy.toml").write_text(
        'data = "groupdata:data"\nmodel = "groupdata:model"\nrecords = 200\nbatch_size = 50\n'
        'epochs = 2\ndelta = 1e-3\nname = "b"\nclip = 0.5\n'
        f'groups_of = "groupdata:levels"\nbudgets = "{TEXT}"\nindividual = "scale"\n'
    )
    config = TrainConfig.from_file(tmp_path / "dpfy.toml")

    class Stop(dpfy.Callback):
        def on_step(self, step):
            if step.step == 5:
                raise KeyboardInterrupt

    with pytest.raises(dpfy.errors.TrainingInterrupted):
        dpfy.Trainer(config, callbacks=[Stop()]).fit()
    result = resume_training(tmp_path / "runs" / "b")
    assert Ledger.read(result.folder / "ledger.dpl").count == 8
    assert set(result.groups) == {"strict", "open"} and result.groups["strict"] <= 1.0
    assert [each.groups.keys() for each in result.evaluations] == [{"strict", "open"}] * 2


def test_other_budgets_make_another_plan(tmp_path):
    made = trainer(tmp_path)
    other = trainer(tmp_path, budgets="strict=2:.5,open=3:.5")
    with pytest.raises(CheckpointError, match="another plan"):
        other._adopt(made.plan)
    made._adopt(made.plan)
