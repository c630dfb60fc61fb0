"""Random mixtures of samplers and queries: a finite bound wherever a rule has one, and the least of
all rules.

The cases were found by a hunt through thousands of mixtures; a few dozen of them stay.
"""

import math

import mpmath
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as theirs
from scipy.special import logsumexp
from scipy.stats import norm

from dpfy.accounting import account, rdp
from dpfy.accounting.dominating_pairs import Pair, of_distribution
from dpfy.accounting.known_samples import as_if_known
from dpfy.accounting.loss_distributions import DiscreteGaussian
from dpfy.accounting.pld import accountant as pld, one_step
from dpfy.errors import UnsupportedEvent
from dpfy.ledger.composite_events import Composed
from dpfy.ledger.events import (
    BallsInBins,
    Cyclic,
    FixedSize,
    Importance,
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
    NoisyMax,
    RandomizedAnswer,
)
from dpfy.ledger.selection import PoissonTrials, Selected

RELATIONS = ("add_or_remove_one", "zero_out", "replace_one")
LAPLACE, LATTICE = LaplaceSum(1.0, 2.0), DiscreteGaussianSum(2.0, 3.0)


def spread(generator, low, high):
    return float(10 ** generator.uniform(math.log10(low), math.log10(high)))


def random_policy(generator):
    records, share = int(spread(generator, 5, 1e5)), spread(generator, 1e-3, 1)
    size = max(1, int(records * share))
    return [
        Poisson(1.0),
        Poisson(share),
        FixedSize(size, records),
        TruncatedPoisson(
            share, min(records, size + int(spread(generator, 1, 8) * math.sqrt(size)) + 1), records
        ),
        Shuffled(size, records),
        Cyclic(size, records),
        BallsInBins(int(spread(generator, 1, 40)), records),
        Importance(share / 2, spread(generator, 1e-6, 1e-2)),
    ][generator.integers(8)]


def random_query(generator):
    noise, monotone = spread(generator, 0.1, 20), bool(generator.integers(2))
    return [
        SumQuery(1.0, noise),
        SumQuery(1.0, noise),
        LaplaceSum(1.0, noise),
        DiscreteGaussianSum(
            float(generator.integers(1, 4)), noise / 4, int(generator.integers(1, 4))
        ),
        ExponentialChoice(1.0, 3 * noise, monotone),
        NoisyMax(1.0, 3 * noise, monotone),
        AboveThreshold(1.0, 3 * noise, 6 * noise),
        RandomizedAnswer(float(generator.uniform(0.5, 0.99)), 3),
    ][generator.integers(8)]


def random_mixture(seed):
    generator = np.random.default_rng(seed)
    relation, steps = RELATIONS[generator.integers(3)], []
    while len(steps) < 1 + seed % 3:
        event = Sampled(random_policy(generator), (random_query(generator),))
        if supported([event], "pld", relation):
            steps.append(Repeated(event, int(spread(generator, 1, 100))))
    return steps, relation, spread(generator, 1e-10, 1e-3)


def supported(events, method, relation):
    try:
        return account(events, method, relation)
    except UnsupportedEvent:
        return None


def check(events, relation, delta):
    """What holds of every run whose steps all have noise."""
    guarantee = account(events, relation=relation)
    upper = guarantee.claim(delta)
    assert upper < math.inf
    assert guarantee._epsilon_lower(delta) <= upper * (
        1 + 1e-9
    )  # as it was found, not cut to the upper end
    known = [Repeated(as_if_known(run.event), run.times) for run in events]
    others = (
        supported(source, method, relation)
        for source in (events, known)
        for method in ("pld", "rdp")
    )
    assert upper <= min(other.claim(delta) for other in others if other is not None) * (
        1 + guarantee.accuracy
    )
    if guarantee.exact and guarantee.failure == 0 and upper < 50:
        assert upper <= 1.005 * guarantee.epsilon(delta).lower + 1e-3
    return guarantee


@pytest.mark.parametrize("seed", range(24))
def test_mixtures_have_the_least_finite_bound_of_all_rules(seed):
    check(*random_mixture(seed))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1600))
def test_many_mixtures_have_the_least_finite_bound_of_all_rules(seed):
    check(*random_mixture(seed))


def every(*queries, policy=FixedSize(10, 100), times=1):  # noqa: B008 - immutable
    return [Repeated(Sampled(policy, (query,)), times) for query in queries]


