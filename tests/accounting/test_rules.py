"""Every registered rule obeys the laws that all rules share."""

import math

import pytest

from dpfy.accounting import RULES, Rule, supported
from dpfy.accounting.dominating_pairs import Pair
from dpfy.accounting.rules import EVENT_RULES
from dpfy.ledger.events import (
    BallsInBins,
    Cyclic,
    FixedSize,
    Importance,
    LaplaceSum,
    Poisson,
    Shuffled,
    SumQuery,
    TruncatedPoisson,
)
from dpfy.ledger.individual import FilteredPoisson
from dpfy.ledger.one_shot import (
    AboveThreshold,
    DiscreteGaussianSum,
    ExponentialChoice,
    LabelAnswer,
    ListedChoice,
    NoisyMax,
    RandomizedAnswer,
)
from dpfy.ledger.perturbation import ObjectivePerturbation
from dpfy.testing.rules import check_rule

EXAMPLES = {
    Poisson: [Poisson(0.05), Poisson(1.0)],
    FixedSize: [FixedSize(50, 1000), FixedSize(3, 3)],
    TruncatedPoisson: [TruncatedPoisson(0.05, 150, 1000), TruncatedPoisson(0.05, 130, 1000)],
    Shuffled: [Shuffled(50, 1000)],
    Cyclic: [Cyclic(50, 1000)],
    BallsInBins: [BallsInBins(20, 1000)],
    Importance: [Importance(0.05, 2.0**-10)],
    FilteredPoisson: [FilteredPoisson(0.05), FilteredPoisson(1.0)],
}


def answer(bound, noise):
    odds = math.exp(min(bound / noise, 30.0)) if noise else math.inf
    return RandomizedAnswer(odds / (1 + odds) if noise else 1.0)


def label(bound, noise):
    return LabelAnswer(min(bound / noise, 30.0))


def minimum(bound, noise):
    output = 50 * noise / bound if bound else 1.0
    return ObjectivePerturbation(bound, bound**2 / 4, 8 * bound**2 or 1.0, noise, output)


QUERIES = {
    ObjectivePerturbation: minimum,
    AboveThreshold: lambda bound, noise: AboveThreshold(bound, 2 * noise, 4 * noise),
    RandomizedAnswer: answer,
    LabelAnswer: label,
}


@pytest.mark.parametrize(
    ("method", "policy", "query", "relation"),
    [
        (method, example, query, relation)
        for method, policy, query, relation in RULES
        for example in EXAMPLES[policy]
        if query is SumQuery
        or (policy is Poisson and (query is LaplaceSum or relation != "zero_out"))
        or (policy is FixedSize and query is NoisyMax)
        if query is not LabelAnswer  # which cannot be declared without noise
    ],
)  # the other pairs are made of these
def test_rule(method, policy, query, relation):
    check_rule(
        method,
        policy,
        relation,
        query=QUERIES.get(query, query),
        scales=query is not DiscreteGaussianSum,
    )


def test_a_record_set_to_zero_costs_what_an_absent_one_does():
    for method, policy, query, relation in RULES:
        if policy is Poisson and relation == "zero_out" and query not in (SumQuery, LaplaceSum):
            asked = QUERIES.get(query, query)(1.0, 2.0)
            # a listed choice has no rule for absence: it is an exponential one for a given list
            alike = ExponentialChoice if query is ListedChoice else query
            zeroed, absent = (
                RULES[method, policy, kind, name].pair(Poisson(0.3), asked)
                for kind, name in ((query, relation), (alike, "add_or_remove_one"))
            )
            assert zeroed == absent


@pytest.mark.parametrize(
    "wrong",
    [
        lambda policy, noise: Pair(policy.rate, max(noise, 1.0)),  # ignores a lack of noise
        lambda policy, noise: Pair(policy.rate, 1 / max(noise, 1e-9)),  # noise upside down
        lambda policy, noise: Pair(policy.rate, min(noise, 3.0)),  # charges for empty queries
    ],
)
def test_the_suite_catches_a_wrong_rule(monkeypatch, wrong):
    monkeypatch.setitem(
        RULES, ("pld", Poisson, SumQuery, "add_or_remove_one"), Rule(wrong, "wrong")
    )
    with pytest.raises(AssertionError):
        check_rule("pld", Poisson(0.05), "add_or_remove_one")


def test_every_rule_is_listed_with_its_reference():
    rows = supported()
    assert len(rows) == len(RULES) + len(EVENT_RULES)
    assert all(row.reference for row in rows)
    assert {row.policy for row in rows if row.policy} == {policy.tag for policy in EXAMPLES}
