"""``dpfy data index`` converts files, shows how far it is, and quotes no record."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dpfy
from dpfy.cli.app import main
from dpfy.data import ArrowRecords

ROWS = [f"{age},{40 + age},{age % 2},{age % 3}\n" for age in range(9)]
PEOPLE = "age,hours,y,who\n" + "".join(ROWS)


def said(capsys, *arguments):
    with pytest.raises(SystemExit) as caught:
        main(["data", "index", *map(str, arguments)])
    return caught.value.code or 0, *capsys.readouterr()


def test_a_csv_file_is_converted_with_a_bar(tmp_path, capsys):
    (tmp_path / "people.csv").write_text(PEOPLE)
    declared = ["--column", "x:float32=age,hours", "--column", "y:int64", "--users", "who"]
    out = tmp_path / "people.arrow"
    code, shown, bar = said(capsys, tmp_path / "people.csv", "--out", out, *declared)
    assert code == 0 and "converting" in bar and "100%" in bar
    assert "ArrowRecords" in shown and "people.users.npy" in shown
    data, users = ArrowRecords(out, ["x", "y"]), dpfy.Users.sorted(tmp_path / "people.users.npy")
    assert [data[row][0][0].item() for row in users.rows_of(1)] == [1, 4, 7]


def test_several_parquet_files_become_one(tmp_path, capsys):
    for number in range(2):
        rows = pa.table({"row": [2 * number, 2 * number + 1]})
        pq.write_table(rows, tmp_path / f"{number}.parquet")
    sources, out = sorted(tmp_path.glob("*.parquet")), tmp_path / "all.arrow"
    assert said(capsys, *sources, "--out", out)[0] == 0
    assert ArrowRecords(out, ["row"]).take_columns(range(4))[0].tolist() == [0, 1, 2, 3]


def test_errors_are_one_sentence_without_a_cell(tmp_path, capsys):
    (tmp_path / "a.csv").write_text("v,w\n1,2\nsecret\n")
    code, shown, error = said(
        capsys, tmp_path / "a.csv", "--out", tmp_path / "a.arrow", "--column", "v:int8"
    )
    assert code == 1 and "a.csv" in error and "Repair" in error
    assert "secret" not in shown + error and not (tmp_path / "a.arrow").exists()
    code, _, error = said(capsys, tmp_path / "a.csv", "--out", tmp_path / "a.arrow")
    assert code == 2 and "name:float32" in error
