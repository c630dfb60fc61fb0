"""The setting of correlated noise: what it means, what it refuses, and a run from it."""

import importlib
import math

import pytest

import dpfy
from dpfy.errors import CheckpointError, InvalidArgument, TrainingInterrupted
from dpfy.ledger.streams import Buffered, Row, Toeplitz, Tree
from dpfy.mechanisms import banded, blt
from dpfy.trainer.config import TrainConfig
from dpfy.trainer.correlation import correlation_options
from dpfy.trainer.trainer import resume_training

SHORT = {"data": "digits", "epochs": 3.0, "batch_size": 400, "relation": "zero_out"}


@pytest.mark.parametrize(
    "text, options",
    [
        ("none", {}),
        ("blt", {"strategy": "blt", "buffers": 4}),
        ("blt:2", {"strategy": "blt", "buffers": 2}),
        ("banded", {"strategy": "banded", "bands": None}),
        ("banded:8", {"strategy": "banded", "bands": 8}),
        ("square_root:3", {"strategy": "square_root", "bands": 3}),
        ("tree", {"strategy": "tree", "restart": 0}),
        ("tree:8", {"strategy": "tree", "restart": 8}),
    ],
)
def test_texts_are_arguments_of_the_plan(text, options):
    assert correlation_options(text) == options


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"noise_correlation": "dense"}, "one of none, blt"),
        ({"noise_correlation": "blt:1.5"}, "buffers"),
        ({"noise_correlation": "tree:-1"}, "restart"),
        ({"noise_correlation": "blt:2:3"}, "blt:BUFFERS"),
        ({"noise_correlation": "blt"}, "sampling='cyclic'"),
        ({"sampling": "cyclic_poisson"}, "such as 'banded'"),
        ({"sampling": "one_epoch"}, "such as 'blt'"),
        ({"noise_correlation": "blt", "sampling": "importance"}, "sampling='cyclic'"),
        *(
            ({"noise_correlation": "blt", "sampling": "cyclic", **more}, message)
            for more, message in (
                ({"clipping": "quantile"}, "one scale"),
                ({"clip_schedule": "time:0.1"}, "clip_schedule"),
                ({"noise_schedule": "time:0.1"}, "noise_schedule"),
                ({"noise_schedule": "norm"}, "noise_schedule"),
                ({"algorithm": "line_search"}, "filter"),
                ({"optimizer": "adadp"}, "adadp"),
            )
        ),
    ],
)
def test_what_is_refused(settings, message):
    with pytest.raises(InvalidArgument, match=message):
        TrainConfig(**settings)


@pytest.mark.parametrize(
    "settings, kind",
    [
        ({"sampling": "cyclic", "noise_correlation": "blt:2"}, Buffered),
        ({"sampling": "cyclic", "noise_correlation": "tree", "private_metrics": True}, Tree),
        ({"sampling": "cyclic_poisson", "noise_correlation": "banded:2"}, Toeplitz),
        ({"sampling": "one_epoch", "noise_correlation": "blt:2", "epochs": 1.0}, Buffered),
    ],
)
def test_a_run_from_settings(settings, kind, tmp_path):
    config = TrainConfig(**{**SHORT, **settings}, out=str(tmp_path), name="run")
    result = dpfy.Trainer(config).fit()
    (run,) = dpfy.Ledger.read(tmp_path / "run" / "ledger.dpl").uses
    assert isinstance(run.event, Row) and isinstance(run.event.stream.strategy, kind)
    assert run.times == run.event.stream.steps
    assert result.claim <= 3.0
    assert "correlated" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8").lower()


def test_the_strategy_follows_the_learning_rates_of_descent():
    settings = {**SHORT, "sampling": "cyclic", "noise_correlation": "banded:3", "momentum": 0.5}
    falling, constant = (
        dpfy.Trainer(TrainConfig(**settings, lr_schedule=schedule)).plan
        for schedule in ("linear", "constant")
    )
    rates = [1 - step / falling.steps for step in range(falling.steps)]
    by_hand = dpfy.dpftrl(
        records=1437,
        batch_size=400,
        epochs=3,
        strategy="banded",
        bands=3,
        momentum=0.5,
        learning_rates=rates,
    )
    assert falling.correlation == by_hand.correlation != constant.correlation


def test_one_epoch_refuses_a_second(tmp_path):
    config = {**SHORT, "sampling": "one_epoch", "noise_correlation": "blt:2", "out": str(tmp_path)}
    with pytest.raises(InvalidArgument, match="no record comes twice"):
        dpfy.Trainer(TrainConfig(**config))
    assert not [*tmp_path.iterdir()]


# Going on where a strategy is optimised to other last digits


def nudged(strategy):
    """Return what another processor may find."""
    match strategy:
        case Toeplitz((one, *past)):
            return Toeplitz((one, *(math.nextafter(each, 0) for each in past)))
        case Buffered(decays, scales):
            return Buffered(decays, tuple(math.nextafter(each, 0) for each in scales))


class Stop(dpfy.Callback):
    def on_step(self, step):
        if step.step == 5:
            raise KeyboardInterrupt


@pytest.mark.parametrize(
    "name, text, made", [("blt", "blt:2", blt), ("banded", "banded:3", banded)]
)
def test_a_run_goes_on_with_its_own_strategy_on_another_processor(
    name, text, made, tmp_path, monkeypatch
):
    settings = {**SHORT, "sampling": "cyclic", "noise_correlation": text}
    config = TrainConfig(**settings, out=str(tmp_path), name="run")
    first = dpfy.Trainer(config, callbacks=[Stop()])
    with pytest.raises(TrainingInterrupted):
        first.fit()
    module = importlib.import_module("dpfy.plans.dpftrl")  # behind the function of that name
    monkeypatch.setattr(module, name, lambda *given: nudged(made(*given)))
    assert dpfy.Trainer(config).plan.correlation != first.plan.correlation
    resume_training(tmp_path / "run")
    (run,) = dpfy.Ledger.read(tmp_path / "run" / "ledger.dpl").uses
    assert run.event == first.plan.event and run.times == first.plan.steps


@pytest.mark.parametrize(
    "changed",
    [
        {"noise_correlation": "blt:3"},
        {"noise_correlation": "banded:2"},
        {"noise_correlation": "tree"},
        {"noise_correlation": "none"},
        {"epochs": 2.0},
    ],
    ids=str,
)
def test_another_kind_or_number_of_steps_is_another_plan(changed, tmp_path):
    settings = {**SHORT, "sampling": "cyclic", "noise_correlation": "blt:2", "out": str(tmp_path)}
    made, other = (
        dpfy.Trainer(TrainConfig(**{**settings, **more}, name="run")) for more in ({}, changed)
    )
    with pytest.raises(CheckpointError, match="another plan"):
        other._adopt(made.plan)
    made._adopt(made.plan)
