"""Mechanisms that answer once: laws of their answers, their cost, and that nothing is read before
it is paid for.

Frequencies are compared within 5.4 standard deviations: a false alarm has probability below 1e-7.
"""

import math

import numpy as np
import pytest

from dpfy.accounting import GaussianFilter, ZcdpFilter, account, calibrate_noise
from dpfy.errors import BudgetExhausted, InvalidArgument, LedgerMismatch, UnsupportedEvent
from dpfy.ledger import Header, Ledger
from dpfy.mechanisms.one_shot import (
    DiscreteGaussian,
    ExponentialMechanism,
    Gaussian,
    Laplace,
    LaplaceVector,
    PermuteAndFlip,
    RandomizedResponse,
    ReportNoisyMax,
    SparseVector,
    release,
)
from dpfy.noise import SecureStream, lattice_step

DRAWS = 1500
SCORES = [1.0, 3.0, 0.1, 1.6]
SCALE = 0.9


def stream(key=1):
    return SecureStream(insecure_test_key=key)


def frequent(seen, odds, draws=DRAWS):
    return abs(seen - draws * odds) <= 5.4 * math.sqrt(draws * odds * (1 - odds)) + 1e-9


def softmax(scale):
    odds = np.exp(np.array(SCORES) / scale)
    return odds / odds.sum()


def flips(scale):
    """The law of permute-and-flip, by integration: E_i is the largest score with exponential
    noise.
    """
    x = np.linspace(max(SCORES), max(SCORES) + 60 * scale, 200_001)
    below = [-np.expm1(-(x - score) / scale) for score in SCORES]
    law = []
    for i, score in enumerate(SCORES):
        density = (
            np.exp(-(x - score) / scale)
            / scale
            * math.prod(below[j] for j in range(len(SCORES)) if j != i)
        )
        law.append(density.sum() * (x[1] - x[0]))
    return np.array(law) / sum(law)


def laplaces(scale):
    """The law of the largest score with Laplace noise, by integration."""
    x = np.linspace(min(SCORES) - 40 * scale, max(SCORES) + 40 * scale, 400_001)
    below = [
        np.where(x < score, np.exp((x - score) / scale) / 2, 1 - np.exp(-(x - score) / scale) / 2)
        for score in SCORES
    ]
    law = [
        (
            np.exp(-np.abs(x - score) / scale)
            / (2 * scale)
            * math.prod(below[j] for j in range(len(SCORES)) if j != i)
        ).sum()
        for i, score in enumerate(SCORES)
    ]
    return np.array(law) / sum(law)


@pytest.mark.parametrize(
    ("mechanism", "law"),
    [(ExponentialMechanism, softmax), (PermuteAndFlip, flips), (ReportNoisyMax, laplaces)],
)
def test_choices_have_their_law_and_no_other(mechanism, law):
    source = stream()
    chosen = np.bincount(
        [mechanism(1.0, SCALE).release(SCORES, source) for _ in range(DRAWS)], minlength=4
    )
    assert all(frequent(seen, odds) for seen, odds in zip(chosen, law(SCALE), strict=True))
    for factor in (2 / 3, 3 / 2):
        assert not all(
            frequent(seen, odds) for seen, odds in zip(chosen, law(SCALE * factor), strict=True)
        )


@pytest.mark.parametrize("mechanism", [ExponentialMechanism, PermuteAndFlip, ReportNoisyMax])
def test_choices_take_any_score(mechanism):
    chosen = mechanism(1.0, 1e-3)
    assert chosen.release([1e300, -1e300, 0.0], stream()) == 0
    assert chosen.release([math.nan, 5.0, 1.0, -math.inf], stream()) == 1
    assert chosen.release([math.nan], stream()) == 0
    with pytest.raises(InvalidArgument, match="candidate"):
        chosen.release([], stream())


def test_laplace_noise_has_its_scale_on_a_lattice():
    source, mechanism = stream(2), Laplace(1.0, 2.5)
    answers = np.array([mechanism.release(7.3, source) for _ in range(DRAWS)])
    assert all(value % lattice_step(2.5) == 0 for value in answers)
    drawn = answers - 7.3
    for level in (-3.0, -0.5, 0.5, 3.0):

        def odds(scale, at=level):
            return math.exp(at / scale) / 2 if at < 0 else 1 - math.exp(-at / scale) / 2

        assert frequent((drawn < level).sum(), odds(2.5))
    for factor in (2 / 3, 3 / 2):
        assert not frequent((drawn < 3.0).sum(), 1 - math.exp(-3.0 / (2.5 * factor)) / 2)


