"""Randomized response on labels has exact odds, and its ε for every replaced label."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from exact_draws import largest_ratio, law_of
from hypothesis import given, settings, strategies as st
from scipy.stats import chi2

from dpfy import Ledger, account
from dpfy.errors import InvalidArgument
from dpfy.labels import PriorResponse, randomized_response
from dpfy.labels.response import uniform_priors
from dpfy.noise import SecureStream

PRIORS = (
    [0.2, 0.5, 0.3],
    [1.0, 0.0, 0.0],
    [0.34, 0.33, 0.33],
    [0.0, 0.02, 0.98],
    [7.0, 7.0, 0.1],
)


def drawn(y, classes, epsilon):
    with Ledger.in_memory() as ledger:
        return tuple(randomized_response(y, classes, epsilon, ledger).tolist())


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_randomized_response_is_exactly_its_epsilon_for_each_label(monkeypatch, epsilon):
    """Both labels of two records are replaced by both other classes: nine data sets in all."""
    laws = {
        y: law_of(lambda y=y: drawn(y, 3, epsilon), monkeypatch)
        for y in itertools.product(range(3), repeat=2)
    }
    for y, other in itertools.combinations(laws, 2):
        if sum(a != b for a, b in zip(y, other, strict=True)) == 1:
            ratio = math.log(largest_ratio(laws[y], laws[other]))
            assert epsilon * (1 - 1e-9) <= ratio <= epsilon  # and none of it is wasted


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("prior", PRIORS)
def test_response_with_any_prior_is_within_its_epsilon(monkeypatch, epsilon, prior):
    mechanism = PriorResponse(3, epsilon)
    laws = [
        law_of(lambda y=y: mechanism.release([y], [prior], None).item(), monkeypatch)
        for y in range(3)
    ]
    for one, other in itertools.combinations(laws, 2):
        assert math.log(largest_ratio(one, other)) <= epsilon
    claim = account(mechanism.event, relation="replace_one").claim(1e-9)
    assert epsilon * (1 - 1e-6) < claim <= epsilon * (1 + 1e-9)


@given(
    st.lists(st.floats(0, 1), min_size=2, max_size=6).filter(lambda p: sum(p) > 0),
    st.floats(0.01, 8),
)
@settings(deadline=None)
def test_as_many_classes_are_likely_as_make_a_true_answer_likeliest(prior, epsilon):
    """The k of Ghazi et al.: against all k, computed from the formula."""
    likely = PriorResponse(len(prior), epsilon).likely(np.array(prior))
    best, odds = sorted(prior, reverse=True), math.exp(epsilon)

    def right(k):
        return odds / (odds + k - 1) * sum(best[:k])

    assert right(len(likely)) >= max(right(k) for k in range(1, len(prior) + 1)) * (1 - 1e-9)
    assert min(prior[each] for each in likely) >= best[len(likely) - 1]


def test_a_prior_that_knows_nothing_asks_among_all_classes(monkeypatch):
    """LP-1ST is randomized response."""
    one = law_of(lambda: drawn([1], 4, 0.7), monkeypatch)
    mechanism = PriorResponse(4, 0.7)
    other = law_of(
        lambda: tuple(mechanism.release([1], uniform_priors(1, 4), None).tolist()), monkeypatch
    )
    assert one == other


def test_a_sure_prior_answers_without_the_label(monkeypatch):
    law = law_of(
        lambda: PriorResponse(3, 1.0).release([0], [[0.0, 1.0, 0.0]], None).item(), monkeypatch
    )
    assert law == {1: Fraction(1)}


def test_frequencies_are_those_of_this_epsilon_and_no_other():
    """A χ² test at 1e-7 accepts the right ε, and rejects two thirds and three halves of it."""
    count, classes, epsilon = 10_000, 4, 1.0
    noisy = PriorResponse(classes, epsilon).release(
        [2] * count, uniform_priors(count, classes), SecureStream(insecure_test_key=11)
    )
    seen = torch.bincount(noisy, minlength=classes).numpy()
    for factor in (1.0, 2 / 3, 1.5):
        truth = math.exp(factor * epsilon) / (math.exp(factor * epsilon) + classes - 1)
        expected = np.full(classes, (1 - truth) / (classes - 1))
        expected[2] = truth
        statistic = ((seen - count * expected) ** 2 / (count * expected)).sum()
        assert (chi2.sf(statistic, classes - 1) > 1e-7) == (factor == 1.0)


def test_no_labels_one_label_and_labels_of_one_class():
    assert drawn([], 3, 1.0) == ()
    assert drawn([2], 3, 30.0) == (2,)
    assert drawn([1] * 5, 3, 30.0) == (1,) * 5
    assert drawn([1, 7, -1, float("nan"), None], 3, 30.0) == (1, 0, 0, 0, 0)
    assert PriorResponse(3, 1.0).release([], np.zeros((0, 3)), None).shape == (0,)


@pytest.mark.parametrize(
    ("classes", "epsilon", "message"),
    [(1, 1.0, "answers=1"), (3, 0.0, "epsilon=0"), (3, math.inf, "epsilon=inf"), (0, 1.0, "=0")],
)
def test_declarations_out_of_range_are_refused(classes, epsilon, message):
    with Ledger.in_memory() as ledger:
        with pytest.raises(InvalidArgument, match=message):
            randomized_response([0], classes, epsilon, ledger)
        assert ledger.count == 0


@pytest.mark.parametrize(
    "priors", [[[0.5, 0.5]], [[0.5, 0.5, -0.1]], [[0.0, 0.0, 0.0]], [[math.nan, 1.0, 1.0]], []]
)
def test_priors_that_are_none_are_refused(priors):
    with pytest.raises(InvalidArgument, match="Expected priors"):
        PriorResponse(3, 1.0).release([0], priors, SecureStream())
