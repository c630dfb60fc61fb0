"""``dpfy inspect-data`` names bad records and says that what it prints is private."""

import pytest

from dpfy.cli.app import main

MODULE = """
import torch
records = [torch.ones(2), torch.tensor([1.0, float("nan")]), torch.ones(3)]

def load():
    return records
"""


@pytest.mark.parametrize("name", ["records", "load"])
def test_bad_records_are_listed_with_a_warning(tmp_path, monkeypatch, capsys, name):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / f"inspected_{name}.py").write_text(MODULE)
    with pytest.raises(SystemExit) as caught:
        main(["inspect-data", f"inspected_{name}:{name}", "--limit", "1"])
    output = capsys.readouterr()
    assert caught.value.code == 1
    assert "rivate facts" in output.err
    assert "record 1: holds NaN" in output.out and "2 findings in 3 records" in output.out
    assert "record 2" not in output.out


LABELS = """
import torch
from torch import nn
from torch.utils.data import TensorDataset

def load():
    return TensorDataset(torch.randn(5, 4), torch.tensor([0, 1, 3, 2, -1]))

def good():
    return TensorDataset(torch.randn(5, 4), torch.tensor([0, 1, 2, 2, 0]))

def network():
    return nn.Linear(4, 3)

model = network()

def own(model, x, y):
    return (0 * model(x)[:, 0] + 1.5 - y).log()  # NaN for the class 2

number = 3
"""


def inspected(tmp_path, monkeypatch, capsys, *arguments):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "inspected_labels.py").write_text(LABELS)
    with pytest.raises(SystemExit) as caught:
        main(["inspect-data", *(each.replace("@", "inspected_labels:") for each in arguments)])
    return caught.value.code, capsys.readouterr()


@pytest.mark.parametrize("model", ["@network", "@model"])
def test_labels_out_of_range_show_in_the_loss_of_a_model(tmp_path, monkeypatch, capsys, model):
    code, output = inspected(tmp_path, monkeypatch, capsys, "@load", "--model", model)
    assert code == 1 and "2 findings in 5 records" in output.out
    assert "record 2: has no loss (IndexError: Target 3 is out of bounds" in output.out
    assert "record 4: has no loss" in output.out
    code, output = inspected(tmp_path, monkeypatch, capsys, "@good", "--model", model)
    assert not code and "0 findings in 5 records" in output.out
    code, output = inspected(tmp_path, monkeypatch, capsys, "@load")
    assert not code  # without a model nobody knows


def test_an_own_loss_is_computed_for_each_record(tmp_path, monkeypatch, capsys):
    arguments = ("@good", "--model", "@model", "--loss", "@own")
    code, output = inspected(tmp_path, monkeypatch, capsys, *arguments)
    assert code == 1 and "record 2: has a loss that is NaN or infinite" in output.out


def test_a_loss_needs_a_model_and_a_task_is_one_of_three(tmp_path, monkeypatch, capsys):
    code, output = inspected(tmp_path, monkeypatch, capsys, "@good", "--loss", "@own")
    assert code == 2 and "give --model too" in output.err
    arguments = ("@good", "--model", "@model", "--task", "poetry")
    code, output = inspected(tmp_path, monkeypatch, capsys, *arguments)
    assert code == 2 and "'regression'" in output.err
    arguments = ("@good", "--model", "@number")
    code, output = inspected(tmp_path, monkeypatch, capsys, *arguments)
    assert code == 2 and "torch.nn.Module" in output.err


SEQUENCES = """
import torch

class Sequences(torch.utils.data.Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        return torch.ones(index + 1)

class Mixing(Sequences):
    rows = torch.ones(6, 2)

    def __init__(self):
        self.rows = torch.randn(6, 2)

    def __getitem__(self, index):
        return self.rows[index] + self.rows[index - 1]

def example():
    return torch.zeros(1, 4)
"""


def test_records_are_compared_with_the_declared_example(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "inspected_sequences.py").write_text(SEQUENCES)
    with pytest.raises(SystemExit) as caught:
        main(
            [
                "inspect-data",
                "inspected_sequences:Sequences",
                "--example",
                "inspected_sequences:example",
            ]
        )
    output = capsys.readouterr().out
    assert caught.value.code == 1 and "2 findings in 6 records" in output
    assert (
        "record 4: does not fit the declared example: it has float32[5], and the largest" in output
    )


def test_a_data_set_that_mixes_is_an_error(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "inspected_mixing.py").write_text(SEQUENCES)
    with pytest.raises(SystemExit) as caught:
        main(["inspect-data", "inspected_mixing:Mixing"])
    assert caught.value.code == 1 and "reads other records" in capsys.readouterr().err


TEXTS = """
texts = ["Call me.", "call  ME!", "Goodbye", "Call me."]
labelled = [(text, number) for number, text in enumerate(texts)]
authors = ["a", "a", "b", "c"]
"""


@pytest.mark.parametrize(
    ("options", "exact", "similar"),
    [
        (["texts"], "have to the letter: 1; units with one of them: 2 of 4", "records 0, 1, 3"),
        (
            ["labelled", "--field", "0"],
            "have to the letter: 1; units with one of them: 2 of 4",
            "records 0, 1, 3",
        ),
        (["labelled"], "have to the letter: 0; units with one of them: 0 of 4", ""),
        (["texts", "--users", "authors"], "2 of 3; most units with the same: 2", "records 0, 1, 3"),
    ],
    ids=str,
)
def test_texts_of_several_units_are_counted(tmp_path, monkeypatch, capsys, options, exact, similar):
    module = f"inspected_{abs(hash(str(options)))}"
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / f"{module}.py").write_text(TEXTS)
    options = [f"{module}:{each}" if each[0] not in "-0" else each for each in options]
    with pytest.raises(SystemExit) as caught:
        main(["inspect-data", *options, "--duplicates"])
    output = capsys.readouterr()
    assert not caught.value.code, output.err
    assert "rivate facts" in output.err
    assert exact in output.out
    assert (f"{similar}: the same word for word" in output.out) == bool(similar)
    assert "Call" not in output.out + output.err
