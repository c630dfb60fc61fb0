"""Randomized response on labels: over all classes, or over those that a public prior finds likely.

Tests: tests/labels/test_response.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import entr

from dpfy import _validate
from dpfy.labels.noisy import NoisyLabels, checked_priors
from dpfy.labels.reading import Labels, class_numbers, count_of
from dpfy.labels.release import Declared, LabelRelease, StrPath
from dpfy.ledger import Ledger
from dpfy.ledger.events import Sampled
from dpfy.ledger.one_shot import LabelAnswer
from dpfy.mechanisms.discrete import below, coin
from dpfy.mechanisms.one_shot import RandomizedResponse
from dpfy.mechanisms.one_shot.base import once
from dpfy.noise import SecureStream

RULES = ("information", "truth")


def randomized_response(
    y: Labels,
    classes: int,
    epsilon: float,
    ledger: Ledger | StrPath,
    *,
    insecure_test_key: int | bytes | None = None,
) -> torch.Tensor:
    """Return each label with probability e^ε/(e^ε + classes − 1), and else one of the others.

    The labels are drawn once: a second call with the same ledger returns the same ones, and reads
    nothing.

    *Formal guarantee*: ε-differentially private for replacing one label. The odds are exact.

    *Assumes* that features, their order and the number of records are public.

    Args:
        y: The private labels, as class numbers from 0; what is no class counts as class 0.
        classes: The declared number of classes, at least 2.
        epsilon: The ε of the release, above 0.
        ledger: The path of a ledger, or an open one; the noisy labels are saved beside it.
        insecure_test_key: A key that makes the draw reproducible, and the labels not private.

    Returns:
        The noisy labels.

    Raises:
        InvalidArgument: If an argument is out of its range.
        LedgerMismatch: If the ledger was begun for something else.
        BudgetExhausted: If the labels were drawn before, and are lost.

    Training need not take them as they are: :meth:`NoisyLabels.of_response` has the likelihoods
    for a loss that knows the noise.

    Reference: Warner 1965; Ghazi et al. 2021 (LP-1ST).

    >>> with Ledger.in_memory() as ledger:
    ...     noisy = randomized_response([2, 0, 1], classes=3, epsilon=20.0, ledger=ledger)
    >>> noisy
    tensor([2, 0, 1])
    """
    mechanism = RandomizedResponse.with_epsilon(epsilon, classes, "label")
    declared = Declared("randomized_response", classes, epsilon, count_of(y), mechanism.event)
    with LabelRelease(declared, ledger, insecure_test_key) as release:
        return release.once(
            0,
            lambda stream: {
                "labels": torch.tensor(
                    mechanism.release(class_numbers(y, classes).tolist(), stream),
                    dtype=torch.int64,
                )
            },
        )["labels"]


@dataclass(frozen=True)
class PriorResponse:
    """Randomized response over the classes that are likely for a record, by a public prior.

    The prior of a record decides which of its classes are likely, by a rule:

    * ``"information"``: an answer is one of the likely classes, or all others together, of which
      one is drawn then. As many classes are likely as make the answer tell most about the label.
    * ``"truth"``: an answer is one of the likely classes, and a label that is not among them is
      answered by any of them. As many classes are likely as make a true answer likeliest.

    With ``"truth"``, a prior that is fairly sure of one class leaves nothing else to answer. Such
    an answer is mostly right, and tells nothing that the prior did not.

    *Formal guarantee*: ε-differentially private for replacing one label, whatever the priors are.
    The odds are exact.

    *Assumes* that priors were computed from features, public data and released values, and not from
    the labels that are answered.

    Args:
        classes: The declared number of classes, at least 2.
        epsilon: The ε of the release, above 0.
        rule: How likely classes are chosen: ``"information"`` or ``"truth"``.

    Raises:
        InvalidArgument: If an argument is out of its range.

    Reference: Ghazi, Golowich, Kumar, Manurangsi & Zhang 2021 (RRTop-k and RRWithPrior, which are
    ``"truth"``); ``docs/proofs/labels.md``, Lemma 1.

    >>> response = PriorResponse(classes=3, epsilon=20.0)
    >>> response.release([2, 0], [[0.1, 0.2, 0.7], [0.1, 0.9, 0.0]], SecureStream()).labels
    tensor([2, 0])
    """

    classes: int
    epsilon: float
    rule: str = "information"

    def __post_init__(self) -> None:
        _validate.count("classes", self.classes, minimum=2)
        _validate.epsilon(self.epsilon)
        _validate.choice("rule", self.rule, RULES)

    @property
    def event(self) -> Sampled:
        """The cost for a label, which has a say in one of the answers."""
        return once(LabelAnswer(self.epsilon))

    @cached_property
    def truths(self) -> tuple[Fraction, ...]:
        """The exact probability of a true answer among k possible ones, for k from 1 on."""
        several = [
            Fraction(RandomizedResponse.with_epsilon(self.epsilon, k).truth)
            for k in range(2, self.classes + 1)
        ]
        return (Fraction(1), *several)

    def likely(self, priors: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Tell which classes are likely for each record, so that they are answers of their own.

        Args:
            priors: The priors, a row for each record; a row need not add up to 1.

        Returns:
            Whether each class of each record is; of equal ones, those with the smaller numbers are
            taken first.
        """
        order = np.argsort(-priors, axis=1, kind="stable")
        best = np.take_along_axis(priors / priors.sum(1, keepdims=True), order, 1)
        truths = np.array([float(truth) for truth in self.truths])
        score = _right(best, truths) if self.rule == "truth" else _information(best, truths)
        ranks = np.argsort(order, axis=1)
        return np.asarray(ranks <= score.argmax(1)[:, None])

    def release(
        self,
        values: Sequence[int] | NDArray[np.int64],
        priors: NDArray[np.float64] | Sequence[Sequence[float]] | None,
        stream: SecureStream,
    ) -> NoisyLabels:
        """Answer once for each label, with fresh coins from ``stream``.

        Args:
            values: The labels, below ``classes``.
            priors: A prior of the classes for each label, public or released. Without priors, all
                classes are likely: randomized response.
            stream: The source of the coins.

        Returns:
            The noisy labels, and how likely each class makes them.

        Raises:
            InvalidArgument: If the priors do not have a number for each class and label, or if one
                is negative or not finite.
        """
        likely = np.ones((len(values), self.classes), bool)
        if priors is not None:
            likely = self.likely(checked_priors(priors, len(values), self.classes))
        answers = np.array(
            [
                self._answer(int(value), row, stream)
                for value, row in zip(values, likely.tolist(), strict=True)
            ],
            dtype=np.int64,
        )
        likelihood = torch.from_numpy(self._likelihood(answers, likely)).float()
        return NoisyLabels(torch.from_numpy(answers), likelihood)

    def _answer(self, value: int, likely: list[bool], stream: SecureStream) -> int:
        cells = [[each] for each in range(self.classes) if likely[each]]
        if self.rule == "information" and not all(likely):
            cells.append([each for each in range(self.classes) if not likely[each]])
        place = next((at for at, cell in enumerate(cells) if value in cell), None)
        if place is None:
            place = below(len(cells), stream)
        elif not coin(self.truths[len(cells) - 1], stream):
            place = (place + 1 + below(len(cells) - 1, stream)) % len(cells)
        return cells[place][below(len(cells[place]), stream)]

    def _likelihood(
        self, answers: NDArray[np.int64], likely: NDArray[np.bool_]
    ) -> NDArray[np.float64]:
        """Return the probability of each answer for every class that the label could be."""
        records = np.arange(len(answers))
        cells = np.where(likely, np.arange(self.classes), self.classes)  # the others are one cell
        others = (self.rule == "information") & ~likely.all(1)
        number = likely.sum(1) + others
        truth = np.array([float(truth) for truth in self.truths])[number - 1]
        wrong = (1 - truth) / np.maximum(number - 1, 1)
        same = cells == cells[records, answers][:, None]
        found = np.where(same, truth[:, None], wrong[:, None])
        if self.rule == "truth":
            return np.where(likely, found, 1 / number[:, None])
        size = np.where(likely[records, answers], 1, self.classes - likely.sum(1))
        return np.asarray(found / size[:, None])


def _right(best: NDArray[np.float64], truths: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the probability of a true answer among the k best classes, for each k from 1 on."""
    return np.asarray(truths * best.cumsum(1))


def _information(best: NDArray[np.float64], truths: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return what an answer tells of the label where the k best classes are likely, for each k.

    That is the mutual information of both under the prior: the entropy of the answer, less that of
    the coins. With one class in the rest, all classes are answers of their own.
    """
    told = []
    for k in range(1, len(truths)):
        truth = truths[k]  # of k classes and the rest
        wrong = (1 - truth) / k
        cells = np.concatenate([best[:, :k], best[:, k:].sum(1, keepdims=True)], 1)
        coins = entr(truth) + k * entr(wrong)
        told.append(entr(wrong + cells * (truth - wrong)).sum(1) - coins)
    return np.stack(told, 1)
