"""No label can stop or announce itself: whatever it is, it is one of the classes."""

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from dpfy.errors import InvalidArgument
from dpfy.labels.reading import class_numbers, count_of


class Raising:
    def __float__(self):
        raise RuntimeError("secret")


ANYTHING = st.one_of(
    st.none(),
    st.integers(),
    st.floats(),
    st.text(),
    st.binary(),
    st.booleans(),
    st.builds(Raising),
    st.complex_numbers(),
    st.lists(st.integers(), max_size=2),
)


@given(st.lists(ANYTHING, max_size=8), st.integers(2, 5))
def test_any_object_is_read_as_a_class_without_a_word(values, classes):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        numbers = class_numbers(values, classes)
    assert numbers.shape == (len(values),) and numbers.dtype == np.int64
    for value, number in zip(values, numbers, strict=True):
        whole = isinstance(value, int | float) and math.isfinite(value) and value == int(value)
        assert number == (int(value) if whole and 0 <= value < classes else 0)


@pytest.mark.parametrize(
    "y",
    [
        torch.tensor([0, 2, 3, -1]),
        torch.tensor([0.0, 2.0, math.nan, math.inf]),
        torch.tensor([0.0, 2.0, 1e300, 0.5], dtype=torch.float64),
        np.array([0, 2, 250, 3], dtype=np.uint8),
        np.array([0, 2, -(2**63), 2**62]),
        np.array([0, "2", 2, None], dtype=object)[[0, 2, 1, 3]],
    ],
)
def test_tensors_and_arrays_are_read_alike(y):
    assert class_numbers(y, 3).tolist() == [0, 2, 0, 0]
    assert class_numbers(y, 3, [1, 2]).tolist() == [2, 0]


def test_only_the_places_that_are_asked_for_are_read():
    read = []

    class Watched(list):
        def __getitem__(self, place):
            read.append(place)
            return super().__getitem__(place)

    assert class_numbers(Watched([1, 1, 2, 0]), 3, [0, 2]).tolist() == [1, 2]
    assert read == [0, 2]


def test_shapes_are_checked_and_values_are_not():
    assert count_of(["anything", None]) == 2
    assert count_of(torch.zeros(0)) == 0
    with pytest.raises(InvalidArgument, match=r"shape \(3, 2\)"):
        count_of(torch.zeros(3, 2))
    with pytest.raises(InvalidArgument, match="got generator"):
        count_of(value for value in [1])
