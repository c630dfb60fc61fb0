"""The step from reservation to release."""

import logging
import queue
import warnings
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from runs import Dot, Started
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

import dpfy
from dpfy.gradients.bookkeeping.engine import BookkeepingEngine
from dpfy.mechanisms.sampling import PoissonSampler
from dpfy.noise import LatticeGaussian, SecureStream
from dpfy.run.ranks import Ranks

ROWS = torch.tensor([[3.0, 4.0, 0.0], [0.0, 0.3, 0.4], [0.0, 0.0, -2.0]])
CLIPPED = torch.tensor([0.6, 0.8 + 0.3, 0.4 - 1.0])


# The loop that users write


def test_the_loop_of_the_readme_trains_and_leaves_the_users_objects_theirs(tmp_path):
    torch.manual_seed(0)
    x = torch.randn(200, 5)
    data = TensorDataset(x, (x[:, 0] > 0).long())
    model = nn.Linear(5, 2)
    opt = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(opt, 10, gamma=0.5)
    keys, classes = list(model.state_dict()), (type(model), type(opt))
    plan = dpfy.dpsgd(records=200, batch_size=50, steps=30, clip=1.0).calibrate(
        epsilon=3.0, delta=1e-3
    )
    run = dpfy.privatize(model, opt, data, plan, ledger=tmp_path / "run.dpl")
    for batch in run:
        opt.zero_grad()
        run.backward(lambda x, y: F.cross_entropy(model(x), y, reduction="none"), batch)
        opt.step()
        scheduler.step()
    assert 2.9 < run.spent(delta=1e-3).upper <= 3.0
    run.close()
    assert (list(model.state_dict()), (type(model), type(opt))) == (keys, classes)
    assert (
        not model._forward_hooks
        and not model._forward_pre_hooks
        and not opt._optimizer_step_pre_hooks
    )
    assert (model(x).argmax(1) == data.tensors[1]).float().mean() > 0.8
    assert dpfy.Ledger.read(tmp_path / "run.dpl").count == 30


def test_a_second_loop_continues_and_epochs_cover_the_plan(started):
    run = started(ROWS, steps=7, rate=0.5).run
    for batch in run:
        if batch.step == 2:
            break
    assert run.steps_left == 5
    assert [[batch.step for batch in epoch] for epoch in run.epochs()] == [[3, 4], [5, 6], [7]]
    assert run.steps_left == 0 and list(run) == []


@pytest.mark.parametrize(("taken", "left"), [(0, 20), (3, 19), (4, 19), (56, 1), (57, 0)])
def test_epochs_are_those_of_the_plan_whose_steps_they_divide(started, taken, left):
    plan = dpfy.dpsgd(records=1437, batch_size=512, epochs=20, noise_multiplier=1.0)
    run = started(ROWS, plan=plan).run
    assert len([*zip(range(taken), run, strict=False)]) == taken
    epochs = [[batch.step for batch in epoch] for epoch in run.epochs()]
    assert len(epochs) == left and [*chain(*epochs)] == [*range(taken + 1, 58)]


def test_a_finished_ledger_is_refused_and_an_unfinished_one_goes_on(started, tmp_path, capsys):
    path = tmp_path / "run.dpl"
    begun = started(ROWS, steps=3, ledger=path)
    begun.run.backward(begun.loss, next(iter(begun.run)))
    begun.run.close()
    left = started(ROWS, steps=3, ledger=path)
    assert left.run.steps_left == 2 and "2 are left" in capsys.readouterr().out
    for batch in left.run:
        left.run.backward(left.loss, batch)
    left.run.close()
    with pytest.raises(dpfy.errors.LedgerFinished, match=r"All 3 steps .*if_exists='new'"):
        started(ROWS, steps=3, ledger=path)
    begun.opt.step()  # no gate was left behind
    assert started(ROWS, steps=3, ledger=path, announce=False).run.steps_left == 0  # was asked for


