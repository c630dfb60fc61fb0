"""Models, losses and records that ordinary synthetic input says nothing about: every contribution
stays bounded.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dpfy.checks.probe import Probe
from dpfy.errors import IsolationError
from dpfy.gradients import BookkeepingEngine, GhostEngine, LoopEngine
from dpfy.gradients.bookkeeping.contributions import Materialized, OuterProduct
from dpfy.gradients.chunk import Chunk
from dpfy.mechanisms.clipping import Clipping, clip_to

BOUND = 0.01


def chosen(model, loss, fields):
    example = Chunk(tuple(field[:1] for field in fields), 1)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    return Probe(model, trained, loss, example, declared=False).choose("auto")


def clipped_sum(engine, loss, chunk):
    totals = [torch.zeros_like(p, dtype=torch.float64) for p in engine.parameters.values()]
    clipping = Clipping(clip_to(BOUND), 2.0**-50, (0,) * len(totals))
    engine.bounded_sums(loss, chunk, clipping).add_to(totals)
    return torch.cat([total.flatten() for total in totals])


def assert_bounded(model, per_record, *fields):
    """The engine that is chosen gives what one record at a time gives, so no record moves the sum
    by more than C.
    """

    def loss(*some):
        return F.cross_entropy(per_record(*some[:-1]), some[-1], reduction="none")

    fields = (*fields, torch.arange(len(fields[0])) % 2)
    engine, chunk = chosen(model, loss, fields), Chunk(fields, len(fields[0]))
    expected = clipped_sum(LoopEngine(model, engine.parameters), loss, chunk)
    assert (clipped_sum(engine, loss, chunk) - expected).norm() <= 1e-3 * BOUND
    return engine


def rows(*shape, seed=3):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def linear(inputs, outputs=2, seed=1):
    torch.manual_seed(seed)
    return nn.Linear(inputs, outputs)


def with_one_large(records, factor=1000.0):
    records = records.clone()
    records[0] *= factor
    return records


def shrunk_by_the_largest(x):
    return x / x.abs().max().clamp(min=1)


def turned_by_the_largest(x):
    return torch.where(x.max() > 5, -x, x)


def moved_by_a_negative_mean(x):
    return x + torch.relu(-x.mean() - 1)


@pytest.mark.parametrize(
    "mix", [shrunk_by_the_largest, turned_by_the_largest, moved_by_a_negative_mean]
)
def test_a_threshold_that_synthetic_numbers_never_reach(mix):
    model = linear(4)
    engine = assert_bounded(model, lambda x: model(mix(x)), with_one_large(rows(6, 4), -1000))
    assert engine.isolates


def test_scores_that_are_shifted_by_the_largest_of_the_batch():
    model = linear(4)

    def scores(x):
        outputs = model(x)
        return (outputs - outputs.detach().max()).exp().clamp(min=1e-30).log()

    assert assert_bounded(model, scores, with_one_large(rows(6, 4))).isolates


class SortedByLength(nn.Module):
    """One layer has the records in the order of their lengths, and the other in their own."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = linear(3, 8), linear(8)

    def forward(self, x):
        lengths = (x.abs().sum(-1) > 0).sum(1)
        order = lengths.sort(descending=True, stable=True).indices
        return self.head(torch.tanh(self.layer(x[order])).sum(1)[order.argsort()])


