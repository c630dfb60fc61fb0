"""Rows of Arrow files: each is what its own row holds, in whatever batches and files it is."""

import multiprocessing
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pytest
import torch
from torch import nn

import dpfy
from dpfy.checks.mixing import check_data_set
from dpfy.data import ArrowRecords, Column
from dpfy.records.records import Records

ROWS = 50
RNG = np.random.default_rng(0)
NUMBERS = RNG.normal(size=ROWS)
LENGTHS = RNG.integers(0, 7, ROWS)
TOKENS = [RNG.integers(-9, 9, length).tolist() for length in LENGTHS]
GRID = RNG.integers(0, 255, (ROWS, 2, 3)).astype(np.uint8)
KINDS = {
    "x": pa.float32(),
    "flag": pa.bool_(),
    "tokens": pa.list_(pa.int32()),
    "long": pa.large_list(pa.int16()),
    "grid": pa.list_(pa.list_(pa.uint8(), 3), 2),
    "gaps": pa.list_(pa.int64(), 3),
}
VALUES = {
    "x": [None if row % 5 == 0 else float(np.float32(NUMBERS[row])) for row in range(ROWS)],
    "flag": [row % 3 == 0 for row in range(ROWS)],
    "tokens": [None if row % 11 == 0 else TOKENS[row] for row in range(ROWS)],
    "long": [[None if value == 3 else value for value in tokens] for tokens in TOKENS],
    "grid": GRID.tolist(),
    "gaps": [None if row % 7 == 0 else [row, None if row % 2 else -row, 1] for row in range(ROWS)],
}
COLUMNS = [
    Column("x", fill=-1),
    "flag",
    Column("tokens", length=4, fill=99),
    Column("long", length=5, fill=-7),
    "grid",
    Column("gaps", fill=8),
]


def expected(row):
    """What a record is, from its own values and the declaration."""

    def padded(values, length, fill):
        known = [fill if value is None else value for value in values or []][:length]
        return known + [fill] * (length - len(known))

    gaps = VALUES["gaps"][row]
    return (
        torch.tensor(-1.0 if VALUES["x"][row] is None else VALUES["x"][row]),
        torch.tensor(VALUES["flag"][row]),
        torch.tensor(padded(VALUES["tokens"][row], 4, 99), dtype=torch.int32),
        torch.tensor(padded(VALUES["long"][row], 5, -7), dtype=torch.int16),
        torch.from_numpy(GRID[row]),
        torch.tensor([8, 8, 8] if gaps is None else padded(gaps, 3, 8)),
    )


def same(one, other):
    return len(one) == len(other) and all(
        a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(one, other, strict=True)
    )


def table(rows=range(ROWS)):
    return pa.table(
        {name: pa.array([VALUES[name][row] for row in rows], kind) for name, kind in KINDS.items()}
    )


