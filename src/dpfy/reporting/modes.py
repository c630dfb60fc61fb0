"""What leaves in place of a trained model, and whom that protects from (guide, Table 1).

Tests: tests/reporting/test_modes.py.
"""

from dataclasses import dataclass
from typing import Any

from dpfy.ledger.events import Envelope, Event, RecordedQuery, Sampled
from dpfy.plans.pate import KIND as PATE, PatePlan
from dpfy.plans.prediction import KIND as PREDICTION, PredictionPlan

SYNTHETIC_TABLE, LOCAL_REPORTS = "synthetic_table", "local_reports"
"""The kinds of plans of :mod:`dpfy.synthesis` and :mod:`dpfy.local`."""

KEY_OF_PARTS = (
    "The key that divided records among teachers is another one. It is kept in the folder of the "
    "teachers, if there is one, and is as sensitive as they are."
)
"""What a report of teachers says about their key."""


@dataclass(frozen=True)
class Mode:
    """The words of a report where something other than a model is released.

    Args:
        budget: The headline beside ε.
        mechanism: The subject of the formal statement.
        output: What leaves.
        reads: Which reads of the records are covered.
        protected_from: Who is kept from knowing, in a few words.
        threat_level: The same, in the terms of the guide's §3.1.
        table_1: The row of the guide's Table 1.
        key: What is to be said of another key than that of the noise.
        setting: Who is trusted, if it is not whoever holds the records.
        model: The model of differential privacy: central or local.
    """

    budget: str
    mechanism: str
    output: str
    reads: str
    protected_from: str
    threat_level: str
    table_1: str
    key: str = ""
    setting: str = ""
    model: str = "central"


def mode_of(plan: dict[str, Any] | None, reserved: Envelope) -> Mode | None:
    """Return what leaves under a plan; None for a model that was trained.

    Args:
        plan: The plan in a ledger's header.
        reserved: The events that count as spent.

    Returns:
        The words, or None.
    """
    kind = None if plan is None else plan.get("kind")
    if kind == PATE:
        return _labels(PatePlan.from_json(plan), reserved)
    if kind == PREDICTION:
        return _predictions(PredictionPlan.from_json(plan), reserved)
    if kind == SYNTHETIC_TABLE:
        return _table(reserved)
    return _reports(plan, reserved) if plan is not None and kind == LOCAL_REPORTS else None


def _labels(plan: PatePlan, reserved: Envelope) -> Mode:
    counted = {
        name: sum(run.times for run in reserved if _queries(run.event) == event.queries)
        for name, event in (("labels", plan.answer), ("checks", plan.check))
        if event is not None
    }
    checks = f", after {counted['checks']} comparisons" if "checks" in counted else ""
    budget = f"{counted['labels']} labels{checks}"
    return Mode(
        budget=f"PATE: {budget}; up to {plan.most_answers} labels",
        mechanism="The labelling of public inputs by the noisy votes of teachers, whose output is "
        "the sequence of labels and of comparisons that found no consensus",
        output="the labels, and whatever is trained on them and on the public inputs: the student "
        "sees public inputs, which are not protected",
        reads=f"the {budget} that this ledger has paid for, each recorded before votes were "
        f"counted. The {plan.parts} teachers, which were trained on the records, and their votes "
        "are not released",
        protected_from="anybody who sees the labels or the student (B5, B6)",
        threat_level="B5, and therefore B6, for the student: protected against somebody who sees "
        "all labels, the student's parameters or its predictions, any number of them. Not "
        "protected: the raw data (B1), the training set (B2), gradients (B3), and the teachers "
        "(B4), which only access control keeps from view.",
        table_1="Mode of access: model weights of the student. Differential privacy is added to "
        "the teachers' votes; the labels, the student's weights and its predictions may be "
        "public, the teachers and the training data may not.",
        key=KEY_OF_PARTS,
    )


def _queries(event: Event) -> tuple[RecordedQuery, ...]:
    return event.queries if isinstance(event, Sampled) else ()


def _predictions(plan: PredictionPlan, reserved: Envelope) -> Mode:
    first = plan.check or plan.answer  # what every input costs
    asked = sum(
        run.times
        for run in reserved
        if isinstance(run.event, Sampled) and run.event.queries == first.queries
    )
    at_least = "at least " if plan.check is not None else ""  # without consensus an input is cheap
    budget = f"{at_least}{plan.answers} answers"
    return Mode(
        budget=f"Inference budget: {budget}, {asked} paid for so far",
        mechanism="The prediction service, whose output is the whole sequence of its noisy answers "
        "to inputs that may be chosen from earlier answers",
        output="the answers to all inputs; an input that was answered before gets the same answer",
        reads=f"the {asked} inputs that this ledger has paid for, each recorded before the "
        f"{plan.parts} teachers were asked. The teachers, which were trained on the records, and "
        "their votes are not released",
        protected_from=f"anybody who sees the answers, {budget} in all (B6)",
        threat_level=f"B6, for a limited number of predictions: {budget}. Protected against "
        "somebody who chooses inputs and sees all answers. Not protected: the raw data (B1), the "
        "training set (B2), gradients (B3), and the teachers, while they are trained (B4) or "
        "afterwards (B5), which only access control keeps from view.",
        table_1="Mode of access: model predictions. Differential privacy is added to the "
        f"predictions; with an inference budget of {budget} they may be public, model weights and "
        "training data may not.",
        key=KEY_OF_PARTS,
    )


def _table(reserved: Envelope) -> Mode:
    releases = sum(run.times for run in reserved)
    return Mode(
        budget="Synthetic table",
        mechanism="The release of noisy marginals and private choices among them, and hence every "
        "synthetic table that is drawn from them",
        output="the noisy marginals, and all tables that are drawn from them, of any number of "
        "rows",
        reads=f"the {releases} marginals, groups of marginals and choices that this ledger has "
        "paid for",
        protected_from="anybody who sees the synthetic table (B2–B6)",
        threat_level="B2, for the synthetic table in place of the private one, and therefore B3 to "
        "B6 for whatever is computed from it. Protected against somebody who sees the noisy "
        "marginals, synthetic tables or models trained on them. Not protected: the private table "
        "(B1), which only access control keeps from view.",
        table_1="Mode of access: data (§3.2.1). Differential privacy is added to what the "
        "synthetic table is drawn from; the table and everything computed from it may be public, "
        "the private table may not.",
    )


def _reports(plan: dict[str, Any], reserved: Envelope) -> Mode:
    sent = sum(run.times for run in reserved)
    most = plan.get("reports")
    return Mode(
        budget=f"Local reports of one person: {sent} of at most {most} sent",
        mechanism="The randomizer of one person, whose output is all reports that the person sends",
        output="the reports, and everything that a collector computes from them and others",
        reads=f"the {sent} reports that this ledger has paid for",
        protected_from="anybody who sees reports, the collector included (B3–B6)",
        threat_level="B3, and therefore B4 to B6: protected against somebody who sees every "
        "single report, the collector included. Not protected: the value itself (B1, B2), which "
        "does not leave the person's device, and the fact that somebody reports.",
        table_1="Local differential privacy (§3.2.1): noise is added before data is collected; "
        "reports and everything computed from them may be public.",
        setting="Local differential privacy: a report protects its value when it leaves the "
        "person's device, and nobody else is trusted. The device is trusted to draw the report as "
        "recorded, and to send nothing else.",
        model="local",
    )
