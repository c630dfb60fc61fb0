"""Book-keeping for importance sampling: norms of the very vectors, and sums of those that were
chosen.
"""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dpfy.gradients import EXACT_NORMS, ExactBookkeepingEngine, LoopEngine, VmapEngine
from dpfy.gradients.bookkeeping import exact
from dpfy.gradients.bookkeeping.contributions import Materialized, OuterProduct, Rematerialized
from dpfy.gradients.bookkeeping.embedding_rows import EmbeddingRows, TiedEmbedding
from dpfy.gradients.bookkeeping.exact import add_chosen, squared_lengths
from dpfy.gradients.chunk import Chunk
from dpfy.mechanisms.clipping import Clipping, clip_to
from dpfy.mechanisms.importance_bounds import LEAST_FLOOR, MOVED

GRID = 2.0**-40
N = 5


def numbers(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(math.prod(shape)))


def opposed(steps):
    """Inputs and output gradients whose products over time nearly cancel: a Gram matrix would lose
    most digits.
    """
    a, b = numbers(N, steps, 7).mul_(1e3), numbers(N, steps, 6)
    a[:, 1::2], b[:, 1::2] = -a[:, ::2] * (1 + 1e-5), b[:, ::2]
    return OuterProduct(a, b)


TOKENS = torch.tensor([[0, 1, 1, 3]] * (N - 1) + [[2, 2, 2, 2]])
FORMS = {
    "written out": Materialized(numbers(3, N, 8), lambda summed: summed.view(6, 4)),
    "one product": OuterProduct(numbers(N, 1, 7), numbers(N, 1, 6)),
    "a product of far apart": OuterProduct(
        numbers(N, 1, 7).double() * 1e150, numbers(N, 1, 6).double() * 1e-161
    ),
    "several products": opposed(4),
    "in blocks": Rematerialized(opposed(2).inputs, opposed(2).outputs, records_at_once=2),
    "rows": EmbeddingRows(TOKENS, numbers(N, 4, 7), 6),
    "tied": TiedEmbedding(EmbeddingRows(TOKENS, numbers(N, 4, 7), 6), opposed(2)),
}


def shape_of(part):
    return (6, 4) if isinstance(part, Materialized) else (6, 7)


@pytest.mark.parametrize("form", FORMS)
def test_a_norm_is_that_of_the_vector_that_is_added(form, monkeypatch):
    """A bound from above, a Gram matrix or another way of writing the vector out would be off by
    far more.
    """
    monkeypatch.setattr(exact, "BLOCK_NUMBERS", 2 * 6 * 7)  # two records at a time
    part = FORMS[form]
    squared = squared_lengths(part)
    for record in range(N):
        weights, total = (
            torch.zeros(N, dtype=torch.float64),
            torch.zeros(shape_of(part), dtype=torch.float64),
        )
        weights[record] = 0.37
        add_chosen(part, weights, total)
        assert float(total.norm()) == pytest.approx(0.37 * float(squared[record].sqrt()), rel=1e-13)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_products_of_nothing_are_zero_and_of_no_numbers_have_no_norm(dtype):
    factors = torch.tensor(
        [[0.0, 0.0], [1.0, math.nan], [math.inf, 1.0], [3.0, 4.0]], dtype=dtype
    ).unsqueeze(1)
    found = squared_lengths(OuterProduct(factors, torch.ones(4, 1, 4, dtype=dtype)))
    assert found[0] == 0 and not found[1:3].isfinite().any() and found[3] == 100


@pytest.mark.parametrize("form", [form for form in FORMS if form != "tied"])
def test_what_was_not_chosen_is_in_no_sum(form):
    part = FORMS[form]
    name, axis = ("gradients", 1) if isinstance(part, Materialized) else ("outputs", 0)
    spoilt = getattr(part, name).clone()
    spoilt.select(axis, 2).fill_(math.inf)
    weights = torch.tensor([0.5, 0.0, 0.0, 2.0, 0.0], dtype=torch.float64)
    sums = [torch.zeros(shape_of(part), dtype=torch.float64) for _ in range(2)]
    for each, total in zip((part, replace(part, **{name: spoilt})), sums, strict=True):
        add_chosen(each, weights, total)
    assert torch.equal(*sums) and bool(sums[0].any())
    add_chosen(part, torch.zeros(N, dtype=torch.float64), sums[0])
    assert torch.equal(*sums)


class Sequence(nn.Module):
    """Convolution, recurrence, a layer over time, and a table that is tied to the head."""

    def __init__(self):
        super().__init__()
        self.table, self.mix, self.recurrent = (
            nn.Embedding(11, 8),
            nn.Conv1d(8, 8, 3),
            nn.GRU(8, 8, batch_first=True),
        )
        self.over_time, self.head = nn.Linear(8, 8), nn.Linear(8, 11, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens):
        x = self.mix(self.table(tokens).transpose(1, 2)).transpose(1, 2)
        return self.head(torch.tanh(self.over_time(self.recurrent(x)[0]))).mean(1)


def image_net():
    return nn.Sequential(
        nn.Conv2d(1, 3, 3),
        nn.Tanh(),
        nn.Conv2d(3, 9, 3),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(144, 5),
    )


CASES = {
    "images": (image_net, lambda n: numbers(n, 1, 8, 8)),
    "tokens": (Sequence, lambda n: torch.arange(7 * n).view(n, 7) % 11),
}


