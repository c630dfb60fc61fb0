"""Counts from supports, where coins say nothing and where there are no reports."""

import numpy as np

from dpfy.local import Frequencies


def test_true_answers_are_counted_as_they_are():
    found = Frequencies(np.array([3.0, 7.0]), 10, truth=1.0, lie=0.0)
    assert found.counts.tolist() == [3, 7] and found.errors.tolist() == [0, 0]


def test_no_reports_tell_nothing_without_an_error():
    found = Frequencies(np.zeros(3), 0, truth=0.5, lie=0.2)
    assert found.counts.tolist() == found.shares.tolist() == found.errors.tolist() == [0, 0, 0]


def test_an_estimate_beyond_the_reports_has_the_variance_of_all_of_them():
    found = Frequencies(np.array([100.0]), 100, truth=0.5, lie=0.25)
    assert found.counts[0] == 300 and found.variances[0] == 100 * 0.25 / 0.25**2