def written(path, content=None, batch=8, kind=pa.ipc.new_file, **options):
    content = table() if content is None else content
    with kind(path, content.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(content, max_chunksize=batch)
    return path


@pytest.mark.parametrize("batch", [1, 8, 100])
@pytest.mark.parametrize("kind", [pa.ipc.new_file, pa.ipc.new_stream])
def test_rows_are_what_was_written(tmp_path, batch, kind):
    """Bits that begin inside a byte, lists at the end of a file, and batches without a bitmap."""
    data = ArrowRecords(written(tmp_path / "a.arrow", batch=batch, kind=kind), COLUMNS)
    assert len(data) == ROWS
    assert all(same(data[row], expected(row)) for row in range(ROWS))
    chosen = [49, 0, 7, 7, 23]
    together = data.take_columns(chosen)
    for place, row in enumerate(chosen):
        assert same([column[place] for column in together], expected(row))
        assert same(data.__getitems__(chosen)[place], expected(row))
    assert all(column.shape[0] == 0 for column in data.take_columns([]))


def test_several_files_follow_each_other(tmp_path):
    first = written(tmp_path / "1.arrow", table(range(20)))
    pa.feather.write_feather(
        table(range(20, ROWS)), tmp_path / "2.feather", compression="uncompressed"
    )
    written(tmp_path / "3.arrow", table([]))
    (tmp_path / "notes.txt").write_text("not a file of records")
    data = ArrowRecords(tmp_path, COLUMNS)
    assert all(same(data[row], expected(row)) for row in range(ROWS))
    assert same(ArrowRecords([tmp_path / "2.feather", first], COLUMNS)[30], expected(0))


def test_the_declared_example_has_the_shape_of_every_record_and_no_value(tmp_path):
    data = ArrowRecords(written(tmp_path / "a.arrow"), COLUMNS)
    assert not any(leaf.any() for leaf in data.example_input)
    for leaf, field in zip(data.example_input, data[3], strict=True):
        assert (leaf.shape[1:], leaf.dtype) == (field.shape, field.dtype)


@pytest.mark.parametrize("index", [-1, ROWS])
def test_there_are_no_other_rows(tmp_path, index):
    """A negative place would be read from the batch before, or from the head of the file."""
    data = ArrowRecords(written(tmp_path / "a.arrow"), ["flag"])
    with pytest.raises(IndexError):
        data[index]


def test_a_missing_value_without_a_fill_takes_its_own_record_out(tmp_path):
    data = ArrowRecords(written(tmp_path / "a.arrow"), ["x", "flag"])
    records = Records(data, None, 0)
    (loaded,) = records.chunks([torch.arange(8)])
    assert loaded.indices == (1, 2, 3, 4, 6, 7)
    assert same(loaded.chunk.arguments, data.take_columns([1, 2, 3, 4, 6, 7]))
    with pytest.raises(dpfy.DataError, match="fill=0"):
        data[5]


def test_other_processes_open_the_files_themselves(tmp_path):
    data = ArrowRecords(written(tmp_path / "a.arrow"), COLUMNS)
    copy = pickle.loads(pickle.dumps(data))
    del data  # which closes its files
    assert same(copy[9], expected(9))
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert same(pool.apply(copy.__getitem__, (9,)), expected(9))


def private_gradient(data, tmp_path, name, **options):
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    plan = dpfy.dpsgd(records=ROWS, batch_size=ROWS // 2, steps=1, noise_multiplier=1.0)
    with dpfy.privatize(
        model,
        torch.optim.SGD(model.parameters(), lr=1.0),
        data,
        plan,
        ledger=tmp_path / name,
        insecure_test_key=3,
        **options,
    ) as run:
        (batch,) = run
        run.backward(lambda x: model(x.float())[:, 0], batch)
    return torch.cat([p.grad.flatten() for p in model.parameters()])


@pytest.mark.filterwarnings("ignore:.*insecure_test_key")
@pytest.mark.parametrize("workers", [0, 1])
def test_a_run_reads_columns_and_releases_what_it_releases_for_tensors(
    tmp_path, workers, monkeypatch
):
    data = ArrowRecords(written(tmp_path / "a.arrow"), [Column("gaps", fill=8)])
    tensors = torch.utils.data.TensorDataset(
        torch.stack([expected(row)[-1] for row in range(ROWS)])
    )
    check_data_set(data)
    with monkeypatch.context() as patched:
        patched.setattr(ArrowRecords, "__getitem__", None)  # no row is loaded alone
        found = private_gradient(data, tmp_path, "arrow.dpl", num_workers=workers)
    assert torch.equal(found, private_gradient(tensors, tmp_path, "tensors.dpl"))


@pytest.mark.parametrize(
    ("columns", "error", "says"),
    [
        (["other"], dpfy.DataError, "'other'.*one of x, flag"),
        (["tokens"], dpfy.DataError, "Declare a public length"),
        ([Column("x", length=3, fill=0)], dpfy.DataError, "Leave length= out"),
        (["text"], dpfy.DataError, "holds string"),
        ([Column("gaps", fill=0.5)], dpfy.InvalidArgument, "a value of its type int64"),
        ([], dpfy.InvalidArgument, "one or more columns"),
        ("x", dpfy.InvalidArgument, "one or more columns"),
    ],
)
def test_columns_that_have_no_fixed_shape_are_refused(tmp_path, columns, error, says):
    content = table().append_column("text", pa.array(["secret"] * ROWS))
    path = written(tmp_path / "a.arrow", content)
    with pytest.raises(error, match=says) as caught:
        ArrowRecords(path, columns)
    assert "secret" not in str(caught.value)


def test_a_length_needs_a_fill():
    with pytest.raises(dpfy.InvalidArgument, match="fill=0"):
        Column("tokens", length=3)


def test_files_that_cannot_be_read_in_place_are_refused(tmp_path):
    packed = written(tmp_path / "packed.arrow", compression="zstd")
    with pytest.raises(dpfy.DataError, match=r"compressed.*dpfy data index"):
        ArrowRecords(packed, ["x"])
    for name, content in {"empty": b"", "text": b"secret" * 99}.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(dpfy.DataError, match="Arrow file") as caught:
            ArrowRecords(tmp_path / name, ["x"])
        assert "secret" not in str(caught.value)
    with pytest.raises(dpfy.DataError, match="no such file"):
        ArrowRecords(tmp_path / "none.arrow", ["x"])
    with pytest.raises(dpfy.DataError, match="no Arrow file"):
        (tmp_path / "folder").mkdir()
        ArrowRecords(tmp_path / "folder", ["x"])
    other = written(tmp_path / "other.arrow", pa.table({"x": pa.array([1.0])}))
    with pytest.raises(dpfy.DataError, match="other types"):
        ArrowRecords([written(tmp_path / "a.arrow"), other], ["x"])


def test_a_file_that_was_cut_off_takes_only_its_own_rows_out(tmp_path):
    """The end of a row that is not there is no zero."""
    path = written(tmp_path / "a.arrow", table().select(["grid"]), batch=100)
    data = ArrowRecords(path, ["grid"])
    content = path.read_bytes()
    end = content.index(GRID[30].tobytes()) + 2
    with path.open("r+b") as file:
        file.truncate(end)
    (loaded,) = Records(data, None, 0).chunks([torch.arange(25, 35)])
    assert loaded.indices == (25, 26, 27, 28, 29)
