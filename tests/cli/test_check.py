"""``dpfy check`` explains a model, probes it on made-up records, and says by its status whether it
can be trained.
"""

import json

import pytest

from dpfy.cli.app import main

MODULE = """
import dpfy
import dpfy.data
import torch
from torch import nn

def bad():
    more = [nn.Sequential(nn.BatchNorm2d(4)) for _ in range(4)]
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), *more)

def good():
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.LayerNorm(8), nn.Linear(8, 2))
    return model, torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss(reduction="none")

class Mixing(nn.Module):
    def forward(self, x):
        return x - x.mean(0)

def alone():
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 2))

def mixing():
    return nn.Sequential(nn.Linear(4, 3), Mixing(), nn.Linear(3, 2))

def private_words():
    return alone(), dpfy.data.Vocabulary("private", "the letters")

def public_words():
    return alone(), dpfy.data.Vocabulary("public", "Wikipedia")

def nothing():
    return [1, 2]

class Mixup(torch.utils.data.Dataset):
    def __init__(self):
        self.rows = torch.randn(8, 36)

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return self.rows[index] + self.rows[torch.randint(8, ())]

def data():
    return torch.utils.data.TensorDataset(torch.zeros(4, 36)), None
"""
EXAMPLE = "float32[1,6,6],int64[]"


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)  # the current directory is importable
    (tmp_path / "checked_models.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))

    def call(*arguments):
        with pytest.raises(SystemExit) as stopped:
            main(["check", *arguments])
        output = capsys.readouterr()
        return stopped.value.code or 0, " ".join(output.out.split()), output.err

    return call


def test_a_model_that_must_be_changed_is_explained(run):
    code, out, _ = run("checked_models:bad", "--example", EXAMPLE)
    assert (
        code == 1
        and "batch normalization" in out
        and "needs a change" in out
        and "dpfy.fix(model)" in out
    )
    assert (
        "1, 2.0, 3.0 and 2 more" in out
        and "The probe waits" in out
        and "cannot be trained as it is" in out
    )


def test_a_model_without_a_loss_is_not_given_the_labels(run):
    """Fails if a model alone is called unfit because it takes no labels."""
    code, out, _ = run("checked_models:alone", "--example", EXAMPLE, "--batch-size", "8")
    assert code == 0 and "The probe passed" in out and "A private step of 8 records takes" in out


def test_a_model_that_can_be_trained_is_probed_and_its_costs_are_shown(run):
    code, out, _ = run("checked_models:good", "--example", EXAMPLE)
    assert (
        code == 0
        and "layer, group, instance or RMS normalization" in out
        and "first-order optimizer" in out
    )
    assert (
        "The probe passed" in out
        and "engine 'bookkeeping'" in out
        and "It can be trained as it is." in out
    )
    assert "It has no buffers." in out and "one record at a time: bookkeeping agrees to" in out
    assert (
        "A private step of 256 records takes" in out
        and "times a plain one" in out
        and "MB at its peak" in out
    )
    code, out, _ = run("checked_models:good")
    assert code == 0 and "Give --example" in out and "engine" not in out


def test_a_model_that_mixes_records_fails_the_probe(run):
    code, out, _ = run("checked_models:mixing", "--example", "float32[4]")
    assert code == 1 and "The probe failed: IsolationError: The module '1' (Mixing)" in out
    assert run("checked_models:mixing")[0] == 0  # no row of the table knows it


def test_json_has_all_of_it(run):
    code, out, _ = run(
        "checked_models:good",
        "--example",
        "float32[1, 6, 6], int64[]",
        "--batch-size",
        "32",
        "--json",
    )
    found = json.loads(out)
    assert found["expected"]["batch_size"] == 32 and found["expected"]["plain_seconds"] > 0
    assert [each["agrees"] for each in found["probe"]["parity"]] == [True] * 3
    assert code == 0 and found["trainable"] and found["probe"]["passed"]
    assert {
        "component": "first-order optimizer",
        "places": ["SGD"],
        "verdict": "fine",
    }.items() <= found["components"][1].items()
    assert [layer["layer"] for layer in found["probe"]["explanation"]["layers"]] == ["1", "2", "3"]
    code, out, _ = run("checked_models:bad", "--json")
    assert code == 1 and json.loads(out)["components"][0]["verdict"] == "needs a change"


@pytest.mark.parametrize(
    "example",
    ["", "float32", "float33[2]", "float32[a]", "float32[2]int64[]", "float32[2];int64[]"],
)
def test_an_example_that_cannot_be_read_is_told_before_the_model_is_made(run, example):
    code, _, err = run("no_such_module:make", "--example", example)
    assert code == 2 and "types with shapes" in err


@pytest.mark.parametrize(
    ("factory", "says"),
    [
        ("checked_models:nothing", "torch.nn.Module"),
        ("checked_models:absent", "no 'absent'"),
        ("checked_models", "name"),
    ],
)
def test_what_is_no_factory_of_a_model_is_told(run, factory, says):
    code, _, err = run(factory)
    assert code == 2 and says in err and err.count("\n") == 1


def test_a_data_set_is_looked_at_too(run):
    code, out, _ = run("checked_models:alone", "--data", "checked_models:data")
    assert code == 0 and "nothing shows that one depends on another" in out
    code, _, err = run("checked_models:alone", "--data", "checked_models:Mixup")
    assert code == 1 and "reads other records" in " ".join(err.split())


def test_a_vocabulary_that_was_trained_on_private_text_is_refused(run):
    code, out, _ = run("checked_models:private_words")
    assert code == 1 and "needs a change" in out and "repeats parts of it" in out
    assert "trained on public text" in out and "docs/how-to/text.md" in out
    code, out, _ = run("checked_models:public_words")
    assert code == 0 and "vocabulary without private text" in out


@pytest.mark.parametrize(
    "example", ["x=float32[4],int64[]", "x=float32[4],x=int64[]", "x=float32", "=float32[4]"]
)
def test_an_example_with_some_names_is_an_error_that_shows_both_forms(run, example):
    code, _, err = run("checked_models:good", "--example", example)
    assert code == 2 and "'float32[3,32,32],int64[]'" in err and "'input_ids=int64[128]" in err
