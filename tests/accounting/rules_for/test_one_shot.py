"""Queries that are answered once: their pairs against brute force, closed forms and another
library.
"""

import itertools
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as theirs
from scipy.stats import binom

from dpfy.accounting import RenyiFilter, ZcdpFilter, account
from dpfy.accounting.dominating_pairs import of_distribution
from dpfy.accounting.loss_distributions import DiscreteGaussian, Range, Table, response
from dpfy.accounting.rdp import renyi_divergence
from dpfy.accounting.rules_for.discrete_gaussian_vector import (
    DiscreteGaussianVector,
    _ways,
    by_zcdp,
    divided,
    rounded_gaussian,
)
from dpfy.accounting.rules_for.one_shot import exchanged
from dpfy.errors import BudgetExhausted, InvalidArgument, UnsupportedEvent
from dpfy.ledger.events import (
    BallsInBins,
    Cyclic,
    Event,
    FixedSize,
    LaplaceSum,
    Poisson,
    Repeated,
    Sampled,
    Shuffled,
    SumQuery,
    TruncatedPoisson,
)
from dpfy.ledger.one_shot import (
    AboveThreshold,
    DiscreteGaussianSum,
    ExponentialChoice,
    LabelAnswer,
    NoisyMax,
    RandomizedAnswer,
)

DELTA = 1e-5


def run(query, times=1, rate=1.0):
    return Repeated(Sampled(Poisson(rate), (query,)), times)


def hockey_stick(p, q, epsilon):
    return np.maximum(np.asarray(p) - math.exp(epsilon) * np.asarray(q), 0).sum()


def responses(epsilon, times):
    """δ at any ε of randomised response, repeated: the loss counts heads."""
    heads = np.arange(times + 1)
    p, q = (binom.pmf(heads, times, 1 / (1 + math.exp(sign * epsilon))) for sign in (-1, 1))
    return lambda at: hockey_stick(p, q, at)


@pytest.mark.parametrize(("truth", "times"), [(0.75, 1), (0.55, 30), (0.502, 2000)])
def test_randomised_response_is_a_binomial(truth, times):
    guarantee = account(run(RandomizedAnswer(truth), times))
    exact = responses(math.log(truth / (1 - truth)), times)
    epsilon = guarantee.epsilon(DELTA)
    assert (
        exact(epsilon.upper * (1 + 1e-9)) <= DELTA * (1 + 1e-6)
        and exact(epsilon.lower * (1 - 1e-9)) >= DELTA / 1.01
    )
    assert epsilon.upper - epsilon.lower <= 1e-3 * epsilon.upper
    for at in (0.0, epsilon.upper / 2):
        lower, upper = guarantee.delta(at)
        assert lower * (1 - 1e-9) <= exact(at) <= upper * (1 + 1e-9)


def test_more_answers_have_a_third_outcome_that_says_nothing():
    truth, answers, epsilon = 0.5, 4, 0.3
    lie = (1 - truth) / (answers - 1)
    p, q = [truth, lie, lie, lie], [lie, truth, lie, lie]
    pairs = [
        np.array(
            [math.prod(row[i] for i in places) for places in itertools.product(range(4), repeat=3)]
        )
        for row in (p, q)
    ]
    lower, upper = account(run(RandomizedAnswer(truth, answers), 3)).delta(epsilon)
    assert lower <= hockey_stick(*pairs, epsilon) <= upper <= 1.001 * lower


@pytest.mark.parametrize("rate", [1.0, 0.2])
def test_two_discrete_gaussians_are_what_their_outputs_say(rate):
    shift, stddev, epsilon = 2, 2.5, 0.7
    x = np.arange(-60, 63)
    q = np.exp(-(x**2) / (2 * stddev**2))
    p = np.exp(-((x - shift) ** 2) / (2 * stddev**2))
    p, q = p / p.sum(), q / q.sum()
    p = (1 - rate) * q + rate * p
    truth = hockey_stick(np.multiply.outer(p, p), np.multiply.outer(q, q), epsilon)
    lower, upper = account(run(DiscreteGaussianSum(shift, stddev), 2, rate)).delta(epsilon)
    assert lower <= truth * (1 + 1e-9) and truth <= upper * (1 + 1e-9) and upper <= 1.001 * lower


