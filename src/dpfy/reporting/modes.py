"""What leaves in place of a trained model, and whom that protects from (guide, Table 1).

Tests: tests/reporting/test_modes.py.
"""

from dataclasses import dataclass
from typing import Any

from dpfy.ledger.events import Envelope, Event, RecordedQuery, Sampled
from dpfy.plans.pate import KIND as PATE, PatePlan
from dpfy.plans.prediction import KIND as PREDICTION, PredictionPlan

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
    """

    budget: str
    mechanism: str
    output: str
    reads: str
    protected_from: str
    threat_level: str
    table_1: str


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
    return _predictions(PredictionPlan.from_json(plan), reserved) if kind == PREDICTION else None


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
    )
