"""Groups, joint clipping and statistics in a run: bounds on neighbouring data, noise, values that
are not numbers.
"""

import math

import pytest
import torch
from hypothesis import given, settings, strategies as st
from runs import Dot, Started
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dpfy
from dpfy.errors import BudgetExhausted, DataError, InvalidArgument, IsolationError, LossError
from dpfy.gradients import ENGINES
from dpfy.gradients.chunk import Chunk
from dpfy.mechanisms.groups import clip_groups, clip_jointly
from dpfy.mechanisms.query import (
    ClippedSum,
    Contributing,
    Query,
    RecordNormsBelow,
    SampleSize,
    Statistic,
)
from dpfy.run.release_layout import ReleaseLayout

WIDTH, GRID = 3, 2.0**-40
NUMBERS = st.one_of(
    st.floats(-1e3, 1e3, width=32),
    st.floats(width=32, allow_nan=True, allow_infinity=True),
    st.sampled_from([0.0, 1e-45, 3.4e38, 1.0, 1 / 3]),
)
ROW = st.lists(NUMBERS, min_size=2 * WIDTH, max_size=2 * WIDTH)


class TwoDots(nn.Module):
    """Two weight vectors; the gradient of a record is the record itself, one half for each."""

    def __init__(self):
        super().__init__()
        self.one, self.two = Dot(WIDTH), Dot(WIDTH)

    def forward(self, x):
        return self.one(x[:, :WIDTH]) + self.two(x[:, WIDTH:])


def per_layer(model, **options):
    return clip_groups(model, "layer", **options)


QUERIES = {
    "flat": lambda model: Query.of([ClippedSum(0.7)]),
    "per layer": lambda model: Query.of(per_layer(model, clip=0.7)),
    "own bounds and noise": lambda model: Query.of(
        per_layer(model, bounds={"one": 0.1, "two": 3.0}, noise={"one": 1.0, "two": 2.0})
    ),
    "joint": lambda model: Query.of(
        [clip_jointly(model, {"one.*": 1.0, "two.*": 100.0}, clip=0.9)]
    ),
    "with statistics": lambda model: Query.of(
        per_layer(model, clip=0.7),
        [
            Statistic("rows", bound=0.3, shape=(2 * WIDTH,), share=0.2),
            SampleSize(share=0.05),
            RecordNormsBelow(thresholds=(0.5, 1.0, 2.0), of=("one", "two", "two"), share=0.1),
        ],
    ),
    "contributing": lambda model: Query.of(per_layer(model, clip=0.7), [Contributing(share=0.05)]),
}


def pieces_of(query, model, engine, rows):
    """The vector that would be noised, and its pieces, for records whose gradients and statistics
    are ``rows``.
    """
    pieces = ReleaseLayout(query, dict(model.named_parameters()), query.statistics)
    vector = torch.zeros(sum(pieces.sizes), dtype=torch.float64)
    if rows:
        data = torch.tensor(rows, dtype=torch.float32)
        found = ENGINES[engine](model, dict(model.named_parameters()))
        loss = lambda x: dpfy.Losses(model(x), {"rows": x})  # noqa: E731 - one line
        found.prepare(
            loss,
            lambda size, seed: Chunk(
                (torch.rand(size, 2 * WIDTH, generator=torch.Generator().manual_seed(seed)),), size
            ),
        )
        sums = found.bounded_sums(loss, Chunk((data,), len(data)), pieces.clipping(GRID))
        gradients, statistics = pieces.split(vector)
        sums.add_to(gradients)
        pieces.add_statistics(sums.seen, statistics)
    return pieces, vector


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", QUERIES)
@settings(max_examples=12, deadline=None)
@given(rows=st.lists(ROW, max_size=4), extra=ROW, position=st.integers(0, 4))
def test_one_record_more_moves_each_sum_by_at_most_its_bound(kind, engine, rows, extra, position):
    """Were a group clipped by another one's norm, a scale forgotten or a statistic not clipped, a
    piece would move by more than its bound, and all of them by more than the reach of the query.
    """
    model = TwoDots()
    query = QUERIES[kind](model)
    pieces, before = pieces_of(query, model, engine, rows)
    _, after = pieces_of(query, model, engine, [*rows[:position], extra, *rows[position:]])
    assert bool(before.isfinite().all()) and bool(after.isfinite().all())
    slack = 1 + 1e-5  # of float32 sums; whole releases are tested with theirs
    assert float((after - before).norm()) <= query.joint_sensitivity() * slack
    moved, statistics = pieces.split(after - before)
    units = pieces.clipping(GRID).sum_scales
    for leaf in query.leaves:
        of_leaf = [
            float((part * unit / leaf.scale_of(name)).norm())
            for part, unit, name in zip(moved, units, pieces.parameters, strict=True)
            if name in (leaf.parameters or [name])
        ]
        assert math.hypot(*of_leaf) <= leaf.bound * slack
    for statistic, part in zip(query.statistics, statistics, strict=True):
        assert float(part.norm()) * query.sum_scale(statistic) <= statistic.bound * slack


