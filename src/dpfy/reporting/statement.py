"""The statement that "How to DP-fy ML" asks for, item by item (Ponomareva et al. 2023, §5.3.3).

Tests: tests/reporting/test_document.py.
"""

import math
from dataclasses import dataclass
from typing import Any

from dpfy.accounting import (
    DominatedBy,
    GaussianFilter,
    GroupGaussianFilter,
    IndividualFilter,
    RenyiFilter,
    ZcdpFilter,
)
from dpfy.reporting import budgets, label_words
from dpfy.reporting.basis import cited
from dpfy.reporting.costs import METHODS, Claim, Costs, Scope
from dpfy.reporting.facts import NOT_DECLARED, RunFacts
from dpfy.reporting.groups import CHANGES, listed
from dpfy.reporting.numbers import delta_text, epsilon_text, percent_text
from dpfy.reporting.record import LedgerRecord
from dpfy.reporting.search import RULE
from dpfy.reporting.verdict import Verdict
from dpfy.types import Relation, Unit

METHOD_NAMES = {
    "pld": "PLD",
    "rdp": "RDP",
    **{
        rule.tag: rule.title
        for rule in (
            RenyiFilter,
            ZcdpFilter,
            GaussianFilter,
            GroupGaussianFilter,
            IndividualFilter,
        )
    },
}
_COMPOSITION = (
    "PLD composes the privacy loss distributions of all steps numerically, with discretisation and "
    "truncation rounded against us, and certifies a lower bound as well; RDP adds up Rényi "
    "divergences and is looser."
)


_SETTING = (
    "Central differential privacy: the trainer sees the raw records, and is trusted to run the "
    "mechanism as recorded and to release nothing but its output."
)


@dataclass(frozen=True)
class Item:
    """One answer: a stable key, a title, plain sentences, and where the guide asks for it."""

    key: str
    title: str
    text: str
    guide: str = ""
    status: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the item as plain JSON values."""
        return {
            "key": self.key,
            "title": self.title,
            "text": self.text,
            "guide": self.guide or None,
            "status": self.status or None,
        }


_RELATIONS = {
    Relation.ADD_OR_REMOVE_ONE: (
        "add-or-remove-one",
        "one of them has one {unit} more than the other",
    ),
    Relation.ZERO_OUT: (
        "zero-out",
        "one {unit} is replaced in one of them by a null that contributes nothing",
    ),
    Relation.REPLACE_ONE: ("replace-one", "one {unit} has another value"),
}


_WHOSE = {
    Unit.RECORD: "one record",
    Unit.USER: "one user's data",
    Unit.LABEL: label_words.WHOSE,
    Unit.REPORT: "one report",
}


def formal_statement(record: LedgerRecord, costs: Costs, verdict: Verdict) -> str:
    """Return the guarantee as one sentence that can be quoted alone, or that there is none."""
    if not verdict.private:
        return "NOT PRIVATE. No differential privacy guarantee can be stated for this run."
    assert costs.headline.interval is not None
    name, difference = _RELATIONS[record.relation]
    kind, scope = "differentially private", ""
    if record.search is not None:
        output = f"The search, whose output is {record.search.output}"
    elif record.mode is not None:
        output = record.mode.mechanism
    else:
        output = (
            "The training mechanism, whose output is the whole sequence of released noisy sums and "
            "hence every model computed from them"
        )
    if record.unit is Unit.LABEL:
        output, kind, scope = label_words.OUTPUT, label_words.KIND, f" {label_words.SCOPE}"
    model = "central" if record.mode is None else record.mode.model
    neighbours = (
        f"for {name} neighbours: data sets are neighbours if {difference.format(unit=record.unit)}"
    )
    if costs.groups:
        return (
            f"{output}, is (ε, δ)-differentially private in the central model with δ = "
            f"{delta_text(costs.delta)} and ε = {listed(costs.groups)}, {neighbours}, and that "
            f"{record.unit} is of the group. For every {record.unit} the weakest alone holds, ε = "
            f"{epsilon_text(costs.headline.interval.upper)}."
        )
    return (
        f"{output}, is ({epsilon_text(costs.headline.interval.upper)}, "
        f"{delta_text(costs.delta)})-{kind} in the {model} model, {neighbours}.{scope}"
    )


def plain_statement(record: LedgerRecord, costs: Costs, verdict: Verdict) -> str:
    """Return what the guarantee means, for people who do not read formulas."""
    whose = _WHOSE[record.unit]
    if not verdict.private:
        return (
            "Nothing in this report protects anybody. Do not release the model on its account; "
            "repeat the run after fixing what is named above."
        )
    changed = (
        "is the one that was used or another"
        if record.relation is Relation.REPLACE_ONE
        else "was used in training or not"
    )
    return (
        f"Suppose a coin decides whether {whose} {changed}, and an expert who sees everything that "
        "was released, and knows all the other data, has to tell which: the expert is right at "
        f"most {percent_text(min(1.0, costs.guess))} of the time, where blind guessing is right 50 "
        f"% of the time.{_guesses(costs)}"
    )


def _guesses(costs: Costs) -> str:
    """Return how often the expert is right about the records of each group."""
    if not costs.groups:
        return ""
    each = ", ".join(
        f"{percent_text(min(1.0, group.guess))} for group {group.name!r}" for group in costs.groups
    )
    return f" That is for the weakest group; by group, at most {each}."


def statement(
    facts: RunFacts, record: LedgerRecord, costs: Costs, verdict: Verdict
) -> tuple[Item, ...]:
    """Answer every item of the guide's list from the ledger and the declared facts."""
    return (
        Item(
            "dp_setting",
            "DP setting",
            _setting(record),
            "1",
        ),
        Item("data_accesses", "Data accesses covered", _accesses(facts, record), "2a"),
        Item("dataset_budget", "Budget of the data set", budgets.state(facts, record), "2a"),
        Item("output", "Output of the mechanism", _output(facts, record), "2b"),
        Item("unit", "Unit of privacy", _unit(facts, record), "2c"),
        Item("adjacency", "Adjacency", _adjacency(record, costs), "2d"),
        Item("accounting", "Type of accounting", _accounting(record, costs), "3a"),
        Item(
            "assumptions",
            "Accounting assumptions",
            "Listed in the table of assumptions, each with whether it holds and how that is known.",
            "3b",
        ),
        Item(
            "formal_statement", "Formal statement", formal_statement(record, costs, verdict), "3c"
        ),
        Item(
            "tuning_statement",
            "Statement for the tuning process",
            _tuning(facts, record, costs, verdict),
            "3c",
        ),
        Item(
            "without_amplification",
            "Without amplification by sampling",
            label_words.SAMPLING if record.unit is Unit.LABEL else _unamplified(costs),
            "3b",
        ),
        Item("verifiability", "Transparency and verifiability", _verifiability(record), "4"),
    )


