"""Settings that have no meaning for labels are refused, and those that have one are read."""

import dataclasses

import pytest

from dpfy import TrainConfig
from dpfy.errors import InvalidArgument
from dpfy.trainer.builders import completed
from dpfy.trainer.label_settings import NOT_FOR_LABELS, named_label_method, require_records
from dpfy.tuning import TuneConfig
from dpfy.tuning.space import Space

OTHERS = {
    "batchnorm": "group",
    "users": "data:users",
    "rows_per_user": 3,
    "budgets": "strict=1:0.4,open=3:0.6",
    "groups_of": "data:levels",
    "individual": "scale",
    "example": "data:example",
    "clip": 1.0,
    "clipping": "norm",
    "clip_schedule": "time:0.1",
    "noise_schedule": "time:0.1",
    "groups": "layer",
    "noise_correlation": "banded",
    "sampling": "shuffled",
    "capacity": 10,
    "importance": {"ratio": 0.5},
    "relation": "zero_out",
    "algorithm": "line_search",
    "private_metrics": True,
    "engine": "vmap",
    "strict": True,
    "max_physical_batch": 8,
    "num_workers": 1,
    "prefetch": 1,
    "budget": "sqlite:///team.db#digits",
    "checkpoint_every": 2,
    "task": "regression",
    "loss": "own:loss",
    "metric": "own:metric",
    "metric_goal": "min",
}


@pytest.mark.parametrize("name", NOT_FOR_LABELS)
def test_a_setting_without_a_meaning_is_refused_with_its_reason(name):
    with pytest.raises(InvalidArgument, match=f"no {name}=.* with protect='labels'"):
        TrainConfig(protect="labels", **{name: OTHERS[name]})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"protect": "label"}, "protect"),
        ({"label_method": "alibi"}, "Expected protect='labels' with label_method"),
        ({"classes": 3}, "Expected protect='labels' with classes"),
        ({"protect": "labels", "classes": 1}, "classes=1"),
        ({"protect": "labels", "label_method": "pate"}, "label_method"),
        ({"protect": "labels", "label_method": "lp-mst:1.5"}, "whole number"),
        ({"protect": "labels", "label_method": "cluster:0"}, "clusters=0"),
        ({"protect": "labels", "optimizer": "adadp"}, "'sgd' or 'adam'"),
    ],
)
def test_a_wrong_setting_is_refused(settings, message):
    with pytest.raises(InvalidArgument, match=message):
        TrainConfig(**settings)


def test_methods_have_options():
    assert named_label_method("rr") == ("rr", {})
    assert named_label_method("lp-mst") == ("lp-mst", {"stages": 2})
    assert named_label_method("lp-mst:3") == ("lp-mst", {"stages": 3})
    truth = {"stages": 2, "rule": "truth"}
    assert named_label_method("lp-mst-truth:2") == ("lp-mst-truth", truth)
    assert named_label_method("cluster") == ("cluster", {"clusters": 100})


def test_completed_settings_are_those_of_ordinary_training():
    config = completed(TrainConfig(protect="labels", epochs=2.0))
    assert (config.epochs, config.clip, config.delta) == (2.0, None, 1e-5)
    assert None not in (config.batch_size, config.learning_rate, config.momentum, config.ema)
    assert completed(dataclasses.replace(config)) == config


def test_what_is_about_private_steps_refuses_labels():
    with pytest.raises(InvalidArgument, match="for a search"):
        TuneConfig(
            TrainConfig(protect="labels"), Space.parse(["learning_rate=0.1,0.2"]), epsilon=1.0
        )
    with pytest.raises(InvalidArgument, match="for an audit"):
        require_records("labels", "an audit")