def test_the_noise_makes_up_for_rounding():
    """A sensitivity of a quarter step: rounding may move two values five quarters apart, and the
    noise has to hide it.
    """
    step = lattice_step(1.0)
    source, mechanism = stream(3), Laplace(step / 4, 1.0)
    drawn = np.array([mechanism.release(0.0, source) for _ in range(DRAWS)])
    assert frequent((np.abs(drawn) < 5 * math.log(2)).sum(), 0.5)


def test_a_vector_has_independent_laplace_noise_of_its_scale():
    mechanism = LaplaceVector(3.0, 2.5)
    answers = mechanism.release(np.full((DRAWS // 4, 4), 7.3), stream(5)).numpy()
    assert answers.shape == (DRAWS // 4, 4) and np.all(answers % lattice_step(2.5) == 0)
    drawn = answers - 7.3
    assert frequent((np.abs(drawn) < 2.0).sum(), 1 - math.exp(-2.0 / 2.5))
    for factor in (2 / 3, 3 / 2):
        assert not frequent((np.abs(drawn) < 2.0).sum(), 1 - math.exp(-2.0 / (2.5 * factor)))
    both = (drawn[:, 0] > 0) & (drawn[:, 1] > 0)
    assert frequent(both.sum(), 0.25, DRAWS // 4)  # one noise for all numbers would have ½
    empty = mechanism.release([], stream())
    assert (
        empty.shape == (0,) and mechanism.release([math.nan, math.inf], stream()).isfinite().all()
    )


def test_the_noise_of_a_vector_makes_up_for_rounding_of_every_number():
    """Eight numbers may move by a step each when they are rounded, beside a quarter step in all."""
    step = lattice_step(1.0)
    drawn = np.concatenate(
        [
            LaplaceVector(step / 4, 1.0).release(np.zeros(8), source).numpy()
            for source in (stream(6),)
            for _ in range(DRAWS // 8)
        ]
    )
    assert frequent((np.abs(drawn) < 33 * math.log(2)).sum(), 0.5, len(drawn))


def test_gaussian_noise_has_its_scale():
    mechanism = Gaussian(2.0, stddev=3.0)
    drawn = mechanism.release(np.full(4000, 1.5), stream(4)).numpy() - 1.5
    variance = drawn.var()
    assert abs(variance / 9.0 - 1) <= 5.4 * math.sqrt(2 / 4000)
    assert mechanism.release([math.nan, math.inf], stream(4)).isfinite().all()


def test_discrete_gaussian_answers_are_whole():
    mechanism = DiscreteGaussian(3.0, stddev=4.0, coordinates=2)
    drawn = np.array([mechanism.release([10, -2], stream(key)) for key in range(150)])
    assert drawn.dtype.kind == "i" and np.abs(
        drawn.mean(axis=0) - [10, -2]
    ).max() <= 5.4 * 4 / math.sqrt(150)
    with pytest.raises(InvalidArgument, match="2 whole numbers"):
        mechanism.release([1], stream())


def test_responses_are_true_as_often_as_declared():
    truth, answers = 0.6, 3
    told = np.array(RandomizedResponse(truth, answers).release([2] * DRAWS, stream(5)))
    assert frequent((told == 2).sum(), truth)
    assert frequent((told == 0).sum(), (1 - truth) / 2) and frequent(
        (told == 1).sum(), (1 - truth) / 2
    )
    assert not frequent((told == 2).sum(), 0.5) and not frequent((told == 2).sum(), 0.7)
    assert RandomizedResponse(1.0).release([-3, 7, 1], stream()) == [0, 0, 1]


def test_a_search_compares_two_laplace_numbers():
    source, scale, gap = stream(6), 2.0, 3.0
    mechanism = SparseVector(10.0, 1.0, scale, scale)
    draws = 3 * DRAWS
    above = sum(mechanism.release([10.0 - gap], source) == 0 for _ in range(draws))

    def odds(of):  # that the difference of two Laplace numbers exceeds the gap
        return math.exp(-gap / of) / 2 * (1 + gap / (2 * of))

    assert frequent(above, odds(scale), draws) and not frequent(above, odds(scale * 2 / 3), draws)
    assert not frequent(above, odds(scale * 3 / 2), draws)


def test_the_threshold_keeps_its_noise_and_every_number_has_its_own():
    steady = SparseVector(0.0, 1.0, threshold_scale=1.0, query_scale=1e-6)
    for key in range(40):
        first, *more = (steady.begin(stream(key)), *[None] * 5)
        answers = []
        for _ in range(20):
            answers.append(first.is_above(0.3))
            if first.ended:
                break
        assert len(set(answers)) == 1, (
            more
        )  # a threshold drawn anew would sooner or later be crossed
    fresh = SparseVector(0.0, 1.0, threshold_scale=1e-6, query_scale=1.0)
    places = [fresh.release([-1.0] * 200, stream(key)) for key in range(40)]
    assert None not in places and len(set(places)) > 3  # noise drawn once would say 0 or nothing


def test_a_search_ends_with_the_first_number_above():
    search = SparseVector.with_epsilon(2.0, threshold=0.0).begin(stream())
    assert not search.is_above(-1e6) and search.is_above(1e6) and search.ended
    with pytest.raises(InvalidArgument, match="over"):
        search.is_above(-1e6)
    assert SparseVector.with_epsilon(2.0, threshold=0.0).release(
        [-1e6, math.nan, -1e6], stream()
    ) in (None, 1)

    def numbers():
        yield 1e6
        raise AssertionError("asked for a number after the last answer")

    assert SparseVector.with_epsilon(2.0, threshold=0.0).release(numbers(), stream()) == 0


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
@pytest.mark.parametrize(
    "make",
    [
        Laplace.with_epsilon,
        LaplaceVector.with_epsilon,
        ExponentialMechanism.with_epsilon,
        PermuteAndFlip.with_epsilon,
        ReportNoisyMax.with_epsilon,
        RandomizedResponse.with_epsilon,
        lambda epsilon: RandomizedResponse.with_epsilon(epsilon, 5),
        lambda epsilon: SparseVector.with_epsilon(epsilon, 3.0),
        lambda epsilon: SparseVector.with_epsilon(epsilon, 3.0, monotone=True),
        lambda epsilon: ReportNoisyMax.with_epsilon(epsilon, 4.0, monotone=True),
    ],
)
def test_what_was_asked_for_is_what_it_costs(make, epsilon):
    claim = account(make(epsilon).event).claim(1e-15)
    assert 0.999 * epsilon <= claim <= epsilon * (1 + 1e-9)


def test_gaussian_noise_for_any_epsilon():
    for epsilon in (0.2, 3.0, 30.0):
        noise = calibrate_noise(epsilon=epsilon, delta=1e-6, rate=1.0, steps=1)
        assert account(Gaussian(2.0, 2.0 * noise).event).claim(1e-6) <= epsilon * (1 + 1e-9)


def test_nothing_is_computed_before_it_is_paid_for():
    header = Header(key_source="insecure test key", filter=ZcdpFilter(rho=0.6).to_json())
    with Ledger.in_memory(ZcdpFilter(rho=0.6).guard(), header) as ledger:
        seen = []

        def compute():
            seen.append(ledger.count)
            return SCORES

        chosen = release(
            PermuteAndFlip(1.0, 2.0), ledger, compute, stream(), adaptive=True
        )  # ε = 1, ρ = ½
        assert chosen in range(4) and seen == [1] and ledger.uses[0].event.adaptive
        with pytest.raises(BudgetExhausted):
            release(PermuteAndFlip(1.0, 2.0), ledger, compute, stream(), adaptive=True)
        assert seen == [1]
        release(
            ExponentialMechanism(1.0, 3.0), ledger, compute, stream(), adaptive=True
        )  # ε = ⅔, ρ = 1/18
        assert seen == [1, 2]
    assert account(ledger).claim(1e-5) < 6


def test_a_test_key_needs_a_ledger_that_says_so():
    with Ledger.in_memory() as ledger:
        with pytest.raises(LedgerMismatch, match="insecure test key"):
            release(Laplace(1.0, 1.0), ledger, lambda: 3.0, stream())
        assert ledger.count == 0
        release(Laplace(1.0, 1.0), ledger, lambda: 3.0)
        assert ledger.count == 1


def test_gaussian_filters_refuse_what_is_not_gaussian():
    with pytest.raises(UnsupportedEvent, match="Gaussian noise only"):
        GaussianFilter(1.0).guard().admit(Laplace(1.0, 1.0).event, 1)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Laplace(0.0, 1.0),
        lambda: LaplaceVector(1.0, 0.0),
        lambda: Gaussian(1.0, math.nan),
        lambda: DiscreteGaussian(1.0, 1.0, 0),
        lambda: SparseVector(math.inf, 1.0, 1.0, 1.0),
        lambda: RandomizedResponse(0.2, 3),
        lambda: RandomizedResponse(0.9, 1),
        lambda: PermuteAndFlip.with_epsilon(0.0),
    ],
)
def test_what_has_no_meaning_is_refused(make):
    with pytest.raises(InvalidArgument):
        make()
