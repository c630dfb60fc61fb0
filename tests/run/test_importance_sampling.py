"""Importance sampling in runs: the released sum is that of the records that were accepted, and
nothing else leaves.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, strategies as st
from scipy import stats
from torch import nn
from torch.utils.data import TensorDataset

import dpfy
from dpfy.accounting import RenyiFilter, odometer
from dpfy.auditing.mutants import releasing
from dpfy.errors import BudgetExhausted, InvalidArgument
from dpfy.gradients import ExactBookkeepingEngine
from dpfy.gradients.base import Unsupported
from dpfy.gradients.bookkeeping.exact import Written
from dpfy.ledger import Header
from dpfy.ledger.events import Importance, Poisson
from dpfy.mechanisms.gaussian_sum import GaussianSum
from dpfy.mechanisms.importance_bounds import MAX_BLOCK_RECORDS, MOVED
from dpfy.mechanisms.query import ClippedSum, Query
from dpfy.noise import LatticeGaussian, SecureStream
from dpfy.run.importance_sampling import (
    ImportanceSampling,
    Weighing,
    expected_proposals,
    with_rounding_allowance,
)
from dpfy.run.norm_sums import extra_releases, noised, norm_sum
from dpfy.run.partition import BatchPartition
from dpfy.run.state_file import read_state

N, WIDTH = 60, 5
ORDER = 4
RULE = RenyiFilter(8.0, 1e-2, (float(ORDER),))


class Records(torch.utils.data.Dataset):
    """Inputs of very different sizes, of which one is not a number and one cannot be loaded."""

    example_input = torch.zeros(1, WIDTH), torch.zeros(1, dtype=torch.long)

    def __init__(self, odd=True):
        generator = torch.Generator().manual_seed(3)
        self.x = torch.randn(N, WIDTH, generator=generator) * torch.logspace(-2, 1, N).unsqueeze(1)
        self.y = torch.randint(2, (N,), generator=generator)
        self.odd = odd
        if odd:
            self.x[7] = math.nan

    def __len__(self):
        return N

    def __getitem__(self, index):
        if self.odd and index == 11:
            raise OSError("unreadable")
        return self.x[index], self.y[index]


def bound_run(tmp_path, data=None, engine="auto", **settings):
    torch.manual_seed(0)
    model = nn.Linear(WIDTH, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plan = dpfy.dpis(
        **{
            "records": N,
            "batch_size": 12,
            "epochs": 2,
            "ratio": 0.4,
            "noise_multiplier": 1.0,
            **settings,
        }
    )
    if plan.adaptive:
        plan = plan.under(RULE)
    return dpfy.privatize(
        model,
        optimizer,
        Records() if data is None else data,
        plan,
        tmp_path / "run.dpl",
        engine=engine,
        insecure_test_key=5,
    )


def loss_of(model):
    return lambda x, y: F.cross_entropy(model(x), y, reduction="none")


def gradients(model, data):
    """One flat gradient for each record, by plain autograd; zero where there is none."""
    rows = []
    for index in range(len(data)):
        try:
            x, y = data[index]
        except OSError:
            x, y = torch.zeros(WIDTH), torch.tensor(0)
        loss = F.cross_entropy(model(x.unsqueeze(0)), y.unsqueeze(0))
        found = torch.autograd.grad(loss, list(model.parameters()))
        rows.append(torch.cat([g.flatten() for g in found]).double())
    return torch.stack(rows)


def refuse_odd_chunks(monkeypatch):
    """Make book-keeping give up every other chunk, after it went through it; return the sizes of
    these.
    """
    real, refused = ExactBookkeepingEngine._pass, []

    def passed(self, loss_fn, chunk, sink):
        tape = real(self, loss_fn, chunk, sink)
        if isinstance(sink, Written) and chunk.size % 2:
            refused.append(chunk.size)
            raise Unsupported("an odd number")
        return tape

    monkeypatch.setattr(ExactBookkeepingEngine, "_pass", passed)
    return refused


@pytest.mark.parametrize(
    ("engine", "odd"),
    [("bookkeeping", False), ("bookkeeping", True), ("vmap", False), ("loop", False)],
)
def test_the_sum_is_that_of_accepted_records_each_at_the_bound(tmp_path, monkeypatch, engine, odd):
    """A coin or a guess of the wrong record, in a chunk that is taken apart, given up or not, would
    move the sum.
    """
    monkeypatch.setattr(*releasing(lambda self, total, noise: total))
    refused = refuse_odd_chunks(monkeypatch) if odd else [1] * 4
    data = Records()
    run = bound_run(tmp_path, data, engine)
    expected = gradients(run.model, data)
    norms = expected.norm(dim=1).numpy()
    taken = 0
    for batch in run:
        released = run.release(loss_of(run.model), batch)
        sampler, indices = (
            run.context.sampling.sampler,
            np.flatnonzero(run.context.sampling.sampler._coins),
        )
        indices = indices[indices != 11]
        weights = sampler.weights(batch.step, indices, norms[indices], bound=0.4)
        assert np.allclose(
            sampler._guesses,
            3 * np.clip(np.nan_to_num(norms) * (np.arange(N) != 11), 1 / 16, 1),
            rtol=1e-5,
        )
        total = (
            torch.from_numpy(weights[weights > 0]).unsqueeze(1) * expected[indices[weights > 0]]
        ).sum(0)
        found = torch.cat([g.flatten() for g in released.gradients.values()]) * 12
        assert torch.allclose(found.double(), total, atol=1e-5)
        taken += int((weights > 0).sum())
    assert 100 < taken < 300  # of ten steps with at most 30 in expectation
    assert len(refused) > 3


def test_the_ledger_has_the_steps_of_the_schedule(tmp_path):
    run = bound_run(tmp_path, ratio=lambda epoch: 1 / (2 + epoch))
    for batch in run:
        run.backward(loss_of(run.model), batch)
        for optimizer in run.optimizers:
            optimizer.step()
    events = [
        (
            type(each.event.policy),
            round(each.event.policy.rate, 12),
            each.event.queries[0].stddev,
            each.times,
        )
        for each in run.plan.envelope
    ]
    assert events == [(Importance, 0.4, 2.0, 5), (Importance, 0.6, 3.0, 5)]
    assert run.spent(1e-3).upper == dpfy.account(run.plan.envelope).epsilon(1e-3).upper


def test_noise_is_that_of_the_plan_and_room_for_last_bits(tmp_path):
    run = bound_run(tmp_path)
    released = run.release(loss_of(run.model), next(iter(run)))
    for stddev in released.stddevs.values():
        assert 1.0 / 12 < stddev < 1.01 / 12  # noise_multiplier·clip/divisor


def test_a_run_goes_on_after_a_resume_with_norms_learned_anew_and_none_saved(tmp_path):
    run = bound_run(tmp_path)
    batches = iter(run)
    for _ in range(3):
        run.backward(loss_of(run.model), next(batches))
        run.optimizers[0].step()
        run.optimizers[0].zero_grad()
    path = run.save(tmp_path / "saved")
    run.close()
    assert not {"guesses", "coins", "norms"} & set(str(read_state(path)).replace("'", " ").split())
    model = nn.Linear(WIDTH, 2)
    again = dpfy.resume(
        tmp_path / "saved",
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        Records(),
        insecure_test_key=6,
    )
    assert again.steps_taken == 3 and again.context.sampling.sampler.due(4)
    for batch in again:
        again.backward(loss_of(model), batch)
        again.optimizers[0].step()
        again.optimizers[0].zero_grad()
    assert again.ledger.count == run.plan.steps


@pytest.mark.parametrize("size", [0, 1])
def test_empty_and_zero_data_release_noise_as_ever(tmp_path, size):
    data = TensorDataset(torch.zeros(size, WIDTH), torch.zeros(size, dtype=torch.long))
    run = bound_run(tmp_path, data)
    for batch in run:
        released = run.release(loss_of(run.model), batch)
        assert all(bool(g.isfinite().all()) and bool(g.any()) for g in released.gradients.values())
    assert run.ledger.count == run.plan.steps


def test_plans_survive_json_and_calibrate(tmp_path):
    plan = dpfy.dpis(
        records=1000, batch_size=50, epochs=2, ratio=0.25, noise_schedule="exponential:0.1"
    )
    plan = plan.calibrate(epsilon=2.0, delta=1e-4)
    assert dpfy.Plan.from_json(plan.to_json()) == plan
    claimed = dpfy.account(plan.envelope).epsilon(1e-4).upper
    assert 1.98 < claimed <= 2.0
    assert plan.steps_per_epoch == 20 and plan.expected_batch == 50


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"norm_sum": "guessed"}, "scheduled"),
        ({"clip_factor": 1.0}, "Use norm_sum='released'"),
        ({"ratio": 0.1}, "ratios of at least"),
        ({"ratio": 0.21}, "for certain"),
        ({"slack": 0.5}, "slack of at least 1"),
        ({"floor": 0.01}, "floor in"),
        ({"relation": "replace_one"}, "No rule"),
        ({"epochs": 1, "steps": 3}, "exactly one"),
        ({"batch_size": 1e-8, "steps": 3}, "coins that have 64 bits"),
        ({"batch_size": 1e-8, "steps": 3, "ratio": 1e-9}, "coins that have 64 bits"),
        ({"ratio": 1e10}, "coins that have 64 bits"),
    ],
)
def test_what_has_no_proof_is_refused(settings, words):
    with pytest.raises(InvalidArgument, match=words):
        dpfy.dpis(
            **{
                "records": N,
                "batch_size": 12,
                "epochs": None if "steps" in settings else 2,
                **settings,
            }
        )


def test_groups_statistics_users_and_other_controllers_are_refused():
    plan = dpfy.dpis(records=N, batch_size=12, epochs=2)
    two = Query.of([ClippedSum(1.0, "a", ("weight",)), ClippedSum(1.0, "b")])
    for changes, words in (
        ({"query": two}, "one clipped sum"),
        ({"unit": dpfy.Unit.USER}, "protects records"),
        ({"query": Query.of([ClippedSum(1.0)], [dpfy.SampleSize()])}, "no statistics"),
        ({"controllers": ()}, "follow the ratios"),
        ({"controllers": (dpfy.QuantileClipping(),)}, "follow the ratios"),
        ({"controllers": (dpfy.MeanNormClipping(),)}, "follow the ratios"),
    ):
        with pytest.raises(InvalidArgument, match=words):
            replace(plan, **changes)


def test_engines_that_bound_norms_are_refused(tmp_path):
    with pytest.raises(InvalidArgument, match="very gradient"):
        bound_run(tmp_path, engine="ghost")


class Whole(nn.Module):
    """A model that is one use of a parameter which no rule knows."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, WIDTH))

    def forward(self, x):
        return torch.einsum("nd,cd->nc", x, self.weight)


