"""Conversion to Arrow: every row arrives once, as declared, and no message quotes a cell."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import dpfy
from dpfy.data import ArrowRecords, Column, index, index_files

CSV = "age,name,hours,label\n30,ann,40.5,1\n,bob,secret,0\n41,ann,1e3,\n52,,7,1\n"
COLUMNS = ["x:float32=age,hours", "label:int64"]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Parts of a few rows, so that every seam is crossed."""
    monkeypatch.setattr(index, "_ROWS", 3)
    monkeypatch.setattr(index, "_BLOCK", 64)


def read(path):
    with pa.ipc.open_file(path) as reader:
        return reader.read_all()


def many(rows=20):
    rng = np.random.default_rng(0)
    return pa.table(
        {
            "user": pa.array(rng.integers(0, 5, rows)),
            "tokens": pa.array([list(range(row % 4)) for row in range(rows)], pa.list_(pa.int32())),
            "row": pa.array(range(rows)),
        }
    )


def test_csv_has_the_declared_types_and_a_bad_cell_is_missing(tmp_path):
    (tmp_path / "a.csv").write_text(CSV)
    told = []
    index_files([tmp_path / "a.csv"] * 2, tmp_path / "a.arrow", COLUMNS, advance=told.append)
    found = read(tmp_path / "a.arrow")
    assert found["x"].type == pa.list_(pa.float32(), 2) and found["label"].type == pa.int64()
    once = [[30, 40.5], [None, None], [41, 1000], [52, 7]]
    assert found["x"].to_pylist() == 2 * once and found["label"].to_pylist() == 2 * [1, 0, None, 1]
    assert told == sorted(told) and told[-1] == 1
    data = ArrowRecords(tmp_path / "a.arrow", [Column("x", fill=-1), Column("label", fill=9)])
    assert data[1][0].tolist() == [-1, -1] and data[2][1] == 9


@pytest.mark.parametrize("cell", ["1e999", "99999999999999999999", "-1", "1.5", "x", "\udcff"])
def test_one_cell_changes_no_other(tmp_path, cell):
    """A type that is guessed, or a batch that is read in another way, would show in the others."""
    for name, middle in {"with": cell, "without": "2"}.items():
        text = "v\n" + "1\n" * 5 + middle + "\n" + "3\n" * 5
        (tmp_path / f"{name}.csv").write_bytes(text.encode(errors="surrogateescape"))
        index_files([tmp_path / f"{name}.csv"], tmp_path / f"{name}.arrow", ["v:uint8"])
    found, other = (
        read(tmp_path / f"{name}.arrow")["v"].to_pylist() for name in ("with", "without")
    )
    assert found == [*other[:5], None, *other[6:]]


def test_parquet_keeps_its_types_and_rows(tmp_path):
    pq.write_table(many(), tmp_path / "a.parquet", row_group_size=7)
    index_files([tmp_path / "a.parquet"], tmp_path / "a.arrow")
    assert read(tmp_path / "a.arrow").equals(many())
    data = ArrowRecords(tmp_path / "a.arrow", [Column("tokens", length=2, fill=-1), "row"])
    assert [data[row][1].item() for row in range(20)] == list(range(20))
    assert data[2][0].tolist() == [0, 1] and data[1][0].tolist() == [0, -1]


def test_compressed_arrow_files_are_unpacked(tmp_path):
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(tmp_path / "a.feather", many().schema, options=options) as writer:
        writer.write_table(many(), max_chunksize=4)
    index_files([tmp_path / "a.feather"], tmp_path / "a.arrow", ["row:float32"])
    assert read(tmp_path / "a.arrow")["row"].to_pylist() == list(range(20))
    assert len(ArrowRecords(tmp_path / "a.arrow", ["row"])) == 20


@pytest.mark.parametrize("texts", [False, True])
def test_rows_are_sorted_by_user_as_ids_would_group_them(tmp_path, texts):
    table = many()
    if texts:
        names = [f"u{user}" for user in table["user"].to_pylist()]
        table = table.set_column(0, "user", pa.array(names))
    ids = [None if row == 4 else each for row, each in enumerate(table["user"].to_pylist())]
    table = table.set_column(0, "user", pa.array(ids))
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=7)
    index_files([tmp_path / "a.parquet"], tmp_path / "a.arrow", ["row"], users="user")
    data = ArrowRecords(tmp_path / "a.arrow", ["row"])
    users = dpfy.Users.sorted(tmp_path / "a.users.npy")
    expected = dpfy.Users.of(ids, 20)
    assert len(data) == users.count == 19 and data._layout._buffers[0].shape[0] > 1
    found = [[data[row][0].item() for row in users.rows_of(user)] for user in range(len(users))]
    assert found == [expected.rows_of(user).tolist() for user in range(len(expected))]
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "a.arrow",
        "a.parquet",
        "a.users.npy",
    ]