def test_a_filter_without_room_is_refused_as_a_finished_ledger_is(started, tmp_path):
    noise = dpfy.GradientNormNoise(ratio=0.5)
    plan = dpfy.dpsgd(rate=1.0, divisor=1, steps=50, controllers=[noise])
    plan = plan.calibrate(epsilon=1.0, delta=1e-5)
    path = tmp_path / "run.dpl"
    begun = started(ROWS, plan=plan, ledger=path)
    while not begun.run.exhausted:
        begun.run.ledger.reserve(plan.event)
    begun.run.close()
    if begun.run.steps_taken >= plan.steps:
        pytest.fail("the filter should stop before the plan does")
    with pytest.raises(dpfy.errors.LedgerFinished, match="no room for another step"):
        started(ROWS, plan=plan, ledger=path)


def test_a_new_ledger_is_begun_beside_those_that_exist(started, tmp_path, capsys):
    for name in ("run.dpl", "run-2.dpl", "run-3.dpl"):
        run = started(ROWS, ledger=tmp_path / "run.dpl", if_exists="new").run
        assert run.ledger.path == tmp_path / name and run.steps_left == 5
        said = capsys.readouterr().out
        assert (name in said and "all their ledgers together" in said) or name == "run.dpl"
    with pytest.raises(dpfy.errors.InvalidArgument, match="to be a path"):
        started(ROWS, if_exists="new")
    with pytest.raises(dpfy.errors.InvalidArgument, match="if_exists='never'"):
        started(ROWS, ledger=tmp_path / "other.dpl", if_exists="never")


def test_backward_adds_to_what_was_released_before(started):
    s = started(ROWS)
    for batch, _ in zip(s.run, range(2), strict=False):
        s.run.backward(s.loss, batch)
    torch.testing.assert_close(s.model.weight.grad, 2 * CLIPPED)


def test_release_is_pure(started):
    s = started(ROWS)
    torch.testing.assert_close(s.release(), CLIPPED)
    assert s.model.weight.grad is None and not s.model.weight.any()


def test_one_sample_licenses_one_release(started):
    s = started(ROWS)
    batch = next(iter(s.run))
    s.run.release(s.loss, batch)
    with pytest.raises(dpfy.BatchAlreadyReleased):
        s.run.release(s.loss, batch)
    assert s.ledger.count == 1


def test_batches_of_another_run_and_closed_runs_are_refused(started):
    s, other = started(ROWS), started(ROWS)
    with pytest.raises(dpfy.InvalidArgument):
        s.run.release(s.loss, next(iter(other.run)))
    batch = next(iter(s.run))
    s.run.close()
    with pytest.raises(dpfy.InvalidArgument):
        s.run.release(s.loss, batch)


class Pair(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


@pytest.mark.parametrize(
    ("record", "loss"),
    [
        (lambda row: (row, row[0]), lambda model: lambda x, y: model(x)),
        (lambda row: [row, row[0]], lambda model: lambda x, y: model(x)),
        (lambda row: Pair(row, row[0]), lambda model: lambda x, y: model(x)),
        (lambda row: {"x": row, "y": row[0]}, lambda model: lambda fields: model(fields["x"])),
        (lambda row: row, lambda model: model),
        (
            lambda row: (row, {"deep": (row[0], row)}),
            lambda model: lambda x, more: model(more["deep"][1]),
        ),
        (lambda row: (row, "some text"), lambda model: lambda x, text: model(x)),
        (
            lambda row: row,
            lambda model: lambda x: dpfy.Losses(model(x), stats={"norm": x.norm(dim=1)}),
        ),
    ],
    ids=["tuple", "list", "namedtuple", "dict", "bare tensor", "nested", "text", "losses"],
)
@pytest.mark.parametrize("engine", ["loop", "auto"])
def test_fields_reach_the_loss_by_position_or_as_one_argument(started, record, loss, engine):
    s = started(
        [record(row) for row in ROWS],
        engine=engine,
        example_input=default_collate([record(torch.zeros(3))]),
    )
    torch.testing.assert_close(s.release(loss(s.model)), CLIPPED)


def test_several_optimizers_frozen_parameters_and_parameter_groups():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2), nn.Linear(2, 1))
    model[1].bias.requires_grad_(False)
    first = torch.optim.SGD(
        [{"params": model[0].weight, "lr": 0.1}, {"params": model[0].bias}], lr=0.5
    )
    second = torch.optim.Adam(model[1].parameters())
    plan = dpfy.dpsgd(rate=1.0, divisor=3, steps=2, noise_multiplier=1.0)
    run = dpfy.privatize(
        model,
        [first, second],
        TensorDataset(ROWS),
        plan,
        dpfy.Ledger.in_memory(),
        insecure_test_key=1,
    )
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    run.backward(lambda x: model(x).squeeze(1), next(iter(run)))
    first.step(), second.step()
    moved = {
        name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])
    }
    assert moved == {"0.weight", "0.bias", "1.weight"}


