"""Where a search looks, and what a search must declare before it begins."""

import math

import pytest

import dpfy
from dpfy.errors import InvalidArgument
from dpfy.noise.random_stream import SecureStream
from dpfy.tuning import Choice, Space, TuneConfig, Uniform

SPACE = Space({"learning_rate": Uniform(0.1, 10.0, log=True)})


def config(**values):
    return TuneConfig(**{"base": dpfy.TrainConfig(), "space": SPACE, "epsilon": 1.0, **values})


def test_flags_describe_distributions():
    space = Space.parse(
        [
            "learning-rate=log:0.1:10",
            "momentum=0:0.9",
            "lr-schedule=cosine,linear",
            "warmup_steps=0,5",
        ]
    )
    assert space.settings == {
        "learning_rate": Uniform(0.1, 10.0, True),
        "momentum": Uniform(0.0, 0.9),
        "lr_schedule": Choice(("cosine", "linear")),
        "warmup_steps": Choice((0, 5)),
    }
    assert Space.from_json(space.to_json()) == space


@pytest.mark.parametrize(
    ("each", "middle", "ends"),
    [
        (Uniform(0.1, 10.0, log=True), 1.0, (0.1, 10.0)),
        (Uniform(0.0, 4.0), 2.0, (0.0, 4.0)),
        (Choice(("a", "b", "c")), "b", ("a", "c")),
    ],
)
def test_shares_become_values(each, middle, ends):
    assert each.at(0.5) == (pytest.approx(middle) if isinstance(middle, float) else middle)
    assert (each.at(0.0), each.at(1.0)) == ends  # and never beyond, whatever rounding does


def test_draws_are_independent_and_follow_the_distributions():
    """Fails if settings share a word, if a word is reused, or if a choice is not as likely as the
    others.

    Of 2000 draws each quarter of the (logarithmic) range, and each pair of choices, has a mean of
    500 or 250 and a deviation below 20: eight of them are left within 160, a false alarm below
    1e-13 each."""
    space = Space({"learning_rate": Uniform(0.1, 10.0, log=True), "clip": Choice((1, 2))})
    stream = SecureStream(insecure_test_key=3, purpose="training")
    draws = [space.draw(stream) for _ in range(2000)]
    cells = [
        (min(3, int(4 * (math.log10(draw["learning_rate"]) + 1) / 2)), draw["clip"])
        for draw in draws
    ]
    assert all(
        abs(cells.count((quarter, clip)) - 250) < 160 for quarter in range(4) for clip in (1, 2)
    )
    assert len({draw["learning_rate"] for draw in draws}) == 2000


@pytest.mark.parametrize(
    "texts",
    [
        [],
        ["clip"],
        ["clip=1", "clip=2"],
        ["clip="],
        ["learning_rate=log:a:b"],
        ["learning_rate=log:0:1"],
        ["momentum=0.9:0.1"],
        ["no_such=1,2"],
    ],
)
def test_what_is_no_space_is_refused(texts):
    with pytest.raises(InvalidArgument, match="Expected"):
        Space.parse(texts)


@pytest.mark.parametrize(
    "name", ["batch_size", "epochs", "sampling", "noise_schedule", "private_metrics", "groups"]
)
def test_settings_that_change_what_a_trial_costs_are_not_searched(name):
    with pytest.raises(InvalidArgument, match="cost more than another"):
        Space({name: Choice((1, 2))})


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"epsilon": None}, "needs a budget"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"proposals": "bayesian"}, "must be independent"),
        ({"storage": "sqlite:///a"}, "stores nothing"),
        ({"trials": 1.0}, "mean"),
        ({"accounting": "compose", "trials": 2.5}, "whole number"),
        ({"accounting": "compose", "trials": math.inf}, "whole number"),
        ({"accounting": "guess"}, "accounting"),
        ({"law": "fixed"}, "law"),
        ({"score": "secret"}, "score"),
        ({"base": dpfy.TrainConfig(early_stop=2)}, "early_stop"),
        ({"base": dpfy.TrainConfig(algorithm="line_search")}, "chosen from outputs"),
        (
            {"base": dpfy.TrainConfig(average_tail=0.5), "space": Space({"ema": Choice((0.9,))})},
            "one average",
        ),
        ({"space": Space({"momentum": Uniform(0.0, 1.0)})}, "momentum"),
    ],
)
def test_searches_that_cannot_be_accounted_or_run_are_refused(values, says):
    with pytest.raises(InvalidArgument, match=says):
        config(**values)


def test_a_search_survives_its_file():
    assert TuneConfig.from_json(config(accounting="compose", trials=3).to_json()) == config(
        accounting="compose", trials=3
    )


def test_settings_of_version_0_1_are_searched_under_their_old_names():
    """The ledger of a search declares the names: a search that is resumed must keep them."""
    with pytest.warns(DeprecationWarning, match="the setting schedule is now called lr_schedule"):
        space = Space.parse(["schedule=cosine,linear"])
    written = space.to_json()
    assert list(written) == ["schedule"] and Space.from_json(written) == space  # without a warning
    declared = TuneConfig(dpfy.TrainConfig(), space, epsilon=3.0)
    assert declared.base.with_flags({"schedule": "cosine"}).lr_schedule == "cosine"
    old = declared.to_json()
    old["base"] = {"schedule": "linear", "norm_sum": "scheduled"}
    assert TuneConfig.from_json(old).base.lr_schedule == "linear"


def test_a_setting_is_searched_under_one_name():
    with (
        pytest.warns(DeprecationWarning),
        pytest.raises(dpfy.InvalidArgument, match="both"),
    ):
        Space.parse(["schedule=cosine,linear", "lr_schedule=constant"])