def prepared(case, engine=ExactBookkeepingEngine, records=33):
    torch.manual_seed(0)
    make, inputs = CASES[case]
    model = make()
    x, y = inputs(records), torch.arange(records) % 5

    def loss_fn(x, y):
        return F.cross_entropy(model(x), y, reduction="none") * (
            1 + 20 * y
        )  # norms of very different sizes

    found = engine(model, dict(model.named_parameters()))
    found.prepare(
        loss_fn, lambda size, seed: Chunk((x[seed : seed + size], y[seed : seed + size]), size)
    )
    return found, loss_fn, x, y


def vector_sum(engine, loss_fn, chunk, weigh):
    """The flat sum, and the squared norms as they were seen."""
    count = len(engine.parameters)
    totals = [torch.zeros_like(p, dtype=torch.float64) for p in engine.parameters.values()]
    sums = engine.bounded_sums(loss_fn, chunk, Clipping(weigh, GRID, (0,) * count))
    sums.add_to(totals)
    return torch.cat([t.flatten() for t in totals]), torch.cat(
        [each.norms[:, 0] for each in sums.seen]
    )


@pytest.mark.parametrize("case", CASES)
def test_every_record_is_weighed_once_and_in_its_place(case):
    """Coins are told by place: a record that is not a number, or done again, must not take that of
    another.
    """
    engine, loss_fn, x, y = prepared(case)
    calls = []

    def weigh(norms):
        calls.append(norms.clone())
        return (torch.arange(len(norms)) % 2).double().unsqueeze(1)

    if x.is_floating_point():
        x[4] = math.nan
    found, _ = vector_sum(engine, loss_fn, Chunk((x[:9], y[:9]), 9), weigh)
    odd = torch.arange(1, 9, 2)
    oracle = LoopEngine(engine.model, engine.parameters)
    expected, norms = vector_sum(
        oracle, loss_fn, Chunk((x[odd], y[odd]), 4), lambda norms: torch.ones_like(norms)
    )
    assert len(calls) == 1 and len(calls[0]) == 9
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-5 * float(expected.norm()))
    assert torch.allclose(calls[0][odd, 0], norms, rtol=1e-4)
    assert bool(calls[0].isfinite()[4]) != x.is_floating_point()


@pytest.mark.parametrize("case", CASES)
def test_a_contribution_is_as_long_as_the_norm_that_decides_says(case):
    """One norm for the coin and the scale: with another for either, contributions were longer or
    came more often.
    """
    engine, loss_fn, x, y = prepared(case)
    for record in range(3):

        def alone(norms, record=record):
            return (torch.arange(len(norms)) == record).double().unsqueeze(1) * 0.4 / norms.sqrt()

        found, _ = vector_sum(engine, loss_fn, Chunk((x[:7], y[:7]), 7), alone)
        assert float(found.norm()) == pytest.approx(0.4, rel=1e-12)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    "size", [1, 4, 31, *(pytest.param(size, marks=pytest.mark.slow) for size in (95, 191))]
)
def test_one_record_more_moves_others_in_their_last_bits_only(case, size):
    """By what is allowed for, between contexts: without the record, with it at either end, and with
    a null one.
    """
    engine, loss_fn, x, y = prepared(case, records=max(33, size + 1))
    own = list(range(size))

    def vectors(chunk, places):
        return torch.stack(
            [
                vector_sum(
                    engine,
                    loss_fn,
                    chunk,
                    lambda norms, place=place: (
                        (torch.arange(len(norms)) == place).double().unsqueeze(1)
                    ),
                )[0]
                for place in places[:3]
            ]
        )

    before = vectors(Chunk((x[own], y[own]), size), own)
    lengths = before.norm(dim=1).clamp(min=LEAST_FLOOR * float(before.norm(dim=1).min()))
    for z in (x[-1:], torch.zeros_like(x[-1:])):
        for fields, places in (
            ((torch.cat([x[own], z]), torch.cat([y[own], y[-1:]])), own),
            ((torch.cat([z, x[own]]), torch.cat([y[-1:], y[own]])), [1 + place for place in own]),
        ):
            after = vectors(Chunk(fields, size + 1), places)
            assert float(((after - before).norm(dim=1) / lengths).max()) < MOVED


def test_sums_are_charged_as_those_in_float64_are():
    assert EXACT_NORMS["bookkeeping"] is ExactBookkeepingEngine and list(EXACT_NORMS) == [
        "bookkeeping",
        "vmap",
        "loop",
    ]
    assert ExactBookkeepingEngine.rounding == VmapEngine.rounding < 2.0**-22
    model = nn.Linear(200, 300, bias=False)
    engine = ExactBookkeepingEngine(model, dict(model.named_parameters()))
    x = numbers(60, 200)
    engine.prepare(lambda x: model(x).sum(1), lambda size, seed: Chunk((x[:size],), size))
    found, _ = vector_sum(engine, lambda x: model(x).sum(1), Chunk((x,), 60), clip_to(1.0))
    lengths = x.double().norm(dim=1) * math.sqrt(300)
    expected = (x.double() / lengths.unsqueeze(1)).sum(0).expand(300, 200).flatten()
    assert float((found - expected).norm()) < 1e-12  # in float32: 1e-7
