"""A teacher of PATE-FM knows the labels of its own part, and all features."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from dpfy.errors import InvalidArgument
from dpfy.labels import label_teacher

CLASSES, RECORDS, PARTS = 3, 12, 4
LABELS = st.one_of(st.integers(-2, 5), st.floats(), st.none(), st.text(max_size=1))


def nearest(x, labels, seed):
    """A teacher that answers with the label of the nearest record that it knows."""
    known = labels >= 0
    return lambda inputs: labels[known][torch.cdist(inputs, x[known]).argmin(1)].tolist()


def answers(y, inputs):
    x = torch.arange(float(RECORDS))[:, None]
    teacher = label_teacher(nearest, x, CLASSES)
    parts = [np.arange(part, RECORDS, PARTS) for part in range(PARTS)]
    return [teacher((rows, [y[row] for row in rows]), 0)(inputs) for rows in parts]


@given(st.lists(LABELS, min_size=RECORDS, max_size=RECORDS), LABELS, st.integers(0, RECORDS - 1))
@settings(deadline=None, max_examples=40)
def test_another_label_changes_the_votes_of_its_own_teacher_alone(y, other, place):
    inputs = torch.linspace(-1, 12, 30)[:, None]
    changed = [*y[:place], other, *y[place + 1 :]]
    moved = [a != b for a, b in zip(answers(y, inputs), answers(changed, inputs), strict=True)]
    assert not any(moved[part] for part in range(PARTS) if part != place % PARTS)


def test_a_teacher_is_given_all_features_and_the_labels_of_its_part():
    x = torch.rand(5, 2)
    teacher = label_teacher(lambda *given: given, x, CLASSES)
    features, labels, seed = teacher((np.array([4, 0]), [2, math.nan]), 17)
    assert features is x and labels.tolist() == [0, -1, -1, -1, 2] and seed == 17
    assert teacher(([], []), 0)[1].tolist() == [-1] * 5


def test_places_of_other_records_are_refused():
    teacher = label_teacher(nearest, torch.zeros(3, 1), CLASSES)
    with pytest.raises(InvalidArgument, match="places of 3 records"):
        teacher(([3], [0]), 0)
