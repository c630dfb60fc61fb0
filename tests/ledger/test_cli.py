import json

import pytest
from typer.testing import CliRunner

from dpfy.cli.ledger import ledger_app
from dpfy.ledger import Header, Ledger
from dpfy.ledger.events import Repeated, Sampled, SumQuery
from dpfy.ledger.individual import Individual


def run(*arguments):
    return CliRunner().invoke(ledger_app, [str(argument) for argument in arguments])


def test_verify_says_what_it_verified(small):
    result = run("verify", small)
    assert result.exit_code == 0
    assert "8 lines, 5 steps" in result.output and Ledger.read(small).head_hash in result.output


def test_verify_refuses_with_one_sentence_and_status_one(small, tmp_path):
    small.write_bytes(small.read_bytes()[:-1])
    for command in ("verify", "show"):
        result = run(command, small)
        assert (
            result.exit_code == 1
            and "line 8 (byte" in result.output
            and "Traceback" not in result.output
        )
    assert run("verify", tmp_path / "none.dpl").exit_code == 1


def test_verify_checks_the_anchor(small, tmp_path, step):
    anchor = tmp_path / "anchor"
    anchor.write_bytes(small.with_name("run.dpl.head").read_bytes())
    assert run("verify", small, "--anchor", anchor).exit_code == 0
    with Ledger.open(tmp_path / "other.dpl") as other:
        for _ in range(9):
            other.reserve(step)
    anchor.write_bytes((tmp_path / "other.dpl.head").read_bytes())
    result = run("verify", small, "--anchor", anchor)
    assert result.exit_code == 1 and "anchor" in result.output


def test_show_as_json_round_trips(small):
    result = run("show", small, "--json")
    shown, ledger = json.loads(result.output), Ledger.read(small)
    assert shown["steps"] == 5 and shown["lines"] == 8 and shown["head_hash"] == ledger.head_hash
    assert shown["uses"] == [run.to_json() for run in ledger.uses]
    assert shown["header"] == ledger.header.to_json()


def test_show_names_plan_unit_and_events(small):
    small.write_bytes(small.read_bytes() + b"torn")
    output = run("show", small).output
    for text in (
        "record",
        "add_or_remove_one",
        "unguarded",
        "registered steps",
        "4 bytes, counted as one step",
    ):
        assert text in output
    assert "Poisson(rate=0.02)" in output


@pytest.mark.parametrize("command", ["verify", "show"])
def test_help_has_an_example(command):
    assert f"dpfy ledger {command} run.dpl" in run(command, "--help").output


def test_show_lists_the_groups_of_records(tmp_path):
    groups = Individual(("strict", "open"), (0.02, 0.1), (0.5, 1.5), (0.5, 0.5))
    step = Sampled(groups, (SumQuery(1.0, 2.0),))
    with Ledger.open(tmp_path / "run.dpl", header=Header(envelope=(Repeated(step, 3),))):
        pass
    output = " ".join(run("show", tmp_path / "run.dpl").output.split())
    assert "groups strict: rate 0.02, bound 0.5; open: rate 0.1, bound 1.5" in output
