"""Declared facts: a JSON round trip, and one clear sentence for what does not belong."""

import json

import pytest

from dpfy.errors import InvalidArgument
from dpfy.reporting import RunFacts


def test_round_trip_through_text(facts):
    assert RunFacts.from_json(json.loads(json.dumps(facts.to_json()))) == facts


def test_what_is_left_out_is_not_declared():
    # A report that filled these in would state what nobody said.
    facts = RunFacts.from_json({"name": "x"})
    assert facts.hyperparameter_selection == facts.isolation == facts.public_data == "not declared"
    assert facts.records_per_user_at_most_one is None


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"nmae": "x"}, "nmae"),
        ({"name": 3}, "name=3"),
        ({"records_per_user_at_most_one": "yes"}, "records_per_user_at_most_one"),
        ({"hyperparameters": {"lr": float("nan")}}, "lr"),
        ({"hyperparameters": {"lr": [1]}}, "lr"),
        ({"hyperparameters": [1]}, "hyperparameters"),
        ({"history": [(1, float("inf"))]}, "finite"),
        ({"history": [(-1, 0.5)]}, "step"),
        ({"history": [3]}, "pairs"),
        ([], "list"),
    ],
)
def test_what_does_not_belong_is_named(wrong, message):
    with pytest.raises(InvalidArgument, match=message):
        RunFacts.from_json(wrong)
