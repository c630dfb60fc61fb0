"""Private predictions: answers of teachers with noise, each paid for before it is computed."""

import hashlib
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from dpfy import _validate
from dpfy.accounting import Guarantee, account
from dpfy.accounting.guards import FilterGuard
from dpfy.ensembles.answer_table import Answer, AnswerTable, Entry
from dpfy.ensembles.clipped_means import clipped_sums
from dpfy.ensembles.votes import count_votes
from dpfy.errors import BudgetExhausted, InvalidArgument, LedgerLocked, LedgerMismatch
from dpfy.ledger import Ledger
from dpfy.ledger.basis import Ground, Kind
from dpfy.ledger.events import Sampled, SumQuery
from dpfy.ledger.journal import Header
from dpfy.mechanisms.one_shot import Gaussian
from dpfy.noise import SecureStream
from dpfy.plans.prediction import PredictionPlan, affordable
from dpfy.types import Relation, Unit

NO_CONSENSUS = -1
"""The answer where the most popular class has too few votes."""

_BLOCK = 256  # inputs that are paid for together, so the most that a crash can lose
_PAUSE = 0.002  # seconds between two looks at a ledger that another process has open
_PREDICTIONS = "predictions"  # what a report says is released
_ISOLATION = Ground(
    Kind.THEOREM,
    "isolation",
    "A record moves one teacher's vote or prediction, and nothing else",
    "Every record is in one part, teachers share nothing, and a teacher that fails casts no vote: "
    "docs/proofs/prediction.md.",
)
_ROUNDING = Ground(
    Kind.THEOREM,
    "rounding_of_sums",
    "Votes and clipped predictions are added without rounding",
    "Votes are whole numbers, predictions multiples of a power of two: docs/proofs/prediction.md, "
    "Lemma 2.",
)


class Ensemble(Protocol):
    """What is asked of teachers; :class:`~dpfy.ensembles.Teachers` is one."""

    @property
    def parts(self) -> int:
        """The public number of teachers."""

    @property
    def key_source(self) -> str:
        """Where the key is from that divided the records."""

    @property
    def unit(self) -> Unit:
        """What is in one part as a whole: the unit of privacy."""

    def answers(self, x: Any) -> npt.NDArray[np.float64]:
        """Return the answer of each teacher to each input, NaN where there is none."""


