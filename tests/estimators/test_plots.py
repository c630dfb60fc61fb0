"""Plots show every name as it is, the noise, and no more bars than can be read."""

import pytest

from dpfy.errors import InvalidArgument
from dpfy.estimators import describe
from dpfy.tabular import Column, Schema

SCHEMA = Schema(
    (
        Column("price in $ or $$", bounds=(0, 1)),
        Column("many", categories=tuple(f"name{number}" for number in range(60))),
    )
)


def test_histograms_are_drawn(tmp_path):
    table = {SCHEMA.names[0]: [0.5] * 9, "many": ["name0"] * 9}
    summary = describe(table, SCHEMA, 1.0, insecure_test_key=1)
    drawn = summary.plot(tmp_path / "a.svg").read_text()
    assert "price in $ or $$" in drawn and "0.5 to 0.6" in drawn
    assert drawn.count(">name") <= 25
    assert summary.plot(tmp_path / "b.svg").read_text() == drawn
    with pytest.raises(InvalidArgument, match=r"\.png"):
        summary.plot(tmp_path / "a.txt")