# What is recorded, and when


class Spy(Dataset):
    """Knows how many steps were reserved whenever a record is read."""

    def __init__(self, rows):
        self.rows, self.ledger, self.seen = rows, None, []

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        self.seen.append(self.ledger.count)
        return self.rows[index]


def test_the_step_is_reserved_before_any_record_is_read(started):
    data = Spy(ROWS)
    s = started(data)
    data.ledger = s.ledger
    batches = iter(s.run)
    batch = next(batches)
    assert data.seen == []
    s.run.release(s.loss, batch)
    assert data.seen and set(data.seen) == {1}
    data.seen.clear()
    s.run.release(s.loss, next(batches))
    assert set(data.seen) == {2}


def test_the_recorded_event_is_what_the_sampler_and_the_mechanism_licensed(started):
    s = started(ROWS, rate=0.25, noise_multiplier=1.5)
    s.release()
    event = s.ledger.uses[0].event
    assert (event.policy.rate, event.queries[0].stddev / event.queries[0].l2_bound) == (0.25, 1.5)


def test_a_query_that_differs_from_the_reserved_event_is_refused_before_data_is_read(started):
    data = Spy(ROWS)
    s = started(data, noise_multiplier=1.0)
    data.ledger = s.ledger
    s.run.context.sampling.sampler = PoissonSampler(0.5, SecureStream(1, purpose="sampling"))
    with pytest.raises(dpfy.LedgerMismatch):
        s.release()
    assert data.seen == [] and s.ledger.count == 0


def test_the_step_that_would_exceed_the_budget_raises_before_it_reads(started):
    data = Spy(ROWS)
    plan = dpfy.dpsgd(rate=0.5, divisor=1, steps=3).calibrate(epsilon=2.0, delta=1e-5)
    s = started(data, plan=replace(plan, steps=50))
    data.ledger = s.ledger
    released = 0
    with pytest.raises(dpfy.BudgetExhausted):
        for batch in s.run:
            data.seen.clear()
            s.run.release(s.loss, batch)
            released += 1
    assert released == 3 and data.seen == []
    assert s.run.spent(1e-5).upper <= 2.0


def test_a_ledger_is_continued_with_its_own_plan_and_refuses_another(tmp_path):
    path = tmp_path / "run.dpl"
    first = Started(TensorDataset(ROWS), ledger=path, key=None, steps=3)
    first.release()
    first.run.close()
    again = Started(TensorDataset(ROWS), ledger=path, key=None, steps=3)
    assert again.run.steps_left == 2
    again.run.close()
    with pytest.raises(dpfy.LedgerMismatch):
        Started(TensorDataset(ROWS), ledger=path, key=None, steps=4)


def test_a_test_key_is_written_into_the_ledger(started):
    assert "insecure" in started(ROWS, key=1).ledger.header.key_source
    assert "insecure" not in started(ROWS, key=None).ledger.header.key_source


# Arithmetic of the sum


