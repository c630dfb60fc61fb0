"""The advisor's answers agree with the guide's tables and with what the library accepts."""

from itertools import product

import pytest

from dpfy.errors import InvalidArgument
from dpfy.planning.advisor import QUESTIONS, advise
from dpfy.plans import dpsgd
from dpfy.trainer.config import TrainConfig
from dpfy.types import Relation, Unit

EVERY = [
    dict(zip([question.name for question in QUESTIONS], answers, strict=True))
    for answers in product(*(question.answers for question in QUESTIONS))
]


def test_every_answer_leads_to_settings_that_exist_and_that_a_plan_accepts():
    # Advice that the library refuses: a relation without a rule for the sampling, a flag that was
    # renamed.
    for answers in EVERY:
        found = advise(**answers)
        assert found.reasons and all(found.reasons) and str(found)
        if found.train:
            config = TrainConfig.from_mapping(found.train)
            plan = dpsgd(
                records=100,
                batch_size=10,
                epochs=1,
                sampling=config.sampling,
                relation=config.relation,
            )
            assert plan.relation == found.relation


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ({"sees": "data"}, "noise at the data"),
        ({"sees": "model"}, "DP-SGD"),
        ({"sees": "predictions"}, "PATE"),
        ({"sees": "updates"}, "secure aggregation"),
        ({"labels_only": "yes"}, "label"),
    ],
)
def test_where_noise_is_added_depends_on_who_sees_what(answers, words):
    assert words in advise(**answers).approach


@pytest.mark.parametrize(
    ("sampling", "relation", "words"),
    [
        ("poisson", Relation.ADD_OR_REMOVE_ONE, "coin"),
        ("fixed", Relation.REPLACE_ONE, "replace one"),
        ("shuffle", Relation.ZERO_OUT, "No amplification"),
        ("stream", Relation.ZERO_OUT, "DP-FTRL"),
    ],
)
def test_relation_and_reason_follow_the_sampling(sampling, relation, words):
    found = advise(sampling=sampling)
    assert found.relation is relation and any(words in reason for reason in found.reasons)


@pytest.mark.parametrize("sampling", ["shuffle", "stream"])
def test_who_cannot_sample_is_sent_to_correlated_noise(sampling):
    assert "dpfy plan correlated" in str(advise(sampling=sampling))


def test_several_examples_of_a_person_make_users_the_unit():
    found = advise(one_each="no")
    assert (
        found.unit is Unit.USER
        and not found.train
        and any("unit_of" in reason for reason in found.reasons)
    )


def test_what_dpsgd_does_not_serve_has_no_command():
    assert not advise(sees="data").train and not advise(labels_only="yes").train and advise().train


@pytest.mark.parametrize("answers", [{"sees": "nothing"}, {"one_each": "maybe"}])
def test_an_unknown_answer_is_told_with_the_known_ones(answers):
    with pytest.raises(InvalidArgument, match="one of"):
        advise(**answers)
