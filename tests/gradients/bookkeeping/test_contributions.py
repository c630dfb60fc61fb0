"""What float32 must not do: a norm below the truth, a contribution above the bound, a record that
moves the others.
"""

import math
from fractions import Fraction

import pytest
import torch
from against_oracle import GRID, Subject
from hypothesis import given, settings, strategies as st
from torch import nn

from dpfy.gradients import BookkeepingEngine, GhostEngine
from dpfy.gradients.bookkeeping import arithmetic, contributions
from dpfy.gradients.bookkeeping.arithmetic import RECORD_ROUNDING, SUM_ROUNDING, Weights
from dpfy.gradients.bookkeeping.contributions import Materialized, OuterProduct, Rematerialized
from dpfy.gradients.bookkeeping.embedding_rows import EmbeddingRows, TiedEmbedding
from dpfy.gradients.bookkeeping.recorder import combined
from dpfy.gradients.bookkeeping.strategies import RAMP_ROUNDING
from dpfy.gradients.bookkeeping.workspace import Workspace
from dpfy.gradients.chunk import Chunk
from dpfy.mechanisms.clipping import ClipEach, Clipping, clip_to

ENGINES = pytest.mark.parametrize(
    "engine", [BookkeepingEngine, GhostEngine], ids=lambda engine: engine.name
)
BOUND = 1.0


def summed(model):
    """A loss that is linear in the outputs: all of them have the gradient one, so that inputs
    cancel as they are.
    """
    return lambda *fields: model(*fields).flatten(1).sum(1)


def moved_by(subject, fields, position):
    """How far the sums move when one record is taken out, in float64."""
    rest = [row for row in range(len(fields[0])) if row != position]
    together = subject.sums(fields, clip_to(BOUND))
    others = (
        subject.sums(tuple(f[rest] for f in fields), clip_to(BOUND))
        if rest
        else [0.0] * len(together)
    )
    return float(
        torch.cat([(a - b).flatten() for a, b in zip(together, others, strict=True)]).norm()
    )


# Cancelling activations


