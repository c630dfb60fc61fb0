"""What the settings of PATE stand for: defaults, and the limit that a budget or a number buys.

Tests: tests/ensembles/test_pate.py.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from dpfy import _validate
from dpfy.accounting import GaussianFilter, account
from dpfy.errors import InvalidArgument
from dpfy.ledger.events import LaplaceSum, Poisson, Repeated, Sampled
from dpfy.plans.pate_groups import METHODS, TeacherGroups
from dpfy.types import Budget, GroupBudgets, Relation, Unit

_SHARE, _CHECK_NOISE, _SURE = 0.8, 3.75, 0.9  # of all votes, of answer noise, of certainty
_UP = 1 + 1e-15


def pate_settings(
    *,
    classes: int,
    parts: int,
    mechanism: str,
    answer_noise: float,
    check_noise: float | None = None,
    threshold: float | None = None,
    confidence: float | None = None,
    answers: int | None = None,
    checks: int | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    groups: Mapping[str, tuple[float, float]] | None = None,
    method: str = "weight",
    copies: Sequence[int] | None = None,
    relation: Relation | str = Relation.ADD_OR_REMOVE_ONE,
    unit: Unit | str = Unit.RECORD,
) -> dict[str, Any]:
    """Return the fields of a :class:`~dpfy.plans.pate.PatePlan` that a user's settings stand for.

    The arguments are those of :func:`dpfy.pate`.

    Raises:
        InvalidArgument: If arguments contradict each other or are out of their range.
    """
    shared = _noise(classes, parts, mechanism, answer_noise, check_noise, threshold, confidence)
    shared |= {"relation": relation, "unit": unit}
    if groups is not None:
        if delta is None or not (epsilon is answers is checks is None):
            raise InvalidArgument(
                "Expected delta=, and no epsilon=, answers= or checks=, beside groups=: each group "
                "has an epsilon of its own."
            )
        found = _groups(groups, method, copies, parts, delta)
        epsilons = tuple(each for each, _ in groups.values())
        return {**shared, "groups": found, "budget": GroupBudgets(found.names, epsilons, delta)}
    if (epsilon is None) == (answers is None) or (epsilon is None) != (delta is None):
        raise InvalidArgument(
            "Expected epsilon= and delta=, or the number of answers=, and not both; got "
            f"epsilon={epsilon!r}, delta={delta!r} and answers={answers!r}."
        )
    if checks is not None and (answers is None or shared["check_noise"] is None):
        raise InvalidArgument("checks= belongs to answers= of a mechanism with a threshold.")
    budget = None if epsilon is None or delta is None else Budget(epsilon, delta)
    return {**shared, **_limit(shared, answers, checks, budget), "budget": budget}


def _noise(
    classes: int,
    parts: int,
    mechanism: str,
    answer_noise: float,
    check_noise: float | None,
    threshold: float | None,
    confidence: float | None,
) -> dict[str, Any]:
    """Return how teachers are asked, with the defaults of the mechanism."""
    if mechanism in ("confident", "interactive"):
        share = _SHARE if mechanism == "confident" else _SHARE / 2
        check_noise = answer_noise * _CHECK_NOISE if check_noise is None else check_noise
        threshold = parts * share if threshold is None else threshold
    if mechanism == "interactive" and confidence is None:
        confidence = _SURE
    return {
        "classes": classes,
        "parts": parts,
        "mechanism": mechanism,
        "answer_noise": answer_noise,
        "check_noise": check_noise,
        "threshold": threshold,
        "confidence": confidence,
    }


def _groups(
    groups: Mapping[str, tuple[float, float]],
    method: str,
    copies: Sequence[int] | None,
    parts: int,
    delta: float,
) -> TeacherGroups:
    if _validate.choice("method", method, METHODS) == "upsample":
        return TeacherGroups.upsampled(groups, delta, copies)
    if copies is not None:
        raise InvalidArgument("copies= belongs to method='upsample'.")
    return TeacherGroups.weighted(groups, parts, delta)


def _limit(
    shared: Mapping[str, Any], answers: int | None, checks: int | None, budget: Budget | None
) -> dict[str, Any]:
    """Return the number of answers of a fixed list, or the μ of a filter."""
    noise = _validate.positive("answer_noise", shared["answer_noise"])
    if shared["mechanism"] == "lnmax":
        if budget is not None:
            answers = _laplace_answers(noise, budget, Relation(shared["relation"]))
        return {"answers": answers}
    if budget is not None:
        return {"mu": GaussianFilter.within(budget.epsilon, budget.delta).mu}
    twice = 2.0 if Relation(shared["relation"]) is Relation.REPLACE_ONE else 1.0
    cost = 2 * _validate.count("answers", answers) / noise**2
    if shared["check_noise"] is not None:
        compared = _validate.count("checks", answers if checks is None else checks)
        cost += compared / _validate.positive("check_noise", shared["check_noise"]) ** 2
    return {"mu": twice * cost**0.5 * _UP}


def _laplace_answers(scale: float, budget: Budget, relation: Relation) -> int:
    """Return how many labels with Laplace noise the budget buys, by their composition."""
    label = Sampled(Poisson(1.0), (LaplaceSum(2.0, scale, "votes"),))

    def fits(times: int) -> bool:
        found = account([Repeated(label, times)], relation=relation)
        return found.claim(budget.delta) <= budget.epsilon

    low, high = 0, 1
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    if not low:
        raise InvalidArgument(
            f"A budget of epsilon={budget.epsilon:g} buys no label with answer_noise={scale:g}. "
            "Use more noise, and more teachers to hear through it."
        )
    return low