def test_a_run_over_users_of_a_converted_file(tmp_path):
    pq.write_table(many(), tmp_path / "a.parquet")
    index_files([tmp_path / "a.parquet"], tmp_path / "a.arrow", ["row:float32"], users="user")
    model = torch.nn.Linear(1, 1)
    plan = dpfy.dpsgd(records=5, batch_size=5, steps=1, noise_multiplier=1.0, unit="user")
    with dpfy.privatize(
        model,
        torch.optim.SGD(model.parameters(), lr=1.0),
        ArrowRecords(tmp_path / "a.arrow", ["row"]),
        plan,
        ledger=tmp_path / "run.dpl",
        unit_of=dpfy.Users.sorted(tmp_path / "a.users.npy"),
    ) as run:
        for batch in run:
            run.backward(lambda x: model(x[:, None])[:, 0], batch)
    assert model.weight.grad.any()


@pytest.mark.parametrize("rows", [0, 1])
def test_files_without_rows_have_no_users(tmp_path, rows):
    table = many().slice(0, rows)
    pq.write_table(table, tmp_path / "a.parquet")
    index_files([tmp_path / "a.parquet"], tmp_path / "a.arrow", users="user")
    assert len(dpfy.Users.sorted(tmp_path / "a.users.npy")) == rows
    assert len(ArrowRecords(tmp_path / "a.arrow", ["row"])) == rows


MALFORMED = {
    "ragged.csv": b"v,w\n1,2\nsecret\n",
    "torn.parquet": b"PAR1secret",
    "none.csv": b"",
    "text.arrow": b"secret" * 50,
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_files_are_named_and_not_quoted_and_leave_nothing(tmp_path, name):
    (tmp_path / name).write_bytes(MALFORMED[name])
    with pytest.raises(dpfy.DataError, match=name) as caught:
        index_files([tmp_path / name], tmp_path / "out.arrow", ["v:int64"])
    assert "secret" not in str(caught.value) and caught.value.__cause__ is None
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_what_is_asked_wrongly_is_refused(tmp_path):
    (tmp_path / "a.csv").write_text("secret,w\n1,2\n")
    out = tmp_path / "out.arrow"
    for columns in (["w"], []):
        with pytest.raises(dpfy.InvalidArgument, match="not guessed from values") as caught:
            index_files([tmp_path / "a.csv"], out, columns)
        assert "secret" not in str(caught.value)  # the first line may be a record
    with pytest.raises(dpfy.DataError, match="no column 'v'") as caught:
        index_files([tmp_path / "a.csv"], out, ["v:int64"])
    assert "secret" not in str(caught.value)
    for text in ("w:text", ":int8", "x=w", "x:int8=", "w:int8=a,,b"):
        with pytest.raises(dpfy.InvalidArgument, match="name:type=a,b,c"):
            index_files([tmp_path / "a.csv"], out, [text])
    with pytest.raises(dpfy.DataError, match="no such file"):
        index_files([tmp_path / "b.csv"], out, ["w:int8"])
    with pytest.raises(dpfy.DataError, match="of the form"):
        index_files([tmp_path / "b.tar"], out, ["w:int8"])
    pq.write_table(many(), tmp_path / "a.parquet")
    pq.write_table(many().select(["row", "user"]), tmp_path / "b.parquet")
    with pytest.raises(dpfy.DataError, match="other names or types"):
        index_files([tmp_path / "a.parquet", tmp_path / "b.parquet"], out)


def test_an_existing_file_stays_as_it_is(tmp_path):
    (tmp_path / "a.csv").write_text("w\n1\n")
    for name in ("out.arrow", "out.users.npy"):
        (tmp_path / name).write_text("kept")
        with pytest.raises(dpfy.DataError, match="exists"):
            index_files([tmp_path / "a.csv"], tmp_path / "out.arrow", ["w:int8"], users="w")
        assert (tmp_path / name).read_text() == "kept"
        (tmp_path / name).unlink()
    with pytest.raises(dpfy.DataError, match="could not be written"):
        index_files([tmp_path / "a.csv"], tmp_path / "no" / "out.arrow", ["w:int8"])