@pytest.mark.parametrize("engine", ENGINES)
def test_a_record_that_is_not_a_number_has_a_value_in_every_sum(engine):
    model = TwoDots()
    query = QUERIES["with statistics"](model)
    pieces, vector = pieces_of(query, model, engine, [[math.nan] * 6])
    gradients, (rows, size, below) = pieces.split(vector)
    assert not any(gradient.any() for gradient in gradients) and not rows.any()
    assert float(size * query.sum_scale(query.statistics[1])) == pytest.approx(1)
    assert (below * query.sum_scale(query.statistics[2])).tolist() == pytest.approx([-0.5] * 3)


def released(plan, rows=20, model=None, loss=None, **options):
    model = model or TwoDots()
    data = TensorDataset(torch.rand(rows, 2 * WIDTH, generator=torch.Generator().manual_seed(5)))
    run = dpfy.privatize(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        data,
        plan,
        dpfy.Ledger.in_memory(),
        insecure_test_key=3,
        **options,
    )
    loss = loss or (lambda x: dpfy.Losses(model(x), {"mean": x.mean(1), "rows": x}))
    return run.release(loss, next(iter(run))), run, data


def test_statistics_are_released_in_their_own_units():
    plan = dpfy.dpsgd(
        rate=1.0,
        divisor=20,
        steps=2,
        noise_multiplier=0.0,
        statistics=[
            Statistic("mean", share=0.1),
            Statistic("rows", bound=0.5, shape=(6,)),
            SampleSize(),
            RecordNormsBelow(thresholds=(0.9, 5.0)),
        ],
    )
    found, _, data = released(plan)
    (x,) = data.tensors
    assert float(found.statistics["mean"]) == pytest.approx(float(x.mean(1).mean()), rel=1e-6)
    clipped = x * (0.5 / x.norm(dim=1, keepdim=True)).clamp(max=1)
    assert torch.allclose(found.statistics["rows"], clipped.mean(0).double(), atol=1e-6)
    assert float(found.statistics["sample size"]) == pytest.approx(1)
    small = float((x.norm(dim=1) <= 0.9).double().mean())
    assert found.statistics["norms below"].tolist() == pytest.approx([small - 0.5, 0.5])


@pytest.mark.parametrize(
    "kind", ["joint", "own bounds and noise", "with statistics", "contributing"]
)
def test_each_sum_has_the_noise_that_it_declares(kind):
    """|Σ(x/σ)²/d − 1| < 6·√(2/d): a false alarm below 1e-8 for d = 6000, and no power is lost at
    2/3 or 3/2.
    """
    rounds, z = 2000, 1.5
    model = TwoDots()
    query = QUERIES[kind](model)
    plan = dpfy.Plan(
        sampling=dpfy.dpsgd(rate=1.0, divisor=1, steps=1).sampling,
        query=query,
        steps=rounds,
        divisor=1.0,
        noise_multiplier=z,
    )
    data = TensorDataset(torch.zeros(0, 2 * WIDTH))
    run = dpfy.privatize(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        data,
        plan,
        dpfy.Ledger.in_memory(),
        insecure_test_key=4,
    )
    drawn = [
        run.release(lambda x: dpfy.Losses(model(x), {"mean": x.mean(1), "rows": x}), batch)
        for batch in run
    ]
    for leaf in (*query.leaves, *query.statistics):
        declared = z * leaf.bound / math.sqrt(query.noise_share(leaf))
        if isinstance(leaf, ClippedSum):
            values = torch.stack(
                [
                    torch.cat(
                        [
                            each.gradients[name] / leaf.scale_of(name)
                            for name in leaf.parameters or each.gradients
                        ]
                    )
                    for each in drawn
                ]
            )
        else:
            values = torch.stack([each.statistics[leaf.name] for each in drawn])
        for factor, fits in ((1, True), (2 / 3, False), (3 / 2, False)):
            spread = abs(float((values.double() / (declared * factor)).square().mean()) - 1)
            assert (spread < 6 * math.sqrt(2 / values.numel())) is fits