@pytest.mark.parametrize(
    ("model", "engine"), [(nn.Linear(WIDTH, 2), "bookkeeping"), (Whole(), "vmap")]
)
def test_engines_are_chosen_as_for_dpsgd_and_all_are_charged_for_sums_in_float64(
    tmp_path, model, engine
):
    plan = dpfy.dpis(records=N, batch_size=12, epochs=2, noise_multiplier=1.0)
    run = dpfy.privatize(
        model, torch.optim.SGD(model.parameters(), lr=0.1), Records(), plan, tmp_path / "run.dpl"
    )
    released = run.release(loss_of(model), next(iter(run)))
    assert run.engine == engine
    assert all(1.0 / 12 < stddev < 1.01 / 12 for stddev in released.stddevs.values())


@pytest.mark.parametrize("ratio", [0.25, 0.4, 1.0])
def test_blocks_are_planned_for_those_who_are_proposed(tmp_path, ratio):
    """If all norms are what the ratio says, the expected number is the sum of their chances."""
    sampler = bound_run(tmp_path, ratio=ratio, batch_size=6).context.sampling.sampler
    sampler.learn(1, np.full(N, ratio))
    chances = sampler._proposed(1, sampler._guesses)
    assert expected_proposals(sampler, 1) == pytest.approx(chances.sum())


