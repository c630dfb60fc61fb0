"""Private selection: against every order of scores of small mechanisms, against attacks, and
against the tables.
"""

import functools
import itertools
import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.rdp import RdpAccountant
from scipy.special import gammaln, logsumexp, ndtr, ndtri

from dpfy.accounting import account
from dpfy.accounting.dominating_pairs import Pair
from dpfy.accounting.extras.tuning import exponential_heuristic, tuning_costs
from dpfy.accounting.pld import closed_forms
from dpfy.accounting.rdp import renyi_divergence
from dpfy.accounting.rules_for.selection import RunProfile, SelectionProfile, renyi_curve, weight
from dpfy.errors import InvalidArgument
from dpfy.ledger.composite_events import Composed
from dpfy.ledger.events import Poisson, Repeated, Sampled, SumQuery
from dpfy.ledger.selection import NegativeBinomialTrials, PoissonTrials, Selected
from dpfy.mechanisms.trials import _first

LAWS = [
    NegativeBinomialTrials(0.0, 0.1),
    NegativeBinomialTrials(1.0, 0.02),
    NegativeBinomialTrials(-0.5, 0.01),
    NegativeBinomialTrials(3.0, 0.2),
    PoissonTrials(0.4),
    PoissonTrials(12.0),
]


@functools.cache
def probabilities(trials):
    """Pr[K = k] from the definition: independent of the closed forms that the rule uses."""
    k = np.arange(0 if isinstance(trials, PoissonTrials) else 1, 2500)
    if isinstance(trials, PoissonTrials):
        log = k * math.log(trials.rate) - gammaln(k + 1)
    else:
        log = k * math.log1p(-trials.success) + gammaln(k + trials.shape) - gammaln(k + 1)
    return k, np.exp(log) / np.exp(log).sum()


def generating(trials, x):
    """E x^K."""
    k, probability = probabilities(trials)
    return float(probability @ x**k)


def hockey_stick(p, q, epsilon):
    return np.maximum(p - math.exp(epsilon) * q, 0.0).sum()


def exact_profile(p, q):
    """The profile of a discrete pair, which is piecewise linear in e^ε between the losses."""
    both = (p > 0) & (q > 0)
    losses = np.log(p[both] / q[both])
    points = np.unique(
        np.concatenate(([0.0, np.abs(losses).max(initial=0.0) + 1.0], np.abs(losses)))
    )
    return RunProfile(
        points,
        np.array([hockey_stick(p, q, at) for at in points]),
        np.array([hockey_stick(q, p, at) for at in points]),
    )


def released(p, groups, trials):
    """The law of the best of K runs if ``groups`` of outcomes are ordered from worst to best, with
    random ties.
    """
    out, below = np.zeros_like(p), 0.0
    for group in groups:
        mass = p[list(group)].sum()
        above = min(below + mass, 1.0)
        if mass > 0:
            out[list(group)] = (
                (generating(trials, above) - generating(trials, below)) * p[list(group)] / mass
            )
        below = above
    return out


def orders_of_scores(count):
    """All orders of ``count`` outcomes, some of which are tied."""
    for order in itertools.permutations(range(count)):
        yield [(place,) for place in order]
        yield [order[:2], *((place,) for place in order[2:])]
        yield [*((place,) for place in order[:-2]), order[-2:]]


@pytest.mark.parametrize("trials", LAWS, ids=str)
def test_no_order_of_scores_exceeds_the_bound(trials):
    """Fails if a direction, the shift, the hull or the weight is wrong: some order then exceeds the
    bound.
    """
    rng = np.random.default_rng(11)
    for _ in range(4):
        p, q = (values / values.sum() for values in rng.gamma(1.5, size=(2, 4)) + 0.02)
        profile = SelectionProfile(exact_profile(p, q), trials)
        laws = [
            (released(p, order, trials), released(q, order, trials))
            for order in orders_of_scores(4)
        ]
        for epsilon in (0.0, 0.3, 1.0, 2.0):
            worst = max(hockey_stick(*pair, epsilon) for pair in laws)
            assert worst <= profile.delta(epsilon) * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize("trials", LAWS, ids=str)
