"""Activation checkpointing: the same sums, and memory that is really saved."""

import gc

import pytest
import torch
import torch.nn.functional as F
from against_oracle import Strict, StrictGhost, Subject
from torch import nn
from torch.utils.checkpoint import checkpoint

import dpfy
from dpfy.gradients.bookkeeping import engine as engines
from dpfy.gradients.bookkeeping.live_memory import LiveMemory
from dpfy.mechanisms.clipping import ClipEach, clip_to

WIDTH, TIME, WORDS = 32, 16, 20


class Block(nn.Module):
    def __init__(self, checkpointed):
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.project, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.shift = nn.Parameter(0.1 * torch.randn(WIDTH))  # a use outside of any layer
        self.checkpointed, self.dropped = checkpointed, 0.0

    def attended(self, x):
        projected = self.project(self.before(x + self.shift)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in projected)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + F.dropout(self.out(mixed), self.dropped)
        return x + self.down(F.gelu(self.up(self.between(x))))

    def forward(self, x):
        if not self.checkpointed:
            return self.attended(x)
        return checkpoint(self.attended, x, use_reentrant=self.checkpointed == "reentrant")


class Transformer(nn.Module):
    def __init__(self, checkpointed, layers=12):
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.Sequential(*(Block(checkpointed) for _ in range(layers)))
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, x):
        return self.head(self.blocks(self.table(x)).mean(1))


def transformer(checkpointed, **options):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Transformer(checkpointed, **options)


def tokens(size):
    return torch.arange(size * TIME).view(size, TIME) * 7 % WORDS


def released(engine, checkpointed, grouped=False, size=8, **options):
    """The sums of a chunk as one vector, the peak of memory, and the engine."""
    model = transformer(checkpointed, **options)
    subject = Subject.prepared(model, (tokens(size),), engine=engine, grouped=grouped)
    count = len(subject.engine.parameters)
    weigh = ClipEach((0.01,) * count) if grouped else clip_to(0.05)
    gc.collect()
    with LiveMemory() as live:
        sums = subject.sums((tokens(size),), weigh)
    return torch.cat([each.flatten() for each in sums]), live.peak, subject.engine


@pytest.mark.parametrize(
    ("engine", "grouped"), [(StrictGhost, False), (Strict, True)], ids=["ghost", "bounds by group"]
)
def test_checkpointing_saves_memory_and_changes_no_bit(engine, grouped):
    """Rules that close over the inputs of layers keep what checkpointing drops: 0.71 and 0.76."""
    plain, without, _ = released(engine, None, grouped)
    found, peak, prepared = released(engine, "checkpointed", grouped)
    assert torch.equal(found, plain) and prepared.recomputes
    assert peak <= 0.7 * without


def test_book_keeping_of_a_flat_bound_gives_the_same_bits():
    plain, _, _ = released(Strict, None, layers=2)
    found, _, prepared = released(Strict, "checkpointed", layers=2)
    assert torch.equal(found, plain) and prepared.recomputes
    assert not any(layer.rule is None for layer in prepared.layers)


def test_masks_are_the_same_when_they_are_drawn_again():
    for engine in (Strict, StrictGhost):
        sums = []
        for kind in (None, "checkpointed"):
            model = transformer(kind, layers=2)
            subject = Subject.prepared(model, (tokens(6),), engine=engine)
            for block in model.blocks:
                block.dropped = 0.5
            torch.manual_seed(9)
            sums.append(subject.sums((tokens(6),), clip_to(0.05)))
        assert all(map(torch.equal, *sums))


class Layers(nn.Module):
    """Layers of every kind of rule, and one without a rule, in one checkpointed part."""

    def __init__(self, checkpointed):
        super().__init__()
        self.conv, self.norm, self.slope = (
            nn.Conv1d(4, 4, 3, padding=1),
            nn.GroupNorm(2, 4),
            nn.PReLU(),
        )
        self.lstm = nn.LSTM(4, 4, batch_first=True, bidirectional=True)
        self.gru, self.attention = nn.GRU(8, 4), nn.MultiheadAttention(4, 2, batch_first=True)
        self.bilinear, self.root = nn.Bilinear(4, 4, 3), nn.RMSNorm(3)
        self.checkpointed = checkpointed

    def inner(self, x):
        x = self.slope(self.norm(self.conv(x.mT))).mT
        x = self.gru(self.lstm(x)[0].transpose(0, 1))[0].transpose(0, 1)
        x = self.attention(x, x, x, need_weights=False)[0]
        return self.root(self.bilinear(x, x)).flatten(1)

    def forward(self, x):
        return (
            checkpoint(self.inner, x, use_reentrant=False) if self.checkpointed else self.inner(x)
        )


@pytest.mark.parametrize("engine", [Strict, StrictGhost], ids=lambda each: each.name)
def test_every_rule_works_when_its_layer_is_computed_again(engine):
    fields, sums = (torch.randn(5, 6, 4, generator=torch.Generator().manual_seed(2)),), []
    for checkpointed in (False, True):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = Layers(checkpointed)
        subject = Subject.prepared(model, fields, engine=engine)
        assert subject.engine.recomputes is checkpointed
        sums.append(subject.sums(fields, clip_to(0.05)))
    assert all(map(torch.equal, *sums))


def loss_of(model):
    return lambda x: model(x).square().sum(1)


def test_auto_takes_two_passes_where_book_keeping_would_keep_what_is_recomputed(monkeypatch):
    """And one pass where nothing is recomputed, or where all fits anyway."""
    chosen = {}
    for room in (2**25, 2**12):
        monkeypatch.setattr(engines, "NUMBERS_AT_ONCE", room)
        for kind in (None, "checkpointed"):
            model = transformer(kind, layers=2)
            chosen[room, kind] = dpfy.explain(model, tokens(4), loss_of(model)).engine
    assert chosen == {
        (2**25, None): "bookkeeping",
        (2**25, "checkpointed"): "bookkeeping",
        (2**12, None): "bookkeeping",
        (2**12, "checkpointed"): "ghost",
    }


def test_what_is_recomputed_counts_as_memory_of_a_record():
    """Only the inputs of blocks are saved; a block that is computed again takes memory, too."""
    _, peak, prepared = released(StrictGhost, "checkpointed", layers=2, size=8)
    assert 0.5 * peak / 8 <= 4 * prepared.numbers_per_record <= 2 * peak / 8


def test_reentrant_checkpointing_is_refused_with_the_remedy():
    model = transformer("reentrant", layers=1)
    with pytest.raises(dpfy.LossError, match="use_reentrant=False"):
        dpfy.explain(model, tokens(4), loss_of(model))
