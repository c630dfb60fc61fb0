"""PATE: label public inputs by the noisy votes of teachers, each label paid for first."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from dpfy.accounting import Guarantee, account
from dpfy.ensembles.asking import Asking
from dpfy.ensembles.bars import Tell, telling
from dpfy.ensembles.parts import Partition
from dpfy.ensembles.teachers import Teachers
from dpfy.errors import InvalidArgument, LedgerMismatch
from dpfy.ledger import Ledger
from dpfy.mechanisms.one_shot.base import stream_for
from dpfy.noise import SecureStream
from dpfy.plans.pate import PatePlan
from dpfy.plans.pate_settings import pate_settings
from dpfy.types import Relation, Unit


class Pate(PatePlan):
    """A plan of PATE that can ask teachers; :func:`dpfy.pate` makes one.

    *Formal guarantee*: that of :class:`~dpfy.plans.pate.PatePlan`.

    Args:
        classes: The number of classes.
        parts: The number of teachers.
        answer_noise: The noise of each count, in votes.
        mechanism: How teachers are asked.
        check_noise: The noise of the comparison, in votes.
        threshold: What the comparison has to reach, in votes.
        confidence: How sure a student has to be for its own label.
        answers: The number of labels, for ``"lnmax"``.
        mu: The limit μ, for all other mechanisms, without groups.
        groups: The groups of records, their weights and their limits.
        budget: The ε and δ that the limit was made from, if it was.
        relation: The neighbouring relation.
        unit: The unit of privacy.
    """

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
        progress: bool | Tell | None = None,
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
            ledger: The file of the ledger, or an open one; None keeps it in memory, for this call
                alone: each such call has a budget of its own, and what they spend adds up.
            predicted: For ``"interactive"``, the student's probability of each class for each
                input.
            progress: Whether to show a bar, or a function that is told how many inputs are done,
                and how many there are. Default: a bar on a terminal and in a notebook.
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
            with telling(progress, "public inputs") as tell:
                return asking.all(tell)

    def _check(self, teachers: Teachers, x: Any, predicted: Any) -> None:
        # in order, for weights are given to teachers by their numbers
        divided = teachers.partition.to_json() == self.partition.to_json()
        if not divided or teachers.unit != self.unit:
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
        unit: The unit of privacy, ``"record"``, ``"user"`` or ``"label"``.

    Returns:
        The plan.

    Raises:
        InvalidArgument: If arguments contradict each other or are out of their range.

    >>> plan = pate(classes=10, parts=250, epsilon=2.6, delta=1e-5)
    >>> plan.most_answers, plan.answers_at(consensus=0.6)
    (310, 303)

    Reference: Papernot et al. 2017 and 2018; Boenisch et al. 2022; docs/proofs/pate.md.
    """
    return Pate(
        **pate_settings(
            classes=classes,
            parts=parts,
            mechanism=mechanism,
            answer_noise=answer_noise,
            check_noise=check_noise,
            threshold=threshold,
            confidence=confidence,
            answers=answers,
            checks=checks,
            epsilon=epsilon,
            delta=delta,
            groups=groups,
            method=method,
            copies=copies,
            relation=relation,
            unit=unit,
        )
    )