def test_outputs_of_one_data_set_alone_are_within_the_bound(trials):
    """Infinite losses in one direction, in both, certain outputs, and nearly equal laws. Fails if
    infinite losses are left out of the profile, or out of how far a place can move.
    """
    for p, q in (
        ([0.0, 0.3, 0.5, 0.2], [0.1, 0.3, 0.4, 0.2]),
        ([0.01, 0.0, 0.59, 0.4], [0.0, 0.02, 0.58, 0.4]),
        ([1.0, 0.0, 0.0, 0.0], [0.6, 0.1, 0.2, 0.1]),
        ([0.2, 0.3, 0.25, 0.25], [0.2, 0.3, 0.2501, 0.2499]),
    ):
        first, second = np.array(p), np.array(q)
        run = exact_profile(first, second)
        sides = SelectionProfile(run, trials), SelectionProfile(run.reversed, trials)
        laws = [
            (released(first, order, trials), released(second, order, trials))
            for order in orders_of_scores(4)
        ]
        for epsilon in (0.0, 1e-6, 0.1, 1.0, 6.0):
            assert (
                max(hockey_stick(*pair, epsilon) for pair in laws)
                <= sides[0].delta(epsilon) * (1 + 1e-9) + 1e-12
            )
            worst = max(hockey_stick(*pair[::-1], epsilon) for pair in laws)
            assert worst <= sides[1].delta(epsilon) * (1 + 1e-9) + 1e-12


def test_a_coarse_profile_is_a_bound_too():
    """Fails if a profile is not above the truth between and beyond its points."""
    rng = np.random.default_rng(5)
    p, q = (values / values.sum() for values in rng.gamma(1.0, size=(2, 4)) + 0.02)
    points = np.linspace(0, 0.8, 5)
    run = RunProfile(
        points,
        np.array([hockey_stick(p, q, at) for at in points]),
        np.array([hockey_stick(q, p, at) for at in points]),
    )
    for trials in LAWS:
        bound = SelectionProfile(run, trials)
        laws = [
            (released(p, order, trials), released(q, order, trials))
            for order in orders_of_scores(4)
        ]
        for epsilon in (0.0, 0.5, 2.0):
            assert (
                max(hockey_stick(*pair, epsilon) for pair in laws)
                <= bound.delta(epsilon) * (1 + 1e-9) + 1e-12
            )


@pytest.mark.parametrize("points", [[0.5], [0.0, 0.3, 0.3], [0.0, 700.0]], ids=str)
def test_profiles_begin_at_zero_and_end_where_numbers_do(points):
    """Fails if (0.5, 1e-3)-DP is read as a total variation of 1e-3."""
    deltas = np.full(len(points), 1e-3)
    with pytest.raises(InvalidArgument, match="rise from 0"):
        RunProfile(np.array(points), deltas, deltas)


def test_places_and_profiles_are_rounded_up():
    """Against fractions and 60 digits. Fails if something cancels: δ = 3e-17 then moves 1e-16 by
    too little, and a chord comes out below itself where it is nearly 0.
    """
    for delta, missed in ((3e-17, 1e-16), (1e-16, 7e-16), (2.7e-15, 1.9e-14)):
        run = RunProfile(np.array([0.0]), np.array([delta]), np.array([delta]))
        ratio = Fraction(float(run.moved(np.array([missed]))[0])) / (
            Fraction(delta) + Fraction(missed)
        )
        assert 1 <= ratio <= 1 + 1e-9
    run = RunProfile(np.array([0.0, 1.0]), np.array([0.3, 0.0]), np.array([0.2, 0.0]))
    epsilons = np.concatenate((1 - np.geomspace(1e-15, 1, 50), -np.geomspace(1e-17, 1, 50)))
    with localcontext() as context:
        context.prec = 60
        e = Decimal(1).exp()
        for epsilon, found in zip(epsilons, run.delta(epsilons), strict=True):
            odds = abs(Decimal(epsilon)).exp()
            chord = Decimal(0.3 if epsilon >= 0 else 0.2) * (e - odds) / (e - 1)
            assert Decimal(float(found)) >= (chord if epsilon >= 0 else 1 - (1 - chord) / odds)


def test_nothing_cancels_in_laws_of_hardly_more_than_one_run():
    """Fails if 1/γ − 1 is rounded before it is used, or if too few digits are left of the
    probability of one run.
    """
    for shape in (-0.5, 0.0, 1e-6, 1.0):
        for failure in (2.0**-53, 1.3e-12, 1.5e-8, 1e-3):
            trials = NegativeBinomialTrials(shape, 1 - failure)
            with localcontext() as context:
                context.prec = 61
                first = _first(trials)[1]
                context.prec = 200
                exact = _first(trials)[1]
                success = Decimal(trials.success)
                mean = exact * success ** (-Decimal(shape) - 1)
                assert abs(first / exact - 1) < Decimal("1e-58")
                assert abs(Decimal(trials.mean) / mean - 1) < Decimal("2e-15")


