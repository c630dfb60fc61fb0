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
from dpfy.labels import NoisyLabels, PriorResponse, randomized_response
from dpfy.labels.response import RULES
from dpfy.noise import SecureStream

PRIORS = (
    [0.2, 0.5, 0.3],
    [1.0, 0.0, 0.0],
    [0.34, 0.33, 0.33],
    [0.0, 0.02, 0.98],
    [7.0, 7.0, 0.1],
    [0.1, 0.7, 0.1, 0.05, 0.05],
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


def laws_of(mechanism, prior, monkeypatch):
    """The exact law of the answer, for each label."""
    return [
        law_of(lambda y=y: mechanism.release([y], [prior], None).labels.item(), monkeypatch)
        for y in range(len(prior))
    ]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("prior", PRIORS)
def test_response_with_any_prior_is_within_its_epsilon(monkeypatch, epsilon, prior, rule):
    mechanism = PriorResponse(len(prior), epsilon, rule)
    laws = laws_of(mechanism, prior, monkeypatch)
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
    cells = PriorResponse(len(prior), epsilon, "truth").cells(np.array([prior]))[0]
    likely = np.flatnonzero(cells >= 0)
    best, odds = sorted(prior, reverse=True), math.exp(epsilon)

    def right(k):
        return odds / (odds + k - 1) * sum(best[:k])

    assert right(len(likely)) >= max(right(k) for k in range(1, len(prior) + 1)) * (1 - 1e-9)
    assert min(prior[each] for each in likely) >= best[len(likely) - 1]


@given(
    st.lists(st.floats(1e-6, 1), min_size=2, max_size=6),
    st.floats(0.05, 8),
)
@settings(deadline=None)
def test_an_answer_tells_at_least_as_much_as_simpler_ones_would(prior, epsilon):
    """Mutual information of label and answer, from their joint law: all classes alone, or the
    likeliest one against the rest, where it is as likely as all others."""
    mechanism, classes = PriorResponse(len(prior), epsilon), len(prior)
    shares = np.array(prior) / sum(prior)

    def told(cells):
        joint = mechanism._likelihood(np.arange(classes), np.tile(cells, (classes, 1))) * shares
        return (joint * np.log(joint / (joint.sum(0) * joint.sum(1)[:, None]))).sum()

    chosen = told(mechanism.cells(np.array([prior]))[0])
    assert chosen >= told(np.arange(classes)) - 1e-9
    if shares.max() >= 0.5:
        assert chosen >= told((np.arange(classes) != shares.argmax()).astype(int)) - 1e-9


def test_without_a_prior_public_chance_divides_the_classes():
    """Every two classes are apart for about as many records, so that none are confused."""
    cells = PriorResponse(10, 1.0).cells(np.ones((4000, 10)))
    apart = np.array([[(cells[:, a] != cells[:, b]).mean() for a in range(10)] for b in range(10)])
    several = apart[~np.eye(10, dtype=bool)]
    # three cells of 3, 3 and 4: 33 of 45 pairs; a standard deviation is 0.007
    assert np.abs(several - 33 / 45).max() < 6 * 0.007


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("prior", PRIORS)
def test_likelihoods_are_the_law_of_the_answers(monkeypatch, prior, rule):
    """Every answer to every label has the probability that training is told."""
    mechanism = PriorResponse(len(prior), 1.0, rule)
    laws = laws_of(mechanism, prior, monkeypatch)
    cells = mechanism.cells(np.array([prior]))
    for answer in set().union(*laws):
        told = mechanism._likelihood(np.array([answer]), cells)[0]
        assert told == pytest.approx([float(law.get(answer, 0)) for law in laws], rel=1e-12)


def test_without_a_prior_the_rule_of_truth_is_randomized_response(monkeypatch):
    """LP-1ST is randomized response."""
    one = law_of(lambda: drawn([1], 4, 0.7), monkeypatch)
    mechanism = PriorResponse(4, 0.7, "truth")
    other = law_of(lambda: tuple(mechanism.release([1], None, None).labels.tolist()), monkeypatch)
    assert one == other
    found = mechanism.release([1] * 50, None, SecureStream(insecure_test_key=1))
    expected = NoisyLabels.of_response(found.labels, 4, 0.7)
    assert torch.allclose(found.likelihood, expected.likelihood)


def test_a_sure_prior_answers_without_the_label_by_the_rule_of_truth_only(monkeypatch):
    prior = [0.01, 0.98, 0.01]
    for law in laws_of(PriorResponse(3, 1.0, "truth"), prior, monkeypatch):
        assert law == {1: Fraction(1)}
    other, same, _ = laws_of(PriorResponse(3, 1.0), prior, monkeypatch)
    assert same[1] > 0.73 > 0.27 > other[1] and other[0] == other[2]


def test_frequencies_are_those_of_this_epsilon_and_no_other():
    """A χ² test at 1e-7 accepts the right ε, and rejects two thirds and three halves of it."""
    count, classes, epsilon = 10_000, 4, 1.0
    noisy = PriorResponse(classes, epsilon, "truth").release(
        [2] * count, None, SecureStream(insecure_test_key=11)
    )
    seen = torch.bincount(noisy.labels, minlength=classes).numpy()
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
    assert len(PriorResponse(3, 1.0).release([], np.zeros((0, 3)), None)) == 0


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


def test_a_rule_that_is_none_is_refused():
    with pytest.raises(InvalidArgument, match="rule='best'"):
        PriorResponse(3, 1.0, "best")