def _setting(record: LedgerRecord) -> str:
    if record.unit is Unit.LABEL:
        return label_words.SETTING
    return (record.mode is not None and record.mode.setting) or _SETTING


def _accesses(facts: RunFacts, record: LedgerRecord) -> str:
    if record.unit is Unit.LABEL:
        return label_words.accesses(facts)
    before = ", each recorded before the records were read"
    reads, others = (
        f"the {record.steps_reserved} steps that this ledger reserved{before}",
        "choosing hyper-parameters or architecture",
    )
    if record.search is not None:
        reads, others = f"{record.search.reads}{before}", "choosing what to search"
    elif record.mode is not None:
        reads = record.mode.reads
    return (
        f"Covered: all reads of the private records by {reads}. Not covered: every other read of "
        f"the same data, such as exploring it, {others} on it, or training with another ledger. "
        f"How the hyper-parameters were chosen (declared): {facts.hyperparameter_selection}. "
        f"Public data used (declared): {facts.public_data}."
    )


def _output(facts: RunFacts, record: LedgerRecord) -> str:
    if record.unit is Unit.LABEL:
        return label_words.output(facts)
    output = "the noisy sums of all steps" if record.search is None else record.search.output
    made = ": every iterate, optimizer state, average and the final model"
    if record.search is None and record.mode is not None:
        output, made = record.mode.output, ""
    return (
        f"{output[:1].upper()}{output[1:]}. What is computed from them and public data is "
        f"post-processing with the same guarantee{made}. Released (declared): {facts.released}."
    )


def _unit(facts: RunFacts, record: LedgerRecord) -> str:
    if record.unit is Unit.LABEL:
        return label_words.unit(facts)
    if record.unit is Unit.USER:
        return (
            "User: everything that one user contributed, all rows with the same id, features and "
            f"labels. What has one id (declared): {facts.record}."
        )
    if record.unit is Unit.REPORT:
        return (
            "Report: the value that one report is about. Who reports, and how many reports a "
            "person sends, is public; reports of one person add up. A report is about (declared): "
            f"{facts.record}."
        )
    owned = {
        True: "declared to be at most one",
        False: "declared to be possibly more than one",
        None: NOT_DECLARED,
    }[facts.records_per_user_at_most_one]
    return (
        f"Record: one whole record, features and label. A record is (declared): {facts.record}. "
        f"Records that one user owns: {owned}."
    )


