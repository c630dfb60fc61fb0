"""Data sets of Hugging Face: loaded by columns, each row as it is alone."""

import random

import datasets
import pytest
import torch

from dpfy.checks.mixing import refuse_mixing
from dpfy.gradients.chunk import Chunk
from dpfy.records.records import Records

ROWS = [5, 0, 3, 3, 1]


def records_of(table):
    records = Records(table, None, 0)
    refuse_mixing(records)
    return records


def loaded(records, rows=ROWS):
    """The fields of all rows, by the place of each."""
    return {
        place: [field[at].tolist() for field in chunk.arguments[0].values()]
        for chunk, places in records.loading.groups(b"0" * 32, rows)
        for at, place in enumerate(places)
    }


def alone(table, rows=ROWS):
    return {
        place: [torch.as_tensor(value).tolist() for value in table[row].values()]
        for place, row in enumerate(rows)
    }


@pytest.mark.parametrize("form", ["torch", "numpy"])
@pytest.mark.parametrize("ragged", [False, True])
def test_rows_together_are_the_rows_alone(form, ragged):
    tokens = [[row] * (1 + row % 2 if ragged else 3) for row in range(6)]
    fields = {"tokens": tokens, "label": [*range(6)]}
    if form == "torch":  # numpy's numbers are longer alone than in a column
        fields["weight"] = [row / 7 for row in range(6)]
    table = datasets.Dataset.from_dict(fields).with_format(form)
    records = records_of(table)
    assert records.loading.together
    assert loaded(records) == alone(table)


def test_rows_of_one_shape_are_asked_for_once(monkeypatch):
    table = datasets.Dataset.from_dict({"x": [[1.0, 2.0]] * 6}).with_format("torch")
    records, asked = records_of(table), []
    own = datasets.Dataset.__getitem__
    monkeypatch.setattr(
        datasets.Dataset, "__getitem__", lambda self, key: asked.append(key) or own(self, key)
    )
    monkeypatch.delattr(datasets.Dataset, "__getitems__")
    assert len(loaded(records)) == len(ROWS)
    assert asked == [ROWS]


def test_a_missing_value_changes_no_other_row():
    table = datasets.Dataset.from_dict({"x": [*range(5), None]}).with_format("torch")
    example = Chunk.of({"x": torch.zeros(1, dtype=torch.int64)}, 1)
    records = Records(table, None, 0, example)
    refuse_mixing(records)
    assert loaded(records, [0, 3, 5]) == {0: [0], 1: [3]}


def test_a_transform_that_draws_random_numbers_is_called_for_each_row_alone():
    table = datasets.Dataset.from_dict({"x": [0.0] * 6})
    table = table.with_transform(
        lambda batch: {"x": [torch.tensor(random.random()) for _ in batch["x"]]}
    )
    records = records_of(table)
    first, second = loaded(records), loaded(records)
    assert not records.loading.together
    assert first == second and first[2] == first[3]  # the same row under the same key
