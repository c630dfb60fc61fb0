"""Importance sampling by settings: from a file, flags and Python to one plan, a model that learned
and a report.
"""

import json

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import dpfy
from dpfy.cli.app import main
from dpfy.ledger.events import Importance
from dpfy.models import PrivateBatchNorm
from dpfy.trainer.config import ImportanceConfig, TrainConfig

SETTINGS = {
    "sampling": "importance",
    "records": 400,
    "batch_size": 50,
    "epochs": 2,
    "clip": 1.0,
    "learning_rate": 0.5,
    "delta": 1e-3,
    "data": "blobs",
    "name": "a",
}


def blobs(n, seed):
    """Two classes that a line separates."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(2, (n,), generator=generator)
    return TensorDataset(torch.randn(n, 4, generator=generator) + 2.0 * y.unsqueeze(1), y)


def trainer(folder="runs", model=None, callbacks=(), unit_of=None, **settings):
    torch.manual_seed(0)
    return dpfy.Trainer(
        TrainConfig(**{**SETTINGS, "out": str(folder), **settings}),
        model=model or nn.Linear(4, 2),
        train=blobs(400, 1),
        test=blobs(200, 2),
        callbacks=callbacks,
        unit_of=unit_of,
    )


def test_settings_make_the_plan_of_dpis():
    """Fails if a setting gets lost, or if a schedule is not relative to the ratio."""
    made = trainer(
        importance=ImportanceConfig(0.6, ratio_schedule="step:0.5:1", slack=2, floor=0.25),
        noise_schedule="time:0.1",
    ).plan
    plan = dpfy.dpis(
        records=400,
        batch_size=50,
        epochs=2,
        ratio=lambda epoch: 0.6 * 0.5**epoch,
        slack=2.0,
        floor=0.25,
        noise_schedule="time:0.1",
        noise_multiplier=made.noise_multiplier,
    )
    assert (
        made.sampling == plan.sampling
        and made.envelope == plan.envelope
        and made.sampling.ratios == (0.6, 0.3)
    )
    assert dpfy.account(made.envelope).claim(1e-3) <= 3.0
    assert trainer().plan.sampling == dpfy.dpis(records=400, batch_size=50, epochs=2).sampling


def test_digits_are_learned_from_a_file_of_settings(tmp_path, capsys):
    """Fails if the model does not learn, if the ledger has other events, or if the report keeps
    silent about ratios.

    Batches are a quarter of what suits the data otherwise, so that there is room for proposals.
    """
    (tmp_path / "dpis.toml").write_text(
        'sampling = "importance"\nepochs = 2\n'
        f'epsilon = 8.0\nname = "a"\nout = {json.dumps(str(tmp_path))}\n'
        "[importance]\nratio = 0.6\n"
    )
    with pytest.raises(SystemExit) as ended:
        main(["train", str(tmp_path / "dpis.toml"), "--ratio-schedule", "step:0.8:1"])
    assert not ended.value.code
    assert ", 1e-05)-differential privacy" in capsys.readouterr().out
    ledger = dpfy.Ledger.read(tmp_path / "a" / "ledger.dpl")
    events = [each.event for each in ledger.header.envelope]
    assert all(isinstance(event.policy, Importance) for event in events)
    assert [event.policy.rate for event in events] == [
        pytest.approx(240 / 1437 / ratio) for ratio in (0.6, 0.48)
    ]
    assert 7.9 < dpfy.account(ledger).claim(1e-5) <= 8.0 and ledger.count == 12
    rows = (tmp_path / "a" / "evaluations.csv").read_text().splitlines()
    assert float(dict(zip(rows[0].split(","), rows[-1].split(","), strict=True))["accuracy"]) > 0.5
    report = (tmp_path / "a" / "report.md").read_text()
    assert "each of norm 0.48 to 0.6 clip bounds" in report and "Chosen from releases" not in report
    assert "Hyper-parameter importance.ratio\\_schedule" in report


def test_ratios_may_follow_released_norms(tmp_path):
    """Fails if the numbers after colons get lost, or if the norms of an epoch are not in the
    ledger.
    """
    subject = trainer(tmp_path, importance={"norm_sum": "released:0.1:0.5"}, epochs=1.5)
    result = subject.fit()
    found = [
        query.name
        for run in dpfy.Ledger.read(result.folder / "ledger.dpl").uses
        for query in run.event.queries
    ]
    assert found.count("norm sum") == 2 and subject.plan.controllers[0].cautious == 0.5
    assert (
        subject.plan.controllers[0].stddev == 40.0 and subject.plan.adaptive and result.claim <= 3.0
    )
    report = (result.folder / "report.md").read_text()
    assert (
        "by sums of norms that are released" in report
        and "norm sum, cautious 0.5, length 8, stddev 40" in report
    )


class Interrupting(dpfy.Callback):
    def on_step(self, step):
        if step.step == 3:
            raise KeyboardInterrupt


def test_an_interrupted_run_goes_on_under_its_plan(tmp_path):
    with pytest.raises(dpfy.TrainingInterrupted):
        trainer(tmp_path, callbacks=[Interrupting()], epochs=1, importance={"ratio": 0.7}).fit()
    result = trainer(tmp_path, epochs=1, importance={"ratio": 0.7}).resume()
    assert dpfy.Ledger.read(tmp_path / "a" / "ledger.dpl").count == 8 and 2.9 < result.claim <= 3.0


class Normalised(nn.Sequential):
    """A model whose BatchNorm would release statistics beside the gradient."""

    def __init__(self):
        super().__init__(nn.Linear(4, 4), PrivateBatchNorm(4), nn.Linear(4, 2))


def test_objects_that_importance_sampling_has_no_proof_for_are_refused():
    for objects in ({"unit_of": list(range(400))}, {"model": Normalised()}):
        with pytest.raises(
            dpfy.InvalidArgument, match="protects records and releases nothing beside"
        ):
            trainer(**objects)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"clipping": "quantile"}, "one norm"),
        ({"clip_schedule": "time:0.1"}, "ratio_schedule"),
        ({"groups": "layer"}, "several"),
        ({"users": "a:b"}, "protects records"),
        ({"rows_per_user": 3}, "protects records"),
        ({"private_metrics": True}, "not accepted"),
        ({"algorithm": "line_search"}, "no rule"),
        ({"capacity": 60}, "truncated_poisson"),
        ({"noise_schedule": "validation:0.9"}, "fixed in advance"),
        ({"batchnorm": "private"}, "statistics"),
        ({"engine": "ghost"}, "very gradient"),
        ({"importance": {"ratio_schedule": "time:0.1"}}, "begins with"),
        ({"importance": {"ratio": 0.5, "ratio_schedule": "zigzag"}}, "a schedule"),
        ({"importance": {"ratio": 0.0}}, "ratio"),
        ({"importance": {"slack": "3"}}, "slack"),
        ({"importance": {"norm_sum": "told"}}, "norm_sum"),
        ({"importance": {"norm_sum": "released:a"}}, "NOISE:CAUTIOUS"),
        ({"sampling": "poisson", "importance": {"ratio": 0.5}}, "'importance'"),
        ({"sampling": "poisson", "importance": {"norm_sum": "released"}}, "'importance'"),
        ({"sampling": "full", "importance": {"slack": 2.0}}, "'importance'"),
    ],
    ids=str,
)
def test_settings_that_do_not_go_together_are_refused_with_the_reason(settings, words):
    with pytest.raises(dpfy.InvalidArgument, match=words):
        TrainConfig(**{"sampling": "importance", **settings})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"relation": "replace_one"}, "replace each other"),
        ({"importance": {"ratio": 0.15}}, "ratios of at least"),
        ({"importance": {"slack": 0.5}}, "slack of at least 1"),
        ({"importance": {"floor": 0.01}}, "floor in"),
    ],
    ids=str,
)
def test_what_only_the_data_set_decides_is_refused_by_the_plan(settings, words):
    with pytest.raises(dpfy.InvalidArgument, match=words):
        trainer(**settings)