def test_sum_not_mean_and_division_by_the_declared_constant_only():
    for repeats in (1, 2):
        data = TensorDataset(ROWS.repeat(repeats, 1))
        plan = dpfy.dpsgd(records=10, batch_size=10, steps=1, noise_multiplier=0.0)
        found = Started(data, plan=plan).release()
        torch.testing.assert_close(found, repeats * CLIPPED / 10)


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize("chunk", [1, 2, 7, 100])
def test_chunks_never_change_the_sum(started, engine, chunk):
    rows = torch.randn(40, 6, generator=torch.Generator().manual_seed(3)) * 2
    whole = started(rows, dimension=6, engine="loop").release()
    assert torch.equal(
        started(rows, dimension=6, engine=engine, max_physical_batch=chunk).release(), whole
    )


def test_no_chunk_exceeds_the_physical_limit_and_none_is_empty(started):
    sizes = []
    s = started(
        [*torch.randn(1000, 3)],
        rate=0.5,
        max_physical_batch=64,
        collate_fn=lambda records: (sizes.append(len(records)), torch.stack(records))[1],
    )
    s.release()
    assert min(sizes) > 0 and max(sizes) <= 64 and sum(sizes) > 400


def test_loading_with_workers_gives_the_same_release(started):
    rows = [*torch.randn(30, 3, generator=torch.Generator().manual_seed(1))]
    alone = started(rows).release()
    s = started(rows, num_workers=2, max_physical_batch=4)
    for _ in range(2):
        assert torch.equal(s.release(), alone)


# Empty samples


def test_a_hundred_empty_batches_are_noised_and_recorded_each(started):
    s = started(ROWS, rate=0.0, steps=100, noise_multiplier=1.0)
    calls = queue.SimpleQueue()  # which no reading looks into
    seen = set()
    probe_calls = 0
    for batch in s.run:
        released = s.run.release(lambda x: (calls.put(1), s.model(x))[1], batch).gradients["weight"]
        assert released.abs().min() > 0
        seen.add(tuple(released.tolist()))
        probe_calls = probe_calls or calls.qsize()
    assert s.ledger.count == len(seen) == 100
    assert calls.qsize() == probe_calls  # the probe looked once; no empty chunk reached the loss


def test_an_empty_data_set_trains_on_noise(started):
    s = started([], noise_multiplier=1.0)
    assert s.release().abs().min() > 0 and s.ledger.count == 1


# Records that misbehave


class Faulty(Dataset):
    """Good rows, and records that raise when they are loaded."""

    def __init__(self, rows, bad=()):
        self.rows, self.bad = rows, set(bad)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        if index in self.bad:
            raise ValueError("patient 4711 is malformed")
        return self.rows[index]


GOOD = [*torch.randn(40, 3, generator=torch.Generator().manual_seed(5))]


def picky(model):
    """A loss that raises for some records, as out-of-range labels do."""

    def loss(x, label):
        return model(x) + F.cross_entropy(torch.zeros(len(x), 3), label, reduction="none")

    return loss


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize("workers", [0, 1])
def test_records_that_cannot_be_loaded_contribute_nothing(started, engine, workers, capfd):
    expected = started(GOOD[:-2], engine=engine).release()
    s = started(
        Faulty(GOOD, bad=[38, 39]), engine=engine, num_workers=workers, max_physical_batch=8
    )
    assert torch.equal(s.release(), expected)
    captured = capfd.readouterr()
    assert captured.out == "" and captured.err == ""


@pytest.mark.parametrize(
    "bad", [torch.zeros(5), torch.zeros(3, 3), "text", None], ids=["long", "deep", "text", "none"]
)
@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_records_that_cannot_be_collated_contribute_nothing(started, engine, bad):
    expected = started(GOOD, engine=engine).release()
    assert torch.equal(started([*GOOD, bad], engine=engine).release(), expected)


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_records_whose_loss_raises_contribute_nothing(started, engine):
    labelled = [(row, torch.tensor(index % 3)) for index, row in enumerate(GOOD)]
    example = torch.zeros(1, 3), torch.zeros(1, dtype=torch.long)
    good = started(labelled, engine=engine, example_input=example)
    bad = started(
        [*labelled[:7], (GOOD[0], torch.tensor(99)), *labelled[7:]],
        engine=engine,
        example_input=example,
    )
    assert torch.equal(bad.release(picky(bad.model)), good.release(picky(good.model)))


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 3e38])
def test_non_finite_records_contribute_nothing_and_huge_ones_are_clipped(started, engine, value):
    rows = torch.stack(GOOD)
    expected = started(rows, engine=engine).release()
    poisoned = started(torch.cat([rows, torch.full((1, 3), value)]), engine=engine).release()
    if value == 3e38:
        torch.testing.assert_close(poisoned - expected, torch.full((3,), 3**-0.5))
    else:
        assert torch.equal(poisoned, expected)