def test_the_loss_of_a_composed_step_is_that_of_its_noise_multiplier():
    """The privacy loss of a record that uses up every bound is N(μ²/2, μ²) with μ = 1/z: its mean
    over 2000 releases is within 6/√2000 standard deviations with a false alarm of 2e-9; counting
    the groups as one would be off by 28 of them.
    """
    rounds, z = 2000, 2.0
    model = TwoDots()
    query = QUERIES["with statistics"](model)
    row = torch.full((1, 6), 1e3)
    plan = dpfy.Plan(
        sampling=dpfy.dpsgd(rate=1.0, divisor=1, steps=1).sampling,
        query=query,
        steps=rounds,
        divisor=1.0,
        noise_multiplier=z,
    )
    run = dpfy.privatize(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        TensorDataset(row),
        plan,
        dpfy.Ledger.in_memory(),
        insecure_test_key=6,
    )
    _, signal = pieces_of(query, model, "loop", row.tolist())
    assert float(signal.norm()) == pytest.approx(1.0, rel=1e-6)
    pieces = ReleaseLayout(query, dict(model.named_parameters()), query.statistics)
    units = torch.cat(
        [
            torch.full((size,), unit, dtype=torch.float64)
            for size, unit in zip(
                pieces.sizes,
                (*pieces.clipping(GRID).sum_scales, *map(query.sum_scale, query.statistics)),
                strict=True,
            )
        ]
    )
    losses = []
    for batch in run:
        found = run.release(lambda x: dpfy.Losses(model(x), {"rows": x}), batch)
        out = (
            torch.cat(
                [
                    *(g.flatten() for g in found.gradients.values()),
                    *(s.flatten() for s in found.statistics.values()),
                ]
            ).double()
            / units
        )
        losses.append(float(out @ signal) / z**2 - 0.5 / z**2)
    mu = 1 / z
    assert abs(sum(losses) / rounds - mu**2 / 2) < 6 * mu / math.sqrt(rounds)


def test_statistics_of_every_kth_step_come_when_they_are_due_also_after_a_lost_batch():
    plan = dpfy.dpsgd(
        rate=1.0, divisor=20, steps=7, noise_multiplier=1.0, statistics=[Statistic("mean", every=3)]
    )
    found, run, _ = released(plan, loss=None)
    names = [set(found.statistics)]
    next(iter(run))  # nobody releases it
    loss = lambda x: dpfy.Losses(run.model(x), {"mean": x.mean(1)})  # noqa: E731
    names += [set(run.release(loss, batch).statistics) for batch in run]
    assert names == [{"mean"}, set(), set(), {"mean"}, set(), set()]
    assert [(len(use.event.queries), use.times) for use in run.ledger.uses] == [
        (2, 1),
        (1, 2),
        (2, 1),
        (1, 2),
    ]


def test_a_statistic_that_mixes_records_is_refused_and_one_that_is_missing_is_named():
    plan = dpfy.dpsgd(
        rate=1.0, divisor=20, steps=2, noise_multiplier=1.0, statistics=[Statistic("mean")]
    )
    model = TwoDots()
    with pytest.raises(IsolationError):
        released(
            plan, model=model, loss=lambda x: dpfy.Losses(model(x), {"mean": x.mean(1) - x.mean()})
        )
    with pytest.raises(LossError, match="'mean'"):
        released(plan, model=model, loss=lambda x: model(x))
    with pytest.raises(LossError, match=r"\(6,\)"):
        released(plan, model=model, loss=lambda x: dpfy.Losses(model(x), {"mean": x}))


def test_the_clipped_denominator_is_never_moved_by_more_than_two_bounds():
    """McMahan et al. 2018, f_c: of 4 records of norm 1 against 5, one turned round, the mean moves
    by nearly 2/m.
    """

    def total(rows, least):
        s = Started(
            TensorDataset(torch.tensor(rows)),
            plan=dpfy.dpsgd(
                rate=1.0, records=4, steps=1, clip=1.0, noise_multiplier=0.0, least_sample=least
            ),
        )
        return s.release() * least

    ones = [[1.0, 0.0, 0.0]] * 4
    assert float(total(ones, 8)[0]) == pytest.approx(4)  # few records: as the sum over 8
    assert float(total(ones, 2)[0]) == pytest.approx(2)  # many: their mean
    moved = total([*ones, [-1.0, 0.0, 0.0]], 4) - total(ones, 4)
    assert float(moved.norm()) == pytest.approx(2 * 4 / 5) and float(moved.norm()) <= 2
    plan = dpfy.dpsgd(rate=1.0, records=4, steps=1, noise_multiplier=1.5, least_sample=4)
    assert [(query.l2_bound, query.stddev) for query in plan.event.queries] == [(2, 3.0)]


