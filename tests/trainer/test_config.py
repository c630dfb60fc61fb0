"""One schema from Python, files and flags; what does not fit is named."""

import json
import math
import re
import tomllib
from dataclasses import replace
from itertools import chain

import pytest

import dpfy
from dpfy.mechanisms import controllers
from dpfy.plans.dpftrl import STRATEGIES
from dpfy.plans.dpsgd import _OF_DECLARED_SIZE
from dpfy.trainer.config import (
    BATCHNORM,
    GROUPS,
    OLD_NAMES,
    SCHEDULES,
    SECTIONS,
    ImportanceConfig,
    TrainConfig,
    all_settings,
    current_names,
    sections,
    template,
)

TEMPLATE = template().splitlines()
COMMENTED = [
    place
    for place, line in enumerate(TEMPLATE)
    if line.startswith("#") and not line.startswith("# ")
]


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


def test_the_template_names_every_setting_once_and_says_what_it_is():
    names = [line[1:].split(" = ")[0] for line in (TEMPLATE[place] for place in COMMENTED)]
    assert names == [setting.flag for setting in all_settings()] and len(set(names)) == len(names)
    assert all(setting.help in " ".join(template().split("\n# ")) for setting in all_settings())


def test_every_section_begins_with_a_setting_and_has_a_title():
    assert set(SECTIONS) <= {setting.name for setting in all_settings()}
    assert [each.name for each in chain(*sections().values())] == [s.name for s in all_settings()]
    assert list(sections()) == list(SECTIONS.values())
    assert all(f"# {title}\n# {'-' * len(title)}\n" in template() for title in sections())


# What each setting may be, apart from what these are checked against.
CHOICES = {
    "batchnorm": BATCHNORM,
    "individual": ("sample", "scale"),
    "clipping": ("fixed", "quantile", "norm", "automatic", "adaclip"),
    "noise_schedule": (*controllers.SCHEDULES, "validation", "norm"),
    "clip_schedule": tuple(controllers.SCHEDULES),
    "groups": GROUPS,
    "sampling": ("poisson", "full", *_OF_DECLARED_SIZE, "cyclic_poisson", "importance"),
    "noise_correlation": ("none", *(each for each in STRATEGIES if each != "independent")),
    "relation": tuple(map(str, dpfy.Relation)),
    "algorithm": ("dpsgd", "noisy_max", "line_search"),
    "optimizer": ("sgd", "adam", "adam_bc", "adadp"),
    "lr_schedule": SCHEDULES,
    "delta": ("auto",),
}


@pytest.mark.parametrize("name", CHOICES)
def test_an_error_and_the_help_list_every_choice(name):
    """Fails if a choice is added and one of the two texts is forgotten."""
    with pytest.raises(dpfy.InvalidArgument, match="zigzag") as caught:
        TrainConfig().with_flags({name: "zigzag"})
    helps = {setting.name: setting.help for setting in all_settings()}
    text = helps["noise_schedule"] if name == "clip_schedule" else helps[name]
    for choice in CHOICES[name]:
        assert re.search(rf"\b{choice}\b", str(caught.value)), str(caught.value)
        assert re.search(rf"\b{choice}\b", text), text


def test_a_plan_says_which_other_plans_draw_otherwise():
    with pytest.raises(dpfy.InvalidArgument, match=r"dpfy\.dpis draws by 'importance'"):
        dpfy.dpsgd(records=10, batch_size=2, steps=1, sampling="importance")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"data": "minst"}, "Your own data is named as module:loader"),
        ({"device": "gpu"}, "such as 'cpu', 'cuda' or 'cuda:0'"),
    ],
    ids=str,
)
def test_what_is_not_there_is_named_with_what_could_be(settings, words):
    with pytest.raises(dpfy.InvalidArgument, match=words):
        dpfy.Trainer(TrainConfig(**settings))


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
        {"lr_schedule": "zigzag"},
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


OLD_FILE = {  # as version 0.1 wrote it
    "data": "digits",
    "epsilon": 8.0,
    "sampling": "importance",
    "ratio": 0.6,
    "ratio_schedule": "step:0.8:5",
    "norm_sum": "scheduled",
    "schedule": "cosine",
    "tail": 0.25,
}
NEW_FILE = TrainConfig(
    epsilon=8.0,
    sampling="importance",
    importance=ImportanceConfig(0.6, "step:0.8:5"),
    lr_schedule="cosine",
    average_tail=0.25,
)


def old_names(*names):
    """Expect a warning for each of these names."""
    return pytest.warns(DeprecationWarning, match=rf"the setting ({'|'.join(names)}) is now called")