CORNERS = [
    # Tables end at a δ of 1e-18, or at a loss of 300: what is beyond had no finite bound, or was
    # dropped as free.
    (every(DiscreteGaussianSum(1.0, 0.5)), "replace_one", 1e-20),
    (every(LATTICE, LAPLACE, times=50), "replace_one", 1e-20),
    (every(DiscreteGaussianSum(1.0, 0.1), LaplaceSum(1.0, 0.005)), "zero_out", 1e-5),
    # Losses beyond float64: one discrete Gaussian of small noise, and many, beside others.
    (every(DiscreteGaussianSum(6.0, 0.137), policy=Poisson(1.0)), "add_or_remove_one", 1e-6),
    (
        every(
            DiscreteGaussianSum(4.0, 0.1141),
            AboveThreshold(1.0, 22.0, 45.0),
            SumQuery(1.0, 29.0),
            policy=Cyclic(7, 41),
            times=77,
        ),
        "zero_out",
        1e-4,
    ),
    (
        every(DiscreteGaussianSum(3.0, 0.127, 2), SumQuery(1.0, 1.1), policy=Poisson(0.07)),
        "replace_one",
        1e-6,
    ),
    # Capacities that cut most samples: 1 + e^ε times the chance of it exceeds every δ.
    (
        every(SumQuery(1.0, 5.0), LAPLACE, LATTICE, policy=TruncatedPoisson(0.1, 11, 100)),
        "replace_one",
        1e-6,
    ),
    (
        [
            Repeated(
                Composed.of(every(SumQuery(1.0, 5.0), policy=TruncatedPoisson(0.1, 11, 100))), 3
            )
        ],
        "zero_out",
        1e-6,
    ),
    # A record that is exchanged beside one that is absent: two kinds, of which one has very
    # negative losses.
    (
        [
            *every(SumQuery(1.0, 8.5), policy=Poisson(2.7e-5)),
            *every(SumQuery(1.0, 0.34), policy=FixedSize(2, 337)),
        ],
        "zero_out",
        2e-8,
    ),
    # The best of several: Rényi rules and those of the privacy loss need not be in one order.
    (
        [
            Repeated(
                Selected(
                    Sampled(Poisson(1.0), (SumQuery(1.0, 4.0),), numerical_delta=1e-14),
                    PoissonTrials(5.0),
                ),
                2,
            )
        ],
        "add_or_remove_one",
        1e-6,
    ),
]


@pytest.mark.parametrize(("events", "relation", "delta"), CORNERS)
def test_corners_have_the_least_finite_bound_of_all_rules(events, relation, delta):
    check(events, relation, delta)


@pytest.mark.parametrize(
    "query",
    [DiscreteGaussianSum(1.0, 0.1), DiscreteGaussianSum(4.0, 0.2, 3), LaplaceSum(1.0, 0.005)],
    ids=lambda query: query.tag,
)
@pytest.mark.parametrize("size", [10, 80])
def test_what_gives_a_record_away_is_never_free(query, size):
    """Hardly any noise: who is drawn, one time in ten, is seen. The table of such a sample has no
    loss but 0 and ∞, and a law without a spread was left out as one that costs nothing, so that (0,
    1e-20)-DP was claimed.
    """
    for relation in ("zero_out", "replace_one"):
        guarantee = account(every(query, policy=FixedSize(size, 100)), relation=relation)
        assert 20 < guarantee.claim(1e-5) < math.inf
        assert guarantee.delta(0.0).upper >= 0.99 * size / 100
    alone = Selected(Sampled(Poisson(0.1), (), numerical_delta=1e-9), PoissonTrials(3.0))
    assert account(alone).claim(1e-12) == math.inf and account(alone).claim(1e-8) < 1e-3


def test_all_records_stand_for_samples_that_are_cut_too_often():
    cut = account(
        every(SumQuery(1.0, 5.0), policy=TruncatedPoisson(0.1, 11, 100)), relation="zero_out"
    )
    whole = account(every(SumQuery(1.0, 5.0), policy=Poisson(1.0)), relation="zero_out")
    assert cut.claim(1e-6) == whole.claim(1e-6) and "known" in cut.note(1e-6)
    rare = account(
        every(SumQuery(1.0, 5.0), policy=TruncatedPoisson(0.1, 90, 100)), relation="zero_out"
    )
    assert rare.claim(1e-6) < whole.claim(1e-6) / 2


# References that share no code with what they check


@pytest.mark.parametrize("order", [1.5, 2.0, 8.0, 40.0])
@pytest.mark.parametrize(("rate", "noise"), [(0.01, 0.5), (0.2, 1.0), (0.9, 2.0), (0.5, 20.0)])
def test_renyi_curves_of_opposed_and_exchanged_records(rate, noise, order):
    """The moments by quadrature. Mirrored losses add as much again to a moment at most: without it,
    or with the distance of an absent record, the bound is too small.
    """
    x = np.linspace(-12 * noise - 3, 12 * noise + 3 + 2 * order, 400_001)
    still, plus, minus, far = (norm.logpdf(x, at, noise) for at in (0, 1, -1, 2))

    def sampled(moved):
        return np.logaddexp(still + math.log(1 - rate), moved + math.log(rate))

    def log_moment(p, q):
        return logsumexp(order * p + (1 - order) * q) + math.log(x[1] - x[0])

    opposed = log_moment(sampled(plus), sampled(minus))
    ahead = np.where(x > 1, 0.0, -np.inf)
    there, back = log_moment(sampled(far) + ahead, still), log_moment(still + ahead, sampled(far))
    exchanged = logsumexp([there, back, math.log((1 - rate) * (1 - 2 * norm.sf(1 / noise)))])
    for name, truth in (("opposed", opposed), ("exchanged", exchanged)):
        found = rdp.renyi_divergence(Pair(rate, noise, name), order)
        assert truth / (order - 1) * (1 - 1e-4) <= found <= order * 2 / noise**2 * (1 + 1e-9)


