"""Recurrent layers against one record at a time: every kind, shape, direction, state and
packing.
"""

import pytest
import torch
from against_oracle import (
    TOLERANCE,
    Expected,
    Strict,
    Subject,
    assert_agrees,
    assert_close,
    pattern_loss,
    shaken,
)
from hypothesis import given, settings, strategies as st
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from dpfy.checks.probe import Probe
from dpfy.checks.vmap_check import refuses_tracing
from dpfy.errors import IsolationError
from dpfy.gradients import BookkeepingEngine, LoopEngine, Unsupported
from dpfy.gradients.bookkeeping.capture import CapturedLayer, layers_of
from dpfy.gradients.bookkeeping.layers import rule_for
from dpfy.gradients.bookkeeping.layers.fallback import Layouts
from dpfy.gradients.bookkeeping.layout import Layout
from dpfy.gradients.chunk import Chunk
from dpfy.mechanisms.clipping import clip_to

KINDS = {"lstm": nn.LSTM, "gru": nn.GRU, "tanh": nn.RNN, "relu": nn.RNN}
DTYPES = [torch.float64, torch.float32]


def floats(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Recurrent(nn.Module):
    """A recurrent layer with linear ones before it, for its initial states and after it.

    ``shown`` says which of its results the loss sees; ``packed`` how the second field, the lengths,
    is used."""

    def __init__(
        self,
        kind="lstm",
        inputs=3,
        hidden=2,
        *,
        state=False,
        shown="of",
        packed="",
        below=None,
        **options,
    ):
        super().__init__()
        options = (
            {"batch_first": True}
            | options
            | ({"nonlinearity": kind} if kind in ("tanh", "relu") else {})
        )
        self.below = nn.Linear(inputs, inputs) if below is None else below
        self.rnn = KINDS[kind](inputs, hidden, **options)
        self.states = self.rnn.num_layers * (1 + self.rnn.bidirectional)
        self.start = (
            nn.Linear(inputs, self.states * hidden * (2 if kind == "lstm" else 1))
            if state
            else None
        )
        self.head = nn.Linear(hidden * (1 + self.rnn.bidirectional), 2) if "o" in shown else None
        self.shown, self.packed = shown, packed

    def initial(self, x):
        if self.start is None:
            return ()
        states = (
            self.start(x.mean(1))
            .unflatten(1, (-1, self.states, self.rnn.hidden_size))
            .permute(1, 2, 0, 3)
        )
        return (tuple(states),) if self.rnn.mode == "LSTM" else (states[0],)

    def forward(self, x, lengths=None):
        x = self.below(x)
        given = x if self.rnn.batch_first else x.transpose(0, 1)
        if self.packed:
            given = pack_padded_sequence(
                given, lengths, self.rnn.batch_first, enforce_sorted=self.packed == "sorted"
            )
        outputs, finals = self.rnn(given, *self.initial(x))
        if isinstance(outputs, PackedSequence):
            outputs, _ = pad_packed_sequence(outputs, self.rnn.batch_first, total_length=x.shape[1])
        outputs = outputs if self.rnn.batch_first else outputs.transpose(0, 1)
        finals = finals if isinstance(finals, tuple) else (finals,)
        seen = [] if self.head is None else [self.head(outputs).flatten(1)]
        seen += [state.transpose(0, 1).flatten(1) for state in finals if "f" in self.shown]
        return torch.cat(seen, 1)


SHAPES = [
    dict(num_layers=layers, bidirectional=both, bias=bias, batch_first=first, state=state)
    for layers, both, bias, first, state in [
        (1, False, True, True, False),
        (1, True, True, False, True),
        (2, False, False, True, True),
        (2, True, True, True, False),
        (2, True, False, False, True),
    ]
]


def named(shape):
    return " ".join(
        name if value is True else f"{name} {value}" for name, value in shape.items() if value
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=named)
@pytest.mark.parametrize("kind", KINDS)
def test_recurrent_layers_agree_with_one_record_at_a_time(kind, shape, dtype):
    assert_agrees(lambda: Recurrent(kind, **shape), (floats(4, 5, 3),), dtype=dtype)


@settings(max_examples=80)
@given(
    st.sampled_from(sorted(KINDS)),
    st.sampled_from(DTYPES),
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(1, 6),
    st.integers(1, 3),
    st.sampled_from(["o", "f", "of"]),
    st.tuples(st.booleans(), st.booleans(), st.booleans(), st.booleans(), st.booleans()),
    st.integers(0, 2**32 - 1),
)
def test_recurrent_layers_of_random_shapes(
    kind, dtype, inputs, hidden, steps, layers, shown, switches, seed
):
    both, bias, first, state, grouped = switches
    assert_agrees(
        lambda: Recurrent(
            kind,
            inputs,
            hidden,
            num_layers=layers,
            bidirectional=both,
            bias=bias,
            batch_first=first,
            state=state,
            shown=shown,
        ),
        (floats(4, steps, inputs, seed=seed),),
        dtype=dtype,
        grouped=grouped,
        split=1 + seed % 3,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_word_vectors_below_are_trained_too(kind):
    # A missing gradient of the inputs would leave the table without any.
    words = torch.randint(6, (4, 5), generator=torch.Generator().manual_seed(2))
    assert_agrees(
        lambda: Recurrent(kind, 3, 2, bidirectional=True, below=nn.Embedding(6, 3)), (words,)
    )


def test_a_layer_that_is_used_again():
    class Again(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(3, 3, batch_first=True)

        def forward(self, x):
            return self.rnn(self.rnn(x)[0])[0]

    assert_agrees(Again, (floats(4, 5, 3),))


def test_weights_that_are_frozen_in_part_or_whole():
    class Frozen(Recurrent):
        def __init__(self):
            super().__init__(num_layers=2)
            for name in ("weight_hh_l0", "bias_ih_l0", "weight_ih_l1"):
                getattr(self.rnn, name).requires_grad_(False)

    assert_agrees(Frozen, (floats(4, 5, 3),))


def test_large_shapes_for_which_norms_come_without_gradients():
    # 2 steps of 40 to 4·20 numbers: the Gram matrices are cheaper than the gradients.
    for dtype in DTYPES:
        assert_agrees(lambda: Recurrent("lstm", 40, 20), (floats(4, 2, 40),), dtype=dtype)


# Packed sequences, and several of a record


class Told(Strict):
    """Is told where the records are: the size of packed data, or of final states, does not
    show it.
    """

    layout = Layout(0)

    def prepare(self, loss_fn, examples):
        self.layers = [
            CapturedLayer(layer.name, layer.module, layer.rule, Layouts([self.layout], []))
            for layer in layers_of(self.model, self.parameters)
        ]


class ToldFlat(Told):
    layout = Layout(0, flat=True)


def assert_told_agrees(make, fields, dtype=torch.float64, engine=Told):
    """As ``assert_agrees``, for an engine that is told the layouts."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model, exact = shaken(make().to(dtype)), make().double()
    exact.load_state_dict(model.state_dict())
    expected = Expected(
        Subject(LoopEngine(exact, dict(exact.named_parameters())), pattern_loss(exact)), fields
    )
    subject = Subject.prepared(model, fields, engine=engine)
    found = subject.sums((fields[0].to(dtype), *fields[1:]), clip_to(expected.bound))
    assert_close(found, expected.sums, expected.scales, TOLERANCE[dtype], "sum")
    torch.testing.assert_close(
        subject.squared.sqrt(), expected.norms, rtol=TOLERANCE[dtype], atol=1e-15
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=named)
@pytest.mark.parametrize("kind", KINDS)
def test_packed_sequences_of_any_lengths(kind, shape, dtype):
    assert_told_agrees(
        lambda: Recurrent(kind, packed="any", **shape),
        (floats(5, 6, 3), torch.tensor([3, 6, 1, 6, 2])),
        dtype,
    )


@settings(max_examples=40)
@given(
    st.sampled_from(sorted(KINDS)),
    st.lists(st.integers(1, 6), min_size=1, max_size=6),
    st.booleans(),
    st.integers(1, 2),
    st.booleans(),
    st.sampled_from(["o", "f", "of"]),
    st.integers(0, 2**32 - 1),
)
def test_packed_sequences_of_random_lengths(kind, lengths, both, layers, state, shown, seed):
    assert_told_agrees(
        lambda: Recurrent(
            kind, packed="any", num_layers=layers, bidirectional=both, state=state, shown=shown
        ),
        (floats(len(lengths), 6, 3, seed=seed), torch.tensor(lengths)),
    )


def test_sequences_that_were_packed_as_sorted_are_served_if_they_need_no_sorting():
    assert_told_agrees(
        lambda: Recurrent(packed="sorted"), (floats(3, 4, 3), torch.tensor([4, 4, 4]))
    )


def test_sequences_that_were_sorted_outside_of_the_packing_are_done_one_by_one():
    # Their rows need not be the records in their order: a norm would be taken from one record and
    # applied to another.
    class Sorting(Recurrent):
        def forward(self, x, lengths):
            order = lengths.argsort(descending=True)
            return super().forward(x[order], lengths[order])[order.argsort()]

    torch.manual_seed(0)
    model = Sorting(packed="sorted").double()
    fields = (floats(4, 5, 3), torch.tensor([2, 5, 3, 1]))
    with pytest.raises(AssertionError, match="handed to the oracle"):
        Subject.prepared(model, fields, engine=Told).sums(fields, torch.ones_like)


@pytest.mark.parametrize("kind", KINDS)
def test_several_sequences_of_a_record(kind):
    class Documents(Recurrent):
        def forward(self, x):
            return super().forward(x.flatten(0, 1)).unflatten(0, (len(x), -1))

    assert_told_agrees(
        lambda: Documents(kind, bidirectional=True), (floats(4, 2, 5, 3),), engine=ToldFlat
    )


# Randomness, bad records, precision


def told(model, **options):
    """A prepared engine of a model whose dropout is switched on afterwards."""
    model.eval()
    subject = Subject.prepared(model, (floats(5, 4, 3, seed=9),), **options)
    model.train()
    return subject


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_dropout_between_layers_draws_as_torch_does_for_one_record(kind):
    torch.manual_seed(0)
    model = Recurrent(kind, num_layers=3, dropout=0.5).double()
    subject, oracle = (
        told(model),
        Subject(LoopEngine(model, dict(model.named_parameters())), pattern_loss(model)),
    )
    x = floats(1, 4, 3)
    found = []
    for engine in (subject, oracle):
        torch.manual_seed(5)
        found.append(engine.sums((x,), torch.ones_like))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-12)
    torch.manual_seed(6)
    assert not torch.allclose(found[0][0], subject.sums((x,), torch.ones_like)[0])


def test_dropout_between_layers_keeps_records_apart():
    torch.manual_seed(0)
    subject = told(Recurrent("lstm", num_layers=2, dropout=0.5, bidirectional=True).double())
    x = floats(4, 4, 3)
    other = torch.cat([x[:1] * 7, x[1:]])
    for fields in ((x,), (other,)):
        torch.manual_seed(1)
        found = subject.alone(fields, 2)
        if fields[0] is x:
            expected = found
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 1e38], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_bad_records_leave_the_others_alone(kind, poison):
    torch.manual_seed(0)
    model = Recurrent(kind, num_layers=2, bidirectional=True)
    subject = Subject.prepared(model, (floats(4, 5, 3).float(),), engine=BookkeepingEngine)
    x = floats(4, 5, 3, seed=1).float()
    bad = x.clone()
    bad[1, 2] = poison
    rest = subject.sums((x[[0, 2, 3]],), clip_to(0.1))
    moved = [a - b for a, b in zip(subject.sums((bad,), clip_to(0.1)), rest, strict=True)]
    norm = float(torch.cat([part.flatten() for part in moved]).norm())
    assert norm <= 0.1 * (1 + 1e-4)  # NaN fails too


def test_short_floats_by_autocast_train_in_the_precision_of_the_weights():
    torch.manual_seed(0)
    model = Recurrent("lstm", bidirectional=True)

    def loss(model):
        def loss_fn(x):
            with torch.autocast("cpu", torch.bfloat16):
                return model(x).float().square().mean(1)

        return loss_fn

    x = floats(4, 5, 3).float()
    subject = Subject.prepared(model, (x,), loss=loss)
    exact = Subject(
        LoopEngine(model, dict(model.named_parameters())), lambda x: model(x).square().mean(1)
    )
    found, expected = subject.sums((x,), torch.ones_like), exact.sums((x,), torch.ones_like)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0.05, atol=0.02 * float(b.norm()))


# What is refused, and what is chosen


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
def test_a_projected_lstm_is_refused_and_served_by_the_loop_engine():
    class Projected(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.LSTM(3, 4, proj_size=2, batch_first=True)

        def forward(self, x):
            return self.rnn(x)[0]

    model = Projected()
    with pytest.raises(Unsupported, match="proj_size"):
        Subject.prepared(model, (floats(4, 5, 3).float(),))
    assert _chosen(model, pattern_loss(model), (torch.rand(2, 5, 3),)) == "loop"


def test_a_changed_recurrent_layer_has_no_rule():
    class Changed(nn.LSTM):
        def forward(self, x, state=None):
            return super().forward(2 * x, state)

    class Scaled(nn.GRU):
        def __init__(self, *sizes):
            super().__init__(*sizes)
            self.scale = nn.Parameter(torch.ones(1))

    assert rule_for(Changed(3, 2)) is None
    assert rule_for(Scaled(3, 2)) is None
    assert rule_for(nn.LSTM(3, 2)) is not None


def test_the_engine_does_not_go_back_twice():
    # The first pass leaves gradients in the place of the gates: a second one would be silently
    # wrong.
    torch.manual_seed(0)
    model = Recurrent(shown="f")
    subject = Subject.prepared(model, (floats(4, 5, 3).float(),))

    def twice(x):
        loss = model(x).square().mean(1)
        (slope,) = torch.autograd.grad(loss.sum(), x, retain_graph=True)
        return loss + slope.square().sum((1, 2))

    subject.loss_fn = twice
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        subject.sums((floats(4, 5, 3).float().requires_grad_(),), torch.ones_like)


def _chosen(model, loss_fn, fields, engine="auto"):
    probe = Probe(
        model, dict(model.named_parameters()), loss_fn, Chunk(fields, len(fields[0])), declared=True
    )
    return probe.choose(engine).name


@pytest.mark.parametrize("state", [False, True], ids=["zero", "given"])
@pytest.mark.parametrize("kind", KINDS)
def test_models_with_recurrent_layers_are_traced_and_get_the_fast_engine(kind, state):
    torch.manual_seed(0)
    model = Recurrent(kind, state=state, num_layers=2, bidirectional=True, batch_first=not state)
    assert _chosen(model, pattern_loss(model), (torch.rand(3, 5, 3),)) == "bookkeeping"


def test_packed_input_cannot_be_traced_and_is_done_one_by_one():
    torch.manual_seed(0)
    model = Recurrent(packed="any")
    fields = (torch.rand(3, 5, 3), torch.tensor([5, 2, 3]))
    assert refuses_tracing(model, pattern_loss(model), Chunk(fields, 3)) is not None
    assert _chosen(model, pattern_loss(model), fields) == "loop"


def test_packed_input_is_refused_to_an_engine_that_is_asked_for_by_name():
    """Packing sorts records by lengths of all of them, which are values: a chunk of them is not
    looked into further.
    """
    torch.manual_seed(0)
    model = Recurrent(packed="any", bidirectional=True)
    fields = (torch.rand(3, 5, 3), torch.tensor([5, 2, 3]))
    with pytest.raises(IsolationError, match="values of the input may decide"):
        _chosen(model, pattern_loss(model), fields, "bookkeeping")
    assert_agrees(
        lambda: Recurrent("gru", packed="any"), (floats(4, 5, 3), torch.tensor([2, 5, 1, 4]))
    )


def test_records_in_an_order_of_the_loss_function_are_refused():
    class Sorting(Recurrent):
        def forward(self, x, lengths):
            order = lengths.argsort(descending=True)
            return super().forward(x[order], lengths[order])[order.argsort()]

    with pytest.raises(Unsupported, match="an order of their own"):
        Subject.prepared(
            Sorting(packed="any").double(), (floats(4, 5, 3), torch.tensor([2, 5, 1, 4]))
        )


def test_dropout_between_layers_does_not_keep_a_model_from_the_fast_engine():
    torch.manual_seed(0)
    model = Recurrent("lstm", num_layers=2, dropout=0.5)
    assert _chosen(model, pattern_loss(model), (torch.rand(3, 5, 3),)) == "bookkeeping"
    assert model.rnn.training
