"""One schema from Python, files and flags; what does not fit is named."""

import math
import tomllib

import pytest

import dpfy
from dpfy.trainer.config import TrainConfig, template


def test_files_flags_and_python_mean_the_same(tmp_path):
    (tmp_path / "a.toml").write_text('epsilon = 1.5\nepochs = 4\ndata = "mnist"\n')
    (tmp_path / "a.yaml").write_text("epsilon: 1.5\nepochs: 4\ndata: mnist\n")
    expected = TrainConfig(epsilon=1.5, epochs=4, data="mnist")
    assert (
        TrainConfig.from_file(tmp_path / "a.toml")
        == TrainConfig.from_file(tmp_path / "a.yaml")
        == expected
    )
    assert (
        TrainConfig().with_flags({"epsilon": 1.5, "epochs": 4, "data": "mnist", "clip": None})
        == expected
    )
    assert TrainConfig.from_mapping(expected.to_mapping()) == expected


def test_an_empty_yaml_file_means_the_defaults(tmp_path):
    (tmp_path / "a.yml").write_text("")
    assert TrainConfig.from_file(tmp_path / "a.yml") == TrainConfig()


def test_the_template_names_every_setting_at_its_default():
    active = "\n".join(
        line.removeprefix("#")
        for line in template().splitlines()
        if line.startswith("#") and not line.startswith("# ")
    )
    values = {name: value for name, value in tomllib.loads(active).items() if value != ""}
    assert TrainConfig.from_mapping(values) == TrainConfig()
    assert set(tomllib.loads(active)) == set(TrainConfig.__dataclass_fields__)


@pytest.mark.parametrize(
    ("name", "suggestion"), [("epsilom", "epsilon"), ("batchsize", "batch_size"), ("lr", None)]
)
def test_unknown_settings_are_errors_with_a_suggestion(name, suggestion):
    with pytest.raises(dpfy.InvalidArgument, match=f"{name!r}") as caught:
        TrainConfig.from_mapping({name: 1})
    if suggestion:
        assert f"Did you mean {suggestion!r}?" in str(caught.value)


@pytest.mark.parametrize(
    "values",
    [
        {"epsilon": 0},
        {"epsilon": "3"},
        {"epsilon": math.nan},
        {"delta": 0},
        {"delta": "soon"},
        {"epochs": -1},
        {"epochs": True},
        {"batch_size": 1.5},
        {"clip": 0},
        {"momentum": 1.0},
        {"ema": 1.0},
        {"ema": -0.1},
        {"optimizer": "lbfgs"},
        {"schedule": "zigzag"},
        {"seed": -1},
        {"evaluate_every": 0},
        {"csv": 1},
        {"data": 3},
    ],
    ids=str,
)
def test_values_outside_their_domain_are_refused(values):
    with pytest.raises(dpfy.InvalidArgument):
        TrainConfig.from_mapping(values)


@pytest.mark.parametrize(
    ("file", "text"),
    [("a.toml", "epsilon = "), ("a.yaml", "a: [1"), ("a.yaml", "- 1"), ("a.toml", "\xff")],
)
def test_malformed_files_are_one_sentence(tmp_path, file, text):
    (tmp_path / file).write_text(text, encoding="latin-1")
    with pytest.raises(dpfy.InvalidArgument, match=file):
        TrainConfig.from_file(tmp_path / file)
    with pytest.raises(dpfy.InvalidArgument, match="dpfy init"):
        TrainConfig.from_file(tmp_path / "missing.toml")
