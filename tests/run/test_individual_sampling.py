"""Records leave by filters of their own: after the steps that they afford, without a trace in
others, and nothing about them is written anywhere.
"""

import math
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, strategies as st
from runs import Dot, Started
from scipy import stats
from torch import nn
from torch.utils.data import TensorDataset

import dpfy
from dpfy.accounting import GaussianFilter, IndividualFilter, RenyiFilter
from dpfy.accounting.individual_filter import BUDGET
from dpfy.auditing.mutants import releasing
from dpfy.errors import BudgetExhausted, InvalidArgument, IsolationError
from dpfy.gradients import LoopEngine, VmapEngine
from dpfy.ledger.events import Sampled, SumQuery
from dpfy.ledger.individual import FilteredPoisson
from dpfy.mechanisms.clipping import Clipping
from dpfy.mechanisms.gaussian_sum import GaussianSum
from dpfy.run import individual_sampling
from dpfy.run.individual_sampling import RecordBudgets, allowance_of, check_individual
from dpfy.run.state_file import read_state
from dpfy.run.terms import mechanism_for

pytestmark = pytest.mark.cpu
NOISE = 4.0
FULL = IndividualFilter(GaussianFilter(mu=1.0), slack=1.0, levels=8)
DRAWN = IndividualFilter(RenyiFilter(2.0, 1e-3, (6.0,)), slack=1.0, levels=8)
ROWS = torch.diag(torch.tensor([3.0, 0.5, 0.125]))  # what Dot contributes to each coordinate


class Line(nn.Module):
    """As ``Dot``, of a layer that book-keeping knows."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1, bias=False)

    def forward(self, x):
        return self.layer(x).squeeze(-1)


@pytest.fixture
def noiseless(monkeypatch):
    """Release sums without noise, whatever the recorded noise is."""
    monkeypatch.setattr(*releasing(lambda self, total, noise: total))


def plan_of(rule=FULL, steps=30, rate=1.0, noise=NOISE, **options):
    base = dpfy.dpsgd(rate=rate, divisor=1, steps=steps, noise_multiplier=noise, **options)
    return base.under(rule)


def budgets_of(started):
    return started.run.context.sampling.budgets


def allowance_in(started):
    """The allowance of the run's mechanism, once there is an engine."""
    context = started.run.context
    config = context.controllers.config(1)
    layout = context.buffer.layout_of(1, config, context.trained())
    return allowance_of(mechanism_for(context, context.engines.current, 1, config, layout))


def afforded(started, level):
    """How many steps a record of a level pays for."""
    plan = started.plan
    return BUDGET // plan.filter.costs(plan.event, allowance_in(started))[level]


@pytest.mark.parametrize("engine", ["bookkeeping", "vmap", "loop"])
def test_a_record_is_dropped_after_exactly_the_steps_that_its_budget_affords(noiseless, engine):
    data = TensorDataset(ROWS)
    started = Started(data, model=Line(), plan=plan_of(steps=70), engine=engine)
    sums = torch.stack([started.release() for _ in range(70)])
    large, medium, small = (afforded(started, level) for level in (8, 4, 1))
    assert large == 16 and medium in (62, 63) and small > 900
    for coordinate, (last, value) in enumerate([(large, 1.0), (medium, 0.5), (small, 0.125)]):
        expected = [value if step < last else 0.0 for step in range(70)]
        assert sums[:, coordinate].tolist() == pytest.approx(expected, rel=1e-6)


def test_a_record_pays_for_steps_that_it_is_not_drawn_in(noiseless, monkeypatch):
    """Were only drawn steps charged, the large record would stay for half as long again."""
    started = Started(TensorDataset(ROWS), plan=plan_of(DRAWN, steps=60, rate=0.6, noise=6.0))
    sampler, drawn = started.run.context.sampling.sampler, []
    monkeypatch.setattr(
        sampler, "draw", lambda n: drawn.append(type(sampler).draw(sampler, n)) or drawn[-1]
    )
    sums = torch.stack([started.release() for _ in range(60)])
    large, medium = (afforded(started, level) for level in (8, 4))
    assert 5 < large < 40 and medium > 60
    assert any(0 in indices for indices in drawn[large:])
    for step, indices in enumerate(drawn):
        expected = [1.0 if 0 in indices and step < large else 0.0]
        expected += [0.5 if 1 in indices else 0.0, 0.125 if 2 in indices else 0.0]
        assert sums[step].tolist() == pytest.approx(expected, rel=1e-6)


