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

from dpfy import _validate
from dpfy.errors import InvalidArgument
from dpfy.labels.reading import Labels, class_numbers, count_of
from dpfy.labels.release import Declared, LabelRelease, StrPath
from dpfy.ledger import Ledger
from dpfy.ledger.events import Sampled
from dpfy.ledger.one_shot import LabelAnswer
from dpfy.mechanisms.discrete import below, coin
from dpfy.mechanisms.one_shot import RandomizedResponse
from dpfy.mechanisms.one_shot.base import once
from dpfy.noise import SecureStream


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

    For each record, k classes of the largest prior are taken, with the k that makes a true answer
    likeliest. A label among them is answered with probability e^ε/(e^ε + k − 1) and else replaced
    by another one of them; for a label that is not among them, all are equally likely.

    *Formal guarantee*: ε-differentially private for replacing one label, whatever the priors are.
    The odds are exact.

    *Assumes* that priors were computed from features, public data and released values, and not from
    the labels that are answered.

    Args:
        classes: The declared number of classes, at least 2.
        epsilon: The ε of the release, above 0.

    Raises:
        InvalidArgument: If an argument is out of its range.

    Reference: Ghazi, Golowich, Kumar, Manurangsi & Zhang 2021 (RRTop-k, RRWithPrior);
    ``docs/proofs/labels.md``, Lemma 1.

    >>> response = PriorResponse(classes=3, epsilon=20.0)
    >>> response.release([2, 0], [[0.1, 0.2, 0.7], [0.1, 0.9, 0.0]], SecureStream())
    tensor([2, 0])
    """

    classes: int
    epsilon: float

    def __post_init__(self) -> None:
        _validate.count("classes", self.classes, minimum=2)
        _validate.epsilon(self.epsilon)

    @property
    def event(self) -> Sampled:
        """The cost for a label, which has a say in one of the answers."""
        return once(LabelAnswer(self.epsilon))

    @cached_property
    def truths(self) -> tuple[Fraction, ...]:
        """The exact probability of a true answer among k classes, for k from 1 on."""
        several = [
            Fraction(RandomizedResponse.with_epsilon(self.epsilon, k).truth)
            for k in range(2, self.classes + 1)
        ]
        return (Fraction(1), *several)

    def likely(self, prior: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the classes among which a label is answered.

        Args:
            prior: The prior of one record; it need not add up to 1.

        Returns:
            The classes, likeliest first; equal ones are in the order of their numbers.
        """
        order = np.argsort(-prior, kind="stable")
        right = np.array([float(truth) for truth in self.truths]) * np.cumsum(prior[order])
        return order[: int(np.argmax(right)) + 1]

    def release(
        self,
        values: Sequence[int] | NDArray[np.int64],
        priors: NDArray[np.float64] | Sequence[Sequence[float]],
        stream: SecureStream,
    ) -> torch.Tensor:
        """Answer once for each label, with fresh coins from ``stream``.

        Args:
            values: The labels, below ``classes``.
            priors: A prior of the classes for each label, public or released.
            stream: The source of the coins.

        Returns:
            The noisy labels.

        Raises:
            InvalidArgument: If the priors do not have a number for each class and label, or if one
                is negative or not finite.
        """
        checked = checked_priors(priors, len(values), self.classes)
        answers = [
            self._answer(int(value), self.likely(prior).tolist(), stream)
            for value, prior in zip(values, checked, strict=True)
        ]
        return torch.tensor(answers, dtype=torch.int64)

    def _answer(self, value: int, likely: list[int], stream: SecureStream) -> int:
        if value not in likely:
            return likely[below(len(likely), stream)]
        if coin(self.truths[len(likely) - 1], stream):
            return value
        others = [each for each in likely if each != value]
        return others[below(len(others), stream)]


def checked_priors(priors: object, records: int, classes: int) -> NDArray[np.float64]:
    """Return priors as an array; they are public, so that a bad one may be an error.

    Args:
        priors: A prior of the classes for each record.
        records: The number of records.
        classes: The number of classes.

    Returns:
        The priors.

    Raises:
        InvalidArgument: If a number is missing, negative or not finite, or if a prior is 0
            everywhere.
    """
    array = np.asarray(
        priors.detach().cpu() if isinstance(priors, torch.Tensor) else priors, dtype=np.float64
    )
    if array.shape != (records, classes):
        array = array.reshape(array.shape if array.size else (0, classes))
    if array.shape != (records, classes):
        raise InvalidArgument(
            f"Expected priors of shape ({records}, {classes}), one number for each record and "
            f"class, got {array.shape}."
        )
    if not (np.isfinite(array).all() and (array >= 0).all() and (array.sum(1) > 0).all()):
        raise InvalidArgument(
            "Expected priors of finite numbers that are at least 0, and not all 0 for a record. "
            "Give probabilities, such as the softmax of a model's scores."
        )
    return array


def uniform_priors(records: int, classes: int) -> NDArray[np.float64]:
    """Return priors that know nothing.

    Args:
        records: The number of records.
        classes: The number of classes.

    Returns:
        The same prior for each record.
    """
    return np.full((records, classes), 1 / classes)