@pytest.mark.parametrize(("bound", "stddev", "times"), [(1, 1.0, 1), (1, 3.0, 20), (5, 8.0, 3)])
def test_discrete_gaussians_agree_with_another_library(bound, stddev, times):
    law = theirs.from_discrete_gaussian_mechanism(
        stddev, sensitivity=bound, value_discretization_interval=1e-3
    )
    other = law.self_compose(times).get_epsilon_for_delta(DELTA)
    lower, upper = account(run(DiscreteGaussianSum(bound, stddev), times)).epsilon(DELTA)
    assert lower <= other and abs(other - upper) <= 1e-3 * times


@pytest.mark.parametrize(("epsilon", "times"), [(0.5, 10), (0.05, 100)])
def test_pure_mechanisms_agree_with_another_library(epsilon, times):
    law = theirs.from_privacy_parameters(
        theirs.common.DifferentialPrivacyParameters(epsilon), value_discretization_interval=1e-5
    )
    other = law.self_compose(times).get_epsilon_for_delta(DELTA)
    lower, upper = account(run(NoisyMax(1.0, 2 / epsilon), times)).epsilon(DELTA)
    assert lower * (1 - 1e-3) <= other <= upper * (1 + 1e-3)
    assert account(run(NoisyMax(1.0, 1 / epsilon, monotone=True), times)).claim(
        DELTA
    ) == pytest.approx(upper, rel=1e-9)


def test_mixed_with_sampled_sums_agrees_with_another_library():
    steps, counts = run(SumQuery(1.0, 1.0), 500, rate=0.01), run(LaplaceSum(1.0, 4.0), 3)
    answers = run(RandomizedAnswer(1 / (1 + math.exp(-0.3))), 2)
    law = theirs.from_gaussian_mechanism(
        1.0, sampling_prob=0.01, value_discretization_interval=1e-4
    ).self_compose(500)
    law = law.compose(
        theirs.from_laplace_mechanism(4.0, value_discretization_interval=1e-4).self_compose(3)
    )
    law = law.compose(
        theirs.from_randomized_response(
            2 / (1 + math.exp(0.3)), 2, value_discretization_interval=1e-4
        ).self_compose(2)
    )
    lower, upper = account([steps, counts, answers]).epsilon(DELTA)
    assert lower * (1 - 1e-3) <= law.get_epsilon_for_delta(DELTA) <= upper * (1 + 1e-3)
    assert upper <= 1.0011 * lower


@pytest.mark.parametrize("order", [1.5, 8.0, 60.0, 200.0])
def test_divergences_of_sampled_discrete_gaussians_are_sums(order):
    shift, stddev, rate = 1, 2.0, 0.2
    x = np.arange(-200, 700.0)
    q = -(x**2) / (2 * stddev**2)
    q -= np.log(np.exp(q).sum())
    ratio = np.logaddexp(
        math.log(1 - rate), math.log(rate) + (2 * x * shift - shift**2) / (2 * stddev**2)
    )
    exact = max(
        np.logaddexp.reduce(q + order * ratio), np.logaddexp.reduce(q + (1 - order) * ratio)
    ) / (order - 1)
    found = renyi_divergence(of_distribution(DiscreteGaussian(shift, stddev), rate), order)
    assert exact <= found <= (exact * (1 + 1e-6) if order < 64 else order / 8 * (1 + 1e-9))


def choice(scores, scale):
    odds = np.exp((np.asarray(scores) - max(scores)) / scale)
    return odds / odds.sum()


