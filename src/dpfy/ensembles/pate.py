"""PATE: label public inputs by the noisy votes of teachers, each label paid for first."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from dpfy import _validate
from dpfy.accounting import GaussianFilter, Guarantee, account
from dpfy.ensembles.asking import Asking
from dpfy.ensembles.parts import Partition
from dpfy.ensembles.teachers import Teachers
from dpfy.errors import InvalidArgument, LedgerMismatch
from dpfy.ledger import Ledger
from dpfy.ledger.events import LaplaceSum, Poisson, Repeated, Sampled
from dpfy.mechanisms.one_shot.base import UP, stream_for
from dpfy.noise import SecureStream
from dpfy.plans.pate import PatePlan
from dpfy.plans.pate_groups import METHODS, TeacherGroups
from dpfy.types import Budget, GroupBudgets, Relation, Unit

_SHARE, _CHECK_NOISE, _SURE = 0.8, 3.75, 0.9  # defaults of the threshold, noise, certainty


class Pate(PatePlan):
    """A plan of PATE that can ask teachers; :func:`dpfy.pate` makes one."""

    @property
    def partition(self) -> Partition:
        """How records have to be divided among teachers."""
        if self.groups is None:
            return Partition(self.parts)
        return Partition(self.groups.parts or self.parts, self.groups.copies)

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of all labels that the limit buys; it is public."""
        return account(self)

    def ask(
        self,
        teachers: Teachers,
        x: Any,
        ledger: Ledger | str | os.PathLike[str] | None = None,
        *,
        predicted: Any = None,
        progress: Callable[[int, int], None] | None = None,
        insecure_test_key: int | bytes | None = None,
    ) -> npt.NDArray[np.int64]:
        """Label public inputs by the teachers' noisy votes, in order, as far as the limit goes.

        Each comparison and each label is durable in the ledger before votes are counted for it.
        Labels are kept beside the ledger: an input that was labelled before has the same label, at
        no cost, also after a crash. Further calls with the same ledger go on with what is left.

        *Formal guarantee*: :attr:`guarantee`, for all calls with one ledger together, however
        inputs follow earlier labels.

        *Assumes* that inputs are public, and that teachers were trained as
        :meth:`dpfy.Teachers.fit` says. Nobody measures how long votes take.

        Args:
            teachers: The teachers, divided as :attr:`partition` says.
            x: Public inputs, as the teachers' predictors take them.
            ledger: The file of the ledger, or an open one; None keeps it in memory.
            predicted: For ``"interactive"``, the student's probability of each class for each
                input.
            progress: A function that is told how many inputs are done, and how many there are.
            insecure_test_key: A key that makes the noise reproducible, and nothing private.

        Returns:
            The label of each input; −1 where there was no consensus, or the limit was reached.

        Raises:
            InvalidArgument: If teachers, inputs or predictions do not fit the plan.
            LedgerMismatch: If the ledger was begun for something else.
        """
        self._check(teachers, x, predicted)
        stream = SecureStream(insecure_test_key)
        keys = (stream.key_source, teachers.key_source)
        source = next((each for each in keys if each != "operating system"), keys[0])
        with self._opened(ledger, source) as book:
            asking = Asking(self, teachers, x, predicted, book, stream_for(book, stream, "noise"))
            return asking.all(progress or (lambda done, inputs: None))

    def _check(self, teachers: Teachers, x: Any, predicted: Any) -> None:
        if teachers.partition != self.partition or teachers.unit != self.unit:
            raise InvalidArgument(
                f"The plan is for {self.partition} and the unit {str(self.unit)!r}, and the "
                f"teachers have {teachers.partition} and {str(teachers.unit)!r}. Fit them with "
                "parts=plan.partition."
            )
        if (predicted is not None) != (self.mechanism == "interactive"):
            raise InvalidArgument(
                "Expected predicted=, the student's probabilities, for mechanism='interactive' and "
                "for no other."
            )
        if predicted is not None and np.shape(predicted) != (len(x), self.classes):
            raise InvalidArgument(
                f"Expected predicted= of the shape {(len(x), self.classes)}, got "
                f"{np.shape(predicted)}."
            )

    @contextmanager
    def _opened(
        self, ledger: Ledger | str | os.PathLike[str] | None, source: str
    ) -> Iterator[Ledger]:
        """Open the ledger for this plan and no other, and close it if it was not given open."""
        header, guard = self.header(source), self.guard
        if isinstance(ledger, Ledger):
            ledger.register(guard, header)
            yield ledger
            return
        with Ledger.in_memory(guard) if ledger is None else Ledger.open(ledger, guard) as book:
            if book.header is not None and book.header.plan != header.plan:
                raise LedgerMismatch(
                    f"{ledger} was begun with the plan {book.header.plan}, and this one is "
                    f"{header.plan}. Use the same plan, or begin a new ledger."
                )
            book.register(guard, header)
            yield book