@pytest.mark.parametrize("trials", LAWS, ids=str)
def test_weight_is_the_derivative_of_the_generating_function(trials):
    k, probability = probabilities(trials)
    for a in (0.05, 0.4, 0.9):
        slope = float(probability[k > 0] @ (k * (1 - a) ** (k - 1.0))[k > 0])
        assert float(weight(trials, np.array(a))) == pytest.approx(slope, rel=1e-9)
    assert trials.mean == pytest.approx(float(probability @ k), rel=1e-9)


def test_the_bound_is_nearly_attained():
    """A run of one Gaussian sum, attacked: low losses first, then the highest, then the rest. Fails
    if the bound is below the attack, or far above it: then it is not the shift by the place in the
    order that it charges.
    """
    mu, delta = 0.3, 1e-6
    epsilons = np.linspace(0, closed_forms.epsilon(mu, 1e-18).upper, 600)
    values = np.array([closed_forms.delta_interval(mu, float(value)).upper for value in epsilons])
    for trials in (
        NegativeBinomialTrials.with_mean(100.0, 1.0),
        NegativeBinomialTrials.with_mean(30.0, 0.0),
    ):
        bound = SelectionProfile(RunProfile(epsilons, values, values), trials)
        claim = bound.epsilon(delta)

        def attained(epsilon, trials=trials):
            first, last = np.meshgrid(np.linspace(-4.5, 0, 150), np.linspace(3, 6, 150))
            a, b = ndtr(first - mu), ndtr(first)
            p = released_after(trials, a, ndtr(mu - last))
            return (p - math.exp(epsilon) * released_after(trials, b, ndtr(-last))).max()

        assert attained(claim) <= delta
        assert attained(0.93 * claim) > delta


@pytest.mark.parametrize(
    "trials",
    [NegativeBinomialTrials.with_mean(100.0, 1.0), NegativeBinomialTrials.with_mean(30.0, 0.0)],
    ids=str,
)
def test_the_bound_is_attained_by_an_order_that_puts_each_loss_at_its_place(trials):
    """Low losses first, and each high loss where it gains most. Fails if the bound is below this
    order, or more than 2 % above it: no other number follows from a profile.
    """
    mu, delta = 0.3, 1e-6
    epsilons = np.linspace(0, closed_forms.epsilon(mu, 1e-18).upper, 600)
    values = np.array([closed_forms.delta_interval(mu, float(value)).upper for value in epsilons])
    epsilon = SelectionProfile(RunProfile(epsilons, values, values), trials).epsilon(delta)
    edges = np.linspace(-9, 9, 12001)
    outputs = (edges[1:] + edges[:-1]) / 2
    first, second = (
        np.where(
            outputs > mean,
            ndtr(mean - edges[:-1]) - ndtr(mean - edges[1:]),
            ndtr(edges[1:] - mean) - ndtr(edges[:-1] - mean),
        )
        for mean in (mu, 0.0)
    )
    places = np.geomspace(1e-9, 0.999, 2000)
    kept, left = weight(trials, places), weight(trials, ndtr(ndtri(places) + mu))
    order = outputs.copy()
    for at in np.flatnonzero(outputs > 2.5):
        gains = kept - math.exp(epsilon - mu * outputs[at] + mu**2 / 2) * left
        if gains.max() > 0:
            order[at] = ndtri(places[gains.argmax()]) + mu
    ranks = np.argsort(order, kind="stable")
    laws = [
        released_after(trials, np.cumsum(law[ranks]) - law[ranks], law[ranks])
        for law in (first, second)
    ]
    assert 0.98 * delta < hockey_stick(*laws, epsilon) <= delta


def released_after(trials, better, mass):
    """f(1 − a) − f(1 − a − m), with the weight's integral by its closed form."""
    start = trials.success + (1 - trials.success) * better
    steps = np.log1p((1 - trials.success) * mass / start)
    whole = -math.log(trials.success)
    if trials.shape:
        return (
            start**-trials.shape
            * -np.expm1(-trials.shape * steps)
            / math.expm1(trials.shape * whole)
        )
    return steps / whole


