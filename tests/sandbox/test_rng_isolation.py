"""What private records may not do: move generators, warn, abort, mix, write to the model or stay in
it.
"""

import random
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from runs import Dot
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import dpfy

ROWS = torch.randn(20, 3, generator=torch.Generator().manual_seed(3))


def generators():
    return torch.get_rng_state().tolist(), random.getstate(), str(np.random.get_state())


class Augmented(Dataset):
    """Draws from every generator for every record."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index] * (1 + torch.rand(1) + random.random() + np.random.rand())


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_no_generator_tells_how_much_was_drawn(started, engine):
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 1))
    before = generators()
    started(Augmented(ROWS), model=model, engine=engine).release(lambda x: model(x).squeeze(1))
    assert generators() == before


def test_a_public_seed_does_not_fix_dropout_or_augmentation():
    """Known masks would depend on the records before them; these are secret and fresh in every step
    and run.
    """
    found = []
    for _ in range(2):
        torch.manual_seed(0), random.seed(0), np.random.seed(0)
        model = Dot()
        run = dpfy.privatize(
            model,
            torch.optim.SGD(model.parameters(), lr=1.0),
            Augmented(ROWS),
            dpfy.dpsgd(rate=1.0, divisor=1, steps=2, noise_multiplier=0.0),
            dpfy.Ledger.in_memory(),
            example_input=torch.zeros(1, 3),
        )
        found += [
            run.release(lambda x, model=model: F.dropout(model(x)), batch).gradients["weight"]
            for batch in run
        ]
    assert len({tuple(gradient.tolist()) for gradient in found}) == 4


def standardised(records):
    rows = torch.stack(records)
    return rows - rows.mean(0) + rows[:1] * 0 + len(records)


def test_a_collate_function_cannot_mix_records(started):
    """It is given one record at a time, so a statistic over the batch is one over the record
    itself.
    """
    few = started([*ROWS[:-1]], collate_fn=standardised).release()
    more = started([*ROWS], collate_fn=standardised).release()
    assert float((more - few).norm()) <= 1 + 1e-6


def test_a_loss_that_is_a_module_leaves_the_model_its_parameters(started):
    model = Dot()
    weight = model.weight
    for engine in ("loop", "vmap"):
        started(ROWS, model=model, engine=engine).release(model)
    assert model.weight is weight and dict(model.named_parameters())["weight"] is weight


@pytest.mark.parametrize("trained", [True, False])
def test_layers_cannot_write_to_the_parameters_of_the_model(started, trained):
    class Renormalised(nn.Module):
        """Rescales the rows it looks up once they are long, as ``max_norm`` does, in the function's
        own way.
        """

        def __init__(self):
            super().__init__()
            self.table, self.head = (
                nn.Parameter(torch.full((60, 2), 0.1), requires_grad=trained),
                nn.Linear(2, 1),
            )

        def forward(self, tokens):
            return self.head(F.embedding(tokens, self.table, max_norm=1.0)).squeeze(1)

    model = Renormalised()
    s = started(torch.tensor([[2], [42]]).squeeze(1), model=model, engine="loop")
    s.release(model)
    with torch.no_grad():
        model.table.fill_(3.0)
    s.release(model)
    assert (model.table == 3.0).all()


class Remembering(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind, self.weight = kind, nn.Parameter(torch.zeros(3))
        self.last, self.largest, self.seen, self.calls = None, 0.0, [], {"number": 0}

    def forward(self, x):
        if self.kind == "tensor":
            self.last = x.detach()
        elif self.kind == "number":
            self.largest = max(self.largest, float(x.detach().abs().max()))
        elif self.kind == "list":
            self.seen.append(x.detach().sum())
        elif self.kind == "counter":
            self.calls["number"] += 1
        elif self.kind == "cache" and self.last is None:
            self.last = torch.ones(3)  # made on first use, whatever the input
        return x @ self.weight


@pytest.mark.parametrize(
    ("kind", "attribute"),
    [("tensor", "last"), ("number", "largest"), ("list", "seen"), ("counter", "calls")],
)
def test_a_model_that_keeps_what_it_saw_is_refused_by_the_name_of_the_attribute(
    started, kind, attribute
):
    model = Remembering(kind)
    with pytest.raises(dpfy.IsolationError, match=rf"\.{attribute}\b"):
        started(ROWS, model=model, engine="loop").release(model)


def test_a_cache_that_does_not_depend_on_the_input_is_no_memory(started):
    model = Remembering("cache")
    assert started(ROWS, model=model, engine="loop").release(model).any()


class Odd:
    """A type that no probe can make up."""

    def __init__(self, secret):
        self.secret = secret


@pytest.mark.parametrize(
    ("collate", "says"),
    [
        (lambda rows: (rows, Odd(4711)), "Odd"),
        (lambda rows: (rows, torch.tensor(3.0)), "no rows"),
        (lambda rows: (rows, [row[:2] for row in rows]), "2 rows"),
        (lambda rows: (rows, [Odd(4711) for _ in rows]), "Odd"),
    ],
    ids=["object", "scalar", "ragged", "objects"],
)
def test_fields_that_cannot_be_divided_are_refused_by_their_type(started, collate, says):
    """Also where they are declared: otherwise every record would be left out, without a word."""
    with pytest.raises(dpfy.DataError, match=says) as caught:
        started(ROWS, collate_fn=lambda records: collate(torch.stack([row for (row,) in records])))
    with pytest.raises(dpfy.InvalidArgument, match=says) as declared:
        started([*ROWS], example_input=collate(ROWS[:1]))
    assert "4711" not in str(caught.value) + str(declared.value)


def test_numpy_fields_are_divided_by_records(started):
    s = started(
        [*ROWS], collate_fn=lambda records: np.stack([record.numpy() for record in records])
    )
    torch.testing.assert_close(s.release(), started(ROWS).release())


class Panic(BaseException):
    """What a crashing extension raises: not an Exception."""


class Hostile(Dataset):
    """One record does something else than being loaded."""

    def __init__(self, deed):
        self.deed = deed

    def __len__(self):
        return 20

    def __getitem__(self, index):
        return self.deed() if index == 7 else ROWS[index]


class Unopened:
    @property
    def shape(self):
        raise OSError("record 7 is not opened")

    dtype = "float32"


def nested():
    value: list = []
    for _ in range(5000):
        value = [value]
    return value


def raising(kind):
    def deed():
        raise kind("record 7: HIV+")

    return deed


def warning():
    warnings.warn("record 7 looks odd", UserWarning, stacklevel=1)
    return ROWS[7]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    "deed",
    [
        raising(SystemExit),
        raising(GeneratorExit),
        raising(Panic),
        Unopened,
        nested,
        lambda: Odd(1),
        lambda: (yield),
    ],
    ids=["exit", "generator", "panic", "unopened", "nested", "object", "unpicklable"],
)
def test_no_record_can_stop_the_run_or_speak(started, deed, workers, capfd):
    others = torch.cat([ROWS[:7], ROWS[8:]])
    assert torch.equal(
        started(Hostile(deed), num_workers=workers, announce=False).release(),
        started(others, announce=False).release(),
    )
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("workers", [0, 1])
def test_warnings_about_records_are_not_shown(started, workers, capfd):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        released = started(Hostile(warning), num_workers=workers, announce=False).release()
    assert not caught and capfd.readouterr().err == ""
    assert torch.equal(released, started(ROWS).release())


@pytest.mark.parametrize("kind", [SystemExit, Panic])
def test_a_loss_cannot_stop_the_run_for_a_record(started, kind):
    model = Dot()

    def loss(x):
        if float(x.abs().max()) > 100:
            raise kind("secret")
        return model(x)

    rows = torch.cat([ROWS, torch.full((1, 3), 1e3)])
    s = started(rows, model=model, engine="loop")
    assert torch.equal(s.release(loss), started(ROWS).release())


def test_optimizers_that_were_not_given_are_gated_too(started):
    s = started(ROWS)
    other = torch.optim.Adam(s.model.parameters())
    s.loss(ROWS).sum().backward()
    with pytest.raises(dpfy.UnreleasedGradient):
        other.step()
    unrelated = Dot()
    unrelated(ROWS).sum().backward()
    torch.optim.SGD(unrelated.parameters(), lr=1.0).step()
    s.run.close()
    other.step()


@pytest.mark.parametrize(
    "edit",
    [
        lambda p: p.grad.data.add_(1.0),
        lambda p: setattr(p.grad, "data", torch.ones(3)),
        lambda p: p.grad.numpy().fill(2.0),
    ],
    ids=["data", "replaced data", "numpy"],
)
def test_edits_that_torch_does_not_count_are_noticed(started, edit):
    s = started(ROWS)
    s.run.backward(s.loss, next(iter(s.run)))
    edit(s.model.weight)
    with pytest.raises(dpfy.UnreleasedGradient):
        s.opt.step()


def test_a_step_inside_of_a_block_is_told_to_wait(started):
    s = started(ROWS)
    with pytest.raises(dpfy.UnreleasedGradient, match="after the block"), s.run.public():
        s.loss(ROWS).sum().backward()
        s.opt.step()


def test_a_new_run_of_the_same_model_takes_over(started):
    first = started(ROWS)
    plan = dpfy.dpsgd(rate=1.0, divisor=1, steps=1, noise_multiplier=1.0)
    second = dpfy.privatize(
        first.model, first.opt, TensorDataset(ROWS), plan, dpfy.Ledger.in_memory()
    )
    before = [parameter.detach().clone() for parameter in first.model.parameters()]
    second.backward(first.model, next(iter(second)))
    first.opt.step()  # a gate of the first run would refuse it
    assert not any(map(torch.equal, before, first.model.parameters()))
    second.close()


def test_epochs_end_even_if_nobody_takes_their_batches(started):
    run = started(ROWS, steps=6, rate=0.5).run
    assert len([None for _ in run.epochs()]) == 3
    assert [batch.step for epoch in run.epochs() for batch in epoch] == [1, 2, 3, 4, 5, 6]


def test_models_that_cannot_be_trained_this_way_are_refused_early(started):
    class Complex(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(3, dtype=torch.complex64))

    for model, says in ((nn.LazyLinear(2), "not initialised"), (Complex(), "complex")):
        with pytest.raises(dpfy.InvalidArgument, match=says):
            started(ROWS, model=model)


def test_options_of_a_file_are_refused_for_an_open_ledger(started):
    with pytest.raises(dpfy.InvalidArgument, match="belong to Ledger"):
        started(ROWS, block=5)
