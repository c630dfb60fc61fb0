"""Models that mix examples, remember them, or cannot be judged are refused; others pass
untouched.
"""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import dpfy
from dpfy.checks import probe as probes
from dpfy.checks.company import check_memory
from dpfy.checks.probe import Probe
from dpfy.checks.tolerance import are_equal_sums, squared_norm
from dpfy.checks.vmap_check import alone_at_once
from dpfy.gradients.base import LossCall
from dpfy.gradients.chunk import Chunk

ROWS = torch.randn(8, 4, generator=torch.Generator().manual_seed(2))


def first_release(started, model, rows=ROWS, loss=None, **options):
    s = started(rows, model=model, **options)
    return s, s.release(loss or (lambda x: model(x).flatten(1).square().sum(1)))


class Centred(nn.Module):
    """Subtracts the mean over the batch, as a hand-written normalisation does."""

    def forward(self, x):
        return x - x.mean(0)


class Counting(nn.Module):
    """Changes its behaviour with everything it sees, in a plain attribute."""

    def __init__(self):
        super().__init__()
        self.seen = 0.0

    def forward(self, x):
        self.seen += float(x.detach().abs().sum())
        return x * (1 + self.seen)


class Averaging(nn.Module):
    """Keeps a running value in a buffer that nothing uses yet."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        self.mean.mul_(0.9).add_(0.1 * x.detach().mean(0))
        return x


class Odd(nn.Module):
    """Mixes examples only in batches of three."""

    def forward(self, x):
        return x - x.mean(0) if len(x) == 3 else x


@pytest.mark.parametrize("engine", ["auto", "loop", "vmap"])
@pytest.mark.parametrize(
    ("layer", "name"),
    [
        (nn.BatchNorm1d(5), "BatchNorm1d"),
        (Centred(), "Centred"),
        (Odd(), "Odd"),
    ],
    ids=["batch norm", "hand-written", "one size only"],
)
def test_a_model_that_mixes_examples_is_refused_by_name(started, layer, name, engine):
    model = nn.Sequential(nn.Linear(4, 5), layer, nn.Linear(5, 2))
    with pytest.raises(dpfy.IsolationError, match=rf"'1' \({name}\)"):
        first_release(started, model, engine=engine)


def test_the_refusal_of_batch_norm_names_the_remedy_and_the_remedy_works(started, capsys):
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))
    with pytest.raises(dpfy.IsolationError, match=r"dpfy\.fix"):
        first_release(started, model)
    fixed = dpfy.fix(model)
    assert fixed is model and isinstance(model[1], nn.GroupNorm)
    assert "'1': BatchNorm1d(6) became GroupNorm(3, 6)" in capsys.readouterr().out
    first_release(started, model)


def test_fix_carries_scale_and_shift_over_and_reaches_every_depth(capsys):
    inner = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.InstanceNorm2d(8, track_running_stats=True)
    )
    nn.init.normal_(inner[1].weight), nn.init.normal_(inner[1].bias)
    weight = inner[1].weight.detach().clone()
    model = nn.ModuleDict({"deep": inner, "other": nn.BatchNorm1d(4, affine=False)}).eval()
    dpfy.fix(model)
    assert torch.equal(model["deep"][1].weight, weight) and not model["deep"][1].training
    assert not model["deep"][2].track_running_stats and isinstance(model["other"], nn.GroupNorm)
    assert isinstance(dpfy.fix(nn.BatchNorm2d(4)), nn.GroupNorm)
    capsys.readouterr()
    dpfy.fix(model)
    assert "nothing to change" in capsys.readouterr().out


def test_batch_norm_in_eval_mode_passes_and_is_probed_again_when_the_mode_changes(started):
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5))
    model[1].eval()
    s, _ = first_release(started, model)
    model.train()
    with pytest.raises(dpfy.IsolationError):
        s.release(lambda x: model(x).square().sum(1))


@pytest.mark.cpu
@pytest.mark.parametrize(
    ("layer", "match"),
    [
        (Counting(), "keeps state|alone"),
        (Averaging(), "0.mean"),
        (nn.InstanceNorm1d(4, track_running_stats=True), "running"),
    ],
    ids=["attribute", "buffer", "instance norm"],
)
def test_a_model_that_remembers_is_refused_and_left_as_it_was(started, layer, match):
    model = nn.Sequential(layer, nn.Linear(4, 2))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    rows = ROWS.unsqueeze(2) if isinstance(layer, nn.InstanceNorm1d) else ROWS
    if isinstance(layer, nn.InstanceNorm1d):
        model, rows = nn.Sequential(layer, nn.Flatten(), nn.Linear(12, 2)), torch.randn(8, 4, 3)
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(dpfy.IsolationError, match=match):
        first_release(started, model, rows)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_embeddings_that_rewrite_their_rows_are_refused(started):
    model = nn.Sequential(nn.Embedding(5, 3, max_norm=1.0), nn.Flatten(), nn.Linear(12, 1))
    with pytest.raises(dpfy.IsolationError, match="max_norm"):
        first_release(started, model, torch.zeros(3, 4, dtype=torch.long))


def test_a_loss_that_mixes_examples_is_refused(started):
    model = nn.Linear(4, 2)
    with pytest.raises(dpfy.IsolationError, match="loss_fn"):
        first_release(started, model, loss=lambda x: torch.softmax(model(x).sum(1), dim=0))


@pytest.mark.parametrize("engine", ["bookkeeping", "vmap", "loop"])
def test_dropout_works_and_differs_between_records(started, engine):
    model = nn.Sequential(nn.Linear(4, 50, bias=False), nn.Dropout(0.5))
    s, _ = first_release(started, model, torch.ones(2, 4), engine=engine)
    assert s.run.engine == engine
    masks = []

    def loss(x):
        return F.dropout(model[0](x), 0.5).sum(1)

    for row in s.release(loss).reshape(50, 4)[:, 0].tolist():
        masks.append(row)
    assert len({round(value, 6) for value in masks}) > 1


def test_the_probe_disturbs_neither_torch_s_generator_nor_the_training_mode(started):
    model = nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.5))
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    started(ROWS, model=model, rate=0.0).release(lambda x: model(x).sum(1))
    assert torch.equal(torch.rand(3), expected)
    assert all(module.training for module in model.modules())


@pytest.mark.cpu
@pytest.mark.parametrize(
    ("loss", "match"),
    [
        (lambda model: lambda x: model(x).sum(), "reduction='none'"),
        (lambda model: lambda x: model(x), "one loss per example"),
        (lambda model: lambda x: model(x).sum(1)[:1], "one loss per example"),
        (lambda model: lambda x: 3.0, "float"),
        (lambda model: lambda x: dpfy.Losses(model(x).sum(1), stats={"a": torch.zeros(1)}), "'a'"),
        (lambda model: lambda x: model(x[:, :2]).sum(1), "fails on synthetic input"),
        (lambda model: lambda x: nn.Linear(4, 2)(x).sum(1), "very model"),
    ],
    ids=["scalar", "matrix", "short", "number", "statistic", "raises", "another model"],
)
def test_losses_that_cannot_be_used_are_explained(started, loss, match):
    model = nn.Linear(4, 2)
    s = started(ROWS, model=model)
    with pytest.raises(dpfy.LossError, match=match) as caught:
        s.release(loss(model))
    assert caught.value.__cause__ is None
    assert s.ledger.count == 1  # the step was reserved before the first shape was looked at


@pytest.mark.cpu
def test_a_declared_example_replaces_the_synthetic_labels(started):
    model = nn.Linear(4, 2)

    def loss(x, label):
        if (label < 10).any():  # data-dependent, so that 0 and 1 are not valid labels
            raise ValueError
        return model(x).sum(1)

    records = [(row, torch.tensor(10 + index)) for index, row in enumerate(ROWS)]
    with pytest.raises(dpfy.LossError, match="example_input"):
        started(records, model=model, engine="loop").release(loss)
    example = (torch.zeros(2, 4), torch.tensor([10, 11]))
    assert started(records, model=model, engine="loop", example_input=example).release(loss).any()


def test_auto_falls_back_to_the_oracle_and_an_explicit_engine_says_why(started):
    model = nn.Linear(4, 2)

    def loss(x):  # control flow on values, which vmap cannot trace
        return model(x).sum(1) * (2.0 if float(x.sum()) > 1e9 else 1.0)

    s = started(ROWS, model=model)
    s.release(loss)
    assert s.run.engine == "loop" and s.run.isolation.startswith("by construction")
    with pytest.raises(dpfy.IsolationError, match="engine='loop'"):
        started(ROWS, model=model, engine="vmap").release(loss)


def test_the_probe_never_looks_at_values(started):
    """A first record with an extreme value must not change what the probe says."""
    model = nn.Linear(4, 2)
    poisoned = torch.cat([torch.full((1, 4), float("nan")), ROWS])
    assert first_release(started, model, poisoned)[1].isfinite().all()


@pytest.mark.cpu
def test_one_oddly_shaped_record_does_not_decide_the_public_shape(started):
    model = nn.Linear(4, 2)
    s = started([torch.zeros(9), *ROWS], model=model, example_input=torch.zeros(1, 4))
    assert s.release(lambda x: model(x).square().sum(1)).any()


def longest(records):
    """Pads to the longest neighbour."""
    return nn.utils.rnn.pad_sequence([r[0] for r in records], batch_first=True), torch.tensor(
        [r[1] for r in records]
    )


def fixed(records):
    """Pads to a public length."""
    return torch.stack([F.pad(r[0], (0, 6 - len(r[0]))) for r in records]), torch.tensor(
        [r[1] for r in records]
    )


@pytest.mark.cpu
def test_padding_to_the_longest_neighbour_is_refused_and_to_a_public_length_accepted(started):
    model = nn.Linear(1, 1)
    records = [(torch.ones(n), 1.0) for n in (3, 5, 2, 4)]
    example = torch.zeros(1, 6), torch.zeros(1)

    def loss(x, y):
        return model(x.unsqueeze(2)).sum((1, 2)) * y

    with pytest.raises(dpfy.IsolationError, match="pads"):
        started(TensorDataset(torch.ones(4, 3), torch.ones(4)), model=model, collate_fn=longest)
    assert (
        started(records, model=model, collate_fn=fixed, example_input=example).release(loss).any()
    )


@pytest.mark.cpu
def test_buckets_of_several_lengths_are_collated_by_length(started):
    model = nn.Linear(1, 1)
    records = [torch.ones(n) for n in (4, 8, 4, 8, 8)]

    def loss(x):
        return model(x.unsqueeze(2)).mean((1, 2))

    s = started(records, model=model, clip=10.0, example_input=torch.zeros(1, 8))
    torch.testing.assert_close(s.release(loss), torch.tensor([5.0, 5.0]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_models_of_other_precisions_pass(started, dtype):
    model = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2)).to(dtype)
    _, released = first_release(started, model, ROWS.to(dtype))
    assert released.any() and released.dtype == dtype


class OfInstance:
    """A loss that is an object, or the method of one."""

    def __init__(self, function):
        self.function = function

    def __call__(self, x):
        return self.function(x)


@pytest.mark.parametrize(
    "wrap",
    [
        partial,
        OfInstance,
        lambda f: OfInstance(f).__call__,
        lambda f: lambda x: f(x),
        lambda f: lambda x, f=f: f(x),
    ],
    ids=["partial", "object", "method", "closure", "default"],
)
def test_another_loss_behind_the_same_code_is_probed_again(started, wrap):
    model = nn.Linear(4, 2)
    s = started(ROWS, model=model)
    s.release(wrap(lambda x: model(x).square().sum(1)))
    with pytest.raises(dpfy.IsolationError):
        s.release(wrap(lambda x: model(x - x.mean(0)).square().sum(1)))


def test_a_flag_makes_another_loss(started):
    model = nn.Linear(4, 2)
    s = started(ROWS, model=model, rate=0.0)

    def loss(factor, centred):
        return lambda x: factor * model(x - x.mean(0) if centred else x).square().sum(1)

    s.release(loss(1.0, False))
    s.release(loss(2.0, False))
    with pytest.raises(dpfy.IsolationError):
        s.release(loss(2.0, True))


def test_short_floats_under_autocast_do_not_cost_the_fast_engine(started):
    """Engines round short floats differently; judged in the precision of the parameters none but
    the oracle passes.
    """
    model = nn.Sequential(nn.Linear(4, 16), nn.LayerNorm(16), nn.Tanh(), nn.Linear(16, 2))

    def loss(x):
        with torch.autocast("cpu", torch.bfloat16):
            return model(x).float().square().sum(1)

    s, _ = first_release(started, model, loss=loss)
    assert s.run.engine == "bookkeeping"


class Switched(nn.Module):
    """Mixes examples once it is told to."""

    def __init__(self):
        super().__init__()
        self.layer, self.centred = nn.Linear(4, 2), False

    def forward(self, x):
        return self.layer(x - x.mean(0) if self.centred else x)


def centre_by_flag(model):
    model.centred = True


def centre_by_hook(model):
    model.layer.register_forward_pre_hook(lambda module, given: (given[0] - given[0].mean(0),))


def centre_by_method(model):
    model.forward = lambda x: model.layer(x - x.mean(0))


def centre_by_module(model):
    model.layer = nn.Sequential(Centred(), model.layer)


@pytest.mark.parametrize(
    "change", [centre_by_flag, centre_by_hook, centre_by_method, centre_by_module]
)
def test_a_model_that_was_changed_after_the_first_step_is_probed_again(started, change):
    model = Switched()
    s = started(ROWS, model=model)
    s.release(lambda x: model(x).square().sum(1))
    change(model)
    with pytest.raises(dpfy.IsolationError):
        s.release(lambda x: model(x).square().sum(1))


def test_half_precision_inside_a_loss_is_not_taken_for_mixing(started):
    """Kernels of other sizes round a recurrent layer otherwise, by as much as half precision
    has.
    """

    class Sequences(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.head = nn.GRU(4, 8, batch_first=True), nn.Linear(8, 2)

        def forward(self, x):
            return self.head(self.layer(x.unsqueeze(1).expand(-1, 6, -1))[0][:, -1])

    torch.manual_seed(0)
    model = Sequences()

    def loss(x):
        with torch.autocast("cpu", torch.bfloat16):
            return model(x).float().square().sum(1)

    assert started(ROWS, model=model).release(loss).any()


@pytest.mark.parametrize(
    ("model", "rows", "most"),
    [
        (nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), ROWS, 38),
        (nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(12, 2)), ROWS.long().abs(), 31),
    ],
    ids=["numbers", "tokens"],
)
def test_a_model_is_judged_in_few_passes(started, monkeypatch, model, rows, most):
    """Fails if a check makes passes of its own where it could share them: set-up takes longer."""
    calls, forward = [], LossCall.forward
    monkeypatch.setattr(
        LossCall, "forward", lambda self, *given: calls.append(1) or forward(self, *given)
    )
    s, _ = first_release(started, model, rows)
    assert s.run.engine == "bookkeeping" and len(calls) <= most


def test_records_alone_are_computed_at_once_unless_that_is_something_else():
    model, chunk = nn.Linear(4, 2), Chunk((ROWS,), len(ROWS))

    def by_size(x):  # what it sees is a batch of one record
        return model(x).sum(1) * len(x) - x.mean(0).sum()

    found = alone_at_once(model, by_size, chunk)
    alone = torch.cat([by_size(row.unsqueeze(0)) for row in ROWS]).detach().double()
    assert torch.allclose(found.squeeze(1), alone, rtol=1e-5)
    # drawn for all records at once, or of a value
    for loss in (lambda x: F.dropout(model(x)).sum(1), lambda x: model(x).sum(1) + x.max().item()):
        assert alone_at_once(model, loss, chunk) is None


@pytest.mark.parametrize("scale", [1.0, 2.0**-5], ids=["as they are", "small"])
def test_a_loss_that_mixes_in_its_last_operation_is_refused(started, scale):
    model = nn.Linear(4, 2)
    with pytest.raises(dpfy.IsolationError, match="loss_fn"):
        first_release(started, model, loss=lambda x: (scale * model(x).sum(1)).cumsum(0))


def test_sums_are_compared_in_every_block():
    ones = torch.ones(3 * 2**16)
    wrong = ones.clone()
    wrong[-(2**15) :] = 0.0  # a sixth of the numbers
    assert squared_norm(ones) == len(ones) and squared_norm(ones, wrong) == 2**15
    assert are_equal_sums([ones], [ones], 2.0**-23)
    assert not are_equal_sums([wrong], [ones], 2.0**-23)


def test_parameters_whose_gradients_are_views_of_one_are_compared_rightly(started):
    class Token(nn.Module):
        """Put a learnt token before the others and add learnt positions, as vision models do."""

        def __init__(self):
            super().__init__()
            self.token = nn.Parameter(torch.randn(1, 1, 3))
            self.places = nn.Parameter(torch.randn(1, 3, 3))
            self.last = nn.Linear(3, 1)

        def forward(self, x):
            rows = torch.cat([self.token.expand(len(x), -1, -1), x.unflatten(1, (2, 3))], 1)
            return self.last((rows + self.places).tanh()).sum((1, 2))

    torch.manual_seed(0)
    model = Token()
    s = started(torch.randn(8, 6), model=model)
    s.release(lambda x: model(x).square())
    assert s.run.engine == "bookkeeping"


@pytest.mark.parametrize("scale", [1e-25, 1.0, 1e25])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_norms_outside_of_the_range_of_float32_are_found(scale, dtype):
    """Fails if squares vanish or overflow: an engine that is wrong there would agree."""
    values = torch.linspace(-1, 1, 70_001, dtype=torch.float64).mul(scale).to(dtype)
    assert squared_norm(values) == pytest.approx(float(values.double().square().sum()), rel=1e-5)
    assert squared_norm(values, values / 2) == pytest.approx(
        float(values.double().square().sum()) / 4, rel=1e-5
    )


def test_one_copy_of_the_model_serves_nested_checks_and_restores_it():
    model = nn.Linear(4, 2)
    trained = dict(model.named_parameters())
    probe = Probe(
        model, trained, lambda x: model(x).sum(1), Chunk((torch.rand(2, 4),), 2), declared=False
    )
    before = model.weight.detach().clone()
    with probe.undisturbed() as written:
        with probe.undisturbed() as inner:
            assert inner is written and inner() is None
            model.weight.data.add_(1)
        assert written() == "weight" and not torch.equal(model.weight, before)
    assert torch.equal(model.weight, before)
    with probe.undisturbed() as again:
        assert again is not written


def judged(loss, model):
    """Return a probe of a loss on records of four numbers."""
    example = Chunk((torch.zeros(2, 4),), 2)
    return Probe(model, dict(model.named_parameters()), loss, example, declared=False)


def test_records_are_made_anew_for_a_loss_that_writes_to_them():
    model = nn.Linear(4, 2)
    probe = judged(lambda x: model(x.mul_(0)).sum(1), model)
    before = probe.input(3, 5).arguments[0].clone()
    probe.input(3, 5).arguments[0].zero_()
    probe.losses(probe.input(3, 5))
    assert before.any() and torch.equal(probe.input(3, 5).arguments[0], before)


def test_large_chunks_begin_with_the_known_records_and_have_others_besides():
    model = nn.Linear(4, 2)
    probe = judged(lambda x: model(x).sum(1), model)
    for size in (2, 5, 7, 10, 33):
        rows = probe.many(size).arguments[0]
        known = probe.base(min(size, 5)).arguments[0]
        assert len(rows) == size and torch.equal(rows[: len(known)], known)
        assert len(rows.unique(dim=0)) == size


@pytest.mark.parametrize("draws", [False, True], ids=["memory", "seed"])
def test_what_a_loss_varies_with_is_told_apart(draws):
    model, seen = nn.Linear(4, 2), []

    def loss(x):
        shift = torch.rand(()) if draws else torch.tensor(float(len(seen)))
        if float(x.detach().max()) < 1 / 16:  # only small numbers are remembered
            seen.append(x)
        return model(x).sum(1) + shift.detach()

    probe = judged(loss, model)
    for size in (2, 3, 5):
        probe.base_losses(size)
    assert probe.varies
    if draws:
        check_memory(probe)
    else:
        with pytest.raises(dpfy.IsolationError, match="keeps state"):
            check_memory(probe)


def test_a_loss_that_is_vectorised_needs_no_tracing_of_its_own(monkeypatch):
    model, traced = nn.Linear(4, 2), []
    monkeypatch.setattr(probes, "refuses_tracing", lambda *given: traced.append(given))
    assert judged(lambda x: model(x).sum(1), model)._keeps_apart and not traced
    assert judged(lambda x: F.dropout(model(x)).sum(1), model).doubts() and traced