def test_a_revealed_number_of_runs_voids_the_theorem():
    """0.1-DP runs, a geometric number with mean 10: 0.3-DP if it stays secret, δ(0.3) = 1.7e-3 if
    it does not.
    """
    p, q = np.array([0.1, 0.0]), np.array([0.0, 0.1])
    p, q = np.exp(p) / np.exp(p).sum(), np.exp(q) / np.exp(q).sum()
    trials = NegativeBinomialTrials(1.0, 0.1)
    order = [(0,), (1,)]
    secret = hockey_stick(released(p, order, trials), released(q, order, trials), 0.3)
    k, probability = probabilities(trials)
    revealed = float(probability @ np.maximum(p[0] ** k - math.exp(0.3) * q[0] ** k, 0.0))
    assert secret <= 1e-12 < revealed == pytest.approx(1.7e-3, rel=0.03)
    assert SelectionProfile(exact_profile(p, q), trials).epsilon(1e-12) <= 0.3 * (1 + 1e-3)


def test_runs_that_are_not_alike_void_the_theorem():
    """0.1-DP runs that say which one they are, earlier ones better: 0.3-DP for runs that are alike,
    not for these.
    """
    p = math.exp(0.1) / (1 + math.exp(0.1))
    before = np.arange(300)
    first, second = (0.9**before * none**before * (1 - none) for none in (p, 1 - p))
    assert hockey_stick(first, second, 0.3) == pytest.approx(3.5e-3, rel=0.02)


def renyi_of(p, q, orders):
    """The Rényi divergences of a discrete pair, in the worse direction."""
    return np.array(
        [
            max(
                logsumexp(order * np.log(one) + (1 - order) * np.log(two)) / (order - 1)
                for one, two in ((p, q), (q, p))
            )
            for order in orders
        ]
    )


def renyi_epsilon(orders, curve, delta):
    """The conversion of Canonne, Kamath & Steinke 2020, Proposition 12."""
    return float((curve + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)).min())


def test_poisson_needs_the_exponential_in_its_condition():
    """Fails if the condition e^ε ≤ 1 + 1/(λ − 1) is read as ε ≤ 1 + 1/(λ − 1): some order of scores
    then exceeds.
    """
    trials, delta = PoissonTrials(100.0), 1e-3
    q = np.array([0.01 * math.exp(0.5), 0.001 * math.exp(-0.5), 0.0])
    p = np.array([0.01, 0.001, 0.0])
    p[2], q[2] = 1 - p.sum(), 1 - q.sum()
    orders = np.linspace(1.5, 200, 400)
    curve = renyi_of(p, q, orders)

    def one_run(epsilon):
        return max(hockey_stick(p, q, epsilon), hockey_stick(q, p, epsilon))

    def literal(epsilon):
        return one_run(math.exp(epsilon))

    worst = [(2,), (1,), (0,)]
    laws = released(p, worst, trials), released(q, worst, trials)
    claims = {
        name: renyi_epsilon(orders, renyi_curve(trials, orders, curve, bound), delta)
        for name, bound in (("right", one_run), ("literal", literal))
    }
    assert (
        max(hockey_stick(*laws, claims["right"]), hockey_stick(*laws[::-1], claims["right"]))
        <= delta
    )
    assert hockey_stick(*laws, claims["literal"]) > delta
    assert (
        hockey_stick(*laws, SelectionProfile(exact_profile(p, q), trials).epsilon(delta)) <= delta
    )


@pytest.mark.parametrize("trials", LAWS, ids=str)
def test_renyi_rules_hold_for_every_order_of_scores(trials):
    """Fails if the chance of no run at all is left out: a mean below one then gives negative
    divergences.
    """
    rng = np.random.default_rng(3)
    orders = np.array([1.25, 2.0, 5.0, 20.0])
    for _ in range(3):
        p, q = (values / values.sum() for values in rng.gamma(2.0, size=(2, 3)) + 0.05)
        curve = renyi_of(p, q, orders)
        bound = renyi_curve(
            trials,
            orders,
            curve,
            lambda epsilon, p=p, q=q: max(hockey_stick(p, q, epsilon), hockey_stick(q, p, epsilon)),
        )
        none = generating(trials, 0.0) if isinstance(trials, PoissonTrials) else 0.0
        for order in orders_of_scores(3):
            a, b = released(p, order, trials), released(q, order, trials)
            divergence = [math.log((a**x * b ** (1 - x)).sum() + none) / (x - 1) for x in orders]
            assert np.all(divergence <= bound + 1e-9)