def _adjacency(record: LedgerRecord, costs: Costs) -> str:
    name, difference = _RELATIONS[record.relation]
    difference = difference.format(unit=record.unit)
    groups = f" {CHANGES}" if costs.groups else ""
    return f"{name.capitalize()}: two data sets are neighbours if {difference}.{groups}"


def _accounting(record: LedgerRecord, costs: Costs) -> str:
    rules = [
        f"{METHOD_NAMES[method]}, {policy} sampling, {noise} noise: {reference}."
        for method, policy, noise, reference in cited(record, costs.filter)
    ]
    rule, by = (
        costs.filter,
        f"The claim is by {METHOD_NAMES[costs.headline.method]}. {_COMPOSITION}",
    )
    if rule is not None:
        listed = by if isinstance(rule, DominatedBy) else ""
        by = (
            f"The claim is the limit of a {rule.title} ({rule.reference}), declared before the "
            "first step. It covers every run that the filter would have admitted, steps chosen "
            "from outputs included, and does not shrink when less of it is used. "
            f"{rule.remark or listed}"
        ).rstrip()
    if record.search is not None and record.search.laws:
        rules.append(RULE)
    return " ".join((by, "Rules:", *rules))


def _tuning(facts: RunFacts, record: LedgerRecord, costs: Costs, verdict: Verdict) -> str:
    """Return what holds for the choice of settings."""
    declared = f" Declared: {facts.hyperparameter_selection}."
    if record.search is None:
        return (
            "No guarantee is stated for the choice of hyper-parameters: reads of private data for "
            f"it, if there were any, are not in this ledger.{declared}"
        )
    one = [
        claim.interval.upper
        for claim in costs.claims
        if claim.scope is Scope.ONE_TRIAL and claim.interval
    ]
    texts = [
        f"({epsilon_text(epsilon)}, {delta_text(costs.delta)})"
        for epsilon in (
            costs.headline.interval.upper if costs.headline.interval else math.inf,
            *one[:1],
        )
    ]
    return (
        record.search.statement(texts[0] if verdict.private else None, texts[1] if one else None)
        + declared
    )


def _unamplified(costs: Costs) -> str:
    claim: Claim = costs.without_sampling
    if claim.finite and claim.interval is not None and claim.method not in METHODS:
        return (
            f"The {METHOD_NAMES[claim.method]} charges each step as if every record took part in "
            f"it, so its limit, ε = {epsilon_text(claim.interval.upper)} at δ = "
            f"{delta_text(costs.delta)}, assumes none."
        )
    if not claim.finite or claim.interval is None:
        reason = claim.note or "it is infinite"
        return f"There is no finite bound for the same noise without sampling: {reason}."
    return (
        "If no amplification by sampling is assumed (every record in every one of the "
        f"{claim.steps} steps, the same noise), the bound{_weakest(costs)} is ε = "
        f"{epsilon_text(claim.interval.upper)} at δ = {delta_text(costs.delta)}. It holds however "
        "the batches were formed, as long as a record enters a step at most once."
    )


def _weakest(costs: Costs) -> str:
    return " for the weakest group" if costs.groups else ""


def _verifiability(record: LedgerRecord) -> str:
    file = record.file or "the ledger"
    recheck = (
        f"Anybody who has {file} can check the chain with 'dpfy ledger verify' and repeat every "
        "number with 'dpfy report'."
        if record.durable
        else "The ledger was kept in memory only, so nobody can check these numbers after the "
        "process has ended."
    )
    return (
        f"Trained and recorded with dpfy {record.written_by}, accounted with dpfy "
        f"{record.read_by}, open source under Apache-2.0. This report is about the ledger whose "
        f"last line has the SHA-256 hash {record.head_hash}. {recheck}"
    )


def scope_name(scope: Scope) -> str:
    """Return the scope of a number in words."""
    return {
        Scope.REGISTERED: "All registered steps",
        Scope.RESERVED: "Steps reserved so far",
        Scope.FILTER: "Whatever the filter admits",
        Scope.ONE_TRIAL: "One trial of the search, as if settings had been fixed in advance (no "
        "guarantee)",
        Scope.WITHOUT_SAMPLING: "Same noise, without amplification by sampling",
    }[scope]
