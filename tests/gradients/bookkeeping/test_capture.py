"""Units of several rows: every engine against plain autograd on one row at a time, and what no user
may do.
"""

import pytest
import torch
from against_oracle import Strict, StrictGhost, pattern_loss, shaken, trained_of
from hypothesis import given, settings, strategies as st
from torch import nn

from dpfy.gradients import BookkeepingEngine, GhostEngine, LoopEngine, VmapEngine
from dpfy.gradients.bookkeeping.arithmetic import Weights
from dpfy.gradients.bookkeeping.contributions import Materialized, OuterProduct
from dpfy.gradients.bookkeeping.embedding_rows import EmbeddingRows
from dpfy.gradients.bookkeeping.recorder import combined
from dpfy.gradients.bookkeeping.strategies import PendingSum
from dpfy.gradients.bookkeeping.workspace import Workspace
from dpfy.gradients.chunk import Chunk
from dpfy.gradients.losses import Losses
from dpfy.mechanisms.clipping import ClipEach, Clipping, clip_to

GRID = 2.0**-60
USERS = 4
ENGINES = {"loop": LoopEngine, "vmap": VmapEngine, "bookkeeping": Strict, "ghost": StrictGhost}


def floats(*shape):
    return torch.randn(
        shape, generator=torch.Generator().manual_seed(len(shape)), dtype=torch.float64
    )


def tokens(high, *shape):
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(high))


class Recurrent(nn.Module):
    """An LSTM whose last output is what counts."""

    def __init__(self):
        super().__init__()
        self.layer = nn.LSTM(3, 4, batch_first=True)

    def forward(self, x):
        return self.layer(x)[0][:, -1]


class Attending(nn.Module):
    """A class token and positions, which are parameters outside of layers, and attention over
    them.
    """

    def __init__(self):
        super().__init__()
        self.token, self.places = (
            nn.Parameter(torch.zeros(1, 1, 4)),
            nn.Parameter(torch.zeros(1, 4, 4)),
        )
        self.attention, self.norm = nn.MultiheadAttention(4, 2, batch_first=True), nn.LayerNorm(4)

    def forward(self, x):
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.places
        return self.norm(self.attention(x, x, x, need_weights=False)[0])[:, 0]


class TiedEmbedding(nn.Module):
    """A table that is also the head: rows, outer products and their inner product."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(7, 5), nn.Linear(5, 7, bias=False)
        self.head.weight = self.table.weight

    def forward(self, t):
        return self.head(torch.tanh(self.table(t)))


class Scaled(nn.Module):
    """A module without a rule: it is vectorised."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return torch.sin(x * self.weight) * self.weight.square().sum()


MODELS = {
    "linear": (
        lambda: nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2)),
        lambda n: floats(n, 3),
    ),
    "linear, wide": (lambda: nn.Linear(40, 30), lambda n: floats(n, 40)),
    "sequences": (lambda: nn.Linear(3, 4), lambda n: floats(n, 5, 3)),
    "sequences, wide": (lambda: nn.Linear(60, 70), lambda n: floats(n, 2, 60)),
    "conv, few channels": (
        lambda: nn.Sequential(nn.Conv2d(2, 3, 2), nn.PReLU(3)),
        lambda n: floats(n, 2, 4, 4),
    ),
    "conv, many channels": (
        lambda: nn.Sequential(nn.Conv2d(8, 8, 2), nn.GroupNorm(2, 8)),
        lambda n: floats(n, 8, 4, 4),
    ),
    "embedding": (lambda: nn.Embedding(4, 3), lambda n: tokens(4, n, 5)),
    "layer norm": (
        lambda: nn.Sequential(nn.LayerNorm(3), nn.Linear(3, 2)),
        lambda n: floats(n, 4, 3),
    ),
    "lstm": (Recurrent, lambda n: floats(n, 5, 3)),
    "attention": (Attending, lambda n: floats(n, 3, 4)),
    "tied": (TiedEmbedding, lambda n: tokens(7, n, 3)),
    "opaque": (lambda: nn.Sequential(Scaled(), nn.Linear(3, 2)), lambda n: floats(n, 3)),
}


def prepared(engine, model, loss_fn, fields):
    """An engine that has seen rows like those of ``fields``."""
    made = engine(model, trained_of(model))
    made.prepare(
        loss_fn,
        lambda size, seed: Chunk(
            tuple(f[torch.arange(seed, seed + size) % len(f)] for f in fields), size
        ),
    )
    return made


