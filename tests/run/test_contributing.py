"""The share of records that contribute: counted right, paid for, and spoken of when it is low and
only then.
"""

import json
import math
from functools import partial

import numpy as np
import pytest
import torch
from runs import Dot
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import dpfy
import dpfy.run.checkpoint
import dpfy.trainer.trainer
from dpfy.run.released import Released
from dpfy.trainer.trainer import resume_training
from dpfy.tuning import TuneConfig
from dpfy.tuning.search import _Search
from dpfy.tuning.space import Space
from dpfy.tuning.trial import Objects


class Odd(Dataset):
    """Eight records: four are fine, one of them all zeros; one NaN, one infinite, one does not
    load, one is empty.
    """

    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index == 6:
            raise OSError
        values = {4: math.nan, 5: math.inf, 0: 0.0}.get(index, 1.0)
        return torch.full((0 if index == 7 else 3,), values)


def plan_of(**options):
    return dpfy.dpsgd(
        **{
            "rate": 1.0,
            "records": 8,
            "steps": 3,
            "noise_multiplier": 0.0,
            "statistics": [dpfy.Contributing()],
            **options,
        }
    )


@pytest.mark.parametrize("engine", ["bookkeeping", "ghost", "vmap", "loop"])
def test_records_that_fail_do_not_count_and_zero_gradients_do(engine):
    """Were whoever reaches the engine counted, as by SampleSize, it would be 6 of 8."""
    model = nn.Linear(3, 1, bias=False)
    run = dpfy.privatize(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        Odd(),
        plan_of(),
        dpfy.Ledger.in_memory(),
        engine=engine,
        insecure_test_key=1,
        example_input=torch.ones(2, 3),
    )
    found = run.release(lambda x: model(x).squeeze(1), next(iter(run)))
    assert float(found.statistics["contributing"]) == pytest.approx(4 / 8)


def test_an_empty_sample_releases_noise_alone():
    model = Dot()
    run = dpfy.privatize(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        TensorDataset(torch.ones(0, 3)),
        plan_of(noise_multiplier=1.0),
        dpfy.Ledger.in_memory(),
        insecure_test_key=1,
    )
    assert (
        0
        < abs(float(run.release(lambda x: model(x), next(iter(run))).statistics["contributing"]))
        < 10
    )


def test_it_costs_half_a_percent_of_noise_and_about_one_of_epsilon():
    """The events are the plan's. With the gradient's noise as it would be without, ε is larger by
    0.6 %.
    """
    with_it, without = (
        dpfy.dpsgd(records=60_000, batch_size=1024, epochs=3, statistics=statistics).calibrate(
            1.0, 1e-5
        )
        for statistics in ([dpfy.Contributing()], [])
    )
    assert dpfy.account(with_it.envelope).claim(1e-5) <= 1.0
    noise, alone = (plan.event.queries[0].stddev for plan in (with_it, without))
    assert noise / alone == pytest.approx(1 / math.sqrt(0.99), rel=1e-4)
    equal = dpfy.dpsgd(
        records=60_000,
        batch_size=1024,
        epochs=3,
        statistics=[dpfy.Contributing()],
        noise_multiplier=without.noise_multiplier * math.sqrt(0.99),
    )
    assert equal.event.queries[0].stddev == pytest.approx(alone)
    assert 1.003 < dpfy.account(equal.envelope).claim(1e-5) < 1.01


def spoken_at(share, rng, *, steps=300, batch=64, noise=1.0, sampling="poisson", **options):
    """The first step at which counts of a simulated run make it speak; None if they never do."""
    plan = dpfy.dpsgd(
        records=100 * batch,
        batch_size=batch,
        steps=steps,
        noise_multiplier=noise,
        sampling=sampling,
        statistics=[dpfy.Contributing()],
        **options,
    )
    follower = dpfy.ContributingShare(plan)
    counts = rng.binomial(int(share * plan.records), plan.rate, steps)
    if "capacity" in options:
        counts = rng.binomial(
            np.minimum(rng.binomial(plan.records, plan.rate, steps), options["capacity"]), share
        )
    values = (counts + rng.normal(0, 10 * noise, steps)) / plan.divisor
    for step, value in enumerate(values, 1):
        if follower.observe(Released({}, step, {"contributing": torch.tensor(value)}, noise)):
            return step
    return None


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"batch": 4},
        {"batch": 2000, "noise": 5.0},
        {"noise": 0.1},
        {"batch": 100, "sampling": "truncated_poisson", "capacity": 100, "relation": "zero_out"},
    ],
)
def test_nine_tenths_are_enough_however_long_one_looks(settings):
    """The chance is below 1e-6 for each of 20 runs, whatever their length. If the random size of
    samples were left out, or every step tested by itself at 3 standard deviations, runs of 300
    steps would speak.
    """
    rng = np.random.default_rng(1)
    assert {spoken_at(0.9, rng, **settings) for _ in range(20)} == {None}


@pytest.mark.parametrize(
    "plan",
    [
        dpfy.dpsgd(
            records=1500,
            batch_size=1000,
            steps=60,
            sampling="cyclic",
            relation="zero_out",
            noise_multiplier=0.1,
            statistics=[dpfy.Contributing()],
        ),
        dpfy.dpftrl(
            records=1500,
            batch_size=1000,
            steps=60,
            noise_multiplier=0.1,
            statistics=[dpfy.Contributing()],
        ),
    ],
)
def test_a_last_batch_that_is_smaller_is_expected(plan):
    """If every batch were expected to be full, three quarters would contribute."""
    follower = dpfy.ContributingShare(plan)
    for step in range(1, 61):
        value = torch.tensor((1000 if step % 2 else 500) / plan.divisor)
        assert follower.observe(Released({}, step, {"contributing": value}, 0.1)) is None
    assert follower.mean == pytest.approx(1.0)


