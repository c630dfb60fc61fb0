"""Runs with groups of records: rates and bounds of their own, in every engine, step and process."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from runs import Dot
from scipy.stats import binom
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import dpfy
from dpfy.gradients import ENGINES
from dpfy.gradients.chunk import Chunk
from dpfy.ledger.events import Sampled, SumQuery
from dpfy.ledger.individual import Individual
from dpfy.mechanisms.clipping import Clipping, clip_to
from dpfy.mechanisms.query import ClippedSum, NormalisedSum, Query
from dpfy.run.record_bounds import GroupBounds, UniformBounds
from dpfy.run.terms import mechanism_for

WIDTH, NAMES, BOUNDS = 4, ("strict", "open"), (0.1, 1.5)
ADVERSARIAL = st.one_of(
    st.floats(width=32, allow_nan=True, allow_infinity=True),
    st.sampled_from([0.0, -0.0, 1e-45, 3.4e38, -3.4e38, 1.0, 0.1, 1 / 3]),
)
RECORD = st.tuples(st.lists(ADVERSARIAL, min_size=WIDTH, max_size=WIDTH), st.sampled_from([0, 1]))
ROWS = torch.eye(3) * 4


def policy(rates=(1.0, 1.0), bounds=BOUNDS):
    return Individual(NAMES, rates, bounds, (0.4, 0.6))


def plan(rates=(1.0, 1.0), bounds=BOUNDS, noise=0.0, steps=5, leaf=None, **options):
    query = Query((leaf or ClippedSum(1.0),))
    sampling = policy(rates, bounds)
    return dpfy.Plan(sampling, query, steps, 1.0, noise_multiplier=noise, **options)


# How far a record moves the sum


def prepared(name):
    """An engine for a layer in which the gradient of a record is the record."""
    model = nn.Linear(WIDTH, 1, bias=False)
    engine = ENGINES[name](model, dict(model.named_parameters()))

    def loss(x):
        return model(x).squeeze(1)

    generator = torch.Generator().manual_seed(1)
    engine.prepare(
        loss, lambda size, _: Chunk((torch.randn(size, WIDTH, generator=generator),), size)
    )
    return engine, loss


PREPARED = {name: prepared(name) for name in ENGINES}


def bounded(engine, records, clip):
    """The noiseless sum of records that each have a row and the number of a group."""
    if not records:
        return torch.zeros(WIDTH, dtype=torch.float64)
    rows, numbers = zip(*records, strict=True)
    found, loss = PREPARED[engine]
    bounds = GroupBounds(policy(), np.array(numbers))
    clipping = bounds.clipping_for(Clipping(clip_to(clip), 2.0**-30, (0,)), tuple(range(len(rows))))
    totals = [torch.zeros(1, WIDTH, dtype=torch.float64)]
    chunk = Chunk((torch.tensor(rows, dtype=torch.float32),), len(rows))
    found.bounded_sums(loss, chunk, clipping).add_to(totals)
    return totals[0].flatten()


@pytest.mark.parametrize("engine", ENGINES)
@settings(max_examples=100, deadline=None)
@given(
    records=st.lists(RECORD, max_size=5),
    one=RECORD,
    other=RECORD,
    position=st.integers(0, 5),
    clip=st.sampled_from([1e-3, 1.0, 7.3]),
)
def test_a_record_moves_the_sum_by_its_own_group_s_bound(
    engine, records, one, other, position, clip
):
    """Others are rounded in units of the largest bound; that is all the room there is."""
    rounding = 6 * ENGINES[engine].rounding * max(BOUNDS) * clip
    own = BOUNDS[one[1]] * clip * (1 + (WIDTH + 16) * 2.0**-53) + rounding
    sums = [
        bounded(engine, [*records[:position], *more, *records[position:]], clip)
        for more in ((), (one,), ((other[0], one[1]),))
    ]
    assert all(bool(total.isfinite().all()) for total in sums)
    assert float((sums[1] - sums[0]).norm()) <= own
    assert float((sums[2] - sums[1]).norm()) <= 2 * own


@pytest.mark.parametrize("engine", ENGINES)
def test_every_record_of_a_chunk_has_its_own_bound_also_where_some_are_computed_apart(engine):
    """Of seven records two are not finite: engines compute these by themselves, and the others
    again. A factor that stays at its place in the chunk would be another record's.
    """
    rows = torch.eye(7, WIDTH) * 9 + torch.arange(7).unsqueeze(1) * torch.ones(WIDTH)
    rows[1], rows[4, 2] = math.nan, math.inf
    numbers = [0, 1, 1, 0, 0, 1, 0]
    clipped = [
        row.double() / row.double().norm() * BOUNDS[number]
        for row, number in zip(rows, numbers, strict=True)
        if row.isfinite().all()
    ]
    found = bounded(engine, [*zip(rows.tolist(), numbers, strict=True)], 1.0)
    assert found.tolist() == pytest.approx(sum(clipped).tolist(), rel=1e-4)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_step_bounds_each_record_by_its_group_and_forgets_those_of_none(started, engine):
    labels, model = ["open", "strict", "nobody"], nn.Linear(3, 1, bias=False)
    s = started(ROWS, plan=plan(), group_of=labels, engine=engine, model=model)
    assert s.release(lambda x: model(x).squeeze(1)).tolist() == pytest.approx(
        [1.5, 0.1, 0.0], rel=1e-4
    )


def test_swapped_labels_swap_the_bounds_and_nothing_else(started):
    one, other = (
        started(ROWS, plan=plan(noise=1.0), group_of=each)
        for each in (["open", "strict", "open"], ["strict", "open", "strict"])
    )
    moved = one.release() - other.release()  # the same noise, of the same key
    assert moved.tolist() == pytest.approx([1.4, -1.4, 1.4], rel=1e-4)
    assert one.run.ledger.uses == other.run.ledger.uses
    assert repr(one.run.context.record_bounds) == "GroupBounds(sensitive)"


def test_automatic_clipping_has_bounds_of_groups_too(started):
    s = started(ROWS, plan=plan(leaf=NormalisedSum(1.0, gamma=0.5)), group_of=[1, 0, 1])
    own = [bound * 4 / (4 + 0.5 * bound) for bound in (1.5, 0.1, 1.5)]
    assert s.release().tolist() == pytest.approx(own, rel=1e-4)


def test_rates_of_their_own_leave_clipping_as_it_is(started):
    s = started(ROWS, plan=plan((1.0, 0.5), (1.0, 1.0)), group_of=[0, 0, 1])
    assert isinstance(s.run.context.record_bounds, UniformBounds)
    assert s.release().tolist()[:2] == pytest.approx([1.0, 1.0], rel=1e-4)


# The noise


def test_the_strictest_group_has_its_noise_after_all_rounding(started):
    """The worst that can happen to a record of bound 0.1 among records of bound 1.5, put together
    by hand; noise that is scaled for the declared bound alone would be too little.
    """
    z, dimension = 1.3, 50_000
    planned = plan((0.9, 0.9), noise=z, records=400)
    s = started(
        torch.zeros(3, dimension),
        dimension=dimension,
        plan=planned,
        group_of=[1, 0, 1],
        engine="loop",
    )
    s.release()
    context, step = s.run.context, 2
    config = context.controllers.config(step)
    layout = context.buffer.layout_of(step, config, context.trained())
    engine = context.engines.current
    found = mechanism_for(context, engine, step, config, layout)
    others = found.co_batched * (engine.rounding + 2.0**-50) * max(BOUNDS)
    lattice = math.sqrt(dimension) * found.grid
    ratios = []
    for bound in BOUNDS:
        worst = bound * (1 + (dimension + 16) * 2.0**-53) + others + lattice
        ratios.append(found.stddev / (worst / bound) / z)
    assert found.co_batched > 100 and min(ratios) == pytest.approx(1.0, abs=1e-6)
    assert ratios[0] >= 1 - 1e-12 and ratios[1] > 1
    context.__dict__["record_bounds"] = UniformBounds()
    assert mechanism_for(context, engine, step, config, layout).stddev < found.stddev * (1 - 1e-4)


def test_the_noise_is_that_of_the_event_and_not_of_a_group(started):
    """|Σ(x/σ)²/d − 1| < 6·√(2/d): a false alarm of about 2e-9 for d = 20 000."""
    dimension, z = 20_000, 2.0
    s = started(torch.zeros(2, dimension), dimension=dimension, plan=plan(noise=z), group_of=[0, 1])
    noise = s.release().double()

    def fits(stddev):
        return abs(float((noise / stddev).square().mean()) - 1) < 6 * math.sqrt(2 / dimension)

    assert fits(z) and not fits(z * 2 / 3) and not fits(z * 3 / 2)


# The sample and the event


def test_groups_take_part_as_often_as_their_event_says(started):
    """Counts of 100 records in 60 steps: outside of these limits with a probability below 1e-7 for
    each group, and always at two thirds or three halves of its rate.
    """
    rates, steps = (0.15, 0.6), 60
    data = torch.eye(300) * 4
    numbers = [0, 1, -1] * 100
    s = started(data, dimension=300, plan=plan(rates, (1.0, 1.0), steps=steps), group_of=numbers)
    taken = sum((s.release() > 0.5).double() for _ in range(steps))
    counts = [float(taken[torch.tensor(numbers) == number].sum()) for number in (0, 1, -1)]
    for count, rate in zip(counts, rates, strict=False):
        trials = 100 * steps
        low, high = binom.ppf(5e-8, trials, rate), binom.ppf(1 - 5e-8, trials, rate)
        assert low <= count <= high
        assert rate * 2 / 3 * trials < low and high < rate * 3 / 2 * trials
    assert counts[2] == 0
    events = {event.event for event in s.run.ledger.uses}
    assert events == {Sampled(s.plan.sampling, (SumQuery(1.0, 0.0),))}


def test_an_empty_sample_is_noised_and_recorded_as_any_other(started):
    s = started(ROWS, plan=plan((0.0, 0.0), noise=1.0), group_of=[0, 1, 0])
    assert bool((s.release() != 0).all()) and s.run.ledger.count == 1


def test_each_group_has_its_own_account_while_the_run_goes_on(started):
    s = started(ROWS, plan=plan((0.2, 0.2), noise=2.0), group_of=[0, 1, 0])
    s.release()
    spent = s.run.spent(1e-5)
    assert spent.groups["strict"].upper < spent.groups["open"].upper == spent.upper


class Watched(Dataset):
    """Notes which records are read; one of them would stop whoever reads it."""

    example_input = torch.zeros(1, 3)

    def __init__(self):
        self.reads = []

    def __len__(self):
        return 3

    def __getitem__(self, index):
        self.reads.append(index)
        return ROWS[index]


def test_labels_are_checked_before_a_record_is_read_or_a_ledger_made(tmp_path):
    data, model = Watched(), Dot()
    opt = torch.optim.SGD(model.parameters(), lr=1.0)
    for labels, text in (
        (None, "nothing says who is in them"),
        (["open"], "1 labels do not fit"),
        (["open"] * 3, "says 'strict'"),
    ):
        with pytest.raises(dpfy.InvalidArgument, match=text):
            dpfy.privatize(model, opt, data, plan(), tmp_path / "run.dpl", group_of=labels)
    plain = dpfy.dpsgd(rate=1.0, divisor=1, steps=1, noise_multiplier=1.0)
    with pytest.raises(dpfy.InvalidArgument, match="belongs to a plan with groups"):
        dpfy.privatize(model, opt, data, plain, tmp_path / "run.dpl", group_of=[0, 1, 0])
    assert not data.reads and not (tmp_path / "run.dpl").exists()


def test_a_record_of_no_group_is_not_even_read_and_says_nothing(started, capfd, caplog):
    data = Watched()
    s = started(data, plan=plan(), group_of={0: "open", 1: "strict", 2: "Open"})
    s.release()
    assert s.run.engine_notice in capfd.readouterr().err  # of the model, and nothing else
    data.reads.clear()
    s.release()
    assert sorted(set(data.reads)) == [0, 1]
    out, err = capfd.readouterr()
    assert (out, err, caplog.text) == ("", "", "")


def test_a_bad_record_contributes_nothing_and_leaves_the_others_their_bounds(started):
    rows = torch.cat([ROWS, torch.full((2, 3), math.nan), torch.full((1, 3), 3e38)])
    s = started(rows, plan=plan(), group_of=[1, 0, 1, 0, 1, 0])
    moved = s.release() - torch.tensor([1.5, 0.1, 1.5])
    assert float(moved.norm()) <= 0.1 * (1 + 1e-5)


# Users, statistics, workers, checkpoints


def test_a_user_has_the_bound_of_the_user_s_group(started):
    rows = torch.cat([ROWS, ROWS])
    owners = ["c", "a", "b"] * 2
    labels = {"a": "strict", "c": "open"}
    s = started(rows, plan=plan(unit=dpfy.Unit.USER), unit_of=owners, group_of=labels)
    assert s.release().tolist() == pytest.approx([1.5, 0.1, 0.0], rel=1e-4)


def test_statistics_come_with_rates_of_groups(started):
    sampling = policy((1.0, 0.0), (1.0, 1.0))
    query = Query.of((ClippedSum(1.0),), (dpfy.SampleSize(share=0.1),))
    whole = dpfy.Plan(sampling, query, 2, 1.0, noise_multiplier=0.0)
    s = started(ROWS, plan=whole, group_of=[0, 0, 1])
    released = s.run.release(s.loss, next(iter(s.run)))
    assert float(released.statistics["sample size"]) == pytest.approx(2.0, abs=1e-4)


@pytest.mark.parametrize("options", [{"num_workers": 1}, {"num_workers": 1, "prefetch": 1}])
def test_workers_and_a_step_ahead_give_what_one_process_gives(started, options):
    def three(**more):
        s = started(ROWS, plan=plan((0.5, 0.7), noise=1.0), group_of=[1, 0, 1], **more)
        return torch.stack([s.release() for _ in range(3)])

    assert torch.equal(three(**options), three())


def test_a_resumed_run_is_told_the_groups_again(started, tmp_path):
    labels = [1, 0, -1]
    s = started(ROWS, plan=plan(noise=0.0), group_of=labels, ledger=tmp_path / "run.dpl")
    s.release()
    s.run.save(tmp_path)
    s.run.close()

    def resumed(**options):
        model = Dot()
        opt = torch.optim.SGD(model.parameters(), lr=1.0)
        data = TensorDataset(ROWS)
        run = dpfy.resume(tmp_path, model, opt, data, insecure_test_key=1, **options)
        with run:
            (gradient,) = run.release(model, next(iter(run))).gradients.values()
        return gradient

    with pytest.raises(dpfy.InvalidArgument, match="nothing says who is in them"):
        resumed()
    assert resumed(group_of=labels).tolist() == pytest.approx([1.5, 0.1, 0.0], rel=1e-4)
