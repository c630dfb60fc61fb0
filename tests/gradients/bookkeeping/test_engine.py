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
    monkeypatch.setattr(engine, "_NUMBERS_AT_ONCE", int(room * numbers))
    assert Subject.prepared(model, fields).engine.records_at_once == records
