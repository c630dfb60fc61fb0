"""One step: its order, its slots, and that it can be read from top to bottom."""

import ast
import re
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from dpfy.ledger import Ledger
from dpfy.mechanisms.clipping import ClipEach
from dpfy.mechanisms.sampling import PoissonSampler
from dpfy.noise import LatticeGaussian, SecureStream
from dpfy.records.records import Records
from dpfy.run import step
from dpfy.run.controller_states import ControllerStates
from dpfy.run.record_bounds import UniformBounds
from dpfy.run.release_layout import ReleaseLayout
from dpfy.run.run import Run
from dpfy.run.sampling_strategy import IndependentSampling, Sample

ROOT = Path(__file__).parents[2]
ROWS = torch.eye(3) * 4


# The order


def test_a_step_reserves_draws_bounds_adds_noise_and_observes_in_this_order(started, monkeypatch):
    """A draw before the reservation, or an observation before the noise, would show here."""
    s, seen = started(ROWS, noise_multiplier=1.0), []
    s.release()  # the engine is chosen: it clips synthetic records
    for owner, name, word in (
        (Ledger, "reserve", "reserve"),
        (PoissonSampler, "draw", "draw"),
        (Records, "chunks", "read"),
        (ClipEach, "__call__", "bound"),
        (LatticeGaussian, "release", "noise"),
        (ControllerStates, "observe", "observe"),
    ):
        original = getattr(owner, name)

        def noted(*given, original=original, word=word, **named):
            seen.append(word)
            return original(*given, **named)

        monkeypatch.setattr(owner, name, noted)
    s.release()
    assert seen == ["reserve", "draw", "read", "bound", "noise", "observe"]


def test_the_layout_of_a_step_is_computed_once_and_then_kept(started, monkeypatch):
    made, units = [], []
    check, computed = ReleaseLayout.of_step, ReleaseLayout._clipping.func
    s = started(ROWS, noise_multiplier=1.0)
    s.release()
    monkeypatch.setattr(
        ReleaseLayout, "of_step", lambda *given: made.append(1) or check(*given), raising=True
    )
    counted = type(ReleaseLayout.__dict__["_clipping"])(
        lambda self: units.append(1) or computed(self)
    )
    counted.__set_name__(ReleaseLayout, "_clipping")
    monkeypatch.setattr(ReleaseLayout, "_clipping", counted)
    s.release()
    assert (len(made), len(units)) == (1, 0)
    s.run.context.buffer.__init__()
    s.release()
    assert (len(made), len(units)) == (2, 1)


# The slots


class HalfBounds(UniformBounds):
    """A bound of half the step's for the first record."""

    def clipping_for(self, clipping, indices):
        factors = torch.tensor([[0.5] if index == 0 else [1.0] for index in indices])
        waiting = [factors]

        def weigh(squared_norms):
            now, waiting[0] = waiting[0].split(
                [len(squared_norms), len(waiting[0]) - len(squared_norms)]
            )
            return clipping.weigh(squared_norms) * now

        return replace(clipping, weigh=weigh)


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_a_record_may_have_a_bound_of_its_own(started, engine):
    """The slot is given the records' places in the data set, in the order of the chunk."""
    s = started(ROWS, engine=engine)
    s.run.context = replace(s.run.context, record_bounds=HalfBounds())
    assert s.release().tolist() == pytest.approx([0.5, 1.0, 1.0], rel=1e-4)


class Twice(LatticeGaussian):
    """Noise that depends on an earlier step: the second release takes the first one's back."""

    def __init__(self, stream):
        super().__init__(stream)
        self.kept = None

    def release(self, sums, factors, outs, stddev, grid):
        plain = [each.double().clone() for each in sums]
        super().release(sums, factors, outs, stddev, grid)
        noise = [
            out / factor - each for out, factor, each in zip(outs, factors, plain, strict=True)
        ]
        for out, factor, earlier in zip(outs, factors, self.kept or [0.0] * len(outs), strict=True):
            out -= earlier * factor
        self.kept = noise


def test_noise_that_is_correlated_over_steps_is_a_value_for_a_slot(started):
    """Sums of two releases have the noise of the second alone."""
    s = started(torch.zeros(2, 3), noise_multiplier=1.0)
    s.run.context = replace(s.run.context, noise=Twice(SecureStream(1, purpose="noise")))
    first, second = s.release(), s.release()
    again = started(torch.zeros(2, 3), noise_multiplier=1.0)
    again.run.context = replace(
        again.run.context, noise=LatticeGaussian(SecureStream(1, purpose="noise"))
    )
    plain = again.release(), again.release()
    assert torch.equal(first, plain[0])
    assert (first + second).tolist() == pytest.approx(plain[1].tolist(), rel=1e-4, abs=1e-4)


class Everybody(IndependentSampling):
    """Proposes all records, whatever was drawn, and gives the last of them no weight."""

    def propose(self, context, sample, step, config, engine, loss_fn, clipping):
        indices = np.arange(len(context.records))
        return Sample.drawn(indices, context.streams.sampling, context.records.seed_words)

    def weigh(self, clipping, step, config, indices):
        kept = torch.tensor([[float(index != 2)] for index in indices])
        return replace(clipping, weigh=lambda squared: clipping.weigh(squared) * kept)

    def widen(self, mechanism):
        return replace(mechanism, bound=2 * mechanism.bound)


