"""Randomised response for reports: the exact law of a report, and counts without bias."""

import math

import numpy as np
import pytest

from dpfy.errors import InvalidArgument
from dpfy.local import RandomizedResponse, UnaryEncoding
from dpfy.noise import SecureStream

PEOPLE, TRIALS = 60, 400


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("values", [2, 3, 20])
def test_the_odds_of_a_true_report_are_those_of_epsilon(values, epsilon):
    response = RandomizedResponse(values, epsilon)
    ratio = response.truth / response.lie
    assert math.exp(epsilon) * (1 - 1e-12) < ratio <= math.exp(epsilon) * (1 + 1e-15)
    assert response.truth + (values - 1) * response.lie == pytest.approx(1, abs=1e-15)


@pytest.mark.parametrize("method", [RandomizedResponse, UnaryEncoding])
def test_counts_have_no_bias_and_the_error_that_is_told(method):
    """Means and variances of 400 collections of 60 reports each.

    Means are within 5.5 standard errors but with a probability below 1e-6 for all; the ratio of
    squared errors and their variance, over 1,600 numbers, is within 0.6 and 1.5; of 2/3 and 3/2 of
    the scale it would be 2.25 and 0.44.
    """
    mechanism, stream = method(4, 1.2), SecureStream(insecure_test_key=7)
    truth = np.repeat(np.arange(4), (30, 20, 10, 0))
    deviations, told = [], []
    for _ in range(TRIALS):
        found = mechanism.estimate([mechanism.draw(each, stream) for each in truth])
        deviations.append(found.counts - np.bincount(truth, minlength=4))
        told.append(found.errors)
        assert found.reports == PEOPLE and found.shares == pytest.approx(found.counts / PEOPLE)
    deviations, told = np.array(deviations), np.array(told)
    assert np.all(abs(deviations.mean(axis=0)) < 5.5 * told.mean(axis=0) / math.sqrt(len(told)))
    ratio = float(np.mean(deviations**2 / told**2))
    for scale, right in ((1, True), (2 / 3, False), (3 / 2, False)):
        assert (0.6 < ratio / scale**2 < 1.5) is right


def test_the_variance_is_that_of_the_reports():
    response = RandomizedResponse(3, 1.0)
    found = response.estimate([0] * 30 + [1] * 50 + [2] * 20)
    p, q = response.truth, response.lie
    have = np.clip((np.array([30, 50, 20]) - 100 * q) / (p - q), 0, 100)
    exact = (have * p * (1 - p) + (100 - have) * q * (1 - q)) / (p - q) ** 2
    assert found.variances == pytest.approx(exact)
    assert found.least_error == pytest.approx(math.sqrt(100 * q * (1 - q)) / (p - q))


def test_what_is_no_report_is_left_out():
    assert RandomizedResponse(3, 1.0).estimate([0, 1, 7, -1]).reports == 2
    assert RandomizedResponse(3, 1.0).estimate([]).counts.tolist() == [0, 0, 0]


@pytest.mark.parametrize("method", [RandomizedResponse, UnaryEncoding])
@pytest.mark.parametrize(
    "arguments",
    [
        (1, 1.0),
        (3, 0.0),
        (3, math.nan),
        (3, math.inf),
        (3, 1.0, 0),
        (2.5, 1.0),
        (3, 1e-10),
        (3, 701.0),
    ],
)
def test_declarations_out_of_range_are_refused(method, arguments):
    with pytest.raises(InvalidArgument):
        method(*arguments)
