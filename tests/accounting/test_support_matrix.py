"""The support matrix in the documentation is the one of the rule tables, and both are what the
accountants do.
"""

import importlib.util
import itertools
from pathlib import Path

import pytest

from dpfy.accounting import DominatedBy, GaussianFilter, RenyiFilter, ZcdpFilter, account, supported
from dpfy.accounting.guarantee import METHODS
from dpfy.accounting.rules import NOISES
from dpfy.errors import BudgetExhausted, UnsupportedEvent
from dpfy.ledger.events import (
    BallsInBins,
    Cyclic,
    FixedSize,
    Importance,
    Poisson,
    Repeated,
    Sampled,
    Shuffled,
    TruncatedPoisson,
)
from dpfy.ledger.individual import FilteredPoisson
from dpfy.ledger.one_shot import AboveThreshold, LabelAnswer, RandomizedAnswer
from dpfy.ledger.perturbation import ObjectivePerturbation
from dpfy.types import Relation

DOCS = Path(__file__).parents[2] / "docs"
POLICIES = {
    policy.tag: policy
    for policy in (
        Poisson(0.1),
        FixedSize(10, 100),
        TruncatedPoisson(0.1, 60, 100),
        Shuffled(10, 100),
        Cyclic(10, 100),
        BallsInBins(10, 100),
        Importance(0.1, 2.0**-10),
        FilteredPoisson(0.1),
    )
}
ANSWERS = {
    AboveThreshold: AboveThreshold(1.0, 4.0, 4.0),
    RandomizedAnswer: RandomizedAnswer(0.6),
    LabelAnswer: LabelAnswer(0.5),
    ObjectivePerturbation: ObjectivePerturbation(1.0, 0.25, 8.0, 2.0, 100.0),
}
QUERIES = {noise: ANSWERS.get(query) or query(1.0, 2.0) for query, noise in NOISES.items()}
EVERY_CASE = list(itertools.product(METHODS, POLICIES, QUERIES, map(str, Relation)))
WRITTEN = (DOCS / "reference" / "support-matrix.md").read_text(encoding="utf-8")


def cells(opening: str) -> list[list[str]]:
    """The rows of the table whose first column is called ``opening``."""
    lines = WRITTEN[WRITTEN.index(f"| {opening} |") :].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def refused(work) -> bool:
    try:
        work()
    except UnsupportedEvent:
        return True
    return False


def test_support_matrix_is_up_to_date():
    spec = importlib.util.spec_from_file_location(
        "support_matrix", DOCS / "figures" / "support_matrix.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.page() == WRITTEN, "run docs/figures/support_matrix.py"


@pytest.mark.parametrize(("method", "policy", "noise", "relation"), EVERY_CASE)
def test_the_page_the_table_and_the_accountant_agree(method, policy, noise, relation):
    listed = [
        row
        for row in supported()
        if (row.method, row.policy, row.noise, row.relation) == (method, policy, noise, relation)
    ]
    heading, _, *rows = cells("sampler")
    found = [
        row[heading.index(method.upper())] for row in rows if row[:3] == [policy, noise, relation]
    ]
    assert len(found) <= 1 and (found or not listed)
    cell = found[0] if found else "—"
    step = Sampled(POLICIES[policy], (QUERIES[noise],))
    assert (
        (cell == "—")
        == (not listed)
        == refused(lambda: account(step, method, relation).claim(1e-5))
    )
    if listed:
        index = cell.removeprefix("rule ").removesuffix(", a bound")
        assert cell.endswith("bound") != listed[0].exact
        assert f"\n{index}. {listed[0].reference[0].upper()}{listed[0].reference[1:]}.\n" in WRITTEN


@pytest.mark.parametrize(
    ("policy", "noise", "relation"), list(itertools.product(POLICIES, QUERIES, map(str, Relation)))
)
@pytest.mark.parametrize(
    "rule", [RenyiFilter(20.0, 1e-5), ZcdpFilter(9.0), GaussianFilter(1.0)], ids=lambda it: it.tag
)
def test_the_page_says_what_filters_admit(rule, policy, noise, relation):
    _, _, *rows = cells("filter")
    step = Sampled(POLICIES[policy], (QUERIES[noise],))
    told = any(
        name == f"`{type(rule).__name__}`"
        and policy in policies.split(", ")
        and noise in noises.split(", ")
        and (relations == "all" or relation in relations)
        for name, policies, noises, relations, _, _ in rows
    )
    assert told != refused(lambda: rule.guard(relation).admit(step, 1))


def test_another_noise_passes_only_as_the_committed_step_itself():
    step = Sampled(Poisson(0.1), (QUERIES["laplace"],))
    guard = DominatedBy((Repeated(step, 1),)).guard()
    guard.admit(step, 1)
    for other in (
        Sampled(Poisson(0.05), step.queries),
        Sampled(Poisson(0.1), (QUERIES["gaussian"],)),
    ):
        with pytest.raises(BudgetExhausted, match="does not dominate"):
            guard.admit(other, 1)