@pytest.mark.parametrize(("monotone", "moves"), [(False, (-1.0, 0.0, 1.0)), (True, (0.0, 1.0))])
def test_the_range_law_dominates_every_small_exponential_mechanism(monotone, moves):
    """All ways in which one record can move four scores by 1, at several ε and two compositions."""
    scale, base, worst = 1.7, np.array([0.0, 0.4, 1.0, 2.5]), [0.0] * 4
    loss = ExponentialChoice(1.0, scale, monotone).largest_loss
    epsilons = tuple(loss * part for part in (-0.4, 0.0, 0.3, 0.6))
    law = of_distribution(Range(loss))
    once = [
        float(np.maximum(math.exp(loss / 2) - math.exp(at / 2), 0) ** 2 / math.expm1(loss))
        for at in epsilons
    ]
    for move in itertools.product(moves, repeat=4):
        p, q = choice(base + np.array(move), scale), choice(base, scale)
        losses = np.log(p / q)
        assert losses.max() - losses.min() <= loss * (1 + 1e-12)
        for p_one, q_one in ((p, q), (q, p)):
            found = [hockey_stick(p_one, q_one, at) for at in epsilons]
            worst = [max(pair) for pair in zip(worst, found, strict=True)]
            assert all(one <= bound * (1 + 1e-12) for one, bound in zip(found, once, strict=True))
            for order in (1.5, 2.0, 8.0, 40.0):
                divergence = math.log((p_one**order * q_one ** (1 - order)).sum()) / (order - 1)
                assert divergence <= renyi_divergence(law, order) * (1 + 1e-12)
    assert all(
        one > 0.4 * bound for one, bound in zip(worst, once, strict=True)
    )  # not a law for something else


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 3.0, 20.0])
def test_the_range_law_is_attained_by_pairs_of_two_outputs(epsilon):
    """At each order and ε some pair of losses t, t − ε has what the law says, and none has more."""
    t = np.linspace(0, epsilon, 20_001)[1:-1]
    high = np.expm1(epsilon - t) / math.expm1(epsilon)  # Q of the loss t
    for order in (1.1, 2.0, 16.0):
        worst = (
            np.log(high * np.exp(order * t) + (1 - high) * np.exp(order * (t - epsilon)))
            / (order - 1)
        ).max()
        found = renyi_divergence(of_distribution(Range(epsilon)), order)
        assert worst * (1 - 1e-9) <= found <= worst * (1 + 1e-5) + 1e-12
        assert found <= order * epsilon**2 / 8 * (1 + 1e-9)
    for at in (0.0, epsilon / 3):
        worst = (high * (np.exp(t) - math.exp(at)) * (t > at)).max()
        lower, upper = account(run(ExponentialChoice(1.0, 2 / epsilon))).delta(at)
        assert lower * (1 - 1e-6) <= worst <= upper * (1 + 1e-6) and upper <= worst * (1 + 1e-5)


def test_repeated_choices_cost_less_than_pure_and_no_less_than_two_outputs():
    chosen = account(run(ExponentialChoice(1.0, 20.0), 200)).epsilon(DELTA)
    pure = account(run(NoisyMax(1.0, 20.0), 200)).epsilon(DELTA)
    answers = account(run(RandomizedAnswer(1 / (1 + math.exp(-0.05))), 200)).epsilon(
        DELTA
    )  # losses ±ε/2
    assert answers.lower <= chosen.lower * (1 + 1e-3) and chosen.upper < 0.55 * pure.upper
    assert not account(run(ExponentialChoice(1.0, 20.0), 2)).exact


@pytest.mark.parametrize(
    "query",
    [
        ExponentialChoice(1.0, 3.0),
        NoisyMax(1.0, 3.0),
        AboveThreshold(1.0, 4.0, 9.0),
        RandomizedAnswer(0.6, 3),
        DiscreteGaussianSum(2, 3.0),
        LaplaceSum(1.0, 3.0),
    ],
)
@pytest.mark.parametrize("method", ["pld", "rdp"])
def test_sampling_helps_and_replacing_costs_more(query, method):
    claims = {
        (rate, relation): account(run(query, 4, rate), method, relation).claim(DELTA)
        for rate, relation in (
            (1.0, "add_or_remove_one"),
            (0.3, "add_or_remove_one"),
            (1.0, "zero_out"),
        )
    }
    claims[1.0, "replace_one"] = account(run(query, 4), method, "replace_one").claim(DELTA)
    assert (
        claims[0.3, "add_or_remove_one"]
        < claims[1.0, "add_or_remove_one"]
        == claims[1.0, "zero_out"]
    )
    assert claims[1.0, "add_or_remove_one"] <= claims[1.0, "replace_one"] * (1 + 1e-9)


