"""A loss is judged as it is at a step: what it reads, what it does to generators, what it keeps,
and by what engine.
"""

import collections
import ctypes
import functools
import logging
import os
import queue
import random
import sys
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from runs import Dot
from torch import nn

import dpfy
from dpfy.checks.loss_state import Reader, changed

ROWS = torch.randn(24, 3, generator=torch.Generator().manual_seed(3))
FAST = ("auto", "bookkeeping", "ghost", "vmap")
MIXING = False  # read by a loss as a global


class Row(nn.Module):
    """A linear model that every engine serves; the gradient of a record's output is the record."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1, bias=False)

    def forward(self, x):
        return self.layer(x).squeeze(1)


def moved(started, loss_of, engine="auto", steps=1, between=lambda step: None, model_of=Row):
    """Return how far another record moves the noiseless sum of the last of a few steps, in bounds.

    Returns ``RefusedAt(step)`` if a step is refused, which must be the same one with and without
    that record.
    """
    one, other = (
        last_release(
            started(rows, model=model_of(), engine=engine, steps=steps), loss_of, steps, between
        )
        for rows in (ROWS, torch.cat([50 * ROWS[:1], ROWS]))
    )
    if isinstance(one, RefusedAt) or isinstance(other, RefusedAt):
        assert one == other, "a record decides whether a step is refused"
        return one
    return float((other - one).norm())


def last_release(s, loss_of, steps, between):
    """Return what the last step releases, or ``RefusedAt`` the step that is refused."""
    loss = loss_of(s.model)
    for step in range(steps):
        between(step)
        try:
            last = s.release(loss)
        except dpfy.IsolationError:
            return RefusedAt(step)
    return last


@dataclass(frozen=True)
class RefusedAt:
    """The number of the first step that is refused; all before it were served."""

    step: int


def is_bounded(outcome):
    """Whether all steps were served, and a record moves the sum by one bound at most."""
    return not isinstance(outcome, RefusedAt) and outcome <= 1 + 1e-3


def mixed(x, part):
    return x + part * x.flip(0) if part else x


class TestWhatALossReads:
    """Mixing that is switched on after the probe is noticed at the step where it happens."""

    @staticmethod
    def switched(started, loss_of, switch):
        """Whether the first step, which does not mix, is served, and the second, which does, is
        refused.
        """
        outcome = moved(started, loss_of, steps=2, between=lambda step: switch(step == 1))
        return outcome == RefusedAt(1)

    def test_a_number_that_it_closes_over(self, started):
        part = 0.0

        def switch(on):
            nonlocal part
            part = 1.0 if on else 0.0

        assert self.switched(started, lambda model: lambda x: model(mixed(x, part)), switch)

    def test_a_global(self, started):
        def switch(on):
            global MIXING
            MIXING = on

        try:
            assert self.switched(
                started, lambda model: lambda x: model(mixed(x, int(MIXING))), switch
            )
        finally:
            switch(False)

    def test_an_attribute_of_its_owner_in_a_function_that_it_calls(self, started):
        class Owner:
            epoch = 0

            def part(self):
                return float(self.epoch > 0)

            def loss_with(self, model):
                return lambda x: model(mixed(x, self.part()))

        owner = Owner()
        assert self.switched(started, owner.loss_with, lambda on: setattr(owner, "epoch", int(on)))

    def test_an_entry_of_a_configuration(self, started):
        settings = {"mixup": {"part": 0.0}}
        assert self.switched(
            started,
            lambda model: lambda x: model(mixed(x, settings["mixup"]["part"])),
            lambda on: settings["mixup"].update(part=float(on)),
        )

    def test_a_tensor(self, started):
        part = torch.zeros(())
        assert self.switched(
            started,
            lambda model: lambda x: model(x + part * x.flip(0)),
            lambda on: part.fill_(float(on)),
        )

    def test_a_number_of_the_model(self, started):
        class Warmed(Row):
            part = 0.0

            def forward(self, x):
                return super().forward(mixed(x, self.part))

        models = []

        def make():
            models.append(Warmed())
            return models[-1]

        outcome = moved(
            started,
            lambda model: model,
            steps=2,
            model_of=make,
            between=lambda step: setattr(models[-1], "part", float(step)),
        )
        assert outcome == RefusedAt(1)

    def test_a_module_beside_the_model(self, started):
        beside = nn.Linear(3, 3, bias=False)
        nn.init.zeros_(beside.weight)
        assert self.switched(
            started,
            lambda model: lambda x: model(x + beside(x.flip(0))),
            lambda on: beside.weight.data.fill_(float(on)),
        )

    def test_an_iterator_can_not_be_looked_into(self, started):
        settings = {"part": 0.0}
        parts = iter(lambda: settings["part"], None)
        assert self.switched(
            started,
            lambda model: lambda x: model(mixed(x, next(parts))),
            lambda on: settings.update(part=float(on)),
        )

    def test_a_loss_that_always_changes_gets_an_engine_that_isolates(self, started):
        model = Row()
        s = started(ROWS, model=model, steps=12)
        engines = []
        for step in range(12):
            s.release(lambda x, weight=step: (1 + weight) * model(x))
            engines.append(s.run.engine)
        assert engines[0] == "bookkeeping" and engines[-1] == "vmap"

    def test_the_same_loss_is_judged_once(self, started):
        model = Dot()
        s = started(ROWS, model=model, rate=0.0, steps=3)
        for _ in range(3):
            s.release(lambda x: model(x))
        assert len(next(iter(s.run.context.engines._verdicts.values()))._known) == 1


class TestWhatDecidesOnAWholeBatch:
    """Values of all records together must not be computed on a whole chunk, whatever synthetic
    input shows.
    """

    @pytest.mark.parametrize("engine", FAST)
    def test_a_branch_on_values(self, started, engine):
        def loss_of(model):
            def loss(x):
                found = model(x) * 1.0
                return (
                    found * 0 if float(found.detach().abs().mean() + x.abs().mean()) > 4 else found
                )

            return loss

        outcome = moved(started, loss_of, engine)
        assert is_bounded(outcome) if engine == "auto" else outcome == RefusedAt(0)

    @pytest.mark.parametrize("engine", FAST)
    @pytest.mark.parametrize("spike", ["mean", "max", "any"])
    def test_a_batch_that_is_skipped_without_a_branch(self, started, engine, spike):
        def loss_of(model):
            def loss(x):
                size = x.square().sum(1)
                high = {
                    "mean": size.mean() > 1e4,
                    "max": size.max() > 1e5,
                    "any": (size > 1e5).any(),
                }[spike]
                return torch.where(high, 0 * model(x), model(x))

            return loss

        rows = torch.cat([ROWS, torch.full((1, 3), 1e4)])
        model = Row()
        try:
            few, more = (
                started(some, model=model, engine=engine).release(loss_of(model))
                for some in (ROWS, rows)
            )
        except dpfy.IsolationError:
            return
        assert float((more - few).norm()) <= 1 + 1e-3

    def test_the_fast_engine_stays_for_losses_of_every_day(self, started):
        """Value-dependent, and record by record: hinges, masks, weights, one-hot targets, a mean
        that nobody uses.
        """
        linear = nn.Linear(3, 2)
        losses = (
            lambda x: F.relu(1 - linear(x)).sum(1),
            lambda x: (linear(x) * (x[:, :2] > 0)).sum(1),
            lambda x: linear(x).logsumexp(1) * (x.norm(dim=1) > 1),
            lambda x: (linear(x).sum(1), x.mean())[0],
            lambda x: -(F.one_hot((x[:, 0] > 0).long(), 2) * linear(x).log_softmax(1)).sum(1),
            lambda x: F.huber_loss(linear(x), x[:, :2], reduction="none").mean(1),
        )
        for loss in losses:
            s = started(ROWS, model=linear)
            s.release(loss)
            assert s.run.engine == "bookkeeping"


class TestGenerators:
    """Masks that are known depend on a record's place among the others, and one record moves them
    all.
    """

    @staticmethod
    def seeding(kind):
        def loss_of(model):
            def loss(x):
                if kind == "torch":
                    torch.manual_seed(0)
                elif kind == "generator":
                    torch.default_generator.manual_seed(0)
                elif kind == "fork":
                    with torch.random.fork_rng():
                        torch.manual_seed(0)
                        return model(F.dropout(x))
                elif kind == "own":
                    own = torch.Generator().manual_seed(0)
                    return model(x * (torch.rand(x.shape, generator=own) < 0.5))
                elif kind == "numpy":
                    np.random.seed(0)
                    return model(x * torch.from_numpy(np.random.rand(*x.shape) < 0.5).float())
                elif kind == "python":
                    random.seed(0)
                    return model(
                        x
                        * torch.tensor([random.random() < 0.5 for _ in range(len(x))])
                        .float()
                        .unsqueeze(1)
                    )
                return model(F.dropout(x))

            return loss

        return loss_of

    @pytest.mark.parametrize("engine", FAST)
    @pytest.mark.parametrize("kind", ["torch", "generator", "fork", "own", "numpy", "python"])
    def test_a_loss_that_seeds_is_done_one_record_at_a_time_or_refused(self, started, kind, engine):
        model = Row()
        s = started(ROWS, model=model, engine=engine)
        if engine == "auto" and kind != "own":
            s.release(self.seeding(kind)(model))
            assert s.run.engine == "loop"
        else:  # with a generator of its own a record has another loss in another place
            with pytest.raises(dpfy.IsolationError, match="own" if kind != "own" else "alone"):
                s.release(self.seeding(kind)(model))

    def test_a_record_that_seeds_leaves_nothing_to_the_next(self, started):
        """One at a time, a record's own value may seed: the masks of the others stay secret and
        fresh.
        """
        model, drawn = Dot(), queue.SimpleQueue()

        def loss(x):
            if float(x.abs().max()) > 40:
                torch.manual_seed(0), random.seed(0), np.random.seed(0)
            else:
                drawn.put(
                    (torch.rand((), dtype=torch.float64).item(), random.random(), np.random.rand())
                )
            return model(x)

        for _ in range(2):
            started(torch.cat([50 * ROWS[:1], ROWS]), model=model, engine="loop", key=None).release(
                loss
            )
        numbers = [drawn.get() for _ in range(drawn.qsize())]
        on_records = (
            numbers[-len(ROWS) :] + numbers[len(numbers) // 2 - len(ROWS) : len(numbers) // 2]
        )
        for each in zip(*on_records, strict=True):
            assert len(set(each)) == 2 * len(ROWS)

    @pytest.mark.parametrize("draw", [random.random, np.random.rand], ids=["python", "numpy"])
    def test_python_may_draw_where_records_are_alone(self, started, draw):
        model = Row()
        s = started(ROWS, model=model)
        s.release(lambda x: model(x if draw() < 0.5 else -x))
        assert s.run.engine == "vmap"


class RunningMean:
    """Keeps what it saw; of no type that torch knows."""

    def __init__(self):
        self.total, self.count, self.recent = 0.0, 0, collections.deque(maxlen=3)

    def update(self, value):
        self.total, self.count = self.total + value, self.count + 1
        self.recent.append(value)


class StoreThenClip(Dot):
    def __init__(self, kind):
        super().__init__()
        self.kind, self.mean, self.norms = kind, RunningMean(), [nn.BatchNorm1d(3, affine=False)]

    def forward(self, x):
        if self.kind == "object":
            self.mean.update(x.detach().sum())
        elif self.kind == "layer in a list":
            self.norms[0].train()(x.detach())
        return super().forward(x)


class TestSideDoors:
    """What a model or a loss keeps or says of its input is refused, with what to do instead."""

    @pytest.mark.parametrize("kind", ["object", "layer in a list"])
    def test_objects_inside_of_a_model(self, started, kind):
        model = StoreThenClip(kind)
        with pytest.raises(dpfy.IsolationError, match=r"changes .*dpfy\.Losses"):
            started(ROWS, model=model, engine="loop").release(lambda x: model(x))

    def test_a_model_that_keeps_nothing_may_hold_them(self, started):
        model = StoreThenClip("nothing")
        assert started(ROWS, model=model).release(lambda x: model(x)).any()

    def test_losses_in_a_list(self, started):
        model, kept = Dot(), []
        with pytest.raises(dpfy.IsolationError, match="'kept'"):
            started(ROWS, model=model, engine="loop").release(
                lambda x: (kept.append(model(x).detach()), model(x))[1]
            )

    def test_a_running_mean_beside(self, started):
        model, mean = Dot(), RunningMean()
        with pytest.raises(dpfy.IsolationError, match="'mean'"):
            started(ROWS, model=model, engine="loop").release(
                lambda x: (mean.update(float(x.sum())), model(x))[1]
            )

    def test_an_attribute_of_the_owner_that_no_name_in_the_code_tells(self, started):
        class Owner:
            def __init__(self):
                self.model = Dot()

            def loss(self, x):
                setattr(self, "la" + "st", x.detach())
                return self.model(x)

        owner = Owner()
        with pytest.raises(dpfy.IsolationError, match="last"):
            started(ROWS, model=owner.model, engine="loop").release(owner.loss)

    def test_a_second_network_that_learns_beside(self, started):
        model, beside = Dot(), nn.Linear(3, 1)
        optimizer = torch.optim.SGD(beside.parameters(), lr=0.1)

        def loss(x):
            optimizer.zero_grad()
            beside(x.detach()).sum().backward()
            optimizer.step()
            return model(x)

        with pytest.raises(dpfy.IsolationError, match="'beside'"):
            started(ROWS, model=model, engine="loop").release(loss)

    @pytest.mark.parametrize("voice", ["print", "stderr", "log", "bytes"])
    def test_a_loss_that_speaks_is_refused(self, started, voice, capfd, caplog):
        model = Dot()

        def loss(x):
            text = f"loss {float(x.detach().sum())}"
            if voice == "print":
                print(text)
            elif voice == "stderr":
                sys.stderr.write(text)
            elif voice == "log":
                logging.getLogger("mine").warning(text)
            else:
                sys.stdout.buffer.write(text.encode())
            return model(x)

        with pytest.raises(dpfy.IsolationError, match="stdout, stderr or a log"):
            started(ROWS, model=model, engine="loop").release(loss)
        assert capfd.readouterr() == ("", "") and not caplog.records

    def test_one_that_begins_to_speak_on_records_is_not_heard(self, started, capfd, caplog):
        model = Dot()

        def loss(x):
            if float(x.detach().abs().max()) > 1:  # larger than synthetic input
                (
                    print("a record"),
                    sys.stderr.write("a record"),
                    logging.getLogger("mine").error("a record"),
                )
            return model(x)

        assert started(ROWS, model=model, engine="loop").release(loss).any()
        assert capfd.readouterr() == ("", "") and not caplog.records


def test_readings_follow_names_and_notice_what_is_in_large_tensors():
    table = torch.zeros(100_000)
    reader = Reader(Dot())

    def loss(x):
        return x * table.sum()

    before = reader.read(loss)
    assert changed(before, reader.read(loss)) is None
    table[7] = 1
    assert "table" in changed(before, reader.read(loss))


class Settings:
    """A configuration that is read in many ways."""

    def __init__(self):
        self.part = 0.0

    def __getitem__(self, name):
        return vars(self)[name]

    def __float__(self):
        return self.part


class TestOddWaysToRead:
    """Each was seen to switch mixing on unnoticed, and moved the sum by four bounds."""

    @pytest.mark.parametrize(
        "read",
        [
            lambda settings: getattr(settings, "part", 0.0),
            lambda settings: vars(settings)["part"],
            lambda settings: settings["part"],
            float,
            lambda settings: globals()["SETTINGS"].part,
            lambda settings: float(os.environ.get("DPFY_TEST_PART", "0")),
            lambda settings: SHARED.value,
            lambda settings: read_attribute.part,
        ],
        ids=["getattr", "vars", "item", "float", "globals", "environment", "shared", "function"],
    )
    def test_it_is_noticed(self, started, read, monkeypatch):
        monkeypatch.setattr(
            sys.modules[__name__], "SETTINGS", settings := Settings(), raising=False
        )

        def switch(on):
            settings.part = read_attribute.part = SHARED.value = float(on)
            monkeypatch.setenv("DPFY_TEST_PART", str(float(on)))

        assert TestWhatALossReads.switched(
            started, lambda model: lambda x: model(mixed(x, read(settings))), switch
        )

    def test_a_wrapper_that_says_it_is_from_a_library(self, started):
        part = [0.0]

        def loss_of(model):
            @functools.wraps(F.cross_entropy)
            def loss(x):
                return model(mixed(x, part[0]))

            return loss

        assert TestWhatALossReads.switched(
            started, loss_of, lambda on: part.__setitem__(0, float(on))
        )

    def test_a_hook_of_a_layer_that_reads_a_flag(self, started):
        flag = {"part": 0.0}

        def make():
            model = Row()
            model.layer.register_forward_pre_hook(
                lambda layer, given: (mixed(given[0], flag["part"]),)
            )
            return model

        outcome = moved(
            started,
            lambda model: lambda x: model(x),
            steps=2,
            model_of=make,
            between=lambda step: flag.update(part=float(step)),
        )
        assert outcome == RefusedAt(1)

    def test_seeding_that_begins_late_has_no_effect(self, started):
        """With vmap for good, nobody judges the loss again."""
        step_of = [0]

        def loss_of(model):
            def loss(x):
                if step_of[0] >= 10:
                    torch.manual_seed(0)
                return (1 + step_of[0]) * model(F.dropout(x))

            return loss

        model = Row()
        s, loss, found = started(ROWS, model=model, steps=13, key=None), loss_of(model), []
        for step in range(13):
            step_of[0] = step
            found.append(s.release(loss))
        assert s.run.engine == "vmap" and not torch.equal(found[-1], found[-2])


def read_attribute():
    """Has an attribute that a loss reads."""


read_attribute.part = 0.0
SHARED = ctypes.c_double(0.0)


class TestBackward:
    """Code in the backward pass is given the gradients of all records at once."""

    def test_a_hook_on_a_tensor(self, started):
        def loss_of(model):
            def loss(x):
                hidden = model.layer(x)
                if hidden.requires_grad:
                    hidden.register_hook(lambda gradient: gradient * float(gradient.numel() < 25))
                return hidden.squeeze(1)

            return loss

        assert is_bounded(moved(started, loss_of))

    def test_a_function_of_autograd(self, started):
        class Halved(torch.autograd.Function):
            @staticmethod
            def forward(context, values):
                return values * 1

            @staticmethod
            def backward(context, gradients):
                return gradients / len(gradients)

        assert is_bounded(moved(started, lambda model: lambda x: Halved.apply(model(x))))


class TestShapesAndSizes:
    def test_shorter_records_are_judged_by_their_own_shape(self, started):
        """Declared as long, they were given to the loss as a whole, whose branch for short ones
        mixes: 3 bounds.
        """

        def loss_of(model):
            return lambda x: model((x + 5 * x.flip(0) if x.shape[1] < 3 else x)[:, :2])

        found = []
        for rows in (ROWS[:, :2], torch.cat([50 * ROWS[:1, :2], ROWS[:, :2]])):
            model = nn.Sequential(nn.Linear(2, 1, bias=False), nn.Flatten(0))
            nn.init.ones_(model[0].weight)
            s = started([*rows], model=model, example_input=torch.zeros(1, 3))
            found.append(s.release(loss_of(model)))
            assert s.run.engine == "bookkeeping"
        assert found[0].any() and float((found[1] - found[0]).norm()) <= 1 + 1e-3

    def test_a_loss_that_mixes_in_large_chunks_only(self, started):
        model = Row()
        plan = dpfy.dpsgd(records=100, batch_size=100, steps=1, noise_multiplier=0.0)
        with pytest.raises(dpfy.IsolationError, match="large batch"):
            started(torch.randn(100, 3), model=model, plan=plan).release(
                lambda x: model(x + x.flip(0) if len(x) > 64 else x)
            )


def test_recurrent_layers_are_the_same_at_every_step(started):
    """Torch makes weak references to their weights anew: they were judged at every step, and lost
    the fast engine.
    """

    class Sequences(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.LSTM(3, 4, batch_first=True)

        def forward(self, x):
            return self.layer(x.unsqueeze(1))[0].sum((1, 2))

    model = Sequences()
    s = started(ROWS, model=model, steps=3)
    for _ in range(3):
        s.run.backward(lambda x: model(x), next(iter(s.run)))
        s.opt.step()
    assert (
        len(next(iter(s.run.context.engines._verdicts.values()))._known) == 1
        and s.run.engine == "bookkeeping"
    )


def test_auto_says_once_that_it_takes_a_slower_engine_and_why_with_the_line(started, capsys):
    model = Row()

    def loss(x):
        return model(x) * 2 if x.sum() > 100 else model(x)  # a value decides

    s = started(ROWS, model=model, steps=3)
    for batch in s.run:
        s.run.backward(loss, batch)
    said = capsys.readouterr().err
    assert said.count("steps are slower") == 1
    assert "Engine 'loop' is used" in said and "'bookkeeping' is not safe here" in said
    assert "test_engine_choice.py:" in said and "if x.sum() > 100" in said
    assert s.run.engine_notice == said.rstrip("\n")


@pytest.mark.parametrize("options", [{}, {"engine": "loop"}, {"announce": False}])
def test_nothing_is_said_of_the_fastest_engine_a_named_one_or_unasked(started, options, capsys):
    model = Row()

    def loss(x):
        return model(x) * 2 if options and x.sum() > 100 else model(x)

    s = started(ROWS, model=model, **options)
    s.run.backward(loss, next(iter(s.run)))
    assert capsys.readouterr().out == ""
    assert bool(s.run.engine_notice) == ("announce" in options)
