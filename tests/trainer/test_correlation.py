"""The setting of correlated noise: what it means, what it refuses, and a run from it."""

import pytest

import dpfy
from dpfy.errors import InvalidArgument
from dpfy.ledger.streams import Buffered, Row, Toeplitz, Tree
from dpfy.trainer.config import TrainConfig
from dpfy.trainer.correlation import correlation_options

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
        ("tree", {"strategy": "tree"}),
    ],
)
def test_texts_are_arguments_of_the_plan(text, options):
    assert correlation_options(text) == options


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"noise_correlation": "dense"}, "one of none, blt"),
        ({"noise_correlation": "blt:1.5"}, "buffers"),
        ({"noise_correlation": "blt:2:3"}, "blt:BUFFERS"),
        ({"noise_correlation": "blt"}, "sampling='cyclic'"),
        ({"sampling": "cyclic_poisson"}, "noise_correlation='banded'"),
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
    ],
)
def test_a_run_from_settings(settings, kind, tmp_path):
    config = TrainConfig(**SHORT, **settings, out=str(tmp_path), name="run")
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