@pytest.mark.parametrize("make", [lambda values: TrainConfig(**values), TrainConfig.from_mapping])
def test_names_of_version_0_1_still_work_and_say_so(make):
    with old_names(*OLD_NAMES) as warned:
        assert make(OLD_FILE) == NEW_FILE
    assert len(warned) == 5 and all(each.filename == __file__ for each in warned)


@pytest.mark.parametrize("name", OLD_NAMES)
def test_a_setting_is_read_by_its_old_name_too(name):
    new = NEW_FILE
    for part in OLD_NAMES[name].split("."):
        new = getattr(new, part)
    with old_names(name):
        assert getattr(NEW_FILE, name) == new


def test_files_of_version_0_1_still_load(tmp_path):
    text = "\n".join(f"{name} = {json.dumps(value)}" for name, value in OLD_FILE.items())
    (tmp_path / "old.toml").write_text(text)
    with old_names(*OLD_NAMES) as warned:
        assert TrainConfig.from_file(tmp_path / "old.toml") == NEW_FILE
    assert {each.filename for each in warned} == {__file__}


def test_settings_that_the_library_wrote_itself_load_silently():
    """A run folder of version 0.1 is resumed without a word about names that nobody typed."""
    assert TrainConfig.from_mapping(current_names(OLD_FILE)) == NEW_FILE
    written = NEW_FILE.to_mapping()
    assert current_names(written) == written
    assert written["importance"] == {
        "ratio": 0.6,
        "ratio_schedule": "step:0.8:5",
        "norm_sum": "scheduled",
    }
    assert not OLD_NAMES.keys() & written.keys()


def test_an_old_name_changes_a_copy():
    with old_names("schedule", "ratio"):
        changed = replace(NEW_FILE, schedule="linear", ratio=0.5)
    assert (changed.lr_schedule, changed.importance) == (
        "linear",
        ImportanceConfig(0.5, "step:0.8:5"),
    )


@pytest.mark.parametrize(
    "values",
    [
        {"schedule": "cosine", "lr_schedule": "cosine"},
        {"ratio": 0.5, "importance": {"ratio": 0.5}},
    ],
    ids=str,
)
def test_an_old_and_a_new_name_together_are_refused(values):
    with pytest.raises(dpfy.InvalidArgument, match="not both"):
        TrainConfig.from_mapping({"sampling": "importance", **values})


def test_flags_change_single_settings_of_a_table():
    changed = NEW_FILE.with_flags({"importance": {"slack": 2.0}, "floor": 0.1, "ratio": None})
    assert changed.importance == ImportanceConfig(0.6, "step:0.8:5", 2.0, 0.1)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"importance": {"ratoi": 0.5}}, "'importance.ratoi'. Did you mean 'importance.ratio'?"),
        ({"ratoi": 0.5}, "Did you mean 'importance.ratio'?"),
        ({"shedule": "cosine"}, "Did you mean 'lr_schedule'?"),
        ({"importance": 0.5}, "[importance]"),
    ],
    ids=str,
)
def test_a_wrong_name_suggests_where_the_setting_is_now(values, words):
    with pytest.raises(dpfy.InvalidArgument, match=re.escape(words)):
        TrainConfig.from_mapping(values)


def test_a_report_lists_the_table_flat():
    values = replace(NEW_FILE, data_dir="/data").hyperparameters()
    assert values["importance.ratio"] == 0.6 and values["lr_schedule"] == "cosine"
    assert "data_dir" not in values and "importance" not in values


def test_the_template_as_it_is_means_the_defaults(tmp_path):
    (tmp_path / "dpfy.toml").write_text(template())
    assert TrainConfig.from_file(tmp_path / "dpfy.toml") == TrainConfig()


@pytest.mark.parametrize("place", COMMENTED, ids=lambda place: TEMPLATE[place].split()[0])
def test_any_line_of_the_template_may_be_uncommented(tmp_path, place):
    """Alone, or together with the lines that its comment says it needs."""
    lines, line = list(TEMPLATE), TEMPLATE[place]
    lines[place] = line.removeprefix("#")
    for needed in filter(None, line.partition("; needs ")[2].split(" and ")):
        in_table = needed.startswith("importance.")
        where = lines.index("[importance]") + 1 if in_table else 0
        lines.insert(where, needed.removeprefix("importance."))
    (tmp_path / "dpfy.toml").write_text("\n".join(lines))
    found = TrainConfig.from_file(tmp_path / "dpfy.toml").to_mapping()
    ((name, value),) = tomllib.loads(line.removeprefix("#")).items()
    assert (found | found["importance"])[name] == value