class PrivatePredictor:
    """Answer inputs by an ensemble of teachers, with noise, until a budget is empty.

    An answer is paid for durably before teachers are asked, and kept durably beside the ledger
    before it is handed out. An input that was answered before gets the same answer at no cost.
    Several processes may share one ledger: they take turns at new inputs.

    *Formal guarantee*: everything that it ever answers on one ledger is (``epsilon``,
    ``delta``)-differentially private, however inputs were chosen, by whichever process, and
    through all crashes: an answer that was not paid for is not given. Vote counts and single
    predictions never leave.

    *Assumes* that a record is in one part, or, for teachers of users, that all of a user's records
    are; and that inputs are public: they come from who asks, and a hash of each is kept. Nobody
    measures how long teachers take.

    Args:
        teachers: The teachers, as :meth:`dpfy.ensembles.Teachers.fit` trains them.
        noise: The standard deviation of the noise, in votes; for regression, in units of the sum of
            predictions.
        epsilon: The ε of all answers together, above 0.
        delta: The δ of all answers together, in (0, 1).
        classes: The number of classes, at least 2; None for regression.
        bounds: The least and largest prediction of a teacher that count, for regression.
        threshold: The votes that the most popular class needs; None answers every input.
        check_noise: The standard deviation of the noise of that comparison, in votes.
        shape: The shape of one input; inputs of another shape are refused at no cost.
        ledger: The file of the ledger; the answers are kept beside it. None keeps both in memory.
        relation: The neighbouring relation.
        patience: How many seconds to wait while another process answers.
        insecure_test_key: A key that makes the noise reproducible, and nothing private.

    Raises:
        InvalidArgument: If an argument is out of its range, or a record is in several parts.
        LedgerMismatch: If the ledger was begun for something else.

    Reference: Dwork & Feldman 2018; Papernot et al. 2018, §4.1; docs/proofs/prediction.md.

    >>> from dpfy.ensembles import Teachers
    >>> class Sign:
    ...     def predict(self, x):
    ...         return (x[:, 0] > 0).astype(int)
    >>> service = PrivatePredictor(
    ...     Teachers([Sign()] * 40), classes=2, noise=4, epsilon=3, delta=1e-6, shape=(1,)
    ... )
    >>> service.predict([0.3]), service.predict([-2.0]), service.answers_left
    (1, 0, 1)
    """

    def __init__(
        self,
        teachers: Ensemble,
        *,
        noise: float,
        epsilon: float,
        delta: float,
        classes: int | None = None,
        bounds: tuple[float, float] | None = None,
        threshold: float | None = None,
        check_noise: float | None = None,
        shape: Sequence[int] | None = None,
        ledger: str | os.PathLike[str] | None = None,
        relation: Relation | str = Relation.ADD_OR_REMOVE_ONE,
        patience: float = 60.0,
        insecure_test_key: int | bytes | None = None,
    ) -> None:
        self.plan = PredictionPlan(
            parts=teachers.parts,
            noise=noise,
            epsilon=epsilon,
            delta=delta,
            classes=classes,
            bounds=bounds,
            threshold=threshold,
            check_noise=check_noise,
            shape=None if shape is None else tuple(shape),
            relation=relation,  # type: ignore[arg-type]
            unit=teachers.unit,
        )
        _check_parts(teachers)
        self._teachers = teachers
        self._patience = _validate.real("patience", patience, 0, float("inf"))
        self._stream = SecureStream(insecure_test_key)
        keys = (self._stream.key_source, teachers.key_source)
        source = next((each for each in keys if each != "operating system"), keys[0])
        self._header = self.plan.header(source)
        self._path = None if ledger is None else Path(ledger)
        self._in_memory = _Turn.open(None, self._guard(), self._header) if ledger is None else None
        self._table = AnswerTable(None if ledger is None else answers_beside(ledger))
        self._mutex = threading.Lock()
        with self._turn() as turn:
            turn.ledger.record_basis({"grounds": [_ISOLATION.to_json(), _ROUNDING.to_json()]})

    @classmethod
    def from_plan(
        cls, teachers: Ensemble, plan: PredictionPlan, ledger: str | os.PathLike[str] | None = None
    ) -> Self:
        """Return the predictor of a plan, such as one that a ledger was begun with.

        Args:
            teachers: The teachers.
            plan: The plan.
            ledger: The file of the ledger; None keeps it in memory.

        Returns:
            The predictor.

        Raises:
            InvalidArgument: If the plan is for another number of teachers, or another unit.
        """
        if (plan.parts, plan.unit) != (teachers.parts, teachers.unit):
            raise InvalidArgument(
                f"The plan is for {plan.parts} teachers and the unit {str(plan.unit)!r}, and there "
                f"are {teachers.parts} with the unit {str(teachers.unit)!r}."
            )
        known = {item.name for item in fields(plan)} - {"parts", "unit"}
        settings = {name: getattr(plan, name) for name in known}
        return cls(teachers, ledger=ledger, **settings)

    def predict(self, x: Any) -> Answer:
        """Answer one input.

        Args:
            x: The input: numbers of the declared shape.

        Returns:
            The class, or −1 where there was no consensus; for regression, the mean within bounds.

        Raises:
            InvalidArgument: If the input is no array of finite numbers of the declared shape;
                nothing was spent.
            BudgetExhausted: If the budget does not buy another answer; nothing was spent.
            LedgerLocked: If another process has the ledger for longer than the patience lasts.
        """
        (answer,) = self.predict_each(_as_array(x)[np.newaxis])
        if answer is None:
            raise BudgetExhausted(
                f"The budget of {self._path or 'the ledger in memory'} (epsilon="
                f"{self.plan.epsilon:g}) is used up: no further input is answered, except those "
                "that were answered before. No teacher was asked."
            )
        return answer

    def predict_each(self, inputs: Any) -> list[Answer | None]:
        """Answer several inputs, in order, as far as the budget goes.

        Args:
            inputs: The inputs, one in each row.

        Returns:
            One answer for each row; None where the budget was empty.

        Raises:
            InvalidArgument: If a row is no array of finite numbers of the declared shape; nothing
                was spent.
            LedgerLocked: If another process has the ledger for longer than the patience lasts.
        """
        rows = canonical_inputs(inputs, self.plan.shape)
        questions = [_hash_of(row) for row in rows]
        new = {
            question: row
            for question, row in zip(questions, rows, strict=True)
            if self._table.get(question) is None
        }
        waiting = list(new)
        for start in range(0, len(waiting), _BLOCK):
            with self._turn() as turn:
                self._answer({each: new[each] for each in waiting[start : start + _BLOCK]}, turn)
        return [self._table.get(question) for question in questions]

    def count_new(self, inputs: Any) -> int:
        """Return how many different inputs would have to be paid for; nothing is spent.

        Args:
            inputs: The inputs, one in each row.

        Returns:
            The number of those that were not answered before.

        Raises:
            InvalidArgument: As of :meth:`predict_each`.
        """
        questions = {_hash_of(row) for row in canonical_inputs(inputs, self.plan.shape)}
        with self._turn():
            return sum(self._table.get(question) is None for question in questions)

    @property
    def left(self) -> float:
        """The share of the budget that is left, by the ledger as it is now."""
        return max(0.0, 1.0 - self._spent().used)

    @property
    def answers_left(self) -> int:
        """The number of further inputs that the budget buys if each costs the full price."""
        return affordable(self._spent(), self.plan.price, self.plan.answers)

    @property
    def ledger(self) -> Ledger:
        """The ledger as it is now, for reading."""
        if self._in_memory is not None:
            return self._in_memory.ledger
        assert self._path is not None
        return Ledger.read(self._path)

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of everything that the ledger's filter admits."""
        return account(self.ledger)

    def report(self, folder: str | os.PathLike[str]) -> tuple[Path, Path, Path]:
        """Write the privacy report.

        Args:
            folder: The folder; it is created if it does not exist.

        Returns:
            The paths of the report in Markdown, JSON and HTML.
        """
        from dpfy.reporting import RunFacts, report

        facts = RunFacts(
            name="private prediction",
            title="Privacy report of predictions",
            released=_PREDICTIONS,
            model=f"an ensemble of {self.plan.parts} teachers",
            isolation=_ISOLATION.text,
        )
        return report(self.ledger, self.plan.delta, facts).write(folder)

    @contextmanager
    def _turn(self) -> Iterator["_Turn"]:
        """Have the ledger and the table of answers alone, and know what others did before."""
        with self._mutex:
            if self._in_memory is not None:
                yield self._in_memory
                return
            turn = self._opened()
            with turn.ledger:
                self._table.catch_up(turn.ledger)
                yield turn

    def _opened(self) -> "_Turn":
        """Open the ledger as soon as no other process has it."""
        assert self._path is not None
        deadline = time.monotonic() + self._patience
        while True:
            try:
                return _Turn.open(self._path, self._guard(), self._header)
            except LedgerLocked:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(_PAUSE)

    def _answer(self, block: dict[str, Any], turn: "_Turn") -> None:
        """Answer what is still new, as far as the budget goes; durable when this returns."""
        new = {key: row for key, row in block.items() if self._table.get(key) is None}
        questions = list(new)[: affordable(turn.guard, self.plan.price, len(new))]
        if not questions:
            return
        first = turn.ledger.count + 1
        for _ in questions:
            turn.ledger.reserve(self.plan.check or self.plan.answer)
        answers = self._teachers.answers(np.stack([new[question] for question in questions]))
        turn.ledger.require_opener()  # a teacher may have forked
        self._stream.refresh()  # a restored copy of the machine has the old key
        found = self._released(answers, turn.ledger)
        self._table.add(
            [
                Entry(question, answer, first + place)
                for place, (question, answer) in enumerate(zip(questions, found, strict=True))
            ]
        )

    def _released(self, answers: npt.NDArray[np.float64], ledger: Ledger) -> list[Answer]:
        """Return the answers to inputs that were paid for, from what teachers said."""
        plan = self.plan
        if plan.bounds is not None:
            return [self._mean(total) for total in clipped_sums(answers, plan.bounds)]
        assert plan.classes is not None
        votes = count_votes(answers, plan.classes)
        if plan.check is None:
            return [self._winner(each) for each in votes]
        assert plan.threshold is not None
        found: list[Answer] = []
        for each in votes:
            (most,) = _noisy(plan.check, [each.max()], self._stream)
            if most < plan.threshold:
                found.append(NO_CONSENSUS)
                continue
            ledger.reserve(plan.answer)
            found.append(self._winner(each))
        return found

    def _winner(self, votes: npt.NDArray[np.float64]) -> int:
        """Return the class with most votes after noise; the first of equals."""
        return int(np.argmax(_noisy(self.plan.answer, votes, self._stream)))

    def _mean(self, total: float) -> float:
        """Return the mean after noise, within the bounds: a public number divides the sum."""
        assert self.plan.bounds is not None
        low, high = self.plan.bounds
        (noisy,) = _noisy(self.plan.answer, [total], self._stream)
        return float(np.clip(low / 2 + high / 2 + noisy / self.plan.parts, low, high))

    def _guard(self) -> FilterGuard:
        return self.plan.filter.guard(self.plan.relation)

    def _spent(self) -> FilterGuard:
        """Return a guard that knows what the ledger has spent by now."""
        guard = self._guard()
        for run in self.ledger.uses:
            guard.record(run.event, run.times)
        return guard