def test_a_canary_with_a_huge_loss_changes_nothing_that_can_be_seen(tmp_path, capfd, caplog):
    caplog.set_level(logging.DEBUG)

    def observe(rows, name):
        s = Started(rows, ledger=tmp_path / name, noise_multiplier=1.0, steps=3)
        for batch in s.run:
            s.run.backward(s.loss, batch)
            s.opt.step()
        text = repr(s.run.__dict__.get("_records")) + repr(batch)
        s.run.close()
        output = capfd.readouterr()
        lines = [line.split('"hash"')[0] for line in (tmp_path / name).read_text().splitlines()[1:]]
        return (
            output.out,
            output.err,
            [r.getMessage() for r in caplog.records],
            lines,
            text.replace(hex(id(s)), "")[:7],
        )

    plain = observe(Faulty(GOOD), "a.dpl")
    caplog.clear()
    canary = observe(Faulty([*GOOD, torch.full((3,), 1e30)], bad=[3]), "b.dpl")
    assert plain == canary


# Input that is refused before anything private happens


class Stream(IterableDataset):
    def __iter__(self):
        return iter(ROWS)


@pytest.mark.parametrize(
    "data", [Stream(), DataLoader(TensorDataset(ROWS)), 3], ids=["iterable", "loader", "number"]
)
def test_data_that_cannot_be_sampled_is_refused(data):
    with pytest.raises(dpfy.DataError):
        Started(data)


@pytest.mark.parametrize(
    "options",
    [
        {"engine": "warp"},
        {"max_physical_batch": 0},
        {"num_workers": -1},
        {"example_input": 3},
        {"example_input": (torch.zeros(2, 3), torch.zeros(3))},
    ],
)
def test_invalid_options_are_refused_before_the_ledger_is_made(tmp_path, options):
    with pytest.raises(dpfy.InvalidArgument):
        Started(TensorDataset(ROWS), ledger=tmp_path / "run.dpl", **options)
    assert not (tmp_path / "run.dpl").exists()


def test_an_uncalibrated_plan_is_refused(tmp_path):
    plan = dpfy.dpsgd(records=10, batch_size=5, steps=1)
    with pytest.raises(dpfy.InvalidArgument, match="calibrate"):
        Started(TensorDataset(ROWS), plan=plan, ledger=tmp_path / "run.dpl")
    assert not (tmp_path / "run.dpl").exists()


def test_optimizers_that_cannot_be_gated_are_refused():
    model, plan = Dot(), dpfy.dpsgd(rate=1.0, divisor=1, steps=1, noise_multiplier=1.0)
    data, ledger = TensorDataset(ROWS), dpfy.Ledger.in_memory()
    with pytest.raises(dpfy.InvalidArgument, match="closure"):
        dpfy.privatize(model, torch.optim.LBFGS(model.parameters()), data, plan, ledger)
    with pytest.raises(dpfy.InvalidArgument, match="not the model's"):
        dpfy.privatize(model, torch.optim.SGD(Dot().parameters(), lr=1.0), data, plan, ledger)
    with pytest.raises(dpfy.InvalidArgument, match="optimizer"):
        dpfy.privatize(model, model, data, plan, ledger)
    model.weight.requires_grad_(False)
    with pytest.raises(dpfy.InvalidArgument, match="no trainable"):
        dpfy.privatize(model, torch.optim.SGD(model.parameters(), lr=1.0), data, plan, ledger)


