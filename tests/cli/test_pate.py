"""``dpfy plan pate`` and ``dpfy pate`` as a user runs them."""

import csv
import json

import pytest

from dpfy import account
from dpfy.cli.app import main

DIGITS = ["pate", "--data", "digits", "--parts", 12, "--answer-noise", 8, "--epsilon", 3]


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        with pytest.raises(SystemExit) as stopped:
            main([str(argument) for argument in arguments])
        output = capsys.readouterr()
        return stopped.value.code or 0, output.out, output.err

    return call


def test_the_number_of_labels_is_told_before_anything_is_spent(run):
    code, out, err = run("plan", "pate", "--epsilon", 2.6, "--delta", 1e-5)
    assert (code, err) == (0, "")
    assert "310 if 100%" in out and "leads by 144 of 250 votes" in out
    few = run("plan", "pate", "--epsilon", 3, "--delta", 1e-5, "--parts", 40)[1]
    assert "labels would be noise" in few
    every = ["--mechanism", "gnmax", "--json"]
    found = json.loads(run("plan", "pate", "--epsilon", 2.6, "--delta", 1e-5, *every)[1])
    assert found["labels"][0] == [1.0, 321] and found["epsilon"] <= 2.6


def test_groups_are_told_their_weights(run):
    code, out, _ = run("plan", "pate", "--budgets", "strict=1:.4,open=3:.6", "--delta", 1e-5)
    assert code == 0 and "group strict: μ = 0.2680, votes weigh 0.498" in out
    assert "times the labels that all records had" in out
    copies = ["--method", "upsample"]
    assert "3 copies" in run(
        "plan", "pate", "--budgets", "strict=1:.4,open=3:.6", "--delta", 1e-5, *copies
    )[1]  # fmt: skip


def test_labels_a_student_and_a_report(run, tmp_path):
    code, out, err = run(*DIGITS, "--out", "run")
    assert code == 0, err
    assert "of 324 public inputs are labelled" in out
    with open("run/labels.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert f"{len(rows)} of 324" in out and 5 <= len(rows) <= 16
    assert account("run/votes.dpl").claim(1e-5) <= 3
    text = next((tmp_path / "run" / "report").glob("*.md")).read_text(encoding="utf-8")
    assert "student sees public inputs" in text and "ε = 3.000" in text
    spent = (tmp_path / "run" / "votes.dpl").stat().st_size
    again = run(*DIGITS, "--out", "run")[1]
    assert f"{len(rows)} of 324" in again  # labels are kept: nothing is asked a second time
    assert (tmp_path / "run" / "votes.dpl").stat().st_size == spent


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["plan", "pate", "--delta", 1e-5], "--epsilon, such as 2.6, or --budgets"),
        ([*DIGITS, "--out", "run", "--mechanism", "interactive"], "predicted="),
        ([*DIGITS, "--out", "run", "--threshold", 50], "threshold=50"),
    ],
)
def test_what_is_asked_wrongly_is_one_sentence(run, arguments, words):
    code, _, err = run(*arguments)
    assert code != 0 and words in err and "Traceback" not in err
