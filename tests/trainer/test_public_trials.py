"""Trials on public data train as they say."""

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import dpfy
from dpfy.errors import InvalidArgument
from dpfy.planning.strategies import Trial, private_clip_plan
from dpfy.trainer.public_trials import Rehearsal

X = torch.randn(120, 4, generator=torch.Generator().manual_seed(1))
SET = TensorDataset(X, (X[:, 0] > 0).long())
REHEARSAL = Rehearsal(lambda: nn.Linear(4, 2), SET, SET)


def test_a_trial_without_noise_learns_and_noise_is_that_of_the_trial(monkeypatch):
    # Noise where none was asked for, or none where it was.
    assert REHEARSAL(Trial(batch_size=60, steps=20, learning_rate=1.0)) > 0.9
    models = []
    loud = Rehearsal(
        lambda: models.append(nn.Linear(400, 2)) or models[-1],
        TensorDataset(torch.zeros(8, 400), torch.zeros(8, dtype=torch.long)),
        SET,
        momentum=0.0,
    )
    monkeypatch.setattr("dpfy.trainer.public_trials.accuracy_of", lambda model, test: 0.5)
    loud(Trial(batch_size=4, steps=1, learning_rate=1.0, clip=0.5, noise_multiplier=80.0))
    spread = float(models[0].weight.detach().double().std())  # 800 draws of σC/B = 10
    assert (
        8 < spread < 12.5
    )  # 2/3 and 3/2 of 10 are outside, and 10 is by more than 6 standard errors


def test_a_small_clip_bound_slows_training_down():
    start = REHEARSAL(Trial(batch_size=60, steps=1, learning_rate=1e-9))
    slow = REHEARSAL(Trial(batch_size=60, steps=20, learning_rate=0.01, clip=1e-6))
    assert slow == start  # the weights hardly move


def test_data_that_are_smaller_than_the_batch_keep_the_noise_in_the_mean(monkeypatch):
    plans = []
    from dpfy.trainer import public_trials

    real = public_trials.privatize
    monkeypatch.setattr(
        public_trials,
        "privatize",
        lambda *args, **options: plans.append(args[3]) or real(*args, **options),
    )
    REHEARSAL(Trial(batch_size=1200, steps=1, learning_rate=0.1, clip=0.5, noise_multiplier=20.0))
    (plan,) = plans
    assert (
        plan.divisor == 120
        and plan.noise_multiplier * plan.clip / plan.divisor == pytest.approx(20 * 0.5 / 1200)
    )


def test_divergence_is_the_worst_accuracy():
    assert REHEARSAL(Trial(batch_size=60, steps=30, learning_rate=3e38, clip=1e4)) == 0.0


def test_a_private_search_finds_the_norm_of_gradients_and_is_charged():
    # Every gradient has norm 3 and the search begins at 1; a search that took clipped norms would
    # stay below it.
    data = TensorDataset(torch.full((400, 1), 3.0))
    model = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plan = private_clip_plan(records=400, batch_size=200, steps=40, epsilon=3.0, delta=1e-5)
    with dpfy.privatize(
        model, optimizer, data, plan, dpfy.Ledger.in_memory(), insecure_test_key=1
    ) as run:
        for batch in run:
            bound = run.release(lambda x: model(x).squeeze(1), batch).bounds["gradient"]
        assert 2.0 < bound < 4.5
        assert 2.9 < run.spent(1e-5).upper <= 3.0


def test_data_without_a_set_to_measure_on_are_refused(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "alone_set.py").write_text(
        "import torch\nfrom torch.utils.data import TensorDataset\n"
        "load = TensorDataset(torch.zeros(4, 2))\n"
    )
    with pytest.raises(InvalidArgument, match="pair of data sets"):
        Rehearsal.named("alone_set:load", "alone_set:load")
