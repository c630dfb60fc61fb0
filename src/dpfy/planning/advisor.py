"""Advice on the kind of guarantee that suits a task, from the answers to a few questions.

Reference: Ponomareva et al. 2023, §3.1 (who sees what), Table 1 (where noise is added), Table 3
(how batches come about) and §5.2.1 (which ε).
"""

from dataclasses import dataclass

from dpfy import _validate
from dpfy.types import Relation, Unit


@dataclass(frozen=True)
class Question:
    """One question, and its possible answers with their meanings."""

    name: str
    text: str
    answers: dict[str, str]


QUESTIONS = (
    Question(
        "sees",
        "What will those see whom the guarantee shall protect from?",
        {
            "model": "the weights, now or later: open-sourced, deployed on devices, or read by "
            "insiders",
            "predictions": "a limited number of predictions, from a server that keeps the model",
            "data": "the training data itself, or examples made from it",
            "updates": "the updates of single users, on their way to the server",
        },
    ),
    Question(
        "sampling",
        "How can batches be formed?",
        {
            "poisson": "any record can be drawn at any step",
            "fixed": "at random, but all batches must have one size",
            "shuffle": "the data are shuffled or read in order, epoch by epoch",
            "stream": "records arrive in an order that nobody controls",
        },
    ),
    Question(
        "one_each",
        "Does each person contribute at most one example?",
        {
            "yes": "one person, one example",
            "no": "somebody may have several examples",
        },
    ),
    Question(
        "labels_only",
        "Is the label the only private part of a record?",
        {
            "no": "features and labels are private",
            "yes": "the features are public, the labels are not",
        },
    ),
)


@dataclass(frozen=True)
class Advice:
    """The recommended kind of guarantee, with a reason for each choice.

    Args:
        approach: where noise is added.
        unit: the unit of privacy.
        relation: the relation between neighbouring data sets.
        sampling: how batches are formed.
        reasons: one sentence or two for each choice.
        train: settings of ``dpfy train``; empty if it does not support the approach.
    """

    approach: str
    unit: Unit
    relation: Relation
    sampling: str
    reasons: tuple[str, ...]
    train: dict[str, str]

    def __str__(self) -> str:
        flags = (f"--{name.replace('_', '-')} {value}" for name, value in self.train.items())
        command = " ".join(["dpfy train", *flags])
        rows = [
            f"approach: {self.approach}",
            f"unit of privacy: one {self.unit}",
            f"neighbours: {self.relation}",
            f"sampling: {self.sampling}",
            *(f"* {reason}" for reason in self.reasons),
        ]
        return "\n".join([*rows, f"begin with: {command}"] if self.train else rows)


def advise(
    *,
    sees: str = "model",
    sampling: str = "poisson",
    one_each: str = "yes",
    labels_only: str = "no",
) -> Advice:
    """Return the approach that suits the answers to :data:`QUESTIONS`, with reasons.

    Args:
        sees: what the people see whom the guarantee protects from: "model", "predictions", "data"
            or "updates".
        sampling: how batches can be formed: "poisson", "fixed", "shuffle" or "stream".
        one_each: "yes" if each person contributes at most one example, else "no".
        labels_only: "yes" if the label is the only private part of a record, else "no".

    Returns:
        The advice; ``str()`` of it is meant for people.

    Raises:
        InvalidArgument: if an answer is none of those that are offered.

    >>> found = advise(sampling="fixed")
    >>> str(found.relation), found.train["sampling"]
    ('replace_one', 'fixed_size')
    """
    given = {"sees": sees, "sampling": sampling, "one_each": one_each, "labels_only": labels_only}
    for question in QUESTIONS:
        _validate.choice(question.name, given[question.name], tuple(question.answers))
    approach, why, trainable = _approach(sees, labels_only)
    law = _LAWS[sampling]
    unit, unit_reason = (
        (Unit.RECORD, "One example is one person: protecting a record protects a person.")
        if one_each == "yes"
        else (Unit.USER, _SEVERAL)
    )
    train = dict(law.settings) if trainable and law.settings and unit is Unit.RECORD else {}
    own_loop = (
        ()
        if train or not trainable or sampling == "stream"
        else (
            "Users need a loop of your own: dpfy.dpsgd(unit='user', …) and "
            "dpfy.privatize(unit_of=…).",
        )
    )
    return Advice(
        approach,
        unit,
        law.relation,
        law.name,
        (why, law.reason, unit_reason, *own_loop, _EPSILON),
        train,
    )


@dataclass(frozen=True)
class _Law:
    name: str
    relation: Relation
    reason: str
    settings: dict[str, str]


_LAWS = {
    "poisson": _Law(
        "Poisson samples",
        Relation.ADD_OR_REMOVE_ONE,
        "Each record draws its own coin: sampling lowers ε most, and no number of records enters.",
        {"sampling": "poisson"},
    ),
    "fixed": _Law(
        "fixed-size samples",
        Relation.REPLACE_ONE,
        "Samples of one size contain the number of records, so neighbours replace one; ε is larger "
        "than for Poisson samples. If only memory needs a largest batch, truncated_poisson costs "
        "nothing extra.",
        {"sampling": "fixed_size", "relation": "replace_one"},
    ),
    "shuffle": _Law(
        "epochs in shuffled order",
        Relation.ZERO_OUT,
        "No amplification is claimed for shuffling: an epoch costs one Gaussian sum. Take large "
        "batches, or draw Poisson samples if the data allow it at all. If they are read in one "
        "order in every epoch, correlated noise (DP-FTRL) makes up for most of it: dpfy plan "
        "correlated says how much.",
        {"sampling": "shuffled", "relation": "zero_out"},
    ),
    "stream": _Law(
        "the order of arrival",
        Relation.ZERO_OUT,
        "Nobody may assume a random order. Correlated noise (DP-FTRL) is made for this, and dpfy "
        "plan correlated finds its bands or buffers; DP-SGD in cyclic order is valid and costs one "
        "Gaussian sum per epoch.",
        {},
    ),
}
_SEVERAL = (
    "A person with several examples is protected only if all of them together are: protect users, "
    "and let each take part with a few rows."
)
_EPSILON = (
    "Choose the lowest ε that is useful: up to 1 is strong, up to 10 is reasonable for many "
    "purposes, and beyond that ε alone is no evidence of anonymity. Put δ well below one over the "
    "number of units."
)


def _approach(sees: str, labels_only: str) -> tuple[str, str, bool]:
    """Return where noise is added, why, and whether DP-SGD adds it."""
    match sees, labels_only:
        case "data", _:
            return (
                "noise at the data: a private synthetic set, or randomised answers",
                "Whoever sees the data sees what no training can protect. It is the hardest place; "
                "check whether a model would do.",
                False,
            )
        case "updates", _:
            return (
                "DP-SGD behind secure aggregation, or noise on each device",
                "Updates of one user are protected by not being seen. Local noise alone costs far "
                "more accuracy than noise after aggregation.",
                True,
            )
        case _, "yes":
            return (
                "label privacy: noisy labels (dpfy train --protect labels), then ordinary training",
                "Public features need no noise; only labels are randomised, once.",
                False,
            )
        case "predictions", _:
            return (
                "noise in predictions (PATE) for few of them, or DP-SGD for any number",
                "A model behind a server may answer a budget of questions with less noise. DP-SGD "
                "protects weights and therefore all predictions.",
                True,
            )
    return (
        "DP-SGD on the trusted side",
        "Every model that leaves training is protected, the last and all before it (B4, hence B5 "
        "and B6).",
        True,
    )