def summed(engine, loss_fn, chunk, clipping):
    totals = [torch.zeros_like(p, dtype=torch.float64) for p in engine.parameters.values()]
    engine.bounded_sums(loss_fn, chunk, clipping).add_to(totals)
    return totals


def gradients_of_users(model, loss_fn, fields, rows):
    """The mean over each user's rows of the gradients of single rows, by plain autograd: no chunk,
    no engine.
    """
    parameters = list(trained_of(model).values())
    singles = [
        torch.autograd.grad(loss_fn(*(f[row : row + 1] for f in fields)).sum(), parameters)
        for row in range(len(fields[0]))
    ]
    return [
        [
            torch.stack([g[place] for g in singles[start : start + rows]]).mean(0)
            for place in range(len(parameters))
        ]
        for start in range(0, len(singles), rows)
    ]


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_user_is_the_mean_over_its_rows_with_their_cross_terms(engine, name, rows):
    """Norms of single rows, their sum, rows of a neighbour or a sum instead of the mean would all
    fail.
    """
    if (engine, name) == ("vmap", "lstm"):
        pytest.skip("torch cannot vectorise an LSTM")
    make, field = MODELS[name]
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = shaken(make().double())
    fields, loss_fn = (field(USERS * rows),), pattern_loss(model)
    users = gradients_of_users(model, loss_fn, fields, rows)
    made, chunk = prepared(ENGINES[engine], model, loss_fn, fields), Chunk(fields, USERS, rows)
    parameters = len(users[0])
    for groups in ((0,) * parameters, tuple(range(parameters))):
        norms = torch.zeros(USERS, max(groups) + 1, dtype=torch.float64)
        for group, each in zip(groups, zip(*users, strict=True), strict=True):
            norms[:, group] += torch.stack([g.square().sum() for g in each])
        bounds = ClipEach(tuple(float(column.sqrt().median()) or 1.0 for column in norms.T))
        weights = bounds(norms)
        found = summed(made, loss_fn, chunk, Clipping(bounds, GRID, groups))
        for place, (total, group) in enumerate(zip(found, groups, strict=True)):
            expected = sum(
                user[place] * weight for user, weight in zip(users, weights[:, group], strict=True)
            )
            assert float((total - expected).norm()) <= 1e-5 * bounds.bounds[group], (place, groups)


@pytest.mark.parametrize("engine", ENGINES)
def test_statistics_of_a_user_are_means_over_its_rows(engine):
    model, x = nn.Linear(2, 1).double(), floats(6, 2)
    stats = {"hit": x[:, 0] > 0, "pair": x}

    def loss_fn(x):
        return Losses(model(x).squeeze(1), {"hit": x[:, 0] > 0, "pair": x})

    made = prepared(ENGINES[engine], model, loss_fn, (x,))
    sums = made.bounded_sums(loss_fn, Chunk((x,), 2, 3), Clipping(clip_to(1.0), GRID, (0, 0)))
    for name, values in stats.items():
        found = torch.cat([seen.stats[name] for seen in sums.seen])
        torch.testing.assert_close(found, values.double().unflatten(0, (2, 3)).mean(1))


# What no user may do

NUMBERS = st.one_of(
    st.floats(-100, 100, width=32),
    st.sampled_from([0.0, 1e-38, 1e18, -1e18, 3e38, float("nan"), float("inf"), -float("inf")]),
)
BOUND = 0.5


@st.composite
def chunks_of_users(draw):
    """Users with equally many rows of anything, in one chunk, some of whose rows nearly cancel."""
    users, rows, width = draw(st.integers(2, 4)), draw(st.integers(1, 4)), 3
    numbers = draw(st.lists(NUMBERS, min_size=users * rows * width, max_size=users * rows * width))
    x = torch.tensor(numbers, dtype=torch.float32).view(users, rows, width)
    if rows > 1 and draw(st.booleans()):
        size = draw(st.sampled_from([1.0, 1e5, 1e6]))
        x[0, 0] = size * torch.arange(1.0, 4.0)
        x[0, 1] = -x[0, 0] * (1 + draw(st.sampled_from([0.0, 1e-7, 1e-6, 1e-3])))
    return x, draw(st.integers(0, users - 1))


