"""Declared values: inside their domain they pass, outside they are named in one sentence."""

import math

import pytest

from dpfy import _validate
from dpfy.errors import InvalidArgument


def test_values_inside_their_domain_are_returned():
    assert _validate.real("rate", 1, 0, 1) == 1.0
    assert _validate.count("steps", 3) == 3
    assert _validate.delta(1e-5) == 1e-5
    assert _validate.epsilon(2) == 2.0
    assert _validate.choice("kind", "a", ("a", "b")) == "a"


@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan, "0.5", None, True])
def test_numbers_outside_are_refused(value):
    with pytest.raises(InvalidArgument, match="rate"):
        _validate.real("rate", value, 0, 1)


@pytest.mark.parametrize("value", [0, 1.0, True, "3"])
def test_counts_are_whole_and_large_enough(value):
    with pytest.raises(InvalidArgument, match="whole number of at least 1"):
        _validate.count("steps", value)


def test_open_ends_are_excluded():
    for check, values in (
        (_validate.delta, (0.0, 1.0)),
        (_validate.epsilon, (0.0, math.inf)),
    ):
        for value in values:
            with pytest.raises(InvalidArgument):
                check(value)


def test_choices_are_listed():
    with pytest.raises(InvalidArgument, match="'a', 'b'"):
        _validate.choice("kind", "c", ("a", "b"))
