"""A synthetic table is columns by name, and comes back from its file through the same schema."""

import numpy as np

from dpfy.synthesis import SyntheticTable
from dpfy.tabular import Column, Schema, columns_of, read_table

TABLE = SyntheticTable(
    {
        "age": np.array([30, 41]),
        "pay": np.array([0.5, -1 / 3]),
        "job": np.array(["cook, chef", None], dtype=object),
    }
)


def test_a_file_is_read_back_as_it_was(tmp_path):
    schema = Schema(
        (
            Column("age", bounds=(0, 100)),
            Column("pay", bounds=(-1, 1)),
            Column("job", categories=("cook, chef", "nurse")),
        )
    )
    assert TABLE.to_csv(tmp_path / "t.csv") is None
    read = columns_of(read_table(tmp_path / "t.csv"), schema)
    assert read["age"].tolist() == [30, 41] and read["job"].tolist() == [0, 2]
    assert np.allclose(read["pay"], TABLE["pay"], atol=1e-8)
    assert (tmp_path / "t.csv").read_text(encoding="utf-8").rstrip("\n") == TABLE.to_csv()


def test_rows_are_counted():
    assert TABLE.rows == 2 and SyntheticTable().rows == 0