@pytest.mark.parametrize("outputs", [2, 40], ids=["written out", "from Gram matrices"])
@pytest.mark.parametrize(
    "engine", [LoopEngine, VmapEngine, BookkeepingEngine, GhostEngine], ids=lambda e: e.name
)
def test_one_user_more_moves_the_sum_by_at_most_the_bound(engine, outputs):
    torch.manual_seed(0)
    model = nn.Linear(3, outputs)

    def loss_fn(x):
        return model(x).sum(
            1
        )  # linear: the gradient is the row itself, so that rows cancel as they are

    made = prepared(engine, model, loss_fn, (torch.rand(5, 3),))

    @settings(max_examples=60)
    @given(chunks_of_users())
    def moves_by_at_most_the_bound(case):
        x, position = case
        users, rows = x.shape[:2]
        rest = [user for user in range(users) if user != position]
        clipping = Clipping(clip_to(BOUND), GRID, (0, 0))
        both = [
            summed(made, loss_fn, Chunk((some.flatten(0, 1),), len(some), rows), clipping)
            for some in (x, x[rest])
        ]
        moved = torch.cat([(a - b).flatten() for a, b in zip(*both, strict=True)]).norm()
        assert float(moved) <= BOUND * (1 + 1e-9 + users * made.rounding)

    moves_by_at_most_the_bound()


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_the_bound_is_reached_by_a_user_and_not_by_each_of_its_rows(engine):
    model, x = nn.Linear(3, 2), torch.ones(5, 3)

    def loss_fn(x):
        return model(x).sum(1)

    made = prepared(engine, model, loss_fn, (torch.rand(5, 3),))
    found = summed(made, loss_fn, Chunk((x,), 1, 5), Clipping(clip_to(BOUND), GRID, (0, 0)))
    assert float(torch.cat([f.flatten() for f in found]).norm()) == pytest.approx(BOUND, rel=1e-4)


@pytest.mark.parametrize(
    "engine", [LoopEngine, VmapEngine, BookkeepingEngine, GhostEngine], ids=lambda e: e.name
)
def test_a_row_that_is_not_finite_takes_its_user_out_and_nobody_else(engine):
    model = nn.Linear(3, 2)
    x = torch.ones(6, 3)
    x[1, 0] = float("nan")

    def loss_fn(x):
        return model(x).sum(1)

    made = prepared(engine, model, loss_fn, (torch.rand(5, 3),))
    found = summed(made, loss_fn, Chunk((x,), 3, 2), Clipping(clip_to(100.0), GRID, (0, 0)))
    assert [f.unique().tolist() for f in found] == [[2.0], [2.0]]


# Folding


def test_folding_keeps_what_a_unit_adds_and_never_shows_less_than_its_norm():
    a, b, places = floats(6, 2, 3), floats(6, 2, 4), tokens(4, 6, 2)
    rows = EmbeddingRows(places, floats(6, 2, 3), 4)
    for part in (
        OuterProduct(a, b),
        OuterProduct(a, b).instantiate(),
        rows,
        combined([rows, OuterProduct(a, b)]),
    ):
        layers = part.folded(3)
        for position in range(2):
            total, expected = (
                torch.zeros(4, 3, dtype=torch.float64),
                torch.zeros(4, 3, dtype=torch.float64),
            )
            layers.add_sum(torch.eye(2, dtype=torch.float64)[position], total)
            part.add_sum((torch.arange(6) // 3 == position).double(), expected)
            torch.testing.assert_close(total, expected)
            norm = layers.norms().squared[position].sqrt()
            assert total.norm() <= norm <= total.norm() * (1 + 1e-9)


def test_short_floats_of_a_unit_are_added_up_in_float32():
    gradients = torch.full(
        (1, 512, 1), 1 + 2**-7, dtype=torch.bfloat16
    )  # their sum in bfloat16 would be 512
    folded = Materialized(gradients, lambda summed: summed.view(1)).folded(512)
    assert folded.gradients.item() == 512 + 4


def test_sums_that_are_formed_before_a_failure_are_zeroed():
    """Nobody but the workspace knows their memory, which the next step is given."""

    class Failing(OuterProduct):
        def summed(self, weights, memory):
            raise MemoryError

    memory, weights = Workspace(), Weights(torch.ones(2, dtype=torch.float64))
    whole = OuterProduct(torch.ones(2, 1, 300), torch.ones(2, 1, 300))
    parts = [[(None, whole)], [(None, Failing(whole.inputs, whole.outputs))]]
    pending = PendingSum(parts, [weights] * 2, (), memory=memory)
    totals = [torch.zeros(300, 300, dtype=torch.float64) for _ in range(2)]
    with pytest.raises(MemoryError):
        pending.formed_in(totals)
    (array,) = memory._arrays
    assert len(array) == 300 * 300 and not array.any()