def test_a_sampling_strategy_proposes_weighs_and_widens_the_noise(started):
    s = started(ROWS, engine="vmap")
    context = s.run.context
    s.run.context = replace(context, sampling=Everybody(context.sampling.sampler))
    assert s.release().tolist() == pytest.approx([1.0, 1.0, 0.0], rel=1e-4)
    noisy = started(ROWS, engine="vmap", noise_multiplier=1.0)
    plain = noisy.run.release(noisy.loss, next(iter(noisy.run))).stddevs["weight"]
    context = noisy.run.context
    noisy.run.context = replace(context, sampling=Everybody(context.sampling.sampler))
    wide = noisy.run.release(noisy.loss, next(iter(noisy.run))).stddevs["weight"]
    assert wide == pytest.approx(2 * plain, rel=1e-3)


@pytest.mark.parametrize(("count", "words"), [(0, 0), (0, 3), (1, 0), (5, 2)])
def test_a_sample_is_read_back_from_its_bytes(count, words):
    drawn = Sample.drawn(np.arange(count), SecureStream(1, purpose="sampling"), words)
    found = Sample.from_bytes(drawn.to_bytes(), words)
    assert len(found) == count and found.seeds.shape == (words, count)
    for name in ("indices", "tags", "seeds"):
        assert torch.equal(getattr(found, name), getattr(drawn, name))
    assert bool((found.tags >= 0).all()) and "1" not in repr(found)


def test_a_context_shows_nothing_of_what_it_holds(started):
    """It is public, so that recipes can use it, and may end up in a log or a traceback."""
    assert repr(started(ROWS).run.context) == "StepContext(sensitive)"


# The page


def test_a_step_fits_on_a_page_and_a_run_has_few_methods():
    assert len(Path(step.__file__).read_text(encoding="utf-8").splitlines()) <= 150
    (made,) = (
        node
        for node in ast.parse(Path(sys.modules[Run.__module__].__file__).read_text()).body
        if isinstance(node, ast.ClassDef) and node.name == "Run"
    )
    assert sum(isinstance(node, ast.FunctionDef) for node in made.body) <= 20


def test_nobody_reaches_into_a_run():
    """What others need of a run is in its context."""
    found = [
        f"{path.relative_to(ROOT)}: {match}"
        for folder in ("src", "tests", "docs", "examples", "benchmarks", "experiments")
        for path in (ROOT / folder).rglob("*.py")
        if path != Path(sys.modules[Run.__module__].__file__)
        for match in re.findall(r"\brun\._[a-z]\w*", path.read_text(encoding="utf-8"))
    ]
    assert not found


def test_a_reader_opens_few_files_and_seldom_changes_the_room():
    """Traced in a process of its own, as it replaces the profiler."""
    code = (
        "import sys; sys.path.insert(0, 'docs/figures'); import one_step; walk = one_step.trace(); "
        "print(len(walk.files), walk.changes_of_room, *walk.files)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    files, changes, *names = ended.stdout.split()
    assert "run/step.py" in names and "ledger/ledger.py" in names and "records/records.py" in names
    assert int(files) <= 22 and int(changes) <= 12, names


# The cost


class Counted(torch.utils.data.Dataset):
    """A hundred million records that exist when they are asked for."""

    def __init__(self):
        self.asked = 0

    def __len__(self):
        return 10**8

    def __getitem__(self, index):
        self.asked += 1
        return torch.ones(3)


def test_a_step_reads_and_holds_its_sample_and_not_the_records(started):
    """An array with a single byte for each record would be a hundred megabytes."""
    data = Counted()
    s = started(data, rate=64 / len(data))
    s.release()  # what is kept from the first step on
    data.asked = 0
    tracemalloc.start()
    s.release()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10**6 and 16 < data.asked < 160  # 64 expected: 1e-10 outside


# What changes between steps


def small_network():
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def replace_activation(model):
    model[1] = nn.ReLU()


def replace_weight(model):
    model[0].weight.data = model[0].weight.data.t().contiguous().t() * 3


def freeze(model):
    model[0].requires_grad_(False)


def hook(model):
    model[2].register_forward_hook(lambda module, given, output: output * 2)


def put_forward(model):
    model[0].forward = lambda x: 2 * nn.functional.linear(x, model[0].weight, model[0].bias)


def set_flag(model):
    model.factor = 3.0


def widen(model):
    model.double()


@pytest.mark.parametrize(
    "change", [replace_activation, replace_weight, freeze, hook, put_forward, set_flag, widen]
)
def test_a_step_sees_what_was_changed_since_the_last_one(started, change):
    """Whatever is kept from step to step, the next one is of the model and the loss as they are."""

    def released(engine, change):
        model = small_network()
        model.factor = 1.0
        s = started(ROWS, model=model, clip=100.0, engine=engine, steps=3)
        dtype = lambda: next(model.parameters()).dtype  # noqa: E731

        def loss(x):
            return model.factor * model(x.to(s.device, dtype())).squeeze(1).square()

        s.release(loss)
        s.release(loss)
        change(model)
        return s.release(loss)

    found, wanted = released("auto", change), released("loop", change)
    assert found.shape == wanted.shape and torch.allclose(found, wanted, rtol=1e-4, atol=1e-5)
    before = released("auto", lambda model: None)
    assert change is widen or found.shape != before.shape or not torch.allclose(found, before)
