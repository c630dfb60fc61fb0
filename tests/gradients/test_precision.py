"""Short floats in the passes, norms in longer ones; compiled functions run as what was compiled."""

from functools import partial

import pytest
import torch
from against_oracle import Subject, in_float64, pattern_loss, shaken, trained_of
from torch import nn

import dpfy
from dpfy.gradients import BookkeepingEngine, GhostEngine, LoopEngine, VmapEngine
from dpfy.mechanisms.clipping import clip_to

ENGINES = pytest.mark.parametrize(
    "engine", [BookkeepingEngine, GhostEngine], ids=lambda engine: engine.name
)


class Mean(nn.Module):
    def __init__(self, layer, axes):
        super().__init__()
        self.layer, self.axes = layer, axes

    def forward(self, x):
        found = self.layer(x)
        return (found[0] if isinstance(found, tuple) else found).mean(self.axes)


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(9, 16), nn.Linear(16, 9)
        self.head.weight = self.table.weight

    def forward(self, x):
        return self.head(self.table(x)).mean(1)


def floats(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


CASES = {
    "mlp": (
        lambda: nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 5)),
        (floats(6, 12),),
    ),
    "sequences": (
        lambda: nn.Sequential(nn.Linear(12, 32), nn.LayerNorm(32), Mean(nn.Linear(32, 5), 1)),
        (floats(6, 7, 12),),
    ),
    "conv": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 9, 3),
            nn.GroupNorm(3, 9),
            nn.Tanh(),
            nn.Conv2d(9, 9, 3),
            nn.PReLU(),
            Mean(nn.Conv2d(9, 4, 1), (2, 3)),
        ),
        (floats(6, 3, 7, 7),),
    ),
    "transformer": (
        lambda: Mean(nn.TransformerEncoderLayer(16, 2, 20, 0.0, batch_first=True), 1),
        (floats(6, 5, 16),),
    ),
    "tied": (Tokens, (torch.arange(24).view(6, 4) % 9,)),
}


def autocast(model):
    """The loss as users write it: the model under autocast, the loss outside."""

    def loss_fn(*fields):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            outputs = model(*fields)
        outputs = outputs.float()
        return (outputs - torch.linspace(-1, 1, outputs.shape[1])).square().mean(1) / 2

    return loss_fn


def flat(sums):
    return torch.cat([part.flatten() for part in sums])


@ENGINES
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", ["autocast", "outright"])
def test_short_floats_are_as_accurate_as_they_can_be_and_stay_within_the_bound(engine, case, kind):
    make, fields = CASES[case]
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model, exact = shaken(make().bfloat16().float()), make().double()
    model = model.bfloat16() if kind == "outright" else model
    exact.load_state_dict(model.state_dict())
    short = torch.bfloat16 if kind == "outright" else torch.float32
    fields = tuple(f.to(torch.bfloat16).to(short) if f.is_floating_point() else f for f in fields)
    loss = (
        autocast
        if kind == "autocast"
        else lambda model: lambda *fields: pattern_loss(model)(*fields).float()
    )
    subject = Subject.prepared(model, fields, engine=engine, loss=loss)
    oracle = Subject(LoopEngine(exact, trained_of(exact)), pattern_loss(exact))
    expected = flat(oracle.sums(in_float64(fields), clip_to(1e9)))
    found = flat(subject.sums(fields, clip_to(1e9)))
    assert float((found - expected).norm()) <= 2e-2 * float(expected.norm())
    bound = float(subject.squared.sqrt().min()) / 2  # every record is clipped
    for row in range(len(fields[0])):
        alone = flat(subject.sums(tuple(f[row : row + 1] for f in fields), clip_to(bound)))
        assert bound * 0.98 <= float(alone.norm()) <= bound * (1 + 1e-6)


ROUNDING = 4e-2  # of the sums of two engines in bfloat16, whose own rounding is 2⁻⁸


def adversarial(fields):
    """Records that are huge, tiny, zero, or made of steps that cancel, among ordinary ones."""
    if not fields[0].is_floating_point():
        return fields
    x = fields[0].float().clone()
    x[0] *= 1e4
    x[1] *= 1e-20
    x[2] = 0
    if x.ndim > 2:  # bfloat16 has eight digits: steps that cancel to the last of them
        x[3, 1::2] = -(1 + 2.0**-7) * x[3, ::2][: len(x[3, 1::2])]
    return (x, *fields[1:])


