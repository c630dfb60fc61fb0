"""How many records an engine has in memory at once."""

import pytest
import torch
from against_oracle import Subject
from torch import nn

from dpfy.gradients.bookkeeping import engine


@pytest.mark.parametrize(
    ("room", "records"), [(40, 40), (16, 16), (12, 16), (7, 14), (1, 2), (0.4, 1)]
)
def test_a_chunk_of_few_records_may_take_twice_the_room(monkeypatch, room, records):
    model, fields = (
        nn.Linear(4, 3),
        (torch.randn(5, 4, generator=torch.Generator().manual_seed(0)),),
    )
    numbers = Subject.prepared(model, fields).engine.numbers_per_record
    monkeypatch.setattr(engine, "NUMBERS_AT_ONCE", int(room * numbers))
    monkeypatch.setattr(engine, "_NUMBERS_PER_PARAMETER", 0)
    assert Subject.prepared(model, fields).engine.records_at_once == records


def test_a_large_model_has_more_records_in_a_chunk_since_every_chunk_adds_to_a_long_sum(
    monkeypatch,
):
    monkeypatch.setattr(engine, "NUMBERS_AT_ONCE", 1)
    fields = (torch.ones(5, 40),)
    few, many = (Subject.prepared(nn.Linear(40, wide), fields).engine for wide in (1, 400))
    assert many.records_at_once == 2 * 400 * 41 // many.numbers_per_record > few.records_at_once
