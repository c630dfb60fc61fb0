"""The commands of a budget book, as a team uses them."""

import json
import sys
import zipfile

import pytest
import teams
from teams import PLAN

from dpfy.budgets import BudgetBook
from dpfy.cli.app import main


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    """Call a command of `dpfy budget` on a book that the environment names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPFY_BUDGET_BOOK", "sqlite:///team.db")
    monkeypatch.setenv("COLUMNS", "160")

    def call(*arguments, code=0):
        with pytest.raises(SystemExit) as stopped:
            main(["budget", *map(str, arguments)])
        output = capsys.readouterr()
        assert (stopped.value.code or 0) == code, output.err
        return output.out if code == 0 else output.err

    return call


def answer(text):
    return json.loads(text)


@pytest.fixture
def declared(run):
    run("create", "admissions", "--epsilon", 3, "--delta", "1e-5")
    with open("plan.json", "w") as file:
        json.dump(PLAN.to_json(), file)
    return run


def test_a_budget_from_its_declaration_to_the_export(declared, tmp_path):
    """Fails if a step of the team's way is missing, or tells another state than the book's."""
    reserved = declared("reserve", "admissions", "plan.json", "--purpose", "readmission v3")
    name = reserved.split()[1]
    assert ": reserved, epsilon " in reserved and "for readmission v3 by " in reserved
    with BudgetBook.open("sqlite:///team.db") as book:
        teams.run(book.grant(name), tmp_path / "run.dpl", steps=40)
    settled = answer(declared("settle", name, "run.dpl", "--json"))
    assert settled["state"] == "settled" and settled["id"] == name
    shown = answer(declared("show", "admissions", "--json"))
    assert shown["grants"] == [settled] and shown["spent"] == settled["epsilon"]
    table = declared("show", "admissions")
    assert "readmission v3" in table and f"{settled['epsilon']:.2f}"[:3] in table
    assert "admissions" in declared("list")
    log = [json.loads(line) for line in declared("log", "admissions", "--json").splitlines()]
    assert [entry["kind"] for entry in log[:3]] == ["create", "reserve", "activate"]
    assert "reserve" in declared("log") and str(log[-1]["number"]) in declared("log", "--after", 4)
    assert answer(declared("verify", "--json"))["entries"] == log[-1]["number"]
    assert "all of which hold" in declared("verify")
    declared("export", "auditor.zip")
    with zipfile.ZipFile("auditor.zip") as archive:
        assert {"entries.jsonl", f"ledgers/{name}.dpl"} <= set(archive.namelist())
    assert "exists" in declared("export", "auditor.zip", code=2)


def test_grants_are_withdrawn_and_forfeited_with_a_reason(declared):
    first, second = (
        answer(declared("reserve", "admissions", "plan.json", "--purpose", each, "--json"))["id"]
        for each in ("one", "other")
    )
    assert answer(declared("withdraw", first, "--json"))["state"] == "withdrawn"
    assert "forfeited" in declared("forfeit", second, "--reason", "the disk is gone")
    log = declared("log", "--json")
    assert "the disk is gone" in log
    assert "is withdrawn" in declared("forfeit", first, "--reason", "again", code=1)


def test_a_grant_is_reopened_with_the_ledger_of_its_folder(declared, tmp_path):
    grant = answer(declared("reserve", "admissions", "plan.json", "--purpose", "a", "--json"))["id"]
    (tmp_path / "runs").mkdir()
    with BudgetBook.open("sqlite:///team.db") as book:
        teams.run(book.grant(grant), tmp_path / "runs" / "ledger.dpl", steps=3)
    assert f"grant {grant} of admissions: active" in declared("reopen", grant, "runs")


def test_tranches_open_one_after_the_other(run):
    run("create", "visits", "--epsilon", 3, "--delta", "1e-5", "--tranche", 1, "--tranche", 2)
    assert "1, 2 (closed)" in run("show", "visits")
    assert answer(run("open-tranche", "visits", "--json"))["opened"] == 2
    assert "never raised" in run("open-tranche", "visits", code=1)


def test_a_script_that_calls_twice_reserves_once(declared):
    asked = ("reserve", "admissions", "plan.json", "--purpose", "nightly", "--key", "nightly-1")
    assert declared(*asked) == declared(*asked)
    with BudgetBook.open("sqlite:///team.db") as book:
        assert len(book.show("admissions").grants) == 1


def test_what_will_run_is_read_from_plans_events_and_ledgers(declared, tmp_path):
    """Fails if one of them is granted something else than its envelope."""
    with open("events.json", "w") as file:
        json.dump([run.to_json() for run in PLAN.envelope], file)
    with BudgetBook.open("sqlite:///team.db") as book:
        grant = book.reserve("admissions", PLAN, purpose="to have a ledger")
        teams.run(grant, tmp_path / "run.dpl", steps=100)
    costs = [
        answer(declared("reserve", "admissions", name, "--purpose", "a", "--json"))["epsilon"]
        for name in ("plan.json", "events.json", "run.dpl")
    ]
    assert costs[0] == costs[1] == costs[2] > 0


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("show", "nothing"), 1, "Expected a data set that has a budget in this book"),
        (("reserve", "admissions", "lost.json", "--purpose", "a"), 1, "lost.json"),
        (("reserve", "admissions", "plan.json", "--purpose", " "), 2, "what the run is for"),
        (("settle", "nothing", "run.dpl"), 1, "run.dpl"),
        (("withdraw", "nothing"), 1, "no grant 'nothing'"),
        (("create", "admissions", "--epsilon", 9, "--delta", "1e-5"), 1, "never changed"),
        (("create", "a b", "--epsilon", 9, "--delta", "1e-5"), 2, "letters, digits"),
        (("list", "--book", "mysql://host/db"), 2, "Expected the address of a book"),
        (("list", "--book", "sqlite:///lost/team.db"), 2, "does not exist"),
        (("list", "--book", "https://budget.example"), 2, "DPFY_BUDGET_TOKEN"),
        (("serve", "--book", "https://budget.example"), 2, "not served again"),
        (("serve", "--host", "0.0.0.0"), 2, "in the clear"),
        (("token", "anna"), 2, "--role"),
        (("token", "--role", "trainer"), 2, "--role"),
        (("token", "anna", "--role", "king"), 2, "role"),
        (("token", "anna", "--revoke"), 1, "has no token"),
    ],
    ids=lambda value: " ".join(map(str, value[:2])) if isinstance(value, tuple) else None,
)
def test_every_refusal_is_one_sentence_that_says_what_to_do(declared, arguments, code, says):
    told = declared(*arguments, code=code)
    assert told.startswith("Error: ") and says in told and told.count("\n") == 1


def test_a_plan_that_does_not_fit_is_refused_and_nothing_is_kept(declared):
    with open("large.json", "w") as file:
        json.dump({**PLAN.to_json(), "steps": 100_000}, file)
    told = declared("reserve", "admissions", "large.json", "--purpose", "a", code=1)
    assert "has no room" in told and "Nothing was read" in told
    assert answer(declared("show", "admissions", "--json"))["reserved"] == 0


def test_a_token_is_shown_once_and_its_hash_is_listed(run):
    told = answer(run("token", "anna", "--role", "auditor", "--json"))
    listed = run("token", "--json")
    assert told["token"] not in listed and told["sha256"] in listed
    assert "is revoked" in run("token", "anna", "--revoke")
    assert answer(run("token", "--json"))["tokens"][0]["revoked"]
    assert "anna" in run("token") and "shown once" in run("token", "bert", "--role", "trainer")


def test_a_missing_package_names_its_extra(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    assert "pip install 'dpfy[budget]'" in run("list", code=1)