@pytest.mark.parametrize("kind", ["ordinary", "adversarial"])
@pytest.mark.parametrize("case", CASES)
def test_all_engines_agree_under_autocast_and_add_no_record_beyond_the_bound(case, kind):
    """What is measured is the very vector that is added, whatever autocast did before."""
    make, fields = CASES[case]
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = shaken(make().float())
    fields = tuple(f.float() if f.is_floating_point() else f for f in fields)
    given = adversarial(fields) if kind == "adversarial" else fields
    oracle = Subject(LoopEngine(model, trained_of(model)), autocast(model))
    oracle.sums(given, clip_to(1.0))
    bound = 0.5 * float(norms_of(oracle, given).median())  # some are clipped, and some are not
    expected = flat(oracle.sums(given, clip_to(bound)))
    for engine in (BookkeepingEngine, GhostEngine, VmapEngine, LoopEngine):
        subject = Subject.prepared(model, fields, engine=engine, loss=autocast)
        if engine is VmapEngine and case == "sequences":
            with pytest.raises(RuntimeError, match="scalar type"):  # torch's, of a LayerNorm
                subject.sums(given, clip_to(bound))
            continue
        found = flat(subject.sums(given, clip_to(bound)))
        assert float((found - expected).norm()) <= ROUNDING * float(expected.norm()), engine.name
        for row in range(len(given[0])):
            alone = flat(subject.sums(tuple(f[row : row + 1] for f in given), clip_to(bound)))
            assert float(alone.norm()) <= bound * (1 + 1e-6), engine.name


def norms_of(subject, fields):
    """The norm of each record's gradient."""
    rows = (tuple(f[row : row + 1] for f in fields) for row in range(len(fields[0])))
    return torch.stack([flat(subject.sums(row, clip_to(1e30))).norm() for row in rows])


def test_autocast_inside_the_loss_trains_with_book_keeping(started):
    model = CASES["transformer"][0]()

    def loss(x):
        with torch.autocast("cpu", torch.bfloat16):
            return model(x).float().square().sum(1)

    s = started(torch.rand(8, 5, 16), model=model)
    s.release(loss)
    assert s.run.engine == "bookkeeping"


def test_losses_that_are_scaled_for_half_precision_are_refused(started):
    model, scaler = nn.Linear(3, 2), torch.amp.GradScaler("cpu")
    off = torch.amp.GradScaler("cpu", enabled=False)
    with pytest.raises(dpfy.LossError, match=r"GradScaler.*bfloat16"):
        started(torch.rand(8, 3), model=model).release(lambda x: scaler.scale(model(x).sum(1)))
    started(torch.rand(8, 3), model=model).release(lambda x: off.scale(model(x).sum(1)))
    assert torch.amp.GradScaler.scale.__module__.startswith("torch")


@ENGINES
def test_norms_of_short_floats_neither_overflow_nor_vanish(engine):
    # In half precision the squares of either input are infinite or zero.
    model = nn.Linear(8, 4, bias=False).bfloat16()
    subject = Subject.prepared(
        model,
        (torch.ones(3, 8, dtype=torch.bfloat16),),
        engine=engine,
        loss=lambda model: lambda x: model(x).float().sum(1),
    )
    for size in (1e-25, 1e25):
        added = flat(subject.sums((torch.full((3, 8), size, dtype=torch.bfloat16),), clip_to(size)))
        assert float(added.norm()) == pytest.approx(3 * size, rel=1e-2)


# Compiled models and losses


def test_compiled_models_are_refused_with_the_remedy():
    compiled, in_place = torch.compile(nn.Linear(2, 2), backend="eager"), nn.Linear(2, 2)
    in_place.compile(backend="eager")
    for model in (compiled, in_place, nn.Sequential(in_place)):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        plan = dpfy.dpsgd(rate=0.5, divisor=1, steps=1, clip=1.0, noise_multiplier=1.0)
        with pytest.raises(dpfy.InvalidArgument, match="Pass the module that you compiled"):
            dpfy.privatize(model, optimizer, torch.rand(4, 2), plan, dpfy.Ledger.in_memory())


@pytest.mark.parametrize("where", ["the loss", "inside the loss", "the model that the loss calls"])
def test_a_compiled_loss_runs_as_the_function_that_was_compiled(where):
    """Compiled code may have constants of the model inside, or drop what is patched into it; and
    the probe would have it made anew for every size of a batch.
    """
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    data, plan = (
        torch.rand(8, 3),
        dpfy.dpsgd(rate=1.0, divisor=1, steps=2, clip=1.0, noise_multiplier=0.0),
    )
    made = []
    compiled = partial(
        torch.compile, backend=lambda graph, inputs: made.append(graph) or graph.forward
    )

    def released(loss):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with dpfy.privatize(
            model,
            optimizer,
            torch.utils.data.TensorDataset(data),
            plan,
            dpfy.Ledger.in_memory(),
            insecure_test_key=1,
        ) as run:
            return flat(run.release(loss, next(iter(run))).gradients.values()), run.engine

    plain = lambda x: model(x).square().sum(1)  # noqa: E731 - as it is written in a loop
    squares, whole = compiled(lambda scores: scores.square().sum(1)), compiled(model)
    loss = {
        "the loss": compiled(plain),
        "inside the loss": lambda x: squares(model(x)),
        "the model that the loss calls": lambda x: whole(x).square().sum(1),
    }[where]
    (found, engine), (expected, other) = released(loss), released(plain)
    assert torch.equal(found, expected) and not made
    assert engine == other == "bookkeeping"  # which serves this model: a refusal fails the test
    with torch.no_grad():
        loss(data)
    assert made  # outside of the run it is compiled as ever