def test_an_exchanged_query_beside_an_absent_one_by_brute_force():
    """All pairs of cells of both outputs: from below, and close. In the direction of adding a
    record, masses of very negative losses were differences of large numbers, and the mixture had no
    bound but that of Rényi, 8 % above.
    """
    share, z, rate, noise = 2 / 337, 0.34, 0.01, 1.0
    edges = np.append(np.linspace(1, 2 + 5 * z, 1200), np.inf)
    far, near = np.diff(norm.cdf(edges, 2, z)), -np.diff(norm.sf(edges, 0, z))
    mixed = (1 - share) * near + share * far
    rest = (1 - share) * (1 - 2 * norm.sf(1 / z))
    one = np.concatenate((mixed, near, [rest])), np.concatenate((near, mixed, [rest]))
    cells = np.concatenate(([-np.inf], np.linspace(-6, 7, 1200), [np.inf]))
    without = -np.diff(norm.sf(cells, 0, noise))
    drawn = (1 - rate) * without - rate * np.diff(norm.sf(cells, 1, noise))
    pairs = tuple(sorted(((Pair(share, z, "exchanged"), 1), (Pair(rate, noise), 1))))
    delta = 1e-7
    lower, upper, _ = pld.epsilon_bracket(pairs, delta, 1e-3)

    def brute(epsilon):
        return max(
            np.maximum(
                np.multiply.outer(one[0], p) - math.exp(epsilon) * np.multiply.outer(one[1], q), 0
            ).sum()
            for p, q in ((drawn, without), (without, drawn))
        )

    assert upper <= 1.002 * lower
    assert brute(upper) <= delta * (1 + 1e-9)
    assert brute(0.99 * lower) >= delta


@pytest.mark.parametrize(
    ("shift", "stddev", "rate"), [(4, 0.2, 1.0), (4, 0.114, 0.3), (2, 0.3, 0.01), (8, 0.3, 0.2)]
)
@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-12])
def test_one_discrete_gaussian_of_small_noise_by_sixty_digits(shift, stddev, rate, delta):
    """Some losses exceed what float64 can raise e to; δ is decided by others."""
    lower, upper = one_step.epsilon(of_distribution(DiscreteGaussian(shift, stddev), rate), delta)
    with mpmath.workdps(60):
        mass = {
            x: mpmath.exp(-(mpmath.mpf(x) ** 2) / (2 * mpmath.mpf(stddev) ** 2))
            for x in range(-60, 61)
        }
        total = mpmath.fsum(mass.values())

        def profile(epsilon):
            return (
                mpmath.fsum(
                    max(
                        0,
                        (1 - rate) * mass[x]
                        + rate * mass[x - shift]
                        - mpmath.exp(epsilon) * mass[x],
                    )
                    for x in range(-40, 41)
                )
                / total
            )

        assert profile(upper) <= delta < profile(0.9999 * upper) * (1 + 1e-3)
        assert lower == 0 or profile(lower) >= delta * (1 - 1e-6)


@pytest.mark.parametrize("delta", [1e-4, 1e-7])
def test_a_mixture_agrees_with_an_independent_accountant(delta):
    run = [
        *every(DiscreteGaussianSum(1.0, 2.0), policy=Poisson(0.2), times=8),
        *every(LaplaceSum(1.0, 3.0), policy=Poisson(0.5), times=4),
        *every(SumQuery(1.0, 1.5), policy=Poisson(0.1), times=6),
    ]
    lower, upper = account(run).epsilon(delta)

    def peer(pessimistic):
        options = {"pessimistic_estimate": pessimistic, "value_discretization_interval": 1e-3}
        whole = theirs.from_discrete_gaussian_mechanism(
            2.0, 1, sampling_prob=0.2, **options
        ).self_compose(8)
        whole = whole.compose(
            theirs.from_laplace_mechanism(3.0, sampling_prob=0.5, **options).self_compose(4)
        )
        return whole.compose(
            theirs.from_gaussian_mechanism(1.5, sampling_prob=0.1, **options).self_compose(6)
        )

    assert peer(False).get_epsilon_for_delta(delta) <= upper * (1 + 1e-6)
    assert lower <= peer(True).get_epsilon_for_delta(delta) * (1 + 1e-6)
    assert upper == pytest.approx(peer(True).get_epsilon_for_delta(delta), rel=0.02)
