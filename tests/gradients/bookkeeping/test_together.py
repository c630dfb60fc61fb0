"""Several chunks in one pass are observed as each of them would be alone."""

import pytest
import torch
from torch import nn

from dpfy.gradients import BookkeepingEngine
from dpfy.gradients.base import Unsupported
from dpfy.gradients.bookkeeping import together
from dpfy.gradients.bookkeeping.capture import observe
from dpfy.gradients.bookkeeping.together import observed
from dpfy.gradients.chunk import Chunk

MODEL = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
CHUNKS = [Chunk((rows,), 3) for rows in torch.linspace(-2, 2, 48).view(4, 3, 4)]


def looking(calls, extra=lambda x: x):
    """Return what observes a pass, and notes that it did."""

    def look(chunk):
        calls.append(chunk)
        (x,) = chunk.arguments
        return observe(dict(MODEL.named_modules()), lambda: MODEL(extra(x)))

    return look


def same(one, other):
    return one.inputs.keys() == other.inputs.keys() and all(
        torch.allclose(a, b)
        for name in one.inputs
        for a, b in zip(one.inputs[name][0], other.inputs[name][0], strict=True)
    )


def refusing_reads(x):
    if float(x.detach().sum()) > 15:  # of the last chunk
        raise ValueError("not valid")
    return x


@pytest.mark.parametrize("most", [2**22, 0], ids=["together", "each"])
def test_each_chunk_is_seen_as_if_it_were_alone(monkeypatch, most):
    """Fails if a chunk is given another one's tensors, or sees that there are others."""
    monkeypatch.setattr(together, "_MOST_NUMBERS", most)
    calls = []
    before = looking([])(CHUNKS[0])
    first, found = observed(looking(calls), CHUNKS[0], before, CHUNKS)
    found = list(found)
    assert same(first, before) and (first is before) == (most == 0)
    assert len(calls) == (1 if most else len(CHUNKS))
    assert all(chunk.arguments[0].shape == (3, 4) for chunk in calls)
    assert all(same(one, looking([])(c)) for one, c in zip(found, CHUNKS, strict=True))


def test_a_loss_that_reads_values_is_called_for_each_and_may_fail():
    calls = []
    look = looking(calls, refusing_reads)
    _, found = observed(look, CHUNKS[0], looking([])(CHUNKS[0]), CHUNKS)
    assert [one is None for one in found] == [False, False, False, True]


class Swapping(nn.Module):
    """Gives other records what is large in a record."""

    def __init__(self, sign):
        super().__init__()
        self.layer, self.sign = nn.Linear(4, 2), sign

    def forward(self, x):
        return self.layer(x + torch.relu(self.sign * x - 100).flip(0))


@pytest.mark.parametrize("most", [2**22, 0], ids=["together", "each"])
@pytest.mark.parametrize("sign", [1, -1])
def test_what_only_extreme_numbers_mix_is_refused(monkeypatch, most, sign):
    monkeypatch.setattr(together, "_MOST_NUMBERS", most)
    model = Swapping(sign)
    engine = BookkeepingEngine(model, dict(model.named_parameters()))

    def examples(size, seed):
        rows = torch.rand(size, 4, generator=torch.Generator().manual_seed(seed))
        return Chunk((rows,), size)

    with pytest.raises(Unsupported, match="mixes records"):
        engine.prepare(lambda x: model(x).sum(1), examples)