def pate(
    *,
    classes: int,
    parts: int = 250,
    mechanism: str = "confident",
    answer_noise: float = 40.0,
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
) -> Pate:
    """Plan PATE: teachers of separate parts of the records label public inputs by noisy votes.

    Give the budget as ``epsilon`` and ``delta``, or as the number of ``answers`` (and ``checks``)
    that it has to suffice for; :attr:`Pate.most_answers` and :meth:`Pate.answers_at` say how many
    labels it buys. With ``groups``, each group of records has an ε of its own: ``"weight"`` gives
    it teachers of its own, with votes in proportion to its μ; ``"upsample"`` gives its records to
    several teachers.

    *Formal guarantee*: see :class:`dpfy.plans.pate.PatePlan`; with groups, (ε_g, δ) for the records
    of group g. ε does not depend on the votes: it may be published.

    *Assumes* that all arguments are public constants, that inputs are public, and that the group of
    a record is.

    Args:
        classes: The number of classes, at least 2.
        parts: The number of teachers, at least 1.
        mechanism: ``"confident"``, ``"gnmax"``, ``"lnmax"`` or ``"interactive"``.
        answer_noise: The noise of each count, in votes.
        check_noise: The noise of the comparison, in votes; by default 3.75 times ``answer_noise``.
        threshold: The votes that the comparison has to reach; by default 0.8 of ``parts``, and for
            ``"interactive"`` half of that.
        confidence: How sure a student has to be for its own label; by default 0.9.
        answers: The number of labels that the budget has to suffice for.
        checks: The number of comparisons that it has to suffice for; by default ``answers``.
        epsilon: The ε of all labels together, above 0.
        delta: The δ of all labels together, in (0, 1).
        groups: For each group's name its ε, and its share of the records; the shares add up to 1.
        method: ``"weight"`` or ``"upsample"``, for groups.
        copies: For ``"upsample"``, the number of teachers for a record of each group.
        relation: The neighbouring relation.
        unit: The unit of privacy, ``"record"`` or ``"user"``.

    Returns:
        The plan.

    Raises:
        InvalidArgument: If arguments contradict each other or are out of their range.

    >>> plan = pate(classes=10, parts=250, epsilon=2.6, delta=1e-5)
    >>> plan.most_answers, plan.answers_at(consensus=0.6)
    (310, 303)

    Reference: Papernot et al. 2017 and 2018; Boenisch et al. 2022; docs/proofs/pate.md.
    """
    shared: dict[str, Any] = {
        "classes": classes,
        "parts": parts,
        "mechanism": mechanism,
        "answer_noise": answer_noise,
        "relation": relation,
        "unit": unit,
    }
    if mechanism in ("confident", "interactive"):
        most = parts * _SHARE if mechanism == "confident" else parts * _SHARE / 2
        shared["check_noise"] = answer_noise * _CHECK_NOISE if check_noise is None else check_noise
        shared["threshold"] = most if threshold is None else threshold
    else:
        shared |= {"check_noise": check_noise, "threshold": threshold}
    if mechanism == "interactive":
        confidence = _SURE if confidence is None else confidence
    shared["confidence"] = confidence
    if groups is not None:
        if delta is None or not (epsilon is answers is checks is None):
            raise InvalidArgument(
                "Expected delta=, and no epsilon=, answers= or checks=, beside groups=: each group "
                "has an epsilon of its own."
            )
        found = _groups(groups, method, copies, parts, delta)
        epsilons = tuple(each for each, _ in groups.values())
        return Pate(**shared, groups=found, budget=GroupBudgets(found.names, epsilons, delta))
    if (epsilon is None) == (answers is None) or (epsilon is None) != (delta is None):
        raise InvalidArgument(
            "Expected epsilon= and delta=, or the number of answers=, and not both; got "
            f"epsilon={epsilon!r}, delta={delta!r} and answers={answers!r}."
        )
    if checks is not None and (answers is None or "threshold" not in shared):
        raise InvalidArgument("checks= belongs to answers= of a mechanism with a threshold.")
    budget = None if epsilon is None or delta is None else Budget(epsilon, delta)
    limit = _limit(shared, answers, checks, budget)
    return Pate(**shared, **limit, budget=budget)


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
    return {"mu": twice * cost**0.5 * UP}


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