def test_wrapped_and_compiled_models_are_refused_with_the_remedy():
    plan = dpfy.dpsgd(rate=1.0, divisor=1, steps=1, noise_multiplier=1.0)
    for wrap in (nn.DataParallel, torch.compile):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own, while it imports its compiler
            model = wrap(Dot())
        with pytest.raises(dpfy.InvalidArgument, match="Pass"):
            dpfy.privatize(
                model,
                torch.optim.SGD(model.parameters(), lr=1.0),
                TensorDataset(ROWS),
                plan,
                dpfy.Ledger.in_memory(),
            )


def test_a_diverged_model_is_public_and_stops_the_run_before_the_next_reservation(started):
    s = started(ROWS)
    s.release()
    with torch.no_grad():
        s.model.weight[0] = float("inf")
    with pytest.raises(dpfy.DivergenceError):
        s.release()
    assert s.ledger.count == 1


def test_a_ledger_that_cannot_be_written_is_one_clear_error(tmp_path):
    with pytest.raises(dpfy.LedgerError, match="directory"):
        Started(TensorDataset(ROWS), ledger=tmp_path / "missing" / "run.dpl")


def test_records_are_included_independently_at_the_planned_rate(started):
    """Counts of 40 records over 150 steps, and of pairs in consecutive steps, against 6 standard
    deviations.

    The false-alarm rate over the 80 comparisons is below 2e-7; a rate that is 15 % off is found.
    """
    steps, rate, size = 150, 0.3, 40
    drawn = torch.zeros(steps, size)
    data = Spy(torch.eye(size))
    s = started(
        data,
        dimension=size,
        rate=rate,
        steps=steps,
        engine="loop",
        example_input=torch.zeros(1, size),
        max_physical_batch=size,
    )
    data.ledger = s.ledger
    for step, batch in enumerate(s.run):
        drawn[step] = s.run.release(s.loss, batch).gradients["weight"]
    spread = 6 * (steps * rate * (1 - rate)) ** 0.5
    assert ((drawn.sum(0) - steps * rate).abs() < spread).all()
    total, deviation = float(drawn.sum()), (steps * size * rate * (1 - rate)) ** 0.5
    assert (
        abs(total - steps * size * rate) < 6 * deviation < abs(total - steps * size * rate * 1.15)
    )
    again = (drawn[1:] * drawn[:-1]).sum(0)
    assert (
        (again - (steps - 1) * rate**2).abs() < 6 * (steps * rate**2 * (1 + 2 * rate)) ** 0.5
    ).all()


# Noise that is drawn ahead


class Watched(Ranks):
    """Knows whether what happens here reaches all ranks if it fails."""

    inside = False

    @contextmanager
    def together(self):
        type(self).inside = True
        with super().together():
            yield
        type(self).inside = False


def test_noise_is_begun_once_in_a_step_where_all_ranks_learn_of_a_failure(started, monkeypatch):
    """A failure elsewhere would leave other ranks waiting for this one.

    The first step learns which engine there is after its reservation; the others begin before it.
    """
    s, begun = started(ROWS, noise_multiplier=1.0), []
    s.run.context = replace(s.run.context, ranks=Watched())
    monkeypatch.setattr(
        LatticeGaussian, "prefetch", lambda *_: begun.append((Watched.inside, s.ledger.count))
    )
    for _ in range(3):
        s.release()
    assert begun == [(True, 1), (True, 1), (True, 2)]
    monkeypatch.setattr(LatticeGaussian, "prefetch", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        s.release()
    assert s.ledger.count == 3  # it failed before it was paid for, and no record was read


def test_noise_is_begun_anew_where_the_engine_is_another_than_that_of_the_last_step(
    started, monkeypatch
):
    """Noise for the rounding of the engine before would be too little, or never used."""
    s, begun = started(ROWS, noise_multiplier=1.0, engine="vmap"), []
    monkeypatch.setattr(
        LatticeGaussian, "prefetch", lambda self, count, stddev, grid: begun.append(stddev)
    )
    s.release()
    engines = s.run.context.engines
    engines.current = BookkeepingEngine(s.run.model, dict(s.run.context.parameters))
    s.release()
    first, guessed, second = begun
    assert first == second != guessed
