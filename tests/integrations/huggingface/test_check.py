"""``dpfy check`` on models of transformers, as their owners have them."""

import pytest

from dpfy.cli.app import main

MODULE = """
import torch
from tests.support.hf_models import ARCHITECTURES
from dpfy.integrations.huggingface import private_loss

def bert():
    return ARCHITECTURES["bert"].make()

def with_criterion():
    return bert(), torch.nn.CrossEntropyLoss(reduction="none")

def with_private_loss():
    model = bert()
    return model, torch.optim.AdamW(model.parameters()), private_loss(model, "classification")

def gpt2():
    return ARCHITECTURES["gpt2"].make()
"""
MASK = "attention_mask=int64[12]"


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "checked_transformers.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))

    def call(name, *arguments):
        with pytest.raises(SystemExit) as stopped:
            main(["check", f"checked_transformers:{name}", "--batch-size", "8", *arguments])
        output = capsys.readouterr()
        return stopped.value.code or 0, " ".join(output.out.split()), output.err

    return call


@pytest.mark.parametrize(
    ("name", "example"),
    [
        ("bert", "int64[12]"),
        ("bert", "int64[12],int64[]"),
        ("with_criterion", "int64[12],int64[]"),
        ("with_private_loss", f"input_ids=int64[12],{MASK},labels=int64[]"),
        ("gpt2", "input_ids=int64[12],labels=int64[12]"),
    ],
)
def test_it_is_probed_whatever_its_owner_gives(run, name, example):
    code, out, err = run(name, "--example", example)
    assert code == 0, out + err
    assert "The probe passed" in out and "engine 'bookkeeping'" in out
    assert "model of transformers" in out and "private_loss and collate_to" in out


def test_a_mask_that_the_model_reads_as_a_whole_is_named_as_what_makes_it_slow(run):
    code, out, _ = run("bert", "--example", f"input_ids=int64[12],{MASK}")
    assert code == 0 and "engine 'loop'" in out and "masking_utils.py" in out


def test_fields_whose_names_nobody_knows_are_asked_for(run):
    code, _, err = run("bert", "--example", "int64[12],int64[12],int64[]")
    assert code == 2 and "Expected names for 3 fields" in err and "input_ids=int64[128]" in err
