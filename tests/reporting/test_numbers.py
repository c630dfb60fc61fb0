"""Figures that may be quoted: rounding never makes a claim stronger."""

import math

import pytest
from hypothesis import given, strategies as st

from dpfy.reporting.numbers import delta_text, epsilon_text, percent_text


@given(st.floats(min_value=1e-300, max_value=1e300))
def test_what_is_shown_is_never_below_the_claim_nor_far_above(value):
    shown = float(epsilon_text(value))
    assert shown >= value * (
        1 - 1e-15
    )  # reading the decimal back may round by half a unit in the last place
    assert shown <= value * 1.01 + 1e-12 or shown - value <= 1e-3


@given(st.floats(min_value=1e-300, max_value=1e300))
def test_a_lower_bound_is_never_shown_above_itself(value):
    assert float(epsilon_text(value, lower=True)) <= value * (1 + 1e-15)


@given(st.floats(min_value=1e-300, max_value=1.0))
def test_delta_is_rounded_up_in_scientific_notation(value):
    shown = delta_text(value)
    assert "e" in shown and value * (1 - 1e-15) <= float(shown) <= value * 1.01


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (3.0, "3.000"),
        (2.9990000001, "3.000"),
        (2.9995, "3.000"),
        (0.1 + 0.2, "0.301"),
        (1e-9, "1e-9"),
        (0.0, "0"),
        (math.inf, "∞"),
        (1234567.0, "1.24e6"),
        (9.9996e-3, "0.01000"),
    ],
)
def test_epsilon(value, shown):
    assert epsilon_text(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"), [(1e-5, "1e-5"), (9.999e-6, "1e-5"), (0.5, "5e-1"), (0.0, "0")]
)
def test_delta(value, shown):
    assert delta_text(value) == shown


def test_a_share_is_rounded_up():
    assert percent_text(0.50001) == "50.1 %"
    assert percent_text(1.0) == "100.0 %"
