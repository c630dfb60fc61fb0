"""``dpfy tune`` as a user types it."""

import json

import pytest

from dpfy.cli.app import main

SHORT = ["--epochs", "1", "--batch-size", "1000", "--delta", "1e-3"]


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as caught:
        main(list(arguments))
    output = capsys.readouterr()
    return caught.value.code or 0, output.out, output.err


def test_a_composition_from_the_command_line(tmp_path, capsys, monkeypatch):
    """Fails if the whole search is not within the budget, or if the report does not follow from the
    ledger.
    """
    monkeypatch.chdir(tmp_path)
    code, out, err = run(
        capsys,
        "tune",
        *SHORT,
        "--search",
        "learning_rate=log:0.1:2",
        "--epsilon",
        "4",
        "--trials",
        "2",
        "--accounting",
        "compose",
        "--name",
        "a",
        "--json",
    )
    found = json.loads(out)
    assert code == 0 and "2 of 2 trials" in err
    whole, final = found["guarantees"]
    assert final["epsilon"] < whole["epsilon"] <= 4.0 and len(found["trials"]) == 2
    code, out, _ = run(capsys, "account", "runs/a/ledger.dpl", "--delta", "1e-3", "--json")
    assert json.loads(out)["epsilon"] == whole["epsilon"]
    assert run(capsys, "report", "runs/a", "--verify")[0] == 0
    code, _, err = run(capsys, "tune", "--resume", "runs/a")
    assert code == 2 and "has ended" in err


def test_workers_from_the_command_line(tmp_path, capsys, monkeypatch):
    """Fails if a flag reaches another command than it names, or if a search on public data claims
    to cost something.
    """
    monkeypatch.chdir(tmp_path)
    code, out, _ = run(
        capsys,
        "tune",
        *SHORT,
        "--search",
        "clip=0.5,1",
        "--epsilon",
        "4",
        "--trials",
        "2",
        "--accounting",
        "public",
        "--name",
        "a",
        "--share",
    )
    assert code == 0 and "dpfy tune --work runs/a" in " ".join(out.split())
    code, out, err = run(capsys, "tune", "--work", "runs/a", "--json")
    assert (
        code == 0
        and json.loads(out) == {"folder": "runs/a", "trials_done": 2}
        and "2 of 2 trials" in err
    )
    code, out, _ = run(capsys, "tune", "--finish", "runs/a")
    words = " ".join(out.split())
    assert code == 0 and "Nothing was charged" in words and "report: runs/a/report.md" in words


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--search", "clip=0.5,1"], "needs a budget"),
        (["--epsilon", "3"], "at least one setting"),
        (["--search", "clip=0.5,1", "--epsilon", "3", "--proposals", "bayesian"], "independent"),
        (["--search", "batch_size=100,200", "--epsilon", "3"], "cost more than another"),
        (["--resume", "nowhere"], "nowhere"),
        (["--resume", "nowhere", "--epsilon", "1"], "leave the other options out"),
        (["--work", "nowhere", "--share"], "leave the other options out"),
        (["--work", "nowhere"], "nowhere"),
        (["--work", "nowhere", "--trials", "50"], "leave the other options out"),
        (["--work", "nowhere", "--finish", "nowhere"], "leave the other options out"),
        (["--finish", "nowhere"], "nowhere"),
        (["--search", "clip=0.5,1", "--epsilon", "3", "--share"], "workers would see it"),
    ],
)
def test_mistakes_are_one_sentence_and_leave_nothing(
    tmp_path, capsys, monkeypatch, arguments, says
):
    monkeypatch.chdir(tmp_path)
    code, _, err = run(capsys, "tune", *arguments)
    assert code != 0 and says in err and err.startswith("Error: ") and err.count("\n") == 1
    assert not list(tmp_path.iterdir())
