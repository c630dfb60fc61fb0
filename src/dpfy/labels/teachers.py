"""PATE-FM: teachers that see all public features, and the labels of one part."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from dpfy.errors import InvalidArgument
from dpfy.labels.reading import Labels, class_numbers

TrainWithSome = Callable[[Any, torch.Tensor, int], Any]
"""Returns a predictor, given all features, labels of some records and −1 of others, and a seed."""


def label_teacher(
    train_one: TrainWithSome, x: Any, classes: int
) -> Callable[[tuple[Any, Labels], int], Any]:
    """Return a function that trains a teacher on all features and on the labels of one part.

    It is what an ensemble of teachers trains each part with, where a record of the ensemble is a
    place and its label: ``(numpy.arange(len(x)), y)``. The part knows its own labels, and
    ``train_one`` is given all features, as a semi-supervised trainer (FixMatch in the paper) needs
    them. The votes of the teachers then answer for inputs with noise, with the unit ``label`` and
    the relation ``replace_one``.

    *Formal guarantee*: a label has a say in the teacher of its own part, and in no other: replacing
    it moves one vote for each input. What the votes cost is the claim of the ensemble that asks.

    *Assumes* that features, their order and number are public, and that ``train_one`` is a function
    of its arguments.

    Args:
        train_one: Returns a predictor, given all features, a tensor with the labels of a part and
            −1 for all other records, and a public seed.
        x: The public features, one row for each record.
        classes: The declared number of classes; what is no class counts as class 0.

    Returns:
        A function of places with their labels, and a seed, that returns the predictor.

    Raises:
        InvalidArgument: The returned function raises it if a place is not one of ``x``.

    Reference: Esmaeili, Mironov, Prasad, Shilov & Tramèr 2021 (PATE-FM);
    ``docs/proofs/labels.md``, Lemma 6.

    >>> teacher = label_teacher(lambda x, labels, seed: labels, torch.zeros(4, 1), classes=2)
    >>> teacher(([1, 3], [0, 1]), 0)
    tensor([-1,  0, -1,  1])
    """

    def train_part(part: tuple[Any, Labels], seed: int) -> Any:
        places, labels = np.asarray(part[0], dtype=np.int64), part[1]
        if len(places) and not (places.min() >= 0 and places.max() < len(x)):
            raise InvalidArgument(
                f"Expected places of {len(x)} records, got one that is out of range. Divide "
                "(numpy.arange(len(x)), y) into parts."
            )
        known = torch.full((len(x),), -1, dtype=torch.int64)
        known[torch.from_numpy(places)] = torch.from_numpy(class_numbers(labels, classes))
        return train_one(x, known, seed)

    return train_part