class Twice(nn.Module):
    """A linear layer that is used on both halves of a record."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(32, 40)

    def forward(self, x):
        first, second = x.flatten(1)[:, :32], x.flatten(1)[:, -32:]
        return self.layer(first) + self.layer(second)


def opposed(size, steps, features, order):
    """Three records whose time steps nearly cancel, before three ordinary ones."""
    generator = torch.Generator().manual_seed(steps)
    x = torch.randn(6, steps, features, generator=generator)
    a = size * torch.rand(3, features, generator=generator)
    for step in range(steps - steps % 2):
        x[:3, step] = a if step % 2 == 0 else -a * (1 + 1e-6)
    return x if order == "features last" else x.transpose(1, 2).contiguous()


CANCELLING = {
    "linear, ghost": (lambda: nn.Linear(32, 4096), "features last"),
    "linear, large weight": (lambda: nn.Linear(128, 4096), "features last"),
    "linear, written out": (lambda: nn.Linear(4, 3), "features last"),
    "linear, used twice": (Twice, "features last"),
    "conv, few channels": (lambda: nn.Conv1d(4, 3, 2), "features first"),
    "conv, many channels": (lambda: nn.Conv1d(9, 10, 1), "features first"),
}


@ENGINES
@pytest.mark.parametrize("case", CANCELLING)
@pytest.mark.parametrize("size", [1e5, 1e6])
@pytest.mark.parametrize("steps", [2, 5, 64])
def test_time_steps_that_cancel_stay_within_the_bound(engine, case, size, steps):
    # In float32 a norm from Gram matrices loses all digits here, and three to three hundred bounds
    # pass through.
    make, order = CANCELLING[case]
    model = make()
    features = next(p.shape[1] for p in model.parameters() if p.ndim > 1)
    x = opposed(size, steps, features, order)
    subject = Subject.prepared(model, (x,), engine=engine, loss=summed)
    for position in (0, 2):
        assert moved_by(subject, (x,), position) <= BOUND * (1 + 6 * SUM_ROUNDING)


@pytest.mark.parametrize("steps", [2, 128, 129, 300])
def test_a_large_weight_is_given_what_each_record_has_and_nothing_of_the_others(monkeypatch, steps):
    """Fails if rows of two records meet in a product, a record is left out, or rounding that only
    cancelling terms have is missing in the norm.
    """
    monkeypatch.setattr(contributions, "LARGE_WEIGHT", 1)
    monkeypatch.setattr(arithmetic, "_TILE", 64)
    generator = torch.Generator().manual_seed(steps)
    a, b = (torch.randn(5, steps, width, generator=generator) for width in (16, 21))
    a[1, 1::2] = -a[1, : steps - steps % 2 : 2] * (1 + 1e-6)  # the second record cancels
    b[1] = b[1, :1]
    outer, weights = OuterProduct(1e6 * a, b), torch.rand(5, generator=generator)
    together = outer.summed(Weights(weights), Workspace())
    written = torch.einsum("n,ntp,ntd->npd", weights.double(), b.double(), 1e6 * a.double())
    norms = outer.norms()
    for record in range(5):
        only = torch.zeros(5).index_fill_(0, torch.tensor([record]), float(weights[record]))
        alone = OuterProduct(outer.inputs[[record]], b[[record]]).summed(
            Weights(only[[record]]), Workspace()
        )
        assert torch.equal(outer.summed(Weights(only), Workspace()), alone)
        error = float((alone.double() - written[record]).norm())
        assert error <= RECORD_ROUNDING * float(weights[record] * norms.magnitude[record])
        assert alone.double().norm() <= weights[record] * norms.squared[record].sqrt()
    allowed = RECORD_ROUNDING * float((weights * norms.magnitude).sum())
    assert float((together.double() - written.sum(0)).norm()) <= allowed
    total = torch.zeros(21, 16, dtype=torch.float64)
    outer.add_sum(weights, total)
    assert torch.equal(total.float(), together)


def test_a_large_tied_table_has_both_of_its_sums(monkeypatch):
    tokens, rows = torch.tensor([[1, 4, 1], [0, 0, 5]]), torch.randn(2, 3, 8)
    tied = TiedEmbedding(
        EmbeddingRows(tokens, rows, 6), OuterProduct(torch.randn(2, 3, 8), torch.randn(2, 3, 6))
    )
    weights, expected = torch.tensor([0.3, 2.0]), torch.zeros(6, 8, dtype=torch.float64)
    assert tied.summed(Weights(weights), Workspace()) is None  # in float64
    tied.add_sum(weights, expected)
    before = tied.norms()
    monkeypatch.setattr(contributions, "LARGE_WEIGHT", 1)
    found = tied.summed(Weights(weights), Workspace())
    assert found.dtype == torch.float32 and torch.allclose(found.double(), expected, atol=1e-5)
    assert bool((tied.norms().squared >= before.squared).all())


# A record at the edge between the two ways of doing it


def nearly_cancelling(octaves):
    """Records of two steps whose terms cancel by 2^octaves or barely more: they differ in the last
    bit of one number.

    Nothing is rounded in their sums, so that only what is decided about the record can tell the two
    apart."""
    x = torch.zeros(1, 2, 1000)
    x[0, 0, 1:] = torch.linspace(0.5, 1, 999)

    def record(large):
        return torch.cat([torch.stack([large, -large]).view(1, 2, 1), x[:, :, 1:]], 2)

    def beyond(large):
        norms = OuterProduct(record(large), torch.ones(1, 2, 40)).norms()
        return bool(norms.magnitude > 2.0**octaves * norms.squared.sqrt())

    low, high = torch.tensor(1.0), torch.tensor(2.0**40)
    assert beyond(high) and not beyond(low)
    while bool(torch.nextafter(low, high) < high):
        middle = (low + high) / 2
        low, high = (low, middle) if beyond(middle) else (middle, high)
    return record(low), record(high)


class Uneven(nn.Module):
    """A layer whose norms need Gram matrices, and one whose do not."""

    def __init__(self):
        super().__init__()
        self.layer, self.shift = nn.Linear(1000, 40, bias=False), nn.Linear(2, 1, bias=False)

    def forward(self, x):
        return self.layer(x).flatten(1).sum(1, keepdim=True) + self.shift(x[:, :, 1])


WEIGHS = {
    "flat": clip_to(BOUND),
    "each": ClipEach((BOUND, 0.1)),
    "normalised": ClipEach((BOUND, 0.1), (0.01, 0.01)),
}


@ENGINES
@pytest.mark.parametrize("weigh", WEIGHS)
@pytest.mark.parametrize("octaves", [13.999, 14, 17, 19.999, 20])
def test_the_last_bit_of_a_companion_never_decides_how_it_is_done(engine, weigh, octaves):
    # At 2^20 the bound of the norm exceeds the norm by an eighth: a step between them would move
    # the sum as far.
    grouped, example = weigh != "flat", torch.randn(5, 2, 1000)
    subject = Subject.prepared(Uneven(), (example,), engine=engine, loss=summed, grouped=grouped)
    ordinary = torch.ones(1, 2, 1000)
    sums, norms = [], []
    for record in nearly_cancelling(octaves):
        totals = [
            torch.zeros_like(p, dtype=torch.float64) for p in subject.engine.parameters.values()
        ]
        bounded = subject.engine.bounded_sums(
            subject.loss_fn,
            Chunk((torch.cat([ordinary, record]),), 2),
            Clipping(WEIGHS[weigh], GRID, subject.groups),
        )
        bounded.add_to(totals)
        sums.append(torch.cat([total.flatten() for total in totals]))
        norms.append(torch.cat([seen.norms for seen in bounded.seen]).sqrt())
    assert len(norms[0]) == len(norms[1]) == 2
    assert float((sums[0] - sums[1]).norm()) <= RAMP_ROUNDING
    assert bool(((norms[0] - norms[1]).abs() <= 2.0**-22 * norms[0]).all())


@ENGINES
@pytest.mark.parametrize("octaves", [14, 15, 17, 19.9, 20, 20.9])
def test_a_record_that_is_done_in_two_parts_adds_no_more_than_the_bound_and_not_much_less(
    engine, octaves
):
    subject = Subject.prepared(Uneven(), (torch.randn(5, 2, 1000),), engine=engine, loss=summed)
    record = nearly_cancelling(octaves)[1]
    moved = moved_by(subject, (torch.cat([torch.ones(1, 2, 1000), record]),), 1)
    assert 0.8 * BOUND <= moved <= BOUND * (1 + 2 * SUM_ROUNDING)


# Norms are never below the truth: exact rational arithmetic is the judge

WIDE = st.builds(
    lambda sign, exponent, mantissa: sign * mantissa * 10.0**exponent,
    st.sampled_from([1, -1]),
    st.integers(-30, 18),
    st.floats(1, 8, width=32),
)
NUMBERS = st.one_of(
    WIDE,
    st.just(0.0),
    st.sampled_from([1e-42, -1e-45, 1.0, -1.0, 1 + 2.0**-23]),
    st.floats(-2, 2, width=32),
)


def tensors(*shape):
    return st.lists(NUMBERS, min_size=math.prod(shape), max_size=math.prod(shape)).map(
        lambda numbers: torch.tensor(numbers, dtype=torch.float32).view(shape)
    )


def outer_squares(a, b):
    """Σ_pd (Σ_t b_tp a_td)², exactly, for each record."""

    def fraction(tensor):
        return [
            [[Fraction(x) for x in row] for row in record] for record in tensor.double().tolist()
        ]

    return [
        [
            [
                sum((bt[p] * at[d] for at, bt in zip(ra, rb, strict=True)), Fraction(0))
                for d in range(a.shape[2])
            ]
            for p in range(b.shape[2])
        ]
        for ra, rb in zip(fraction(a), fraction(b), strict=True)
    ]


def assert_never_below(contribution, gradients):
    for bound, gradient in zip(contribution.norms().squared.tolist(), gradients, strict=True):
        truth = sum(x * x for row in gradient for x in row)
        assert not math.isfinite(bound) or Fraction(bound) >= truth


@settings(max_examples=150)
@given(
    st.integers(1, 4).flatmap(lambda steps: st.tuples(tensors(2, steps, 3), tensors(2, steps, 2))),
    st.sampled_from([0.0, 1e-6, 2.0**-23]),
)
def test_norms_of_products_are_never_below_the_truth(factors, nearly):
    a, b = factors
    if nearly and a.shape[1] > 1:
        a[:, 1], b[:, 1] = -a[:, 0] * (1 + nearly), b[:, 0]
    assert_never_below(OuterProduct(a, b), outer_squares(a, b))
    added = torch.cat(
        [
            OuterProduct(a[:1], b[:1]).instantiate().gradients,
            OuterProduct(a[1:], b[1:]).instantiate().gradients,
        ],
        1,
    )
    assert_never_below(
        Rematerialized(a, b, 1),
        [
            [[Fraction(x) if math.isfinite(x) else Fraction(0) for x in row]]
            for row in added[0].double().tolist()
        ],
    )


@settings(max_examples=100)
@given(st.integers(0, 2**32 - 1), st.integers(1, 700), st.sampled_from([0.0, 4.0, 20.0]))
def test_norms_of_written_out_gradients_are_never_below_the_truth(seed, numbers, spread):
    generator = torch.Generator().manual_seed(seed)
    sizes = (10 ** (spread * torch.randn(2, numbers, generator=generator))).clamp(1e-44, 1e18)
    gradients = sizes * torch.randn(2, numbers, generator=generator)
    assert_never_below(
        Materialized.of(gradients),
        [[[Fraction(x) for x in row]] for row in gradients.double().tolist()],
    )


@settings(max_examples=100)
@given(
    tensors(2, 3, 2),
    tensors(2, 2, 2),
    tensors(2, 2, 4),
    st.lists(st.integers(0, 3), min_size=6, max_size=6),
    st.sampled_from([0.0, 1e-6]),
)
def test_norms_of_tied_tables_are_never_below_the_truth(found, a, b, tokens, nearly):
    rows = EmbeddingRows(torch.tensor(tokens).view(2, 3), found, 4)
    if nearly:  # the head takes back what the embedding adds
        b = torch.zeros_like(b)
        b[torch.arange(2), 0, rows.tokens[:, 0]] = 1
        a[:, 0], a[:, 1], found[:, 1:] = -found[:, 0] * (1 + nearly), 0, 0
    table = [[[Fraction(0)] * 2 for _ in range(4)] for _ in range(2)]
    # What is added is the float32 sum of the rows of equal tokens, so that is what the truth is
    # made of.
    added = (
        torch.stack(
            [torch.zeros(4, 2).index_add_(0, t, g) for t, g in zip(rows.tokens, found, strict=True)]
        )
        .double()
        .tolist()
    )
    for record, product in enumerate(outer_squares(a, b)):
        table[record] = (
            [
                [Fraction(x) + y for x, y in zip(*both, strict=True)]
                for both in zip(added[record], product, strict=True)
            ]
            if math.isfinite(sum(map(sum, added[record])))
            else table[record]
        )
    assert_never_below(TiedEmbedding(rows, OuterProduct(a, b)), table)


@pytest.mark.parametrize("steps", [1, 2, 16, 64])
def test_norms_are_tight_where_nothing_cancels(steps):
    generator = torch.Generator().manual_seed(steps)
    a, b = (torch.rand(5, steps, width, generator=generator) for width in (30, 20))
    truth = torch.einsum("ntp,ntd->npd", b.double(), a.double()).flatten(1).norm(dim=1)
    for form in (OuterProduct(a, b), Rematerialized(a, b, 2), OuterProduct(a, b).instantiate()):
        excess = form.norms().squared.sqrt() / truth - 1
        assert float(excess.min()) >= 0
        assert float(excess.max()) <= 1e-4


def test_a_gradient_of_zero_is_not_taken_for_one_that_cancels():
    # Masked positions have large activations and no gradient; they are not worth a second
    # computation.
    norms = OuterProduct(torch.full((1, 8, 4), 1e6), torch.zeros(1, 8, 3)).norms()
    assert float(norms.squared) < 1e-200 and float(norms.magnitude) < 64 * float(
        norms.squared.sqrt()
    )


def test_uses_of_one_weight_are_joined_with_their_cross_terms():
    generator = torch.Generator().manual_seed(2)
    parts = [
        OuterProduct(
            torch.randn(3, 2, 5, generator=generator), torch.randn(3, 2, 4, generator=generator)
        )
        for _ in range(2)
    ]
    truth = sum(torch.einsum("ntp,ntd->npd", o.outputs.double(), o.inputs.double()) for o in parts)
    for joined in (combined(parts), combined([parts[0], parts[1].instantiate()])):
        torch.testing.assert_close(
            joined.norms().squared, truth.flatten(1).square().sum(1), rtol=1e-4, atol=0.0
        )


# One record more


class Language(nn.Module):
    """A trained table, a head that is wide enough for Gram matrices, and a scale that a record may
    choose.
    """

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(50, 16), nn.Linear(16, 50, bias=False)
        self.head.weight = self.table.weight

    def forward(self, scale, tokens):
        return torch.tanh(self.head(self.table(tokens) * scale.unsqueeze(2)))


NEIGHBOURS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(12, 64), nn.Tanh(), nn.Linear(64, 5)), (12,)),
    "sequences": (
        lambda: nn.Sequential(nn.Linear(12, 256), nn.Tanh(), nn.Linear(256, 64)),
        (5, 12),
    ),
    "conv": (lambda: nn.Sequential(nn.Conv1d(9, 9, 3), nn.Tanh(), nn.Conv1d(9, 2, 3)), (9, 8)),
    "language": (Language, (5,)),
}
CONTENTS = {
    "huge": lambda x: x * 1e6,
    "tiny": lambda x: x * 1e-30,
    "one huge": lambda x: x.index_fill(-1, torch.tensor(0), 1e18),
    "not a number": lambda x: x * float("nan"),
    "alternating": lambda x: x.abs() * 1e5 * (-1.0) ** torch.arange(x.shape[-1]),
    "ordinary": lambda x: x,
}


@ENGINES
@pytest.mark.parametrize("case", NEIGHBOURS)
def test_one_record_more_moves_the_sum_by_no_more_than_the_bound(engine, case):
    make, shape = NEIGHBOURS[case]
    generator = torch.Generator().manual_seed(len(shape))
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = make()
    fields = (torch.randn(64, *shape, generator=generator),)
    if case == "language":
        fields += (torch.randint(50, (64, 5), generator=generator),)
    subject = Subject.prepared(model, tuple(f[:5] for f in fields), engine=engine)
    for size, content in zip((1, 2, 17, 40, 63, 64), CONTENTS.values(), strict=True):
        for position in {0, size // 2, size - 1}:
            x = fields[0][:size].clone()
            x[position] = content(x[position])
            limit = BOUND * (1 + size * SUM_ROUNDING)
            assert moved_by(subject, (x, *(f[:size] for f in fields[1:])), position) <= limit


SIDES = {"outer": 3, "wide outer": 64}  # narrow products are added in another way than wide ones


def form_of(kind, values):
    """Records with the gradient ``value`` in every coordinate, in one form or the other."""
    if kind == "kept":
        return Materialized.of(values.unsqueeze(1).repeat(1, 9))
    ones = torch.ones(len(values), 1, SIDES[kind])
    return OuterProduct(values.view(-1, 1, 1) * ones, ones)


def added(form, weights, shape):
    total = torch.zeros(shape, dtype=torch.float64)
    form.add_sum(weights, total)
    return total


@pytest.mark.parametrize("kind", ["kept", *SIDES])
@pytest.mark.parametrize("records", [64, 256, 1024])
def test_no_record_pushes_a_long_sum_into_coarser_rounding(kind, records):
    # Half of the records bring the sum close to a power of two, and the one that comes first brings
    # it over: in one long float32 sum every later record then loses half a step of the coarser
    # grid, records/4 · 2^-24 bounds each.
    power = 2 ** int(math.log2(records // 2))
    step, small = power * 2.0**-23, 2.0**-6
    pairs = torch.tensor([small + 0.49 * step, -(small - 0.49 * step)]).repeat(
        (records - power) // 2
    )
    others = torch.cat([torch.ones(power - 1), torch.tensor([1 - 1.5 * small]), pairs])
    values = torch.cat([torch.tensor([3 * small]), others])
    shape = (9,) if kind == "kept" else 2 * (SIDES[kind],)
    weights = torch.ones(len(values), dtype=torch.float64)
    moved = (
        added(form_of(kind, values), weights, shape)
        - added(form_of(kind, others), weights[1:], shape)
        - 3 * small
    )
    assert (
        float(moved.abs().max()) <= len(others) * 2.0**-17.5
    )  # below the allowance; 2^-16 in one sum of 1024


@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("records", [1, 128, 129, 256, 300, 1024, 1025, 2300])
def test_a_sum_of_written_out_gradients_has_every_record_once_and_with_its_own_weight(
    records, blocks
):
    generator = torch.Generator().manual_seed(1)
    gradients = torch.randn(blocks, records, 7, generator=generator)
    weights = torch.rand(records, dtype=torch.float64, generator=generator)
    found = added(
        Materialized(gradients, lambda summed: summed.view(blocks, 7)), weights, (blocks, 7)
    )
    torch.testing.assert_close(
        found, torch.einsum("n,bnd->bd", weights, gradients.double()), rtol=0, atol=1e-4
    )


@pytest.mark.parametrize(
    "shape", [(10, 7), (128, 128), (129, 128)]
)  # in one call, and one after the other
@pytest.mark.parametrize("records", [0, 1, 128, 129, 256, 1024, 1152, 2304])
def test_a_sum_of_outer_products_has_every_record_once_and_with_its_own_weight(records, shape):
    generator = torch.Generator().manual_seed(1)
    b, a = (torch.randn(records, 1, size, generator=generator) for size in shape)
    weights = torch.rand(records, dtype=torch.float64, generator=generator)
    expected = torch.einsum("n,np,nd->pd", weights, b[:, 0].double(), a[:, 0].double())
    torch.testing.assert_close(
        added(OuterProduct(a, b), weights, shape), expected, rtol=0, atol=1e-3
    )


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    "shape", [(3, 3), (10, 1024), (1024, 10), (1, 5000), (64, 64), (80, 100), (300, 17)]
)
def test_a_product_is_complete_before_it_is_added_to_others(monkeypatch, shape, threads):
    # What begins with the sum that is there already is one long float32 sum; narrow shapes show it,
    # if it is done.
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        generator = torch.Generator().manual_seed(1)
        b, a = (torch.randn(500, 1, size, generator=generator) for size in shape)
        weights = torch.rand(500, dtype=torch.float64, generator=generator)
        found = added(OuterProduct(a, b), weights, shape)
        monkeypatch.setattr(arithmetic, "_completes_products", lambda *_: False)
        assert torch.equal(found, added(OuterProduct(a, b), weights, shape))
    finally:
        torch.set_num_threads(before)


def cancelling_records(records, steps, generator):
    """Records whose terms are sixty times as large as their sums: just below what is done
    exactly.
    """
    a, b = (
        torch.randn(records, steps, 6, generator=generator),
        torch.randn(records, steps, 5, generator=generator),
    )
    half = steps // 2
    a[:, half : 2 * half], b[:, half : 2 * half] = a[:, :half], -b[:, :half]
    a[:, 2 * half :] = 0
    more = torch.randn(b.shape, generator=generator)
    for exponent in torch.linspace(-3, 1, 30):
        form = OuterProduct(a, b + more * 10.0**exponent)
        if bool((form.magnitude() <= 60 * form.gram().sqrt()).all()):
            return form.inputs, form.outputs
    raise AssertionError("no such records")


@pytest.mark.parametrize("kind", ["alike", "beside small ones", "cancelling"])
@pytest.mark.parametrize(
    ("records", "steps"),
    [(2, 2), (2, 7), (6, 64), (64, 7), (64, 64), pytest.param(6, 1024, marks=pytest.mark.slow)],
)
def test_the_allowance_for_float32_sums_is_eight_times_what_is_found(kind, records, steps):
    generator = torch.Generator().manual_seed(records + steps)
    if kind == "cancelling":
        a, b = cancelling_records(records, steps, generator)
    else:
        a, b = (
            torch.rand(1, steps, 6, generator=generator),
            torch.rand(1, steps, 5, generator=generator),
        )
        a, b = a.repeat(records, 1, 1), b.repeat(records, 1, 1)
    norms = OuterProduct(a, b).gram().sqrt()
    weights = 1 / norms
    if kind == "beside small ones":
        weights[1:] *= 2.0**-12
    own = torch.einsum("tp,td->pd", b[0].double() * float(weights[0].float()), a[0].double())
    together = added(OuterProduct(a, b), weights, (5, 6))
    others = added(OuterProduct(a[1:], b[1:]), weights[1:], (5, 6))
    assert float((together - own - others).norm()) <= records * SUM_ROUNDING / 8