def test_coarse_numbers_and_too_little_noise_are_refused_before_anything_is_paid_for(tmp_path):
    model, plan = (
        nn.Linear(WIDTH, 2).half(),
        dpfy.dpis(records=N, batch_size=12, epochs=2, noise_multiplier=1.0),
    )
    with pytest.raises(InvalidArgument, match="float32"):
        dpfy.privatize(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            Records(),
            plan,
            tmp_path / "half.dpl",
        )
    with pytest.raises(InvalidArgument, match="last bits"):
        bound_run(tmp_path, noise_multiplier=0.02)
    assert dpfy.Ledger.read(tmp_path / "run.dpl").count == 0


def test_norms_are_learned_from_no_more_records_at_once_than_is_allowed(tmp_path, monkeypatch):
    sizes, model = [], nn.Linear(WIDTH, 2)
    planned = BatchPartition.planned
    monkeypatch.setattr(
        BatchPartition, "planned", lambda *given: sizes.append(given[1]) or planned(*given)
    )
    plan = dpfy.dpis(records=N, batch_size=12, epochs=2, noise_multiplier=1.0)
    run = dpfy.privatize(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        Records(),
        plan,
        tmp_path / "run.dpl",
        max_physical_batch=3,
    )
    run.release(loss_of(model), next(iter(run)))
    assert set(sizes) == {3}