def test_groups_of_another_model_are_refused_before_there_is_a_ledger(tmp_path):
    data = TensorDataset(torch.zeros(4, 3))
    model = Dot(3)
    for groups in (clip_groups(TwoDots()), [ClippedSum(1.0, "a", ("weight", "bias"))]):
        plan = dpfy.dpsgd(rate=1.0, divisor=1, steps=1, clip=groups, noise_multiplier=1.0)
        with pytest.raises(InvalidArgument, match="this model"):
            dpfy.privatize(
                model, torch.optim.SGD(model.parameters(), lr=1.0), data, plan, tmp_path / "run.dpl"
            )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "policy", ["fixed_size", "truncated_poisson", "shuffled", "cyclic", "balls_in_bins"]
)
def test_a_run_draws_what_its_policy_says_and_pays_for_it(policy):
    options = {"capacity": 9} if policy == "truncated_poisson" else {}
    plan = dpfy.dpsgd(
        records=20,
        batch_size=5,
        epochs=2,
        sampling=policy,
        relation="zero_out",
        noise_multiplier=0.0,
        clip=100.0,
        **options,
    )
    data = TensorDataset(torch.eye(20))
    s = Started(data, dimension=20, plan=plan)
    seen = torch.stack([s.release() for _ in range(plan.steps)]) * plan.divisor
    assert plan.steps == 8 and bool(((seen == 0) | (seen == 1)).all())
    if policy in ("shuffled", "cyclic", "balls_in_bins"):
        assert torch.equal(seen[:4].sum(0), torch.ones(20)) and torch.equal(
            seen[4:].sum(0), torch.ones(20)
        )
        assert s.run.ledger.count == 2
    else:
        assert s.run.ledger.count == 8
    if policy in ("fixed_size", "shuffled", "cyclic"):
        assert seen.sum(1).tolist() == [5] * 8
    with pytest.raises((BudgetExhausted, StopIteration)):
        s.release()


def test_a_resumed_run_begins_a_new_epoch_and_the_abandoned_one_stays_paid():
    plan = dpfy.dpsgd(
        records=20,
        batch_size=5,
        epochs=3,
        sampling="shuffled",
        relation="zero_out",
        noise_multiplier=1.0,
        clip=1.0,
    )
    ledger = dpfy.Ledger.in_memory()
    first = Started(TensorDataset(torch.eye(20)), dimension=20, plan=plan, ledger=ledger)
    for _ in range(6):
        first.release()
    again = Started(
        TensorDataset(torch.eye(20)), dimension=20, plan=plan, ledger=ledger, announce=False
    )
    assert again.run.steps_left == 4
    again.release()
    assert ledger.count == 3


def test_a_loader_is_taken_where_its_law_is_the_planned_one():
    """It is never iterated: the run draws its own epochs."""
    data = TensorDataset(torch.eye(20))
    loader = DataLoader(data, batch_size=5, shuffle=True)
    plan = dpfy.dpsgd(
        records=20,
        batch_size=5,
        epochs=1,
        sampling="shuffled",
        relation="zero_out",
        noise_multiplier=0.0,
        clip=100.0,
    )
    s = Started(loader, dimension=20, plan=plan)
    assert torch.equal(sum(s.release() for _ in range(4)) * 5, torch.ones(20))
    poisson = dpfy.dpsgd(records=20, batch_size=5, epochs=1, noise_multiplier=1.0)
    for other, planned in (
        (loader, poisson),
        (DataLoader(data, batch_size=4, shuffle=True), plan),
        (DataLoader(data, batch_size=5), plan),
    ):
        with pytest.raises(DataError, match="sampling="):
            Started(other, dimension=20, plan=planned)


@pytest.mark.parametrize("policy", ["fixed_size", "shuffled"])
def test_another_number_of_records_than_the_law_declares_is_refused_before_there_is_a_ledger(
    tmp_path, policy
):
    plan = dpfy.dpsgd(
        records=21,
        batch_size=7,
        epochs=1,
        sampling=policy,
        relation="zero_out",
        noise_multiplier=1.0,
    )
    model = Dot(3)
    with pytest.raises(InvalidArgument, match="21"):
        dpfy.privatize(
            model,
            torch.optim.SGD(model.parameters(), lr=1.0),
            TensorDataset(torch.zeros(20, 3)),
            plan,
            tmp_path / "run.dpl",
        )
    assert not list(tmp_path.iterdir())