def test_a_sampled_pure_step_has_the_closed_form():
    rate, loss = 0.1, 1.0
    claim = account(run(NoisyMax(1.0, 2 / loss), 1, rate)).claim(1e-12)
    assert claim == pytest.approx(math.log1p(rate * math.expm1(loss)), rel=1e-6)
    doubled = account(run(NoisyMax(1.0, 2 / loss), 1, rate), relation="replace_one").claim(1e-12)
    assert doubled == pytest.approx(2 * claim, rel=1e-6)


def test_laplace_divergences_are_the_published_ones():
    scale = 1.6
    for order in (1.5, 2.0, 10.0):  # Mironov 2017, Proposition 6
        exact = math.log(
            order / (2 * order - 1) * math.exp((order - 1) / scale)
            + (order - 1) / (2 * order - 1) * math.exp(-order / scale)
        ) / (order - 1)
        step = Sampled(Poisson(1.0), (LaplaceSum(1.0, scale),))
        pair = account(step, "rdp").canonical.pairs[0][0]
        assert exact <= renyi_divergence(pair, order) <= exact * (1 + 1e-5)


def test_filters_take_every_query():
    guard = ZcdpFilter(rho=1.0).guard()
    for query, cost in (
        (ExponentialChoice(1.0, 2.0), 1 / 8),
        (NoisyMax(1.0, 2.0), 1 / 2),
        (SumQuery(1.0, 2.0), 1 / 8),
        (DiscreteGaussianSum(1, 2.0), 1 / 8),
        (DiscreteGaussianSum(1.0, 2.0, 7), 1 / 8),
    ):
        step, before = Sampled(Poisson(1.0), (query,), adaptive=True), guard.used
        guard.admit(step, 1)
        guard.record(step, 1)
        assert guard.used - before == pytest.approx(cost, rel=1e-9)
    with pytest.raises(BudgetExhausted):
        guard.admit(Sampled(Poisson(1.0), (AboveThreshold(1.0, 2.0, 4.0),)), 1)
    renyi = RenyiFilter(2.0, 1e-5, (8.0,)).guard()
    renyi.record(Sampled(Poisson(1.0), (ExponentialChoice(1.0, 10.0),)), 1)
    limit = RenyiFilter(2.0, 1e-5, (8.0,)).limits[0]
    assert renyi.used == pytest.approx(
        renyi_divergence(of_distribution(Range(0.2)), 8.0) / limit, rel=1e-9
    )


def test_no_noise_costs_everything_and_no_say_costs_nothing():
    for query in (
        ExponentialChoice(1.0, 0.0),
        NoisyMax(1.0, 0.0),
        AboveThreshold(1.0, 1.0, 0.0),
        RandomizedAnswer(1.0),
        DiscreteGaussianSum(1, 0.0),
    ):
        assert (
            account(run(query)).claim(DELTA) == account(run(query), "rdp").claim(DELTA) == math.inf
        )
    for query in (
        ExponentialChoice(0.0, 1.0),
        NoisyMax(0.0, 1.0),
        AboveThreshold(0.0, 1.0, 1.0),
        RandomizedAnswer(0.5),
        DiscreteGaussianSum(0.9, 1.0),
    ):
        assert (
            account(run(query, 5)).claim(DELTA) == account(run(query, 5), "rdp").claim(DELTA) == 0
        )


@pytest.mark.parametrize(
    "query",
    [
        ExponentialChoice(1, 3, True),
        NoisyMax(1.0, 3.0),
        AboveThreshold(1.0, 4.0, 9.0),
        RandomizedAnswer(0.6, 3),
        LabelAnswer(0.5, "species"),
        DiscreteGaussianSum(2, 3.0, 4),
    ],
)
def test_queries_survive_json(query):
    event = Sampled(Poisson(1.0), (query,))
    assert Event.from_json(event.to_json()) == event


