"""Optimizers and averages by their names in settings."""

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import TensorDataset

import dpfy
from dpfy.optim import ADADP, AdamBC, TailAverage
from dpfy.trainer.builders import completed, make_average, make_optimizer


def test_optimizers_by_name():
    model = nn.Linear(2, 1)
    config = completed(dpfy.TrainConfig(optimizer="adadp:0.5"))
    chosen = make_optimizer(config, model)
    assert isinstance(chosen, ADADP) and chosen.param_groups[0]["tolerance"] == 0.5
    assert (
        config.momentum == 0.0
        and config.learning_rate == completed(dpfy.TrainConfig()).learning_rate
    )
    chosen = make_optimizer(completed(dpfy.TrainConfig(optimizer="adam_bc:1e-7")), model)
    assert isinstance(chosen, AdamBC) and chosen.param_groups[0]["floor"] == 1e-7
    assert (
        completed(dpfy.TrainConfig(data="own:data", records=1000, optimizer="adadp")).momentum
        == 0.0
    )


@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": "adadp", "momentum": 0.9},
        {"optimizer": "adadp:fast"},
        {"optimizer": "sgd:1"},
        {"optimizer": "lion"},
        {"ema": 0.9, "average_tail": 0.5},
        {"average_tail": 0.0},
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings):
    with pytest.raises(dpfy.InvalidArgument):
        dpfy.TrainConfig(**settings)


def test_an_average_by_name():
    model = nn.Linear(1, 1)
    for settings, kind in (
        ({}, type(None)),
        ({"ema": 0.9}, AveragedModel),
        ({"average_tail": 0.25}, TailAverage),
    ):
        assert type(make_average(completed(dpfy.TrainConfig(**settings)), model, 10)) is kind
    assert (
        completed(dpfy.TrainConfig(data="own:data", records=100_000, average_tail=0.2)).ema == 0.0
    )


@pytest.mark.parametrize("kind", [ADADP, AdamBC])
def test_a_resumed_run_finds_its_optimizer_where_it_was(kind, tmp_path):
    """Three steps leave ADADP halfway; what it would return to, or AdamBC's mean of variances, must
    not be lost.
    """
    data, models = TensorDataset(torch.randn(8, 3)), [nn.Linear(3, 1), nn.Linear(3, 1)]
    optimizers = [kind(model.parameters(), 0.1) for model in models]
    plan = dpfy.dpsgd(rate=1.0, divisor=8, steps=6, noise_multiplier=1.0)
    with dpfy.privatize(
        models[0], optimizers[0], data, plan, tmp_path / "a.dpl", insecure_test_key=1
    ) as run:
        for batch, _ in zip(run, range(3), strict=False):
            optimizers[0].zero_grad()
            run.backward(lambda x: models[0](x).squeeze(1), batch)
            optimizers[0].step()
        run.save(tmp_path)
    dpfy.resume(tmp_path, models[1], optimizers[1], data, insecure_test_key=2).close()
    saved, found = (optimizer.state_dict() for optimizer in optimizers)
    assert (
        saved["param_groups"] == found["param_groups"]
        and saved["state"].keys() == found["state"].keys() != set()
    )
    for number, state in saved["state"].items():
        for name, value in state.items():
            assert torch.equal(
                torch.as_tensor(found["state"][number][name]), torch.as_tensor(value)
            )


class Rates(dpfy.Callback):
    def __init__(self):
        self.seen = []

    def on_step(self, step):
        self.seen.append(step.learning_rate)


def test_the_trainer_takes_an_optimizer_and_a_tail_and_reports_the_rate_that_was_found(tmp_path):
    torch.manual_seed(0)
    y = torch.randint(2, (400,))
    data = TensorDataset(torch.randn(400, 4) + 2.0 * y.unsqueeze(1), y)
    rates = Rates()
    config = dpfy.TrainConfig(
        out=str(tmp_path),
        name="a",
        records=400,
        batch_size=100,
        epochs=3,
        data="blobs",
        clip=1.0,
        delta=1e-3,
        epsilon=50.0,
        optimizer="adadp",
        learning_rate=2.0,
        average_tail=0.5,
    )
    result = dpfy.Trainer(
        config, model=nn.Linear(4, 2), train=data, test=data, callbacks=[rates]
    ).fit()
    assert result.evaluations[-1].accuracy > 0.7
    assert len(rates.seen) == 12 and rates.seen[:3] == pytest.approx([2.0, 2.0, 2.2])
    assert (
        dpfy.account(dpfy.Ledger.read(tmp_path / "a" / "ledger.dpl")).claim(1e-3)
        == result.claim
        <= 50.0
    )
