"""A certificate is confirmed if, and only if, its ledger says the same."""

import json

import pytest

from dpfy.cli.app import main
from dpfy.errors import InvalidArgument
from dpfy.ledger import Ledger
from dpfy.reporting import report
from dpfy.reporting.certificate import differences

DELTA = 1e-5


@pytest.fixture
def published(make, facts, tmp_path):
    make(tmp_path / "ledger.dpl")
    report(tmp_path / "ledger.dpl", DELTA, facts).write(tmp_path)
    return tmp_path


def command(*arguments):
    with pytest.raises(SystemExit) as caught:
        main(["report", *arguments])
    return caught.value.code


def test_an_honest_certificate_is_confirmed(published, capsys):
    assert command(str(published), "--verify") in (0, None)
    assert "every number was computed again" in capsys.readouterr().out


@pytest.mark.parametrize(
    "edit",
    [
        lambda value: value["guarantee"].update(epsilon=value["guarantee"]["epsilon"] / 2),
        lambda value: value["ledger"].update(head_hash="0" * 64),
        lambda value: value["costs"]["attacks"].update(advantage=0.0),
        lambda value: value.update(formal_statement="Perfectly private."),
        lambda value: value["assumptions"].pop(),
        lambda value: value.pop("tier"),
    ],
)
def test_a_certificate_that_says_otherwise_is_refused(published, capsys, edit):
    path = published / "report.json"
    value = json.loads(path.read_text())
    edit(value)
    path.write_text(json.dumps(value))
    assert command(str(published), "--verify") == 1
    assert "$." in capsys.readouterr().out


def test_a_certificate_of_another_ledger_is_refused(published, make, tmp_path_factory):
    other = tmp_path_factory.mktemp("other") / "ledger.dpl"
    make(other, taken=3)
    found = differences(Ledger.read(other), json.loads((published / "report.json").read_text()))
    assert any("head_hash" in each for each in found) and any("epsilon" in each for each in found)


def test_what_is_no_certificate_is_explained(published, tmp_path):
    with pytest.raises(InvalidArgument, match="schema_version"):
        differences(Ledger.read(published / "ledger.dpl"), {"schema_version": 1})
    with pytest.raises(InvalidArgument, match="whole report"):
        differences(Ledger.read(published / "ledger.dpl"), {"schema_version": 3})
    (published / "report.json").unlink()
    assert command(str(published), "--verify") == 2
