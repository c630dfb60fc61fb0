"""Templates hold names alone; public data fills bounds, knots and categories."""

import pytest

from dpfy.errors import DataError, InvalidArgument
from dpfy.tabular import Schema, schema_from_public, template


def test_a_template_becomes_a_schema_when_its_marks_are_removed(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text('age,"job, title"\n7,secret\n', encoding="utf-8")
    text = template(file)
    assert "secret" not in text and "7" not in text.replace("a.csv", "")
    lines = [line for line in text.splitlines() if "bounds = [0" in line]
    schema = Schema.from_toml("\n".join(["[columns]", *(line[2:] for line in lines)]))
    assert schema.names == ("age", "job, title")
    with pytest.raises(DataError):
        template(tmp_path / "none.csv")


def test_numbers_and_categories_are_told_apart():
    table = {
        "number": [*range(100), "?", None],
        "text": ["a", "b", "", "NA", *["a"] * 98],
        "constant": [5] * 102,
        "mixed": [*range(50), *["x"] * 52],
    }
    schema = schema_from_public(table, tuple(table))
    assert schema["number"].bounds == (0, 99) and len(schema["number"].knots) == 4
    assert schema["text"].categories == ("a", "b")
    assert schema["constant"].categories == ("5",)
    assert len(schema["mixed"].categories) == 51


@pytest.mark.parametrize("values", [["", None], [f"id{each}" for each in range(2000)]])
def test_a_column_without_meaning_is_refused(values):
    with pytest.raises(InvalidArgument, match="Leave it out"):
        schema_from_public({"a": values}, ("a",))
