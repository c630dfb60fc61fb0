"""``dpfy report``: from a ledger or the folder of a run to files or standard output."""

import json

import pytest
import typer
from typer.testing import CliRunner

from dpfy.cli.report import report as command
from dpfy.errors import InvalidArgument, LedgerError

app = typer.Typer()
app.command()(command)


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def folder(make, tmp_path):
    make(tmp_path / "ledger.dpl", taken=2, registered=2)
    return tmp_path


def test_markdown_without_a_folder(folder):
    result = run(folder / "ledger.dpl", "--delta", "1e-3")
    assert (
        result.exit_code == 0
        and result.stdout.startswith("# Privacy report")
        and "δ = 1e-3" in result.stdout
    )


def test_delta_comes_from_the_budget(folder):
    assert "δ = 1e-5" in run(folder).stdout


def test_files_and_declared_facts(folder, facts):
    (folder / "facts.json").write_text(json.dumps(facts.to_json()))
    out = folder / "out"
    result = run(folder, "--facts", folder / "facts.json", "--out", out)
    assert result.stdout.split() == [
        str(out / name) for name in ("report.md", "report.json", "report.html")
    ]
    assert json.loads((out / "report.json").read_text())["facts"] == facts.to_json()


def test_the_facts_of_an_earlier_report_are_used_again(folder, facts):
    (folder / "facts.json").write_text(json.dumps(facts.to_json()))
    run(folder, "--facts", folder / "facts.json", "--out", folder)
    assert run(folder).stdout.startswith("# Length of stay: wards")


def test_refusals(make, tmp_path):
    make(tmp_path / "ledger.dpl", taken=1, plan=None)
    (tmp_path / "facts.json").write_text("{")
    assert isinstance(run(tmp_path).exception, InvalidArgument)
    assert "--delta" in str(run(tmp_path).exception)
    assert "not JSON" in str(
        run(tmp_path, "--delta", "1e-5", "--facts", tmp_path / "facts.json").exception
    )
    assert isinstance(
        run(tmp_path / "missing.dpl", "--delta", "1e-5").exception, LedgerError | OSError
    )
