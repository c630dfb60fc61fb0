"""ALIBI: Laplace noise on labels as vectors of zeros and a one, and what they tell of a label."""

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch

from dpfy import _validate
from dpfy.labels.noisy import checked_priors
from dpfy.labels.reading import Labels, class_numbers, count_of
from dpfy.labels.release import Declared, LabelRelease, StrPath
from dpfy.ledger import Ledger
from dpfy.ledger.events import LaplaceSum, Sampled
from dpfy.mechanisms.discrete_arrays import rounded_laplace_numbers
from dpfy.mechanisms.one_shot.base import once
from dpfy.noise import SecureStream

_STEPS = 2**10  # of the lattice, from 0 to 1


@dataclass(frozen=True)
class NoisyOneHot:
    """Labels as vectors with Laplace noise, and what can be concluded from them.

    Args:
        values: A noisy vector for each record, in a float64 tensor of shape (records, classes).
        scale: The scale of the noise.
    """

    values: torch.Tensor
    scale: float

    def posterior(self, prior: torch.Tensor | None = None) -> torch.Tensor:
        """Return the probabilities of the classes, given the noisy vectors and a prior.

        This is post-processing: it may be repeated, for example in every epoch with another prior.

        Args:
            prior: The prior probabilities of the classes, for all records or for each of them, from
                public or released values; the same for all classes by default.

        Returns:
            A distribution over classes for each record, in float32.

        Raises:
            InvalidArgument: If a prior has not one number for each class, or if one is negative.

        >>> NoisyOneHot(torch.tensor([[0.0, 1.0]]), scale=2.0).posterior()
        tensor([[0.2689, 0.7311]])
        """
        evidence = (self.values.abs() - (self.values - 1).abs()) / self.scale
        if prior is not None:
            every = torch.as_tensor(prior).expand(self.values.shape)
            evidence = evidence + torch.from_numpy(checked_priors(every, *self.values.shape)).log()
        return evidence.softmax(1).float()


@dataclass(frozen=True)
class Alibi:
    """Release labels as vectors of zeros and a one, with Laplace noise on every number.

    *Formal guarantee*: real Laplace noise of a scale of at least 2/ε, rounded to a lattice on which
    0 and 1 lie; ε-differentially private for replacing one label, which moves two numbers by 1
    each.

    *Assumes* that features, their order and the number of records are public.

    Args:
        classes: The declared number of classes, at least 2.
        epsilon: The ε of the release, above 0.

    Raises:
        InvalidArgument: If an argument is out of its range.

    Reference: Esmaeili, Mironov, Prasad, Shilov & Tramèr 2021 (ALIBI);
    ``docs/proofs/labels.md``, Lemma 3.

    >>> with Ledger.in_memory() as ledger:
    ...     noisy = Alibi(classes=3, epsilon=40.0).release([2, 0], ledger)
    >>> noisy.posterior().argmax(1)
    tensor([2, 0])
    """

    classes: int
    epsilon: float

    def __post_init__(self) -> None:
        _validate.count("classes", self.classes, minimum=2)
        _validate.epsilon(self.epsilon)

    @property
    def steps(self) -> int:
        """The scale of the noise in steps of the lattice, rounded up to a whole number."""
        return math.ceil(2 * _STEPS / Fraction(self.epsilon))

    @property
    def scale(self) -> float:
        """The scale of the noise: 2/ε, rounded up to a step of the lattice."""
        return self.steps / _STEPS

    @property
    def event(self) -> Sampled:
        """The cost: a label adds a vector of ℓ1 norm 1, and another one takes its place."""
        return once(LaplaceSum(1.0, self.scale, "label"))

    def release(
        self,
        y: Labels,
        ledger: Ledger | StrPath,
        *,
        insecure_test_key: int | bytes | None = None,
    ) -> NoisyOneHot:
        """Draw the noisy vectors once; a second call with the same ledger returns the same ones.

        Args:
            y: The private labels, as class numbers from 0; what is no class counts as class 0.
            ledger: The path of a ledger, or an open one; the vectors are saved beside it.
            insecure_test_key: A key that makes the draw reproducible, and the labels not private.

        Returns:
            The noisy vectors.

        Raises:
            InvalidArgument: If the labels have more than one dimension.
            LedgerMismatch: If the ledger was begun for something else.
            BudgetExhausted: If they were drawn before, and are lost.
        """
        declared = Declared("alibi", self.classes, self.epsilon, count_of(y), self.event)
        with LabelRelease(declared, ledger, insecure_test_key) as release:
            parts = release.once(0, lambda stream: {"values": self.noisy(y, stream)})
        return NoisyOneHot(parts["values"], self.scale)

    def noisy(self, y: Labels, stream: SecureStream) -> torch.Tensor:
        """Return the vectors with fresh noise from ``stream``; :meth:`release` pays for them.

        Args:
            y: The private labels.
            stream: The source of the noise.

        Returns:
            A noisy vector for each label, in float64, which holds multiples of a step exactly.
        """
        numbers = class_numbers(y, self.classes)
        noise = rounded_laplace_numbers(self.steps, len(numbers) * self.classes, stream)
        steps = noise.reshape(len(numbers), self.classes)
        steps[np.arange(len(numbers)), numbers] += _STEPS
        return torch.from_numpy(steps / _STEPS)
