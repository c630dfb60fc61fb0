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
    """Randomized response over cells of classes, which a public prior of each record decides.

    The classes of a record are divided into cells, an answer is a cell, and of a cell with several
    classes one is drawn then. The rule says which cells:

    * ``"information"``: cells of about equal probability, as many as make the answer tell most
      about the label. Without a prior, public chance says which classes share a cell.
    * ``"truth"``: the k likeliest classes, each alone, with the k that makes a true answer
      likeliest; a label that is not among them is answered by any of them. Without a prior this is
      :func:`randomized_response`.

    With ``"truth"``, a prior that is fairly sure of one class leaves nothing else to answer. Such
    an answer is mostly right, and tells nothing that the prior did not.

    *Formal guarantee*: ε-differentially private for replacing one label, whatever the priors are.
    The odds are exact.

    *Assumes* that priors were computed from features, public data and released values, and not from
    the labels that are answered.

    Args:
        classes: The declared number of classes, at least 2.
        epsilon: The ε of the release, above 0.
        rule: How cells are chosen: ``"information"`` or ``"truth"``.

    Raises:
        InvalidArgument: If an argument is out of its range.

    Reference: Ghazi, Golowich, Kumar, Manurangsi & Zhang 2021 (RRTop-k and RRWithPrior, which are
    ``"truth"``); ``docs/proofs/labels.md``, Lemma 1.

    >>> response = PriorResponse(classes=3, epsilon=20.0)
    >>> stream = SecureStream(insecure_test_key=2)
    >>> response.release([2, 0], [[0.1, 0.2, 0.7], [0.1, 0.9, 0.0]], stream).labels
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
        """The exact probability of a true answer among k cells, for k from 1 on."""
        several = [
            Fraction(RandomizedResponse.with_epsilon(self.epsilon, k).truth)
            for k in range(2, self.classes + 1)
        ]
        return (Fraction(1), *several)

    def cells(self, priors: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the cell of each class, for each record.

        Args:
            priors: The priors, a row for each record; a row need not add up to 1.

        Returns:
            The number of the cell, from 0; −1 for a class that is in none.
        """
        shares = priors / priors.sum(1, keepdims=True)
        truths = np.array([float(truth) for truth in self.truths])
        return (_truest if self.rule == "truth" else _most_telling)(shares, truths)

    def release(
        self,
        values: Sequence[int] | NDArray[np.int64],
        priors: NDArray[np.float64] | Sequence[Sequence[float]] | None,
        stream: SecureStream,
    ) -> NoisyLabels:
        """Answer once for each label, with fresh coins from ``stream``.

        Args:
            values: The labels, below ``classes``.
            priors: A prior of the classes for each label, public or released; by default one that
                knows nothing.
            stream: The source of the coins.

        Returns:
            The noisy labels, and how likely each class makes them.

        Raises:
            InvalidArgument: If the priors do not have a number for each class and label, or if one
                is negative or not finite.
        """
        flat = np.ones((len(values), self.classes))
        cells = self.cells(
            flat if priors is None else checked_priors(priors, len(values), self.classes)
        )
        answers = np.array(
            [
                self._answer(int(value), row, stream)
                for value, row in zip(values, cells.tolist(), strict=True)
            ],
            dtype=np.int64,
        )
        likelihood = torch.from_numpy(self._likelihood(answers, cells)).float()
        return NoisyLabels(torch.from_numpy(answers), likelihood)

    def _answer(self, value: int, cells: list[int], stream: SecureStream) -> int:
        number, cell = max(cells) + 1, cells[value]
        if cell < 0:
            cell = below(number, stream)
        elif not coin(self.truths[number - 1], stream):
            cell = (cell + 1 + below(number - 1, stream)) % number
        members = [each for each in range(self.classes) if cells[each] == cell]
        return members[below(len(members), stream)]

    def _likelihood(
        self, answers: NDArray[np.int64], cells: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Return the probability of each answer for every class that the label could be."""
        number = cells.max(1, initial=0) + 1
        truth = np.array([float(truth) for truth in self.truths])[number - 1]
        wrong = (1 - truth) / np.maximum(number - 1, 1)
        same = cells == cells[np.arange(len(answers)), answers][:, None]
        found = np.where(same, truth[:, None], wrong[:, None])
        found = np.where(cells < 0, 1 / number[:, None], found)
        return np.asarray(found / same.sum(1)[:, None])


def _truest(shares: NDArray[np.float64], truths: NDArray[np.float64]) -> NDArray[np.int64]:
    """Give the k likeliest classes a cell each, with the k that makes a true answer likeliest."""
    order = np.argsort(-shares, axis=1, kind="stable")
    right = truths * np.take_along_axis(shares, order, 1).cumsum(1)
    ranks = np.argsort(order, axis=1)
    return np.where(ranks <= right.argmax(1)[:, None], ranks, -1)


def _most_telling(shares: NDArray[np.float64], truths: NDArray[np.float64]) -> NDArray[np.int64]:
    """Divide classes into as many cells as make an answer tell most about the label.

    That is the mutual information of both under the prior: the entropy of the answer, less that of
    the coins. Chance, which is public, decides between classes that are equally likely.
    """
    chance = np.random.default_rng(0).random(shares.shape)
    order = np.lexsort((chance, -shares))
    best = np.take_along_axis(shares, order, 1)
    found = np.zeros(shares.shape, np.int64)
    most = np.full(len(shares), -np.inf)
    for number in range(2, len(truths) + 1):
        placed, mass = _balanced(best, number)
        truth = truths[number - 1]
        wrong = (1 - truth) / (number - 1)
        coins = entr(truth) + (number - 1) * entr(wrong)
        told = entr(wrong + mass * (truth - wrong)).sum(1) - coins
        better = told > most
        found[better], most[better] = placed[better], told[better]
    cells = np.empty_like(found)
    np.put_along_axis(cells, order, found, 1)
    return cells


def _balanced(
    best: NDArray[np.float64], number: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Put classes, likeliest first, into the lightest of some cells; return cells and masses."""
    records = np.arange(len(best))
    placed, mass = np.zeros(best.shape, np.int64), np.zeros((len(best), number))
    for rank in range(best.shape[1]):
        cell = mass.argmin(1) if rank >= number else np.full(len(best), rank)
        mass[records, cell] += best[:, rank]
        placed[:, rank] = cell
    return placed, mass
