"""Schemas are declared, validated, and read back as they were written."""

import json
import string

import pytest
from hypothesis import given, strategies as st

from dpfy.errors import InvalidArgument
from dpfy.tabular import Column, Schema

NAMES = st.text(min_size=1, max_size=8)
NUMBERS = st.builds(
    lambda name, ends: Column(name, bounds=(ends[0], ends[-1]), knots=tuple(ends[1:-1])),
    NAMES,
    st.lists(st.floats(-1e9, 1e9), min_size=2, max_size=6, unique=True).map(sorted),
)
CATEGORIES = st.builds(
    lambda name, found: Column(name, categories=tuple(found)),
    NAMES,
    st.lists(st.text(max_size=5).map(str.strip), min_size=1, max_size=5, unique=True),
)
SCHEMAS = st.lists(
    NUMBERS | CATEGORIES, min_size=1, max_size=5, unique_by=lambda column: column.name
).map(lambda columns: Schema(tuple(columns)))


@given(schema=SCHEMAS)
def test_a_schema_is_read_back_from_toml_and_json(schema):
    assert Schema.from_toml(schema.to_toml()) == schema
    assert Schema.from_json(json.loads(json.dumps(schema.to_json()))) == schema


@pytest.mark.parametrize("suffix", ["toml", "json"])
def test_a_schema_is_read_from_a_file(suffix, tmp_path):
    schema = Schema((Column("marital status", categories=("yes", 'a "no"')),))
    file = tmp_path / f"a.{suffix}"
    text = schema.to_toml() if suffix == "toml" else json.dumps(schema.to_json())
    file.write_text(text, encoding="utf-8")
    assert Schema.read(file) == schema


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({}, "bounds or categories"),
        ({"bounds": (0, 1), "categories": ("a",)}, "not both"),
        ({"bounds": (1, 1)}, "increasing"),
        ({"bounds": (0, float("inf"))}, "bounds of 'x'"),
        ({"bounds": (-1.7e308, 1.7e308)}, "finite distance"),
        ({"bounds": (0, float("nan"))}, "bounds of 'x'"),
        ({"bounds": (0, 1, 2)}, "list of 2 numbers"),
        ({"bounds": "01"}, "list of 2 numbers"),
        ({"bounds": (0, 1), "knots": (0.5, 0.5)}, "increase inside"),
        ({"bounds": (0, 1), "knots": (1.0,)}, "increase inside"),
        ({"bounds": (0, 1), "fill": 2}, "fill of 'x'"),
        ({"categories": ()}, "one or more different"),
        ({"categories": ("a", " a")}, "one or more different"),
        ({"categories": "abc"}, "list of texts"),
        ({"categories": ("a",), "fill": 1.0}, "fill and knots are for numbers"),
        ({"categories": ("a",), "knots": (1.0,)}, "fill and knots are for numbers"),
    ],
)
def test_a_column_that_means_nothing_is_refused(fields, says):
    with pytest.raises(InvalidArgument, match=says):
        Column("x", **fields)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[columns]",
        "columns = 3",
        "[columns]\nx = 3",
        "[columns]\nx = { bounds = [0, 1], most = 2 }",
        "[columns]\nx = { bounds = [0, 1] }\n[other]\n",
        "[columns",
    ],
)
def test_a_text_that_is_no_schema_is_refused(text):
    with pytest.raises(InvalidArgument, match="Expected"):
        Schema.from_toml(text)


def test_columns_are_found_by_name():
    schema = Schema(tuple(Column(name, bounds=(0, 1)) for name in string.ascii_lowercase[:3]))
    assert schema["b"].name == "b" and len(schema) == 3
    assert schema.without("b").names == ("a", "c")
    with pytest.raises(InvalidArgument, match=r"got 'd'\. It has a, b, c"):
        schema.without("d")
    with pytest.raises(InvalidArgument, match="different names"):
        Schema((*schema.columns, schema["a"]))


def test_numbers_among_categories_are_texts():
    assert Column("x", categories=(1, 2.0, 2.5)).categories == ("1", "2", "2.5")
