"""A report of labels cannot be read as one of records."""

import pytest

from dpfy import InvalidArgument, Ledger, dpsgd
from dpfy.cli._output import claims, sentence
from dpfy.labels import Alibi, randomized_response
from dpfy.reporting import report


@pytest.fixture(params=["rr", "alibi"])
def found(request, tmp_path):
    path = tmp_path / "labels.dpl"
    if request.param == "rr":
        randomized_response([0, 1, 2] * 30, 3, 1.0, path)
    else:
        Alibi(3, 1.0).release([0, 1, 2] * 30, path)
    return report(Ledger.read(path), 1e-5)


def test_every_number_says_that_it_is_about_labels(found):
    text = found.to_markdown()
    assert "-differentially private" in text
    assert text.count("-differentially private") == text.count("label-differentially private")
    assert found.to_markdown().splitlines()[2].endswith(", for labels alone**")
    assert "features are public, and nothing protects them" in found.formal_statement
    assert "the label of one record" in found.plain_statement
    assert {"features", "label_inference"} <= {item.key for item in found.exclusions}


def test_nothing_is_said_that_holds_for_records_only(found):
    text = found.to_markdown()
    for phrase in (
        "add or remove",
        "one record took part",
        "one label took part",
        "hides who took part",
        "features and label.",
        "Gaussian mechanism is",
        "clipped",
        "noisy sums",
        "Tier 1",
        "their size varies",
    ):
        assert phrase not in text, phrase
    assert found.tier.number is None and "not comparable" in found.tier.text
    assert found.costs.adjacency == ()


def test_the_command_line_says_that_features_are_not_protected(tmp_path):
    from dpfy import account

    randomized_response([0, 1], 3, 1.0, tmp_path / "labels.dpl")
    text = sentence(claims(account(tmp_path / "labels.dpl"), 1e-5))
    assert "replacing one label" in text and "features are not" in text


def test_no_plan_of_private_steps_protects_labels():
    with pytest.raises(InvalidArgument, match=r"by dpfy\.labels"):
        dpsgd(records=10, batch_size=5, steps=1, unit="label")