STEP = Sampled(Poisson(0.005), (SumQuery(1.0, 1.0),))
EPOCH = Composed.of([Repeated(STEP, 200)])


def test_appendix_c_of_how_to_dp_fy_ml():
    """N = 10⁶, B = 5000, σ = 1, 100 trials of an epoch, δ = 1e-6: the guide's eight numbers with
    its settings.
    """
    delta, grid = 1e-6, np.concatenate((np.arange(11, 200) / 10, np.arange(20, 100)))
    curve = np.array([200 * renyi_divergence(Pair(0.005, 1.0), float(order)) for order in grid])
    assert account([Repeated(EPOCH, 100)], "rdp").claim(delta) == pytest.approx(4.95, abs=0.005)
    assert exponential_heuristic(100) == pytest.approx(3.24, abs=0.005)
    for mean, shape, printed in ((100.0, 0.0, 2.42), (100.0, 1.0, 2.76), (1000.0, 1.0, 3.45)):
        trials = NegativeBinomialTrials.with_mean(mean, shape)
        found = renyi_epsilon(
            grid, renyi_curve(trials, grid, curve, lambda _: 1.0, other=(10.29, 0.0839)), delta
        )
        assert found == pytest.approx(printed, abs=0.005)
    poisson = PoissonTrials(100.0)
    assert account(Selected(EPOCH, poisson), "rdp").claim(delta) == pytest.approx(4.18, abs=0.005)
    buckets = coarse_loss_distribution()
    found = renyi_epsilon(
        grid, renyi_curve(poisson, grid, curve, buckets.get_delta_for_epsilon), delta
    )
    assert found == pytest.approx(2.63, abs=0.005)
    literal = renyi_epsilon(
        grid,
        renyi_curve(
            poisson, grid, curve, lambda epsilon: buckets.get_delta_for_epsilon(math.exp(epsilon))
        ),
        delta,
    )
    assert literal == pytest.approx(
        1.71, abs=0.01
    )  # below the lower bound 1.916: the condition is on e^ε


def coarse_loss_distribution():
    """Losses rounded up to a grid of 1e-4, as the guide's numbers are."""
    return privacy_loss_distribution.from_gaussian_mechanism(
        1.0, sampling_prob=0.005, use_connect_dots=False
    ).self_compose(200)


@pytest.mark.parametrize(
    ("trials", "value"),
    [
        (NegativeBinomialTrials.with_mean(100.0, 0.0), 1.0946),
        (NegativeBinomialTrials.with_mean(100.0, 1.0), 1.1292),
        (NegativeBinomialTrials.with_mean(1000.0, 1.0), 1.4304),
        (PoissonTrials(100.0), 2.4220),
    ],
    ids=str,
)
def test_our_values_beside_appendix_c(trials, value):
    """Fails if the rule loosens, or falls below what an attack attains (1.011, 1.011, 1.270 and
    1.916).
    """
    assert account(Selected(EPOCH, trials)).claim(1e-6) == pytest.approx(value, rel=2e-3)


def test_renyi_rule_agrees_with_an_independent_accountant():
    for trials, shape in (
        (NegativeBinomialTrials.with_mean(100.0, 0.0), 0),
        (PoissonTrials(100.0), math.inf),
    ):
        peer = RdpAccountant().compose(
            dp_event.RepeatAndSelectDpEvent(
                dp_event.SelfComposedDpEvent(
                    dp_event.PoissonSampledDpEvent(0.005, dp_event.GaussianDpEvent(1.0)), 200
                ),
                100,
                shape,
            )
        )
        assert account(Selected(EPOCH, trials), "rdp").claim(1e-6) == pytest.approx(
            peer.get_epsilon(1e-6), rel=2e-3
        )


def test_the_heuristic_is_shown_and_never_claimed():
    rows = tuning_costs(EPOCH, NegativeBinomialTrials.with_mean(100.0, 0.0), 1e-6)
    assert [row.epsilon for row in rows if not row.claimed] == [pytest.approx(3.24, abs=0.005)]
    assert min(row.epsilon for row in rows if row.claimed) == account(
        Selected(EPOCH, NegativeBinomialTrials.with_mean(100.0, 0.0))
    ).claim(1e-6)