def scripted(data, engine, steps):
    """The noiseless sums and the budgets of a run whose outputs are scripted: the model of a step
    is the same whatever was released, as if the same noise had led there.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    base = dpfy.dpsgd(rate=1.0, divisor=1, steps=steps, noise_multiplier=NOISE, clip=0.5)
    run = dpfy.privatize(
        model,
        optimizer,
        data,
        base.under(replace(FULL, each=GaussianFilter(mu=0.3))),
        dpfy.Ledger.in_memory(),
        engine=engine,
        insecure_test_key=3,
    )
    found = []
    for batch in run:
        with torch.no_grad():
            for number, parameter in enumerate(model.parameters()):
                generator = torch.Generator().manual_seed(100 * batch.step + number)
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
        released = run.release(lambda x, y: F.cross_entropy(model(x), y, reduction="none"), batch)
        budgets = run.context.sampling.budgets
        total = torch.cat([gradient.flatten() for gradient in released.gradients.values()])
        found.append((total.double(), budgets.levels.copy(), budgets.spent.copy()))
    context = run.context
    config = context.controllers.config(1)
    layout = context.buffer.layout_of(1, config, context.trained())
    mechanism = mechanism_for(context, context.engines.current, 1, config, layout)
    run.close()
    return found, mechanism.sensitivity / mechanism.bound


def others(count=9):
    generator = torch.Generator().manual_seed(5)
    return torch.randn(count, 4, generator=generator), torch.arange(count) % 2


ODD = {
    "ordinary": [1.0, -1.0, 0.5, 2.0],
    "huge": [1e30, -1e30, 1e30, 1e30],
    "tiny": [1e-30] * 4,
    "nan": [math.nan, 1.0, 1.0, 1.0],
    "infinite": [math.inf, 0.0, 0.0, 0.0],
}


@pytest.mark.parametrize(
    ("kind", "engine", "place"),
    [
        *(("ordinary", engine, 0) for engine in ("bookkeeping", "vmap", "loop")),
        *((kind, "bookkeeping", 9) for kind in ODD),
    ],
)
def test_neighbours_agree_with_and_without_a_record(noiseless, kind, engine, place):
    """Added or removed, a record moves a sum by at most what it is charged for, moves the bounds
    and budgets of others by nothing, and once it has left, no bit of the sum.
    """
    x, y = others()
    row = torch.tensor([ODD[kind]])
    with_x = torch.cat([x[:place], row, x[place:]])
    with_y = torch.cat([y[:place], torch.tensor([1]), y[place:]])
    steps = 12
    plain, widened = scripted(TensorDataset(x, y), engine, steps)
    added, _ = scripted(TensorDataset(with_x, with_y), engine, steps)
    kept = [index for index in range(10) if index != place]
    left = 0
    for (sum_, levels, spent), (other, all_levels, all_spent) in zip(plain, added, strict=True):
        assert np.array_equal(levels, all_levels[kept])
        assert np.array_equal(spent, all_spent[kept])
        if all_spent[place] > BUDGET or all_levels[place] == 0:
            left += 1
            assert torch.equal(sum_, other)
        else:
            share = all_levels[place] / 8
            allowance = 1 - 1 / widened
            charged = (share + allowance * (1 - share)) * widened * 0.5
            assert float((sum_ - other).norm()) <= charged
    assert left == steps if kind in ("nan", "infinite") else left < steps
    if kind in ("ordinary", "huge"):
        assert left > 0


def test_a_record_that_has_left_is_not_computed(monkeypatch):
    """With weight zero it would still change how the others of its block are rounded."""
    started = Started(TensorDataset(ROWS), plan=plan_of(steps=20), engine="vmap")
    real, rows = VmapEngine.bounded_sums, []

    def noted(self, loss_fn, chunk, clipping):
        rows.append(chunk.arguments[0][:, 0].tolist())
        return real(self, loss_fn, chunk, clipping)

    for step in range(20):
        started.release()
        if step == 0:
            monkeypatch.setattr(VmapEngine, "bounded_sums", noted)  # after the probe
    assert [3.0 in each for each in rows] == [True] * 15 + [False] * 4


@pytest.mark.parametrize("others", [0, 30])
def test_stored_bounds_have_the_same_bits_in_any_company(monkeypatch, others):
    """The norm of the first record is a level exactly. If rounding that depends on the size of a
    block could move it, the record would have another bound, and leave at another step.
    """
    real = Clipping.norms

    def rounded(self, squared):  # as a kernel that rounds by the size of the block
        return real(self, squared) * (1 + 1e-12 * (len(squared[0]) - 1))

    monkeypatch.setattr(Clipping, "norms", rounded)
    rows = torch.cat([torch.tensor([[0.5, 0.0, 0.0]]), torch.rand(others, 3)])
    started = Started(TensorDataset(rows), plan=plan_of(), engine="vmap")
    started.release()
    assert int(budgets_of(started).levels[0]) == 4


def test_a_record_that_is_set_to_zero_is_as_one_that_is_absent(noiseless):
    x, y = torch.cat([ROWS, torch.zeros(1, 3)]), plan_of(steps=4)
    with_null, without = Started(TensorDataset(x), plan=y), Started(TensorDataset(ROWS), plan=y)
    for _ in range(4):
        assert torch.equal(with_null.release(), without.release())
    assert budgets_of(with_null).own[3] == 0


@given(
    st.lists(
        st.one_of(st.floats(-1e3, 1e3, width=32), st.sampled_from([math.nan, math.inf, 0.0, 1e30])),
        min_size=1,
        max_size=6,
    ),
    st.floats(1.0, 3.0),
    st.integers(1, 64),
)
def test_bounds_are_levels_above_the_norms_and_never_above_the_clip_bound(norms, slack, levels):
    plan = plan_of(replace(FULL, slack=slack, levels=levels), clip=2.0)
    budgets = RecordBudgets(plan, dpfy.Ledger.in_memory(), len(norms))
    found = np.abs(np.array(norms))
    budgets.store(np.arange(len(norms)), found)
    bounds = 2.0 * budgets.shares(np.arange(len(norms)))
    usable = np.isfinite(found) & (found > 0)
    assert (bounds[~usable] == 0).all() and (bounds <= 2.0).all()
    assert (bounds[usable] >= np.minimum(found[usable], 2.0) * (1 - 1e-12)).all()
    assert (bounds[usable] - 2.0 / levels <= slack * found[usable]).all()


def test_gradients_that_grow_are_clipped_to_the_stored_bound_until_the_next_refresh(noiseless):
    plan = plan_of(replace(FULL, refresh_epochs=3, slack=1.25), steps=5)
    started = Started(TensorDataset(torch.diag(torch.tensor([0.09, 0.19, 0.8]))), plan=plan)
    small = started.release()
    grown = [started.release(lambda x: 4 * started.model(x)) for _ in range(4)]
    assert small.tolist() == pytest.approx([0.09, 0.19, 0.8])
    for sums in grown[:2]:
        assert sums.tolist() == pytest.approx([0.125, 0.25, 1.0])  # what was stored at first
    for sums in grown[2:]:
        assert sums.tolist() == pytest.approx([0.36, 0.76, 1.0])


def test_a_record_that_shrinks_costs_less_after_a_refresh(noiseless):
    started = Started(TensorDataset(ROWS), plan=plan_of(steps=40))
    for _ in range(2):
        started.release()
    for _ in range(38):
        sums = started.release(lambda x: started.model(x) / 24)
    assert sums.tolist() == pytest.approx([0.125, 0.5 / 24, 0.125 / 24])
    assert int(budgets_of(started).levels[0]) == 1


class Broken(torch.utils.data.Dataset):
    """Rows of which the second cannot be loaded, and the third breaks the loss."""

    example_input = torch.zeros(1, 3)

    def __len__(self):
        return 4

    def __getitem__(self, index):
        if index == 1:
            raise OSError("unreadable")
        return torch.full((3,), 100.0) if index == 2 else torch.tensor([0.5, 0.0, 0.0])


def test_records_that_fail_take_no_part_and_pay_nothing(noiseless, capsys):
    started = Started(Broken(), plan=plan_of(steps=3), engine="loop")

    def loss(x):
        if bool((x > 50).any()):
            raise ValueError("a record with large numbers")
        return started.model(x)

    for _ in range(3):
        assert started.release(loss).tolist() == pytest.approx([1.0, 0.0, 0.0])
    assert (budgets_of(started).own > 0).tolist() == [True, False, False, True]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("rows", [torch.zeros(0, 3), ROWS[:1], torch.full((2, 3), math.nan)])
@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_empty_data_empty_samples_and_single_records_are_ordinary(noiseless, rows, rate):
    started = Started(TensorDataset(rows), plan=plan_of(rate=rate, steps=3))
    sums = [started.release() for _ in range(3)]
    expected = [1.0, 0.0, 0.0] if len(rows) == 1 and rate else [0.0] * 3
    assert all(each.tolist() == pytest.approx(expected, rel=1e-6) for each in sums)
    assert started.ledger.count == 3


def test_the_noise_stays_when_all_records_have_left():
    """Releases are then noise of the planned scale; two thirds or three halves of it would be
    rejected. False alarms: below 1e-6 by the χ² law of 8000 coordinates.
    """
    rows, dimension = torch.full((3, 2000), 9.0), 2000
    rule = IndividualFilter(GaussianFilter(mu=0.1), levels=8)
    started = Started(TensorDataset(rows), dimension=dimension, plan=plan_of(rule, 4, noise=2.0))
    total = torch.cat([started.release() for _ in range(4)]).double()
    assert not budgets_of(started).remaining.any()
    squares = float((total / 2.0).square().sum())
    low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], len(total))
    assert low < squares < high * (1 + 1e-3)  # the noise covers rounding as well
    for wrong in (2 / 3, 3 / 2):
        assert not low < squares * wrong**2 < high * (1 + 1e-3)


# The ledger, and what is written


def test_the_event_is_that_of_the_sampler_and_the_limit_is_the_guarantee():
    started = Started(TensorDataset(ROWS), plan=plan_of(steps=30))
    for _ in range(30):
        started.release()
    (uses,) = started.ledger.uses
    assert uses.event == Sampled(FilteredPoisson(1.0), (SumQuery(1.0, NOISE),))
    assert uses.times == 30  # more than the sixteen of a record at the clip bound
    assert started.ledger.header.filter == FULL.to_json()
    limit = FULL.each.profile("", started.plan.relation, 1e-3).epsilon(1e-5)
    assert started.run.spent(1e-5) == limit == dpfy.account(started.plan).epsilon(1e-5)


def test_the_step_is_durable_before_a_record_is_read(monkeypatch):
    started, seen = Started(TensorDataset(ROWS), plan=plan_of()), []
    norms = individual_sampling._norms
    monkeypatch.setattr(
        individual_sampling,
        "_norms",
        lambda context, *rest: seen.append(context.ledger.count) or norms(context, *rest),
    )
    started.release()
    started.release()
    assert seen == [1, 2]


def bound(tmp_path, rows=ROWS, **options):
    model = Dot()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    data = TensorDataset(rows)
    if "resumed" in options:
        return dpfy.resume(
            tmp_path / options["resumed"], model, optimizer, data, insecure_test_key=2
        )
    return dpfy.privatize(
        model, optimizer, data, plan_of(**options), tmp_path / "run.dpl", insecure_test_key=1
    )


def take(run, steps):
    found = []
    for _, batch in zip(range(steps), run, strict=False):
        released = run.release(lambda x: run.model(x), batch)
        found.append(released.gradients["weight"].clone())
    return torch.stack(found)


def test_a_resumed_run_charges_the_past_at_the_clip_bound(noiseless, tmp_path):
    run = bound(tmp_path)
    take(run, 6)
    run.save(tmp_path / "saved")
    run.close()
    again = bound(tmp_path, resumed="saved")
    budgets = again.context.sampling.budgets
    cost = FULL.costs(again.plan.event)[8]
    assert budgets.spent.tolist() == [6 * cost] * 3 and budgets.own.tolist() == [0] * 3
    sums = take(again, 24)
    assert sums[:, 0].tolist() == pytest.approx([1.0] * 10 + [0.0] * 14)
    assert sums[:, 1].tolist() == pytest.approx([0.5] * 24)
    again.close()


def test_a_resume_that_leaves_nobody_is_refused(tmp_path):
    run = bound(tmp_path)
    take(run, 16)
    run.save(tmp_path / "saved")
    run.close()
    with pytest.raises(BudgetExhausted, match="no record could take part"):
        bound(tmp_path, resumed="saved")


def test_neither_checkpoint_nor_ledger_tells_anything_about_records(noiseless, tmp_path):
    """Runs on very different records, after which the model is the same, leave the same behind."""
    states, ledgers = [], []
    for name, rows in (("large", 9 * torch.eye(3)), ("small", torch.eye(3) / 64)):
        folder = tmp_path / name
        folder.mkdir()
        run = bound(folder, rows, steps=30)
        take(run, 20)
        run.save(folder / "saved")
        ledgers.append(run.ledger)
        run.close()
        state = read_state(folder / "saved" / "checkpoint.safetensors")
        states.append({k: v for k, v in state.items() if k not in ("ledger", "hash")})
    one, other = ledgers
    assert one.header.differences(other.header) == []
    assert (one.uses, one.lines, one.basis) == (other.uses, other.lines, other.basis)
    assert repr(states[0]) == repr(states[1])


def test_budgets_have_no_text_and_cannot_be_written():
    started = Started(TensorDataset(ROWS), plan=plan_of())
    started.release()
    budgets = budgets_of(started)
    assert repr(budgets) == "RecordBudgets(sensitive)"
    with pytest.raises(TypeError, match="private"):
        pickle.dumps(budgets)


def test_steps_of_another_run_on_the_ledger_are_charged_at_the_clip_bound(noiseless):
    ledger = dpfy.Ledger.in_memory()
    one = Started(TensorDataset(ROWS), plan=plan_of(steps=30), ledger=ledger)
    sums = [one.release() for _ in range(4)]
    other = Started(TensorDataset(ROWS), plan=plan_of(steps=31), ledger=ledger)
    sums += [other.release() for _ in range(5)]
    sums += [one.release() for _ in range(20)]
    taken = sum(float(each[0]) > 0 for each in sums)
    assert taken == 16
    assert float(other.release()[0]) == 0.0


def test_a_step_that_fails_is_charged_at_the_clip_bound(noiseless, monkeypatch):
    started = Started(TensorDataset(ROWS), plan=plan_of(steps=30))
    sums = [started.release()]
    with monkeypatch.context() as patched:
        patched.setattr(individual_sampling, "event_of", lambda *rest: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            started.release()
    sums += [started.release() for _ in range(20)]
    assert sum(float(each[0]) > 0 for each in sums) == 15
    cost = FULL.costs(started.plan.event, allowance_in(started))
    assert int(budgets_of(started).spent[1]) == 21 * cost[4] + cost[8]


def test_blocks_that_are_paid_for_ahead_are_charged_when_they_are_taken(noiseless):
    ledger = dpfy.Ledger.in_memory(block=8)
    started = Started(TensorDataset(ROWS), plan=plan_of(steps=30), ledger=ledger)
    sums = torch.stack([started.release() for _ in range(20)])
    assert (sums[:, 0] > 0).tolist() == [True] * 16 + [False] * 4


# Refusals


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"engine": "ghost"}, "the very gradient that they add"),
        ({"prefetch": 1, "num_workers": 1}, "prefetch=0"),
    ],
)
def test_what_has_no_proof_is_refused_before_a_step_is_paid_for(options, reason):
    ledger = dpfy.Ledger.in_memory()
    with pytest.raises(InvalidArgument, match=reason):
        Started(TensorDataset(ROWS), plan=plan_of(), ledger=ledger, **options)
    assert ledger.count == 0


def test_several_processes_and_devices_are_refused():
    with pytest.raises(InvalidArgument, match="one process, got 2"):
        check_individual("auto", 2, {})
    elsewhere = {"w": nn.Parameter(torch.empty(2, device="meta"))}
    with pytest.raises(InvalidArgument, match="got meta"):
        check_individual("auto", 1, elsewhere)


def test_a_loss_that_gives_other_bits_is_refused(monkeypatch):
    """Its stored bounds could move by a level with what else is computed."""
    calls, real = [], LoopEngine.gradients

    def drifting(self, call, state, record):
        found, seen = real(self, call, state, record)
        calls.append(1)
        return tuple(g if g is None else g * (1 + 1e-6 * len(calls)) for g in found), seen

    monkeypatch.setattr(LoopEngine, "gradients", drifting)
    started = Started(TensorDataset(ROWS), plan=plan_of(), engine="vmap")
    with pytest.raises(IsolationError, match="individual filter"):
        started.release()


def test_the_allowance_is_what_arithmetic_adds_to_the_bound():
    mechanism = GaussianSum(2.0, 1.0, 1000, co_batched=64)
    assert allowance_of(mechanism) == pytest.approx(1 - 2.0 / mechanism.sensitivity, rel=1e-6)
    assert 0 < allowance_of(mechanism) < 1e-4
