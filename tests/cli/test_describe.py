"""``dpfy describe`` prints numbers with their errors, writes a report, and quotes no cell."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpfy import account
from dpfy.cli.app import main

SCHEMA = """
[columns]
age = { bounds = [0, 100], knots = [20, 60] }
sex = { categories = ["F", "M"] }
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "people.toml").write_text(SCHEMA)
    rows = "".join(f"{age % 90},{'FM'[age % 2]}\n" for age in range(500))
    (tmp_path / "people.csv").write_text(f"age,sex\n{rows}secret,secret\n\n7\n")
    return tmp_path


def said(capsys, *arguments):
    with pytest.raises(SystemExit) as caught:
        main(["describe", *map(str, arguments)])
    return caught.value.code or 0, *capsys.readouterr()


WANTED = ["--schema", "people.toml", "--epsilon", "2"]


def test_a_table_is_printed_with_errors_and_the_claim(capsys):
    code, shown, error = said(capsys, "people.csv", *WANTED, "--quantile", "0.9", "--bins", 3)
    assert code == 0 and not error
    assert "90 %" in shown and "25 %" not in shown and "rows: 20 to 60" in shown
    assert "(2.0000, 1e-05)-differential privacy" in shown
    assert "secret" not in shown


def test_a_delta_that_is_not_below_one_over_the_rows_is_noted(capsys):
    code, shown, error = said(capsys, "people.csv", *WANTED, "--delta", "0.01")
    assert code == 0 and "0.01)-differential privacy" in shown
    assert error.startswith("Note: δ = 1e-2 is not below 1/50") and error.count("\n") == 1


def test_a_folder_holds_the_report_and_the_ledger_and_is_used_once(folder, capsys):
    code, shown, _ = said(capsys, "people.csv", *WANTED, "--out", "runs/people")
    assert code == 0 and "summary.svg" in shown
    written = {file.name for file in (folder / "runs/people").iterdir()}
    assert written == {
        "ledger.dpl",
        "ledger.dpl.head",
        "report.md",
        "report.json",
        "report.html",
        "summary.json",
        "summary.svg",
    }
    assert 1.99 < account(folder / "runs/people/ledger.dpl").claim(1e-5) <= 2
    code, shown, error = said(capsys, "people.csv", *WANTED, "--out", "runs/people")
    assert code != 0 and not shown and error.startswith("Error:")


def test_parquet_and_json(folder, capsys):
    table = pa.table({"age": [1.0, None] * 50, "sex": ["F", "x"] * 50, "unused": [0] * 100})
    pq.write_table(table, folder / "people.parquet")
    code, shown, _ = said(
        capsys, "people.parquet", *WANTED, "--delta", "1e-6", "--ledger", "p.dpl", "--json"
    )
    values = json.loads(shown)
    assert code == 0 and values["delta"] == 1e-6 and values["records"] == 100
    assert {row["column"] for row in values["rows"]} == {"age", "sex"}
    assert 1.99 < account(folder / "p.dpl").claim(1e-6) <= 2


def test_errors_are_one_sentence(folder, capsys):
    (folder / "other.csv").write_text("age\n1\n")
    code, shown, error = said(capsys, "other.csv", *WANTED, "--out", "runs/other")
    assert code and not shown and "no column 'sex'" in error
    assert not (folder / "runs/other").exists()
    code, _, error = said(capsys, "none.csv", *WANTED)
    assert code and "none.csv" in error
    code, _, error = said(capsys, "people.csv", "--schema", "people.toml")
    assert code == 2 and "--epsilon" in error