def test_what_is_clearly_low_is_told_early():
    rng = np.random.default_rng(2)
    nothing, half = ([spoken_at(share, rng) for _ in range(50)] for share in (0.0, 0.5))
    assert max(nothing) <= 4 and max(half) <= 30


def test_without_anything_released_nothing_is_said():
    follower = dpfy.ContributingShare(plan_of())
    assert (
        follower.observe(Released({}, 1, {}, 1.0)) is None
        and follower.mean is None
        and follower.upper == math.inf
    )
    with pytest.raises(dpfy.InvalidArgument, match=r"statistics=\[dpfy.Contributing\(\)\]"):
        dpfy.ContributingShare(plan_of(statistics=[]))


# --- in the trainer
# ------


def records(kind):
    """400 records of two classes, of which something is wrong with every one."""
    generator = torch.Generator().manual_seed(1)
    y = torch.randint(2, (400,), generator=generator)
    if kind == "ids":
        return TensorDataset(torch.randint(10, 99, (400, 4), generator=generator), y)
    x = torch.randn(400, 4, generator=generator) + 2.0 * y.unsqueeze(1)
    if kind == "column":
        x[:, 2] = math.nan
    return TensorDataset(x, y + 2 if kind == "labels" else y)


class Words(nn.Module):
    """Ten words are known."""

    def __init__(self):
        super().__init__()
        self.words, self.out = nn.Embedding(10, 3), nn.Linear(3, 2)

    def forward(self, x):
        return self.out(self.words(x).mean(1))


class Heard(dpfy.Callback):
    def __init__(self, interrupt_at=None):
        self.notices, self.interrupt_at = [], interrupt_at

    def on_notice(self, text):
        self.notices.append(text)

    def on_step(self, step):
        if step.step == self.interrupt_at:
            raise KeyboardInterrupt


@pytest.fixture(autouse=True)
def fixed_key(monkeypatch):
    for module in (dpfy.trainer.trainer, dpfy.run.checkpoint):
        monkeypatch.setattr(module, "privatize", partial(dpfy.privatize, insecure_test_key=11))


def trainer(folder, kind="fine", callbacks=(), **settings):
    config = dpfy.TrainConfig(
        **{
            "out": str(folder),
            "name": "a",
            "records": 400,
            "batch_size": 100,
            "epochs": 3,
            "data": "x:y",
            "clip": 1.0,
            "learning_rate": 0.5,
            "delta": 1e-3,
            **settings,
        }
    )
    return dpfy.Trainer(
        config,
        model=Words() if kind == "ids" else nn.Linear(4, 2),
        train=records(kind),
        callbacks=callbacks,
    )


@pytest.mark.parametrize("kind", ["labels", "column", "ids"])
def test_records_that_are_all_left_out_are_told_in_one_line(tmp_path, capsys, kind):
    heard = Heard()
    result = trainer(tmp_path, kind, [heard]).fit()
    (line,) = heard.notices
    assert capsys.readouterr().err.splitlines() == [line]
    assert (
        line.startswith("Only about ")
        and "labels outside the classes" in line
        and "dpfy inspect-data" in line
    )
    assert abs(result.contributing) < 0.3 and result.claim <= 3.0


def test_healthy_records_are_not_spoken_of(tmp_path, capsys):
    heard = Heard()
    result = trainer(tmp_path, callbacks=[heard]).fit()
    assert (
        heard.notices == []
        and capsys.readouterr().err == ""
        and result.contributing == pytest.approx(1, abs=0.3)
    )
    assert [
        query.name
        for run in dpfy.Ledger.read(result.folder / "ledger.dpl").uses
        for query in run.event.queries
    ] == ["gradient", "contributing"]


def test_it_can_be_switched_off_and_is_left_out_where_it_does_not_apply(tmp_path):
    assert trainer(tmp_path, contributing=False).plan.query.statistics == ()
    assert trainer(tmp_path, sampling="importance").plan.query.statistics == ()
    base = dpfy.TrainConfig(records=400, batch_size=100, epochs=3, data="x:y", delta=1e-3)
    search = _Search(
        TuneConfig(base, Space.parse(["clip=0.5,1"]), epsilon=3.0, score="private"),
        Objects(model=lambda: nn.Linear(4, 2), train=records("fine")),
        None,
    )
    assert [each.name for each in search.draft.plan.query.statistics] == ["accuracy", "loss"]


def test_a_resumed_run_goes_on_counting(tmp_path):
    with pytest.raises(dpfy.TrainingInterrupted):
        trainer(tmp_path, callbacks=[Heard(interrupt_at=6)]).fit()
    resumed = trainer(tmp_path)
    resumed.resume()
    assert resumed.contributing.state_dict()["steps"] == 12


def test_a_run_of_an_older_version_is_resumed_without_it(tmp_path, monkeypatch):
    """Its settings do not have the name, and its plan has no such sum."""
    with pytest.raises(dpfy.TrainingInterrupted):
        trainer(tmp_path, callbacks=[Heard(interrupt_at=6)], contributing=False).fit()
    file = tmp_path / "a" / "config.json"
    values = json.loads(file.read_text())
    assert values.pop("contributing") is False
    file.write_text(json.dumps(values))
    made = []
    monkeypatch.setattr(
        dpfy.Trainer, "resume", lambda self, **_: made.append(self.config.contributing)
    )
    monkeypatch.setattr(
        dpfy.Trainer, "__init__", lambda self, config, callbacks: setattr(self, "config", config)
    )
    resume_training(tmp_path / "a")
    assert made == [False]