@pytest.mark.parametrize("method", ["pld", "rdp"])
@pytest.mark.parametrize("relation", ["add_or_remove_one", "zero_out", "replace_one"])
@pytest.mark.parametrize("epsilon", [0.3, 1.0, 4.0])
def test_a_label_answer_costs_its_epsilon_whatever_the_relation(method, relation, epsilon):
    """A declared ε is about one record's own value: replacing it is no second change."""
    label = account(run(LabelAnswer(epsilon), 3), method, relation).epsilon(DELTA)
    coin = account(run(RandomizedAnswer(1 / (1 + math.exp(-epsilon))), 3), method, relation)
    assert label.upper == pytest.approx(coin.epsilon(DELTA).upper, rel=1e-6)
    assert label.lower == 0  # priors may leave a label without any say
    assert account(run(LabelAnswer(0.0))).claim(DELTA) == 0


def test_what_has_no_meaning_is_refused():
    with pytest.raises(InvalidArgument, match="at least 1/3"):
        RandomizedAnswer(0.3, 3)
    with pytest.raises(InvalidArgument, match="monotone"):
        NoisyMax(1.0, 1.0, "yes")
    with pytest.raises(UnsupportedEvent, match="noisy_max noise with 2 queries"):
        account(Sampled(Poisson(1.0), (NoisyMax(1.0, 1.0), SumQuery(1.0, 1.0))))
    with pytest.raises(InvalidArgument, match="lattice"):
        account(run(DiscreteGaussianSum(1, 1e6)))


def discrete(shift, stddev):
    x = np.arange(-40, 41)
    mass = np.exp(-((x - shift) ** 2) / (2 * stddev**2))
    return mass / mass.sum()


@pytest.mark.parametrize(
    ("squared", "stddev", "ways"),
    [
        (1, 1.5, [(1, 0, 0)]),
        (2, 1.0, [(1, 1, 0)]),
        (4, 2.0, [(2, 0, 0), (1, 1, 1)]),
        (6, 1.2, [(2, 1, 1), (1, 1, 1)]),
    ],
)
def test_no_division_of_a_length_costs_more_than_the_vector(squared, stddev, ways):
    """All outputs of three numbers; fails if a division is left out, or if the lattice of the
    losses is wrong.
    """
    found = account(run(DiscreteGaussianSum(math.sqrt(squared), stddev, 3)))
    for epsilon in (0.0, 0.4, 1.1, 2.5):
        worst = 0.0
        for way in ways:
            p, q = (
                np.einsum("i,j,k->ijk", *(discrete(shift, stddev) for shift in shifts))
                for shifts in (way, (0, 0, 0))
            )
            worst = max(worst, hockey_stick(p, q, epsilon), hockey_stick(q, p, epsilon))
        assert worst <= found.delta(epsilon).upper * (1 + 1e-9)
        assert found.delta(epsilon).upper <= worst * 1.003  # a profile at points
        assert found.delta(epsilon).lower <= worst * (1 + 1e-9)


def test_ways_to_divide_a_length():
    assert sorted(_ways(4, 9)) == [(1, 1, 1, 1), (2,)] and sorted(_ways(5, 2)) == [(1, 1), (2, 1)]
    assert sorted(_ways(3, 5)) == [(1, 1, 1)] and (2, 2, 1) in _ways(9, 9)


@pytest.mark.parametrize(
    ("squared", "stddev", "moved"), [(4, 1.5, 4), (9, 3.0, 9), (25, 6.0, 25), (2, 0.8, 2)]
)
def test_a_gaussian_that_is_rounded_at_random_bounds_every_division(squared, stddev, moved):
    epsilons = np.linspace(0, 4, 41)
    bound, zcdp = (
        rounded_gaussian(squared, stddev, moved, epsilons),
        by_zcdp(squared / stddev**2 / 2, epsilons),
    )
    ways = [(1,) * squared, (math.isqrt(squared),)]
    for exact in (divided(way, stddev, epsilons) for way in ways):
        assert np.all(exact <= bound * (1 + 1e-9)) and np.all(exact <= zcdp * (1 + 1e-9))
    if stddev >= 3:
        assert np.all(bound[:30] <= 0.75 * zcdp[:30])  # what more than zCDP is worth


