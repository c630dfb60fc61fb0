"""``dpfy predict`` and ``dpfy serve`` as a user runs them."""

import csv

import numpy as np
import pytest
import torch

from dpfy import Ledger, Teachers
from dpfy.cli.app import main
from dpfy.ensembles import LinearPredictor

BUDGET = ["--noise", 8, "--epsilon", 3, "--delta", 1e-6]


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    sign = LinearPredictor(torch.tensor([[0.0, 1.0]]), torch.zeros(2))
    Teachers([sign] * 40).save("ensemble")
    np.save("few.npy", np.array([[-3.0], [2.0], [2.0]]))
    np.save("many.npy", np.arange(20.0)[:, np.newaxis])

    def call(*arguments):
        with pytest.raises(SystemExit) as stopped:
            main([str(argument) for argument in arguments])
        output = capsys.readouterr()
        return stopped.value.code or 0, output.out, output.err

    return call


def answers(path):
    with open(path, encoding="utf-8", newline="") as file:
        return [row["answer"] for row in csv.DictReader(file)]


def test_inputs_are_answered_and_later_calls_go_on(run, tmp_path):
    code, out, err = run(
        "predict", "ensemble", "few.npy", "--out", "a.csv", "--classes", 2, *BUDGET
    )
    assert (code, err) == (0, "") and "3 answers in a.csv" in out and "buys 11 more" in out
    assert set(answers("a.csv")) <= {"0", "1"} and answers("a.csv")[1] == answers("a.csv")[2]
    code, out, _ = run("predict", "ensemble", "few.npy", "--out", "b.csv")
    assert code == 0 and answers("b.csv") == answers("a.csv") and "buys 11 more" in out
    assert Ledger.read(tmp_path / "ensemble" / "predictions.dpl").count == 2


def test_more_inputs_than_the_budget_buys_are_refused_before_anything_is_spent(run, tmp_path):
    first = ("predict", "ensemble", "many.npy", "--out", "a.csv")
    code, _, err = run(*first, "--classes", 2, *BUDGET, "--ledger", "own.dpl")
    assert code == 1 and "20 of the inputs are new, and the budget buys 13" in err
    assert Ledger.read("own.dpl").count == 0 and not (tmp_path / "a.csv").exists()
    code, out, err = run(*first, "--ledger", "own.dpl", "--partial")
    assert code == 1 and "7 inputs were refused" in err and "13 answers" in out
    assert answers("a.csv").count("") == 7


def test_regression_is_answered(run):
    code, _, _ = run("predict", "ensemble", "few.npy", "--out", "a.csv", "--bounds", "0:1", *BUDGET)
    assert code == 0 and all(0 <= float(answer) <= 1 for answer in answers("a.csv"))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ([], "Declare it"),
        (["--classes", 2, "--noise", 8], "needs --epsilon too"),
        (["--bounds", "0-1", *BUDGET], "low:high"),
        (["--bounds", "0", *BUDGET], "two numbers"),
        (["--classes", 1, *BUDGET], "classes=1"),
        (["--classes", 2, "--format", "nowhere:kept", *BUDGET], "module:name"),
        (["--classes", 2, "--threshold", 9, *BUDGET], "together"),
    ],
)
def test_bad_options_are_told(run, change, text):
    code, _, err = run("predict", "ensemble", "few.npy", "--out", "a.csv", *change)
    assert code == 2 and text in err


def test_bad_files_are_told(run, tmp_path):
    (tmp_path / "text.npy").write_text("no array")
    np.save("objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    for file in ("text.npy", "objects.npy"):
        code, _, err = run("predict", "ensemble", file, "--out", "a.csv", "--classes", 2, *BUDGET)
        assert code == 2 and "an .npy file of numbers" in err
    (tmp_path / "a.csv").write_text("kept")
    code, _, err = run("predict", "ensemble", "few.npy", "--out", "a.csv", "--classes", 2, *BUDGET)
    assert code == 2 and "exists" in err and (tmp_path / "a.csv").read_text() == "kept"
    code, _, err = run("predict", "nowhere", "few.npy", "--out", "b.csv", "--classes", 2, *BUDGET)
    assert code == 1 and "no teachers" in err


def test_serve_makes_a_token_once_and_listens_to_this_machine(run, monkeypatch, tmp_path):
    pytest.importorskip("uvicorn")
    listened = []
    monkeypatch.setattr("dpfy.serving.server.serve", listened.append)
    code, out, _ = run("serve", "ensemble", "--classes", 2, *BUDGET, "--shape", "1", "--rows", 9)
    assert code == 0 and "buys 13 more" in out and "http://127.0.0.1:8000" in out
    token = out.split("shown once: ")[1].split("\n")[0]
    assert token not in (tmp_path / "ensemble" / "token.sha256").read_text()
    code, out, _ = run("serve", "ensemble")
    assert code == 0 and "shown once" not in out
    assert [each.host for each in listened] == ["127.0.0.1"] * 2
    assert listened[0].limits.rows == 9 and listened[0].workers == 2
    code, _, err = run("serve", "ensemble", "--shape", "a")
    assert code == 2 and "28x28" in err


def test_planner_says_how_many_answers_a_budget_buys(run):
    plan = ("plan", "predictions", "--parts", 40, "--epsilon", 3, "--delta", 1e-6, "--classes", 2)
    _, out, _ = run(*plan, "--noise", 8, "--trained-epsilon", 1)
    assert out.startswith("13 answers with noise 8") and "training privately is cheaper" in out
    assert '"answers": 5' in run(*plan, "--answers", 5, "--json")[1]
    assert run(*plan)[0] == 2
