"""Noisy labels and how likely each class makes them, for training that knows the noise."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray

from dpfy.errors import InvalidArgument
from dpfy.mechanisms.one_shot import RandomizedResponse


@dataclass(frozen=True)
class NoisyLabels:
    """Noisy labels, and the probability of each of them under every class.

    All of it is released or public: what is computed from it costs nothing.

    Args:
        labels: A noisy class number for each record.
        likelihood: The probability of a record's noisy label, had its label been this class or
            that, in a tensor of shape (records, classes).
    """

    labels: torch.Tensor
    likelihood: torch.Tensor

    @classmethod
    def of_response(cls, labels: torch.Tensor, classes: int, epsilon: float) -> Self:
        """Return labels that :func:`~dpfy.labels.randomized_response` drew, with likelihoods.

        Args:
            labels: The noisy labels.
            classes: The number of classes that they were drawn with.
            epsilon: The ε that they were drawn with.

        Returns:
            The labels, and how likely each class makes them.

        >>> NoisyLabels.of_response(torch.tensor([1]), classes=2, epsilon=1.0).likelihood
        tensor([[0.2689, 0.7311]])
        """
        truth = float(RandomizedResponse.with_epsilon(epsilon, classes).truth)
        likelihood = torch.full((len(labels), classes), (1 - truth) / (classes - 1))
        likelihood[torch.arange(len(labels)), labels] = truth
        return cls(labels, likelihood)

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self.labels)

    def __getitem__(self, places: torch.Tensor) -> "NoisyLabels":
        """Return the noisy labels of some records, by their places."""
        return NoisyLabels(self.labels[places], self.likelihood[places])


def likelihood_loss(scores: torch.Tensor, likelihood: torch.Tensor) -> torch.Tensor:
    """Return the mean loss of noisy labels: −log of their probability under a model's classes.

    Cross entropy with noisy labels teaches a model the noise. This loss is smallest for a model of
    the true labels: it weighs the probabilities of classes with what each would make of the label.

    Args:
        scores: A model's scores of the classes, before the softmax, for each record.
        likelihood: The likelihoods of the classes, up to a factor for each record, such as those of
            :class:`NoisyLabels` or a posterior of :class:`NoisyOneHot` without a prior.

    Returns:
        The mean over records, for ``backward()``.

    Reference: Patrini, Rozza, Menon, Nock & Qu 2017 (forward correction), with a matrix for each
    record.

    >>> round(likelihood_loss(torch.zeros(1, 2), torch.tensor([[0.2, 0.8]])).item(), 4)
    0.6931
    """
    return -(scores.log_softmax(1) + likelihood.log()).logsumexp(1).mean()


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
