"""Ask teachers about public inputs, one by one: reserve, count votes, add noise, label.

Tests: tests/ensembles/test_pate.py.
"""

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dpfy.ensembles.answer_table import AnswerTable, Entry
from dpfy.ensembles.predictor import NO_CONSENSUS, answers_beside
from dpfy.ensembles.teachers import Teachers
from dpfy.ensembles.votes import Floats, count_votes
from dpfy.ledger import Ledger
from dpfy.ledger.basis import Ground, Kind
from dpfy.ledger.events import LaplaceSum, Sampled, SumQuery
from dpfy.mechanisms.gaussian_sum import GaussianSum
from dpfy.mechanisms.one_shot import LaplaceVector
from dpfy.mechanisms.one_shot.base import UP
from dpfy.noise import LatticeGaussian, SecureStream
from dpfy.plans.pate import PatePlan
from dpfy.plans.pate_groups import UNIT

_ISOLATION = Ground(
    Kind.THEOREM,
    "isolation",
    "A record moves the vote of its own teachers, and nothing else",
    "Every record draws its parts by itself, teachers share nothing, and a teacher that fails "
    "casts no vote: docs/proofs/pate.md, Lemmas 1 and 2.",
)
_PUBLIC = Ground(
    Kind.DECLARATION,
    "public_inputs",
    "The student sees public inputs and the released labels",
    "Inputs that teachers label are public: they are not protected. Whatever is trained on them "
    "and their labels is post-processing.",
)
_SEPARATE = Ground(
    Kind.DECLARATION,
    "separate_teachers",
    "Teachers are trained apart from each other",
    "The training function is a function of one part and a public seed: no choice, scaling or "
    "stopping by records of another part.",
)


class Asking:
    """One pass over public inputs: each is paid for, then its votes are counted.

    Args:
        plan: What is asked, with how much noise.
        teachers: The teachers, divided as the plan says.
        x: Public inputs.
        predicted: The student's probabilities, for ``"interactive"``.
        ledger: The ledger, open and registered for the plan.
        stream: The source of the noise.
    """

    def __init__(
        self,
        plan: PatePlan,
        teachers: Teachers,
        x: Any,
        predicted: Any,
        ledger: Ledger,
        stream: SecureStream,
    ) -> None:
        self._plan, self._teachers, self._x = plan, teachers, x
        self._predicted = None if predicted is None else np.asarray(predicted, dtype=np.float64)
        self._ledger, self._stream = ledger, stream
        self._table = AnswerTable(ledger.path and answers_beside(ledger.path))
        self._paid = ledger.count  # which counts them all anew

    def all(self, tell: Callable[[int, int], None]) -> npt.NDArray[np.int64]:
        """Return the label of each input, and tell how many are done."""
        grounds = (_ISOLATION, _PUBLIC, _SEPARATE)
        self._ledger.record_basis({"grounds": [ground.to_json() for ground in grounds]})
        self._table.catch_up(self._ledger)
        labels = np.full(len(self._x), NO_CONSENSUS)
        for place in range(len(labels)):
            labels[place] = self._label(place)
            tell(place + 1, len(labels))
        return labels

    def _label(self, place: int) -> int:
        """Return the label that was given before, or a new one if the limit allows it."""
        question = _hash_of(self._x[place])
        known = self._table.get(question)
        if known is not None and (known != NO_CONSENSUS or self._predicted is None):
            return int(known)
        if not self._ledger.admits(self._plan.price):
            return NO_CONSENSUS
        label = self._asked(place)
        self._table.add([Entry(question, label, self._paid)])
        return label

    def _asked(self, place: int) -> int:
        plan = self._plan
        self._pay(plan.check or plan.answer)
        votes = self._votes(place)
        if plan.check is not None:
            assert plan.threshold is not None
            (most,) = self._noisy(plan.check, [self._lead(place, votes)])
            if most < plan.threshold:
                return self._unasked(place)
            self._pay(plan.answer)
        return int(np.argmax(self._noisy(plan.answer, votes)))

    def _pay(self, event: Sampled) -> None:
        self._ledger.reserve(event)
        self._paid += 1

    def _lead(self, place: int, votes: Floats) -> float:
        """Return the largest count, over what the student predicts if it does."""
        if self._predicted is not None:
            expected = self._plan.parts * _probabilities(self._predicted[place])
            votes = votes - np.round(expected / UNIT) * UNIT  # so that no difference is rounded
        return float(votes.max())

    def _unasked(self, place: int) -> int:
        """Return the student's own label if it is sure; nothing here is private."""
        if self._predicted is None:
            return NO_CONSENSUS
        sure = _probabilities(self._predicted[place])
        assert self._plan.confidence is not None
        return int(sure.argmax()) if sure.max() >= self._plan.confidence else NO_CONSENSUS

    def _votes(self, place: int) -> Floats:
        """Return the votes on an input that was paid for; teachers see no other."""
        groups = self._plan.groups
        answers = self._teachers.answers(self._x[place : place + 1])
        weights = None if groups is None else groups.weights
        (votes,) = count_votes(answers, self._plan.classes, weights)
        return votes

    def _noisy(self, event: Sampled, values: Any) -> Floats:
        """Return values with the noise of a recorded event, so that the two cannot differ."""
        (query,) = event.queries
        self._ledger.require_opener()  # a teacher may have forked
        self._stream.refresh()  # a restored copy of the machine has the old key
        if isinstance(query, LaplaceSum):
            mechanism = LaplaceVector(query.l1_bound, query.scale)
            return mechanism.release(values, self._stream).numpy()
        assert isinstance(query, SumQuery)
        total = torch.as_tensor(np.array(values, dtype=np.float64))
        least = 1.0 if self._plan.groups is None else min(1.0, *self._plan.groups.bounds)
        multiplier = query.stddev / query.l2_bound * UP
        released = GaussianSum(query.l2_bound, multiplier, len(total), least=least)
        return released.release(total, LatticeGaussian(self._stream)).numpy()


def _probabilities(row: Floats) -> Floats:
    """Return what a student predicts as numbers from 0 to 1; it may be anything."""
    return np.clip(np.nan_to_num(row), 0.0, 1.0)


def _hash_of(given: Any) -> str:
    """Return a name of an input by which equal ones are recognised."""
    row = np.asarray(given)
    text = f"{row.dtype.str}{row.shape}:".encode()
    own = repr(given).encode() if row.dtype.kind == "O" else row.tobytes()
    return hashlib.sha256(text + own).hexdigest()
