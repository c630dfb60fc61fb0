"""``dpfy synth`` writes a table, its ledger, its report and a page, and quotes no cell."""

import sys

import pytest
from tests.support.synthetic import SCHEMA, people, without_mbi

from dpfy import account
from dpfy.cli.app import main
from dpfy.ledger import Ledger
from dpfy.tabular import read_table


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "people.toml").write_text(SCHEMA.to_toml())
    table = people(400)
    rows = "\n".join(",".join(map(str, row)) for row in zip(*table.values(), strict=True))
    (tmp_path / "people.csv").write_text(f"{','.join(table)}\n{rows}\nqwzx,qwzx\n\n7\n")
    return tmp_path


@pytest.fixture
def _no_package(monkeypatch):
    without_mbi(monkeypatch)


def said(capsys, *arguments):
    with pytest.raises(SystemExit) as caught:
        main(["synth", *map(str, arguments)])
    return caught.value.code or 0, *capsys.readouterr()


WANTED = ["people.csv", "--schema", "people.toml", "--epsilon", "1", "--out", "new.csv"]


@pytest.mark.usefixtures("_no_package")
@pytest.mark.parametrize("method", ["mst", "aim"])
def test_a_table_is_written_beside_what_it_cost(folder, capsys, method):
    code, shown, _ = said(capsys, *WANTED, "--method", method, "--rows", 50, "--whole", "age")
    assert code == 0 and "new.csv: 50 rows, (" in shown and "qwzx" not in shown
    table = read_table(folder / "new.csv")
    assert list(table) == list(SCHEMA.names) and len(table["age"]) == 50
    assert all("." not in age for age in table["age"])
    assert {path.name for path in (folder / "new").iterdir()} == {
        "ledger.dpl",
        "ledger.dpl.head",
        "report.md",
        "report.json",
        "report.html",
        "quality.html",
    }
    assert 0.99 < account(folder / "new" / "ledger.dpl").claim(1e-9) <= 1.0
    written = "".join(path.read_text(errors="replace") for path in (folder / "new").iterdir())
    assert "qwzx" not in written


@pytest.mark.usefixtures("_no_package")
def test_nothing_is_written_over(folder, capsys):
    said(capsys, *WANTED)
    before = (folder / "new.csv").read_bytes()
    code, shown, error = said(capsys, *WANTED)
    assert code == 2 and not shown and "new.csv exists" in error
    (folder / "new.csv").unlink()
    code, _, error = said(capsys, *WANTED)
    assert code == 2 and "new exists" in error and before


@pytest.mark.usefixtures("_no_package")
@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        (["--target", "nobody"], "nobody"),
        (["--method", "mwem"], "mwem"),
        (["--whole", "age", "--whole", "age"], "once"),
        (["--rows", "0"], "--rows 0"),
        (["--out", "new.parquet"], ".csv"),
        (["--method", "aim", "--target", "job"], "target"),
        (["--epsilon", "0"], "epsilon"),
    ],
)
def test_what_is_asked_wrongly_spends_nothing(folder, capsys, more, complaint):
    code, shown, error = said(capsys, *WANTED, *more)
    assert code == 2 and not shown and complaint in error and error.count("\n") == 1
    assert not (folder / "new").exists() and not (folder / "new.csv").exists()


def test_without_mbi_the_extra_is_named_and_nothing_is_spent(folder, capsys, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "mbi"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mbi", None)
    code, shown, error = said(capsys, *WANTED)
    assert code == 1 and not shown and "pip install 'dpfy[synth]'" in error
    assert not (folder / "new").exists()


@pytest.mark.usefixtures("_no_package")
def test_a_target_is_measured_with_every_column(folder, capsys):
    code, _, _ = said(capsys, *WANTED, "--target", "sex")
    names = {
        query.name
        for run in Ledger.read(folder / "new" / "ledger.dpl").uses
        for query in run.event.queries
    }
    assert code == 0 and "marginals with the target" in names