def test_records_that_are_sorted_by_their_lengths():
    x = with_one_large(rows(6, 5, 3).flip(0), 50).flip(0)
    for record in range(6):
        x[record, record // 2 + 1 :] = 0
    model = SortedByLength()
    assert assert_bounded(model, model, x).isolates


class TimeFirstTokens(nn.Module):
    """Looks all tokens of a batch up in one run, those of a record far apart."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.table, self.head = nn.Embedding(50, 8), linear(8)
        self.head.requires_grad_(False)

    def forward(self, tokens, factors):
        records, steps = tokens.shape
        looked_up = self.table(tokens.t().reshape(-1)).view(steps, records, 8)
        return self.head(looked_up.mean(0)) * factors.unsqueeze(1)


def test_tokens_in_an_order_of_their_own():
    tokens = torch.arange(36).view(6, 6)
    model = TimeFirstTokens()
    assert assert_bounded(model, model, tokens, with_one_large(torch.ones(6))).isolates


class AttendingTwice(nn.Module):
    """Uses the projections of one attention as a whole, and once more in parts."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.attention, self.head = nn.MultiheadAttention(8, 2, batch_first=True), linear(8)
        self.head.requires_grad_(False)

    def forward(self, x):
        once, _ = self.attention(x, x, x, need_weights=False)
        twice, _ = self.attention(x, x * 1.0001, x * 1.0001, need_weights=False)
        return 0.05 * self.head((once + twice).mean(1))


def test_cross_terms_between_the_whole_and_the_parts_of_a_parameter():
    model = AttendingTwice()
    assert_bounded(model, model, 3 * rows(5, 4, 8))


@pytest.mark.parametrize("where", ["module", "tensor"])
def test_hooks_that_rescale_large_gradients(where):
    model = nn.Sequential(linear(4, 8), nn.Tanh(), linear(8))
    if where == "module":
        model[1].register_full_backward_hook(
            lambda module, found, given: (found[0] / found[0].norm().clamp(min=5),)
        )

    def scores(x, factors):
        hidden = model[1](model[0](x))
        if where == "tensor" and hidden.requires_grad:
            hidden.register_hook(lambda gradient: gradient / gradient.norm().clamp(min=5))
        return model[2](hidden) * factors.unsqueeze(1)

    assert assert_bounded(model, scores, rows(6, 4), with_one_large(torch.ones(6))).isolates


def test_code_that_mixes_large_batches_only():
    model = linear(4)
    with pytest.raises(IsolationError, match="in a large batch"):
        chosen(
            model,
            lambda x: model(x - x.mean(0) if len(x) > 8 else x).square().sum(1),
            (rows(6, 4),),
        )


def test_what_treats_records_alone_is_still_fast():
    model = nn.Sequential(linear(4, 8), nn.LayerNorm(8), nn.ReLU(), linear(8))
    assert assert_bounded(model, model, with_one_large(rows(6, 4))).name == "bookkeeping"


@pytest.mark.parametrize(
    "form",
    [
        lambda a, b: OuterProduct(a.unsqueeze(1), b.unsqueeze(1)),
        lambda a, b: Materialized.of(a.unsqueeze(1) * b.unsqueeze(2) * 1e-20),
    ],
    ids=["outer", "kept"],
)
def test_a_weight_below_the_normal_numbers_is_not_rounded_up(form):
    # 0.75 of the smallest number of float32 would become that number: a contribution of 1.33
    # bounds.
    a, b = torch.full((1, 1), 1e19), torch.full((1, 1), 1e19)
    contribution = form(a, b)
    norm = contribution.norms().squared.sqrt()
    weight = torch.tensor([0.75 * 2.0**-149], dtype=torch.float64)
    total = torch.zeros(1, 1, dtype=torch.float64)
    contribution.add_sum(weight, total)
    assert float(total.norm()) <= float(weight * norm)


class Summed(torch.autograd.Function):
    """A sum over an axis, whose gradient is a part of a larger memory, repeated without any of its
    own.
    """

    @staticmethod
    def forward(ctx, x, axis):
        ctx.shape, ctx.axis = x.shape, axis
        return x.sum(axis)

    @staticmethod
    def backward(ctx, gradient):
        memory = torch.full(
            (2 * gradient.numel() + gradient.numel() * ctx.shape[ctx.axis],),
            1e3,
            dtype=gradient.dtype,
        )
        memory[: gradient.numel()] = gradient.flatten()
        once = memory[: gradient.numel()].view(gradient.shape)
        return once.unsqueeze(ctx.axis).expand(ctx.shape), None


class Pooled(nn.Module):
    def __init__(self, layer, axis):
        super().__init__()
        self.layer, self.head, self.axis = layer, linear(8), axis

    def forward(self, x):
        return self.head(Summed.apply(self.layer(x), self.axis))


def prepared(engine, model, loss, shape, tokens=False):
    def examples(size, seed):
        numbers = rows(size, *shape, seed=seed)
        return Chunk(((numbers > 0).long() if tokens else numbers,), size)

    subject = engine(model, dict(model.named_parameters()))
    subject.prepare(loss, examples)
    return subject


@pytest.mark.parametrize(
    ("make", "axis"),
    [
        (lambda: nn.Linear(3, 8), 1),
        (lambda: nn.Sequential(nn.Linear(3, 8), nn.LayerNorm(8)), 1),
        (lambda: nn.Sequential(nn.Linear(3, 8), nn.PReLU()), 1),
        (lambda: nn.GRU(3, 8, batch_first=True), 1),
        (lambda: nn.Conv1d(3, 8, 3), 2),
        (lambda: nn.Sequential(nn.Conv1d(3, 8, 1), nn.GroupNorm(2, 8)), 2),
        (lambda: nn.ConvTranspose1d(3, 8, 3), 2),
    ],
    ids=[
        "linear",
        "layer norm",
        "prelu",
        "gru",
        "convolution",
        "group norm",
        "transposed convolution",
    ],
)
def test_gradients_that_are_repeated_without_memory(make, axis):
    # torch's kernel for group norm reads on beyond the end of such a gradient, in whatever comes
    # next.
    torch.manual_seed(1)
    layer = make()
    model = Pooled(nn.Sequential(layer, First()) if isinstance(layer, nn.GRU) else layer, axis)

    def loss(x):
        return model(x).square().sum(1)

    shape = (16, 3) if axis == 1 else (3, 16)
    subject, chunk = prepared(BookkeepingEngine, model, loss, shape), Chunk((rows(6, *shape),), 6)
    expected = clipped_sum(LoopEngine(model, subject.parameters), loss, chunk)
    assert (clipped_sum(subject, loss, chunk) - expected).norm() <= 1e-3 * BOUND


class First(nn.Module):
    def forward(self, outputs):
        return outputs[0]


@pytest.mark.parametrize("engine", [BookkeepingEngine, GhostEngine])
@pytest.mark.parametrize(
    ("make", "empty"),
    [
        (lambda: nn.Linear(3, 8), torch.zeros(4, 0, 3)),
        (lambda: nn.Embedding(9, 8), torch.zeros(4, 0, dtype=torch.long)),
    ],
    ids=["linear", "embedding"],
)
def test_records_without_a_single_step(engine, make, empty):
    # Such records come in a chunk of their own; an exception after their norms are known would end
    # the run.
    model = Pooled(make(), 1)

    def loss(x):
        return model(x).square().sum(1)

    subject = prepared(engine, model, loss, (5, *empty.shape[2:]), tokens=empty.dtype == torch.long)
    chunk = Chunk((empty,), 4)
    expected = clipped_sum(LoopEngine(model, subject.parameters), loss, chunk)
    assert (clipped_sum(subject, loss, chunk) - expected).norm() <= 1e-3 * BOUND
    assert expected.norm() > BOUND  # the head has a bias