@pytest.mark.parametrize(("noise", "co_batched"), [(0.5, 64), (1.2, 132), (9.0, 192)])
def test_a_step_has_as_many_companions_as_its_noise_hides(tmp_path, monkeypatch, noise, co_batched):
    """Noise of 2.5 times as much over contributions of 0.4 clip bounds; what is paid for is what is
    computed with.
    """
    sizes, planned, paid = [], BatchPartition.planned, []
    monkeypatch.setattr(
        BatchPartition, "planned", lambda *given: sizes.append(given[1]) or planned(*given)
    )
    run = bound_run(tmp_path, records=10**4, batch_size=2000, noise_multiplier=noise)
    monkeypatch.setattr(
        ImportanceSampling,
        "widen",
        lambda _, mechanism: (
            paid.append(mechanism.co_batched) or with_rounding_allowance(mechanism)
        ),
    )
    run.release(loss_of(run.model), next(iter(run)))
    # What is recorded, the size that the loss is tried with, the step, its price, and norms.
    assert sizes == [co_batched, co_batched, co_batched, co_batched, 192] and paid == [co_batched]


def test_no_chunk_has_more_records_than_were_paid_for(tmp_path, monkeypatch):
    """Far more are proposed, and twice as many there, than public numbers let expect: blocks are
    divided.
    """
    steps, norms, paid, real = [], [], [], ExactBookkeepingEngine.bounded_sums

    def bounded_sums(self, loss_fn, chunk, clipping):
        if clipping.weigh is torch.zeros_like:
            norms.append(chunk.size)
        elif isinstance(clipping.weigh, Weighing):
            steps.append(chunk.size)
        return real(self, loss_fn, chunk, clipping)

    monkeypatch.setattr(ExactBookkeepingEngine, "bounded_sums", bounded_sums)
    monkeypatch.setattr(
        ImportanceSampling,
        "widen",
        lambda _, mechanism: (
            paid.append(mechanism.co_batched) or with_rounding_allowance(mechanism)
        ),
    )
    data = TensorDataset(torch.full((1000, WIDTH), 100.0), torch.arange(1000) % 2)
    run = bound_run(
        tmp_path, data, records=400, batch_size=25, ratio=0.1, slack=1.0, noise_multiplier=0.1
    )
    run.release(loss_of(run.model), next(iter(run)))
    assert sum(norms) == 1000 and max(norms) <= MAX_BLOCK_RECORDS
    assert sum(steps) > 5 * paid[0] and max(steps) <= paid[0] == paid[-1] <= 64