@dataclass(frozen=True)
class _Turn:
    """A ledger that is open for writing, and the guard that it asks."""

    ledger: Ledger
    guard: FilterGuard

    @classmethod
    def open(cls, path: Path | None, guard: FilterGuard, header: Header) -> Self:
        """Open a ledger for this plan and no other."""
        if path is None:
            return cls(Ledger.in_memory(guard, header), guard)
        ledger = Ledger.open(path, guard)
        try:
            if ledger.header is not None and ledger.header.plan != header.plan:
                raise LedgerMismatch(
                    f"{path} was begun with another plan, {ledger.header.plan}; the one given is "
                    f"{header.plan}. Use the same, or begin a new ledger."
                )
            ledger.register(guard, header)
        except BaseException:
            ledger.close()
            raise
        return cls(ledger, guard)


def answers_beside(ledger: str | os.PathLike[str]) -> Path:
    """Return the file in which the answers of a ledger are kept."""
    path = Path(ledger)
    return path.with_name(path.name + ".answers")


def canonical_inputs(inputs: Any, shape: tuple[int, ...] | None) -> npt.NDArray[np.float32]:
    """Return inputs in the form in which teachers see them and equal ones are recognised.

    That is float32, with one zero. It is known from the input and declarations alone whether it is
    refused.

    Args:
        inputs: The inputs, one in each row.
        shape: The declared shape of one input, if it is declared.

    Returns:
        The inputs.

    Raises:
        InvalidArgument: If they are no finite numbers, or have another shape.
    """
    given = _as_array(inputs)
    if given.ndim == 0 or (shape is not None and len(given) and given.shape[1:] != shape):
        wanted = "rows" if shape is None else f"rows of the declared shape {shape}"
        raise InvalidArgument(f"Expected {wanted}, got an array of the shape {given.shape}.")
    with np.errstate(all="ignore"):
        rows = given.astype(np.float32) + np.float32(0.0)  # which makes −0 to 0
    if not bool(np.isfinite(rows).all()):
        raise InvalidArgument(
            "Expected finite numbers within the range of float32; an input has others. Nothing was "
            "spent."
        )
    return rows


def _as_array(given: Any) -> npt.NDArray[Any]:
    try:
        found = np.asarray(given)
    except (TypeError, ValueError):
        raise InvalidArgument("Expected an array of numbers, or lists of equal lengths.") from None
    if found.dtype.kind not in "biuf":
        raise InvalidArgument(f"Expected an array of numbers, got one of {found.dtype}.")
    return found


def _hash_of(row: npt.NDArray[np.float32]) -> str:
    text = f"{row.shape}:".encode() + np.ascontiguousarray(row, dtype="<f4").tobytes()
    return hashlib.sha256(text).hexdigest()


def _noisy(event: Sampled, values: Any, stream: SecureStream) -> npt.NDArray[np.float64]:
    """Return values with the noise of a recorded event, so that the two cannot differ."""
    (query,) = event.queries
    assert isinstance(query, SumQuery)
    return Gaussian(query.l2_bound, query.stddev).release(values, stream).numpy()


def _check_parts(teachers: Any) -> None:
    """Refuse teachers that share records."""
    partition = getattr(teachers, "partition", None)
    if partition is not None and partition.copies:
        raise InvalidArgument(
            "Expected teachers of whom each record has one; these were trained with copies of "
            "records in several parts. Train others with parts= alone."
        )