def test_several_numbers_cost_little_more_than_one():
    vector = account(run(DiscreteGaussianSum(2.0, 3.0, 5), 4)).epsilon(DELTA)
    number = account(run(DiscreteGaussianSum(2, 3.0), 4)).epsilon(DELTA)
    assert (
        number.upper * (1 - 1e-3) < vector.upper < 1.02 * number.upper
        and vector.lower <= number.upper
    )
    assert account(run(DiscreteGaussianSum(1.2, 3.0, 5))).exact  # only one number can move, by one
    long = account(run(DiscreteGaussianSum(10.0, 30.0, 500), 3)).claim(DELTA)
    continuous = account(run(SumQuery(10.0, 30.0), 3)).claim(DELTA)
    assert continuous < long < 1.01 * continuous
    wide = account(run(DiscreteGaussianSum(1e4, 3e4, 50), 3)).claim(
        DELTA
    )  # more outputs than a table holds
    assert wide == pytest.approx(continuous, rel=1e-2)
    law = of_distribution(DiscreteGaussianVector(4, 3.0, 5, 2))
    assert renyi_divergence(law, 5.0) == pytest.approx(5 * 4 / 18)
    rounded = (
        account(run(DiscreteGaussianSum(math.sqrt(3), 3.0, 5))).canonical.pairs[0][0].distribution
    )
    assert rounded.squared == 3  # although the float is less than the root
    number, vector = (
        account(run(DiscreteGaussianSum(1.9, 3.0, count)), relation="replace_one")
        for count in (1, 3)
    )
    number, vector = (found.canonical.pairs[0][0].distribution for found in (number, vector))
    assert (
        number.shift == vector.alone == 2 and vector.squared == 12
    )  # whole numbers: 1, and (1, 1, 1)


def laplace_delta(shifts, epsilon, cells=401):
    """δ(ε) of Laplace numbers of scale 1 that are moved by ``shifts``, two of them, by integration
    on a grid.
    """
    x = np.linspace(-16, 20, cells)
    p, q = (
        np.multiply.outer(*(np.exp(-np.abs(x - shift)) / 2 for shift in moved)) * (x[1] - x[0]) ** 2
        for moved in (shifts, (0.0, 0.0))
    )
    return hockey_stick(p, q, epsilon)


def test_a_vector_with_laplace_noise_costs_what_one_number_does():
    """All of an ℓ1 length in one number is the worst, and it is attained."""
    whole = account(run(LaplaceSum(1.5, 1.0)))
    for epsilon in (0.0, 0.5, 1.2):
        exact = 1 - math.exp((epsilon - 1.5) / 2)
        assert whole.delta(epsilon).upper == pytest.approx(exact, rel=1e-6)
        for first in (0.3, 0.75, 1.1):
            assert laplace_delta((first, 1.5 - first), epsilon) < exact
        assert laplace_delta((1.5, 0.0), epsilon) == pytest.approx(exact, abs=5e-3)


@pytest.mark.parametrize(
    "query",
    [
        NoisyMax(1.0, 2.0),
        ExponentialChoice(1.0, 2.0),
        RandomizedAnswer(0.7),
        LaplaceSum(1.0, 2.0),
        DiscreteGaussianSum(1, 2.0),
    ],
)
def test_queries_on_samples_of_a_fixed_size(query):
    """Never more than on all records, at most the sum of sampled losses, and exact for answers of
    three records.
    """
    policy = FixedSize(1, 3)
    every, some = (
        account(Sampled(each, (query,)), relation="replace_one") for each in (Poisson(1.0), policy)
    )
    for epsilon in (0.0, 0.2, 0.5):
        amplified = every.delta(math.log1p(3 * math.expm1(epsilon))).upper / 3
        assert some.delta(epsilon).upper == pytest.approx(amplified, rel=3e-3, abs=1e-12)
        assert some.delta(epsilon).upper >= amplified * (1 - 1e-9)
        zeroed = account(Sampled(policy, (query,)), relation="zero_out").delta(epsilon)
        assert zeroed.upper == some.delta(epsilon).upper
    whole = account(Sampled(FixedSize(3, 3), (query,)), relation="replace_one")
    assert whole.claim(DELTA) == pytest.approx(every.claim(DELTA), rel=1e-9)