def test_an_envelope_has_the_rates_of_all_ratios_whatever_schedule_the_noise_has():
    plan = replace(
        dpfy.dpis(
            records=N,
            batch_size=12,
            epochs=2,
            ratio=lambda epoch: 1 / (2 + epoch),
            noise_multiplier=1.0,
        ),
        noise_schedule=None,
    )
    assert [(round(each.event.policy.rate, 12), each.times) for each in plan.envelope] == [
        (0.4, 5),
        (0.6, 5),
    ]


# Released sums of norms

NORMS = st.lists(
    st.floats(0, 1e30) | st.sampled_from([math.nan, math.inf, 0.0, 1e-300]), max_size=50
)


@given(
    NORMS,
    st.floats(0, 1e30) | st.sampled_from([math.nan, math.inf]),
    st.floats(1e-6, 1e6),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_one_record_moves_a_sum_of_norms_by_one_clip_bound(norms, added, clip, floored, key):
    """Whatever its norm is, and though it moves companions by all that is allowed for."""
    floor = 1 / 16 if floored else 0.0
    before = np.array(norms, dtype=np.float64)
    after, generator = before.copy(), np.random.default_rng(key)
    for index in generator.permutation(len(norms))[:MAX_BLOCK_RECORDS]:
        if math.isfinite(before[index]):
            after[index] += generator.choice([-1, 1]) * MOVED * max(before[index], clip / 16)
    added_sum = norm_sum(np.append(after, added), clip, floor, most=1e6) - norm_sum(
        before, clip, floor, most=1e6
    )
    co_batched = min(MAX_BLOCK_RECORDS, len(norms)) * (MOVED + 2.0**-24)
    assert floor - co_batched <= added_sum <= 1 + co_batched


def test_the_noise_of_a_sum_is_for_a_record_and_all_of_its_companions():
    class Unit:
        def add_noise(self, values, stddev, grid):
            return values.add_(stddev)

    assert noised(0.0, 40.0, Unit()) / 40 >= 1
    assert noised(0.0, 40.0, Unit(), MAX_BLOCK_RECORDS) / 40 >= 1 + MAX_BLOCK_RECORDS * (
        MOVED + 2.0**-24
    )


@pytest.mark.parametrize(("settings", "sums"), [({}, 1), ({"clip_factor": 0.8}, 2)])
def test_every_released_sum_of_norms_is_noised_for_companions_too(
    tmp_path, monkeypatch, settings, sums
):
    sensitivities, real = [], GaussianSum.release

    def release(self, total, noise):
        if total.numel() == 1:
            sensitivities.append(self.sensitivity)
        return real(self, total, noise)

    monkeypatch.setattr(GaussianSum, "release", release)
    run = bound_run(tmp_path, norm_sum="released", norm_noise=0.5, **settings)
    run.release(loss_of(run.model), next(iter(run)))
    assert len(sensitivities) == sums and min(sensitivities) >= 1 + MAX_BLOCK_RECORDS * (
        MOVED + 2.0**-24
    )


def test_sums_of_norms_have_the_noise_of_their_event():
    """χ² of 600 draws at 1e-7, and the 2/3 and 3/2 of it that are noticed."""
    noise, stddev, draws = LatticeGaussian(SecureStream(insecure_test_key=2)), 30.0, 600
    found = (
        sum((noised(17.0, stddev, noise, MAX_BLOCK_RECORDS) - 17.0) ** 2 for _ in range(draws))
        / stddev**2
    )
    low, high = stats.chi2.ppf([5e-8, 1 - 5e-8], draws)
    assert low < found < high
    assert not low < found * (2 / 3) ** 2 < high and not low < found * (3 / 2) ** 2 < high


def moments(rate, noise):
    """The Rényi divergence of a Poisson-sampled Gaussian at a whole order, written out, and that of
    the jitter.
    """
    terms = (
        math.comb(ORDER, k)
        * (1 - rate) ** (ORDER - k)
        * rate**k
        * math.exp(k * (k - 1) / (2 * noise**2))
        for k in range(ORDER + 1)
    )
    return math.log(math.fsum(terms)) / (ORDER - 1) + ORDER / 2 * 2.0**-20


def train(run, steps=None):
    for _, batch in zip(range(steps or run.plan.steps), run, strict=False):
        run.backward(loss_of(run.model), batch)
        run.optimizers[0].step()
        run.optimizers[0].zero_grad()


def test_steps_follow_the_norms_and_cost_what_a_composition_by_hand_says(tmp_path, monkeypatch):
    """Without noise in the sum: an epoch's ratio is the mean of its norms, NaN and unreadable
    records at the floor.
    """
    monkeypatch.setattr("dpfy.run.norm_sums.noised", lambda total, *_: total)
    data = Records()
    run = bound_run(tmp_path, data, norm_sum="released", norm_noise=0.5)
    norms = np.nan_to_num(gradients(run.model, data).norm(dim=1).numpy()) * (np.arange(N) != 11)
    train(run)
    assert run.steps_taken == 10 and not run.steps_left
    sums, first, again, second = run.ledger.uses
    assert (sums.event, sums.times) == (again.event, again.times) and sums.event.policy == Poisson(
        1.0
    )
    assert [(query.l2_bound, query.stddev) for query in sums.event.queries] == [(1.0, 0.5 * N)]
    assert (first.times, second.times, first.event.adaptive) == (5, 5, True)
    ratio = np.clip(norms, 1 / 16, 1).sum() / N
    assert first.event.policy.rate == pytest.approx(12 / (ratio * N), rel=1e-6)
    total = 2 * ORDER / (2 * (0.5 * N) ** 2) + sum(
        each.times * moments(each.event.policy.rate, each.event.queries[0].stddev)
        for each in (first, second)
    )
    assert odometer(run.ledger, 1e-2).used == pytest.approx(total / RULE.limits[0], rel=1e-9)
    assert 0.999 < total / RULE.limits[0] <= 1
    assert run.spent(1e-2).upper == pytest.approx(8.0)


class Watched(Records):
    """Remembers how many events there were when records were read."""

    def __init__(self, ledger):
        super().__init__(odd=False)
        self.ledger, self.seen = ledger, []

    def __getitem__(self, index):
        self.seen.append(self.ledger.count)
        return super().__getitem__(index)


def test_sums_of_norms_are_recorded_before_records_are_read(tmp_path):
    ledger = dpfy.Ledger.in_memory()
    plan = dpfy.dpis(
        records=N,
        batch_size=12,
        epochs=1,
        noise_multiplier=1.0,
        norm_sum="released",
        size_noise=0.1,
    )
    data, model = Watched(ledger), nn.Linear(WIDTH, 2)
    run = dpfy.privatize(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        data,
        plan.under(RULE),
        ledger,
        insecure_test_key=5,
    )
    batches = iter(run)
    batch = next(batches)
    run.release(loss_of(model), batch)
    assert (
        min(data.seen) == 2 and data.seen.count(2) >= N and max(data.seen) == 3
    )  # size, norms, step
    run.ledger.reserve(run.ledger.uses[0].event)
    for _ in range(1000):
        try:
            ledger.reserve(dpfy.Plan.event_at(run.plan, 1))
        except BudgetExhausted:
            break
    assert list(batches) == []  # nothing is left for another step


def test_clip_bounds_follow_the_mean_norm_and_sizes_the_released_one(tmp_path, monkeypatch):
    """Of 60 records where 50 are declared: rates and ratios go by the released number, and norms
    are cut at 4.
    """
    told = []
    monkeypatch.setattr(
        "dpfy.run.norm_sums.noised", lambda total, stddev, *_: told.append(stddev) or total
    )
    data = Records(odd=False)
    run = bound_run(
        tmp_path,
        data,
        records=50,
        norm_sum="released",
        norm_noise=0.5,
        clip_factor=0.8,
        size_noise=0.1,
        epochs=1,
    )
    norms = gradients(run.model, data).norm(dim=1).numpy()
    released = run.release(loss_of(run.model), next(iter(run)))
    clip = 0.8 * np.minimum(norms, 4.0).mean()
    ratio = np.clip(norms / clip, 1 / 16, 1).mean()
    assert told == [5.0, 25.0, 25.0]  # a tenth and a half of what is declared
    assert released.bounds["gradient"] == pytest.approx(ratio * clip, rel=1e-6)
    assert run.ledger.uses[-1].event.policy.rate == pytest.approx(12 / (60 * ratio), rel=1e-6)
    assert [len(each.event.queries) for each in run.ledger.uses] == [1, 2, 1]
    assert np.allclose(
        run.context.sampling.sampler._guesses, 3 * np.clip(norms / clip, 1 / 16, 1), rtol=1e-5
    )


def test_what_was_released_is_kept_over_a_resume_and_nothing_is_charged_for_norms(tmp_path):
    run = bound_run(
        tmp_path, norm_sum="released", epochs=3, norm_noise=0.5, clip_factor=1.0, size_noise=0.5
    )
    train(run, 7)
    kept = dict(run.context.controllers.state_dict()["norm_sum"])
    run.save(tmp_path / "saved")
    train(run, 5)  # into the third epoch; all of this is lost
    run.close()
    model = nn.Linear(WIDTH, 2)
    again = dpfy.resume(
        tmp_path / "saved",
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        Records(),
        insecure_test_key=6,
    )
    assert again.context.controllers.state_dict()["norm_sum"] == kept and kept["since"] == 6
    assert again.steps_taken == 12 and again.ledger.count == 1 + 3 + 12 and again.lost_steps == 5
    train(again)
    now = again.context.controllers.state_dict()["norm_sum"]
    assert (now["since"], now["size"]) == (
        13,
        kept["size"],
    )  # the third sum was lost: another one is released
    assert again.ledger.count == 1 + 4 + 15 and again.steps_taken == 15
    assert odometer(again.ledger, 1e-2).used <= 1


def test_a_resume_within_an_epoch_charges_nothing_for_its_norms(tmp_path):
    run = bound_run(tmp_path, norm_sum="released", norm_noise=0.5)
    train(run, 2)
    run.save(tmp_path / "saved")
    run.close()
    model = nn.Linear(WIDTH, 2)
    again = dpfy.resume(
        tmp_path / "saved",
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        Records(),
        insecure_test_key=6,
    )
    train(again, 3)
    assert again.ledger.count == 1 + 5 and again.context.sampling.sampler._learned_at == 3
    train(again)
    assert again.ledger.count == 2 + 10 and again.context.sampling.sampler._learned_at == 6


def test_sums_of_norms_of_earlier_plans_are_no_steps_of_this_one():
    plan = dpfy.dpis(
        records=N, batch_size=12, epochs=2, noise_multiplier=1.0, norm_sum="released"
    ).under(RULE)
    later = replace(plan, steps=7)
    with dpfy.Ledger.in_memory(
        plan.guard(), Header(plan=plan.to_json(), filter=RULE.to_json())
    ) as ledger:
        for event, times in ((plan.extra_events[0].event, 2), (plan.event, 1)):
            for _ in range(times):
                ledger.reserve(event)
        assert (ledger.plan_count, extra_releases(plan, ledger)) == (3, 2)
        ledger.register(plan.guard(), Header(plan=later.to_json(), filter=RULE.to_json()))
        assert (ledger.plan_count, extra_releases(later, ledger)) == (0, 0)
        ledger.reserve(plan.event)
        assert (ledger.plan_count, extra_releases(later, ledger)) == (1, 0)


@pytest.mark.parametrize("size", [0, 1])
def test_sums_of_norms_of_no_or_zero_records_are_noise_as_ever(tmp_path, size):
    data = TensorDataset(torch.zeros(size, WIDTH), torch.zeros(size, dtype=torch.long))
    run = bound_run(
        tmp_path, data, norm_sum="released", norm_noise=0.5, clip_factor=1.0, size_noise=0.5
    )
    train(run)
    state = run.context.controllers.state_dict()["norm_sum"]
    assert run.ledger.count == 1 + 2 + 10
    assert state["clip"] > 0 and 0 < state["rate"] < 1 and state["ratio"] > 0
