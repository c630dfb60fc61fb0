"""Tables of every form are cleaned alike, by the schema alone, and no cell raises or shows."""

import csv
import warnings
from importlib.util import find_spec

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st
from pyarrow import parquet

from dpfy.errors import DataError, InvalidArgument
from dpfy.tabular import Column, Schema, columns_of, read_table
from dpfy.tabular.tables import header_of, row_count

SCHEMA = Schema((Column("age", bounds=(0, 100)), Column("sex", categories=("F", "M"))))
ROWS = [(30, "M"), (140, "F"), (None, "?"), (float("inf"), None)]
TABLE = {"age": [row[0] for row in ROWS], "sex": [row[1] for row in ROWS], "secret": [1, 2, 3, 4]}
CLEAN = {"age": [30, 100, 50, 50], "sex": [1, 0, 2, 2]}


class Awkward:
    """A cell that cannot be read in any way."""

    def __float__(self):
        raise RuntimeError("secret")

    __str__ = __repr__ = __eq__ = __float__
    __hash__ = None


FORMS = {
    "dict": TABLE,
    "pyarrow": pa.table(TABLE),
    "objects": np.array(ROWS, dtype=object),
    "rows": ROWS,
    "structured": np.array(
        [(row[0] if row[0] is not None else np.nan, row[1] or "") for row in ROWS],
        dtype=[("age", float), ("sex", "U5")],
    ),
}


if find_spec("pandas") is not None:  # which no part of dpfy needs
    import pandas as pd

    FORMS["pandas"] = pd.DataFrame(TABLE)
    FORMS["pandas-nullable"] = pd.DataFrame(TABLE).convert_dtypes()


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_table_is_cleaned_alike(form):
    found = columns_of(FORMS[form], SCHEMA)
    assert {name: each.tolist() for name, each in found.items()} == CLEAN
    assert row_count(FORMS[form], SCHEMA.names) == 4


CELLS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.binary(max_size=3),
    st.just(Awkward()),
    st.just([1, 2]),
    st.just(10**400),
)


@given(cells=st.lists(CELLS, max_size=6), wide=CELLS)
def test_no_cell_raises_warns_or_changes_another_row(cells, wide):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        alone = columns_of({"age": cells, "sex": cells}, SCHEMA)
        joined = columns_of({"age": [*cells, wide], "sex": [*cells, wide]}, SCHEMA)
    for name in SCHEMA.names:
        assert joined[name][: len(cells)].tolist() == alone[name].tolist()
    assert all(0 <= each <= 100 for each in joined["age"])
    assert all(each in (0, 1, 2) for each in joined["sex"])


def test_a_table_without_rows_is_a_table():
    assert [len(each) for each in columns_of({"age": [], "sex": []}, SCHEMA).values()] == [0, 0]


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"age": [1]}, "no column 'sex'"),
        ({"age": [1, 2], "sex": ["F"]}, "same length"),
        (np.zeros((3, 3)), "2 columns of the schema, got an array with 3 columns"),
        (np.zeros(3), "2 columns of the schema"),
        ({"age": np.zeros((2, 2)), "sex": ["F", "M"]}, "one dimension"),
    ],
)
def test_a_table_of_another_shape_is_refused(table, says):
    with pytest.raises(InvalidArgument, match=says):
        columns_of(table, SCHEMA)


def test_files_are_read_as_columns(tmp_path):
    (tmp_path / "a.csv").write_text("age, sex\n30,M\n140, F\n,?\nx\n1,M,9\n\n", encoding="utf-8")
    parquet.write_table(pa.table(TABLE), tmp_path / "a.parquet")
    csv = columns_of(read_table(tmp_path / "a.csv"), SCHEMA)
    assert csv["age"].tolist() == [30, 100, 50, 50, 1] and csv["sex"].tolist() == [1, 0, 2, 2, 1]
    found = columns_of(read_table(tmp_path / "a.parquet"), SCHEMA)
    assert {name: each.tolist() for name, each in found.items()} == CLEAN
    assert header_of(tmp_path / "a.csv") == ("age", "sex")
    assert header_of(tmp_path / "a.parquet") == ("age", "sex", "secret")


def test_a_file_that_cannot_be_read_is_named_and_not_quoted(tmp_path):
    (tmp_path / "bad.parquet").write_bytes(b"secret")
    for name, says in (
        ("none.csv", "No such file"),
        ("bad.parquet", "content that cannot be read"),
        ("a.xls", r"\.csv, \.parquet"),
    ):
        with pytest.raises(DataError, match=says) as caught:
            read_table(tmp_path / name)
        assert "secret" not in str(caught.value)


def test_a_very_long_cell_does_not_stop_the_others(tmp_path) -> None:
    file = tmp_path / "long.csv"
    file.write_text("age\n30\n" + "9" * 200_000 + "\n", encoding="utf-8")
    limit = csv.field_size_limit()
    assert len(read_table(file)["age"]) == 2
    assert csv.field_size_limit() == limit


@pytest.mark.parametrize(
    "cells",
    [
        pa.array([1, 10**15], pa.timestamp("s")),
        pa.array([1, 10**7], pa.date32()),
        pa.array([b"a", b"\xff"]).view(pa.string()),
    ],
    ids=["timestamp", "date", "text"],
)
def test_a_cell_that_python_has_no_value_for_is_missing(cells, tmp_path) -> None:
    schema = Schema((Column("c", categories=("1",)),))
    assert len(columns_of(pa.table({"c": cells}), schema)["c"]) == 2
    parquet.write_table(pa.table({"c": cells}), tmp_path / "odd.parquet")
    assert len(read_table(tmp_path / "odd.parquet")["c"]) == 2


def test_whether_a_column_came_as_numbers_or_texts_changes_no_category() -> None:
    schema = Schema((Column("c", categories=("0", "1.5", "7")),))
    expected = [0, 1, 2]
    for cells in (
        [0.0, 1.5, 7.0],
        ["0.0", "1.50", "007"],
        np.array([0, 1.5, 7], "f4"),
        ["-0", 1.5, 7],
    ):
        assert columns_of({"c": cells}, schema)["c"].tolist() == expected


def test_an_empty_line_is_a_row_where_there_is_one_column(tmp_path) -> None:
    (tmp_path / "one.csv").write_text("age\n30\n\n40\n", encoding="utf-8")
    assert read_table(tmp_path / "one.csv")["age"].tolist() == ["30", None, "40"]


def test_a_cell_causes_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert columns_of({"age": [np.complex128(1)], "sex": ["F"]}, SCHEMA)["age"].tolist()


@pytest.mark.parametrize("odd", [[1], [1, "F", 3], None, 7, "text", [1, ["F", "M"]], [[1, 2], "F"]])
def test_a_row_of_another_length_does_not_stop_the_others(odd) -> None:
    found = columns_of([(30, "M"), odd], SCHEMA)
    assert (found["age"][0], found["sex"][0], len(found["age"])) == (30, 1, 2)
    assert row_count([(30, "M"), odd], SCHEMA.names) == 2


def test_an_array_without_columns_is_refused_without_its_length() -> None:
    with pytest.raises(InvalidArgument) as refused:
        columns_of(np.zeros(271), SCHEMA)
    assert "271" not in str(refused.value)
