"""Importance sampling in runs: the released sum is that of the records that were accepted, and nothing else leaves."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import dpfy
from dpfy.errors import InvalidArgument
from dpfy.ledger.events import Importance
from dpfy.mechanisms.gaussian_sum import GaussianSum
from dpfy.mechanisms.query import ClippedSum, Query
from dpfy.training.state import read_state

N, WIDTH = 60, 5


class Records(torch.utils.data.Dataset):
    """Inputs of very different sizes, of which one is not a number and one cannot be loaded."""

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
    plan = dpfy.dpis(**{"records": N, "batch_size": 12, "epochs": 2, "ratio": 0.4, "noise_multiplier": 1.0, **settings})
    return dpfy.privatize(model, optimizer, Records() if data is None else data, plan, tmp_path / "run.dpl",
                          engine=engine, insecure_test_key=5)


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


@pytest.mark.parametrize("engine", ["vmap", "loop"])
def test_the_sum_is_that_of_accepted_records_each_at_the_bound(tmp_path, monkeypatch, engine):
    """A coin or a guess of the wrong record, in a chunk that is taken apart or not, would move the sum."""
    monkeypatch.setattr(GaussianSum, "release", lambda self, total, noise: total)
    data = Records()
    run = bound_run(tmp_path, data, engine)
    expected = gradients(run.model, data)
    norms = expected.norm(dim=1).numpy()
    taken = 0
    for batch in run:
        released = run.release(loss_of(run.model), batch)
        sampler, indices = run._importance, np.flatnonzero(run._importance._coins)
        indices = indices[indices != 11]
        weights = sampler.weights(batch.step, indices, norms[indices], bound=0.4)
        assert np.allclose(sampler._guesses, 3 * np.clip(np.nan_to_num(norms) * (np.arange(N) != 11), 1 / 16, 1),
                           rtol=1e-5)
        total = (torch.from_numpy(weights[weights > 0]).unsqueeze(1) * expected[indices[weights > 0]]).sum(0)
        found = torch.cat([g.flatten() for g in released.gradients.values()]) * 12
        assert torch.allclose(found.double(), total, atol=1e-5)
        taken += int((weights > 0).sum())
    assert 100 < taken < 300  # of ten steps with at most 30 in expectation


def test_the_ledger_has_the_steps_of_the_schedule(tmp_path):
    run = bound_run(tmp_path, ratio=lambda epoch: 1 / (2 + epoch))
    for batch in run:
        run.backward(loss_of(run.model), batch)
        for optimizer in run.optimizers:
            optimizer.step()
    events = [(type(each.event.policy), round(each.event.policy.rate, 12), each.event.queries[0].stddev, each.times)
              for each in run.plan.envelope]
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
    again = dpfy.resume(tmp_path / "saved", model, torch.optim.SGD(model.parameters(), lr=0.1), Records(),
                        insecure_test_key=6)
    assert again.steps_taken == 3 and again._importance.due(4)
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
    plan = dpfy.dpis(records=1000, batch_size=50, epochs=2, ratio=0.25, noise_schedule="exponential:0.1")
    plan = plan.calibrate(epsilon=2.0, delta=1e-4)
    assert dpfy.Plan.from_json(plan.to_json()) == plan
    claimed = dpfy.account(plan.envelope).epsilon(1e-4).upper
    assert 1.98 < claimed <= 2.0
    assert plan.steps_per_epoch == 20 and plan.expected_batch == 50


@pytest.mark.parametrize(("settings", "words"), [
    ({"norm_sum": "guessed"}, "scheduled"), ({"clip_factor": 1.0}, "Use norm_sum='released'"), ({"ratio": 0.1}, "ratios of at least"), ({"ratio": 0.21}, "for certain"),
    ({"slack": 0.5}, "slack of at least 1"), ({"floor": 0.01}, "floor in"), ({"relation": "replace_one"}, "No rule"),
    ({"epochs": 1, "steps": 3}, "exactly one")])
def test_what_has_no_proof_is_refused(settings, words):
    with pytest.raises(InvalidArgument, match=words):
        dpfy.dpis(**{"records": N, "batch_size": 12, "epochs": None if "steps" in settings else 2, **settings})


def test_groups_statistics_users_and_other_controllers_are_refused():
    plan = dpfy.dpis(records=N, batch_size=12, epochs=2)
    two = Query.of([ClippedSum(1.0, "a", ("weight",)), ClippedSum(1.0, "b")])
    for changes, words in (({"query": two}, "one clipped sum"), ({"unit": dpfy.Unit.USER}, "protects records"),
                           ({"query": Query.of([ClippedSum(1.0)], [dpfy.SampleSize()])}, "no statistics"),
                           ({"controllers": ()}, "follow the ratios"),
                           ({"controllers": (dpfy.QuantileClipping(),)}, "follow the ratios"),
                           ({"controllers": (dpfy.NormClipping(),)}, "follow the ratios")):
        with pytest.raises(InvalidArgument, match=words):
            replace(plan, **changes)


def test_engines_that_bound_norms_are_refused(tmp_path):
    with pytest.raises(InvalidArgument, match="very gradient"):
        bound_run(tmp_path, engine="bookkeeping")
