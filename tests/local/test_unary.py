"""Unary encoding: the exact law of a report, its privacy by enumeration, and its error."""

import math
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from dpfy import account
from dpfy.local import RandomizedResponse, UnaryEncoding
from dpfy.local.person import report_event
from dpfy.noise import SecureStream


def law(encoding, value):
    """The probability of every report about a value, as fractions."""
    lie = Fraction(encoding.lie)
    one = [Fraction(1, 2) if each == value else lie for each in range(encoding.values)]
    return {
        bits: math.prod(p if bit else 1 - p for bit, p in zip(bits, one, strict=True))
        for bits in product((0, 1), repeat=encoding.values)
    }


@pytest.mark.parametrize("epsilon", [1e-3, 0.3, 1.0, 4.0, 30.0])
@pytest.mark.parametrize("values", [2, 5])
def test_no_report_is_more_than_e_to_the_epsilon_likelier_for_another_value(values, epsilon):
    encoding = UnaryEncoding(values, epsilon)
    laws = [law(encoding, value) for value in range(values)]
    worst = max(one[bits] / other[bits] for one in laws for other in laws for bits in one)
    assert worst <= Fraction(math.exp(epsilon)) * (1 + Fraction(1, 10**15))
    assert worst > Fraction(math.exp(epsilon)) * (1 - Fraction(1, 10**12))  # and no less is told


@pytest.mark.parametrize("epsilon", [1e-9, 40.0, 700.0])
def test_the_odds_are_those_of_epsilon_or_less_at_the_ends_of_its_range(epsilon):
    """By decimal arithmetic of 400 digits; odds of 0 would have no ε at all."""
    with localcontext(prec=400):
        power = Decimal(epsilon).exp()
        for values in (2, 3, 10**6):
            lie = UnaryEncoding(values, epsilon).lie
            truth = RandomizedResponse(values, epsilon).truth
            assert 1 / (power + 1) <= Decimal(lie) < Decimal("0.5")
            assert 1 / Decimal(values) < Decimal(truth) <= power / (power + values - 1) < 1


def test_reports_have_this_law_and_no_other():
    """Chi-square of 4,000 reports over 8 sets of bits; 52 is exceeded with probability 1e-8."""
    encoding, stream = UnaryEncoding(3, 1.0), SecureStream(insecure_test_key=3)
    drawn = [encoding.draw(1, stream) for _ in range(4000)]

    def distance(expected):
        return sum(
            (drawn.count(bits) - 4000 * float(p)) ** 2 / (4000 * float(p))
            for bits, p in expected.items()
        )

    assert distance(law(encoding, 1)) < 52
    for epsilon in (2 / 3, 3 / 2):
        assert distance(law(UnaryEncoding(3, epsilon), 1)) > 52
    assert distance(law(encoding, 0)) > 52


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
def test_the_ledger_charges_the_loss_of_the_law(epsilon):
    """By an independent sum over all reports: δ(ε′) of two of them, and what dpfy claims."""
    encoding = UnaryEncoding(3, epsilon)
    one, other = law(encoding, 0), law(encoding, 1)
    for below in (0.3 * epsilon, epsilon, 1.6 * epsilon):
        exact = sum(
            max(float(one[a] * one[b]) - math.exp(below) * float(other[a] * other[b]), 0.0)
            for a in one
            for b in one
        )
        claimed = account([report_event(epsilon)] * 2, relation="replace_one", unit="report").delta(
            below
        )
        assert claimed.upper >= exact * (1 - 1e-9)


def test_the_error_does_not_grow_with_the_number_of_values():
    few, many = UnaryEncoding(3, 1.0), UnaryEncoding(1000, 1.0)
    empty = np.zeros((100, 3)), np.zeros((100, 1000))
    assert few.estimate(empty[0]).least_error == many.estimate(empty[1]).least_error
    for values in (3, 10, 12, 1000):  # 3e + 2 = 10.2
        response = RandomizedResponse(values, 1.0).estimate([0] * 100).least_error
        unary = UnaryEncoding(values, 1.0).estimate(np.zeros((100, values))).least_error
        assert (response < unary) == (values < 3 * math.e + 2)


def test_what_is_no_report_is_left_out():
    found = UnaryEncoding(2, 1.0).estimate([(1, 0), (1,), (0, 1, 1)])
    assert found.reports == 1 and found.support.tolist() == [1, 0]