def test_an_answer_about_one_of_three_records_by_brute_force():
    """A record out of three says 1 or 0, the others 0: its answer is told, if it was drawn."""
    truth = 0.7
    p = np.array([(1 - truth) * 2 / 3 + truth / 3, truth * 2 / 3 + (1 - truth) / 3])
    q = np.array([1 - truth, truth])
    found = account(Sampled(FixedSize(1, 3), (RandomizedAnswer(truth),)), relation="replace_one")
    for epsilon in (0.0, 0.1, 0.3):
        assert hockey_stick(p, q, epsilon) == pytest.approx(found.delta(epsilon).upper, rel=1e-6)
        twice = hockey_stick(np.multiply.outer(p, p), np.multiply.outer(q, q), epsilon)
        assert (
            twice
            <= account(Repeated(found.source.events[0].event, 2), relation="replace_one")
            .delta(epsilon)
            .upper
        )


@pytest.mark.parametrize("relation", ["zero_out", "replace_one"])
@pytest.mark.parametrize(
    "query", [NoisyMax(1.0, 2.0), LaplaceSum(1.0, 2.0), ExponentialChoice(1.0, 3.0)]
)
def test_epochs_and_cut_samples_take_queries(query, relation):
    once = account(run(query, 3), relation=relation).claim(DELTA)
    for policy in (Shuffled(10, 100), Cyclic(10, 100), BallsInBins(10, 100)):
        assert (
            account(Repeated(Sampled(policy, (query,)), 3), relation=relation).claim(DELTA) == once
        )
    cut = account(Repeated(Sampled(TruncatedPoisson(0.1, 40, 100), (query,)), 3), relation=relation)
    poisson = account(run(query, 3, rate=0.1), relation=relation)
    assert poisson.claim(DELTA) <= cut.claim(DELTA) < math.inf and 0 < cut.failure < 1e-6
    with pytest.raises(UnsupportedEvent, match="public"):
        account(Sampled(FixedSize(10, 100), (query,)), relation="add_or_remove_one")


def test_a_sample_of_a_fixed_size_is_dominated_by_what_it_is_made_of():
    nothing, everything = (
        account(Sampled(FixedSize(1, 4), (NoisyMax(bound, noise),)), relation="replace_one")
        for bound, noise in ((0.0, 1.0), (1.0, 0.0))
    )
    assert nothing.claim(DELTA) == 0 and everything.claim(DELTA) == math.inf
    assert everything.delta(1.0).lower == pytest.approx(0.25)
    law = exchanged(of_distribution(response(1.0)), 0.25).distribution
    assert law.largest == pytest.approx(math.log1p(0.25 * math.expm1(1.0)), rel=1e-9)


def test_a_table_from_a_profile_dominates_it():
    exact = responses(0.4, 6)
    epsilons = np.linspace(0, 2.4, 30)
    table = Table.from_profile(epsilons, np.array([exact(at) for at in epsilons]))
    found = [account_delta(table, at) for at in np.linspace(-1, 2.4, 23)]
    truth = [exact(at) for at in np.linspace(-1, 2.4, 23)]
    assert all(bound >= one * (1 - 1e-9) for bound, one in zip(found, truth, strict=True))
    assert max(bound - one for bound, one in zip(found, truth, strict=True)) < 2e-3
    assert math.isclose(sum(table.mass) + table.infinite, 1.0)


def account_delta(table, epsilon):
    p, loss = np.array(table.mass), np.array(table.loss)
    return float((p * np.maximum(-np.expm1(epsilon - loss), 0)).sum()) + table.infinite


def test_tables_refuse_what_is_no_law():
    with pytest.raises(InvalidArgument, match="rising"):
        Table((1.0, 0.0), (0.5, 0.5))
    with pytest.raises(InvalidArgument, match="finite"):
        Table((0.0, math.inf), (0.5, 0.5))
    assert response(0.0).largest == 0 and DiscreteGaussian(1, 2.0).largest == math.inf


def test_another_library_has_the_same_divergences():
    for epsilon, order in ((0.5, 4.0), (2.0, 30.0)):
        accountant = dp_accounting.rdp.RdpAccountant(
            [order], dp_accounting.NeighboringRelation.REPLACE_ONE
        )
        accountant.compose(dp_accounting.RandomizedResponseDpEvent(2 / (1 + math.exp(epsilon)), 2))
        assert renyi_divergence(of_distribution(response(epsilon)), order) == pytest.approx(
            float(accountant._rdp[0]), rel=1e-6
        )
