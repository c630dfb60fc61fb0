"""The costs of policies other than Poisson, against brute force that shares no code with the
accountant.
"""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy.special import ndtr

from dpfy.accounting import GaussianFilter, account
from dpfy.accounting.dominating_pairs import Pair
from dpfy.accounting.pld import accountant as pld, closed_forms, discretize
from dpfy.accounting.pld.compose import composed
from dpfy.accounting.pld.target import EpsilonAt
from dpfy.accounting.to_pairs import canonical
from dpfy.errors import UnsupportedEvent
from dpfy.ledger.events import (
    BallsInBins,
    Cyclic,
    FixedSize,
    LaplaceSum,
    Poisson,
    Repeated,
    Sampled,
    Shuffled,
    SumQuery,
    TruncatedPoisson,
)

DELTA = 1e-5
ZERO, REPLACE, ADD = "zero_out", "replace_one", "add_or_remove_one"


def run(policy, noise, times=1, relation=REPLACE, **kwargs):
    return account(
        Repeated(Sampled(policy, (SumQuery(1.0, noise),)), times), relation=relation, **kwargs
    )


def normal(x, mean, noise):
    return np.exp(-(((x - mean) / noise) ** 2) / 2) / (noise * math.sqrt(2 * math.pi))


# --- samples of a fixed size
# ------


def lattice_delta(rate, noise, times, epsilon, step=2e-5):
    """δ(ε) of the composed pair by rounding losses to a lattice and powers of a Fourier transform:
    about right.
    """
    x = np.linspace(1, 2 + 12 * noise, 400_001)  # the loss is 0 halfway to the mean, which is at 2
    drawn, still = (-np.diff(ndtr(-(x - mean) / noise)) for mean in (2, 0))
    loss = np.log1p(rate * np.expm1(2 * (x[1:] + x[:-1] - 2) / (2 * noise**2)))
    p = (1 - rate) * still + rate * drawn
    size = 2**20
    place = np.rint(loss / step).astype(int)
    assert place.max() < size // 2
    mass = np.bincount(place, p, size) + np.bincount(-place % size, still, size)
    mass[0] += 1 - mass.sum()
    total = np.maximum(np.fft.irfft(np.fft.rfft(mass) ** times, size), 0)
    losses = step * np.fft.fftfreq(size, 1 / size)
    return float((total * np.maximum(-np.expm1(np.minimum(epsilon - losses, 0.0)), 0)).sum())


@pytest.mark.parametrize(
    "size, records, noise, times, told, renyi",
    [(600, 60_000, 2.0, 1000, 2.199, 3.576), (512, 50_000, 4.0, 3000, 1.3455, 2.688)],
)
def test_fixed_sizes_have_the_known_costs(size, records, noise, times, told, renyi):
    guarantee = run(FixedSize(size, records), noise, times, accuracy=1e-4)
    lower, upper = pld.epsilon_lower(guarantee.canonical.pairs, DELTA, 1e-4), guarantee.claim(DELTA)
    assert lower <= upper <= 1.0001 * lower
    assert upper == pytest.approx(told, rel=5e-4)
    assert lattice_delta(size / records, noise, times, upper) == pytest.approx(DELTA, rel=5e-3)
    assert renyi_epsilon(size, records, noise, times) == pytest.approx(renyi, rel=1e-3)
    assert upper < renyi


def renyi_epsilon(size, records, noise, times):
    """Wang, Balle & Kasiviswanathan 2019, by another library; noise is in units of the distance of
    two records.
    """
    import dp_accounting as theirs
    from dp_accounting.rdp import RdpAccountant

    peer = RdpAccountant(neighboring_relation=theirs.NeighboringRelation.REPLACE_ONE)
    step = theirs.SampledWithoutReplacementDpEvent(records, size, theirs.GaussianDpEvent(noise / 2))
    return peer.compose(step, times).get_epsilon(DELTA)


def symmetrised(pair, points=1501):
    """Both distributions of the pair on cells of the line, mirrored about 0, and an atom there."""
    q, z = pair.rate, pair.noise_multiplier
    x = np.linspace(1, 3 + 9 * z, points)
    still, drawn = (-np.diff(ndtr(-(x - mean) / z)) for mean in (0, 2))
    p = (1 - q) * still + q * drawn
    rest = 1 - p.sum() - still.sum()
    return np.concatenate((still[::-1], [rest], p)), np.concatenate((p[::-1], [rest], still))


@pytest.mark.parametrize(
    "pair", [Pair(0.3, 1.6, "exchanged"), Pair(0.05, 2.5, "exchanged"), Pair(0.9, 4.0, "exchanged")]
)
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("steps", [1, 2])
def test_the_pair_without_replacement_brackets_its_integral(pair, epsilon, steps):
    p, q = symmetrised(pair)
    assert p.min() >= -1e-12  # the rest is no negative mass
    joint = (np.multiply.outer(p, p), np.multiply.outer(q, q)) if steps == 2 else (p, q)
    truth = float(np.maximum(joint[0] - math.exp(epsilon) * joint[1], 0).sum())
    pairs = ((pair, steps),)
    lower, upper = pld.delta_lower(pairs, epsilon), pld.delta_upper(pairs, epsilon).value
    assert lower - 3e-6 <= truth <= upper + 3e-6
    assert upper <= 1.001 * truth + 3e-6 and lower >= 0.999 * truth - 3e-6


@pytest.mark.parametrize("accuracy", [1e-2, 1e-3, 1e-5])
@pytest.mark.parametrize(
    "pair",
    [Pair(0.02, 1.8, "exchanged"), Pair(0.4, 5.0, "exchanged"), Pair(1e-4, 1.0, "exchanged")],
)
def test_atoms_of_one_step_contain_the_closed_form(pair, accuracy):
    delta = min(1e-5, pair.rate / 10)
    truth = closed_forms.one_step_epsilon(pair.rate, pair.mu, delta).upper
    lower, upper, _ = composed(((pair, 1),), 0.0, EpsilonAt(delta), accuracy)
    assert lower * (1 - 1e-9) <= truth <= upper * (1 + 1e-9)
    assert upper <= (1 + accuracy) * lower


@given(
    st.floats(1e-5, 1),
    st.floats(0.2, 20),
    st.lists(st.floats(-30, 30), min_size=1, max_size=12, unique=True),
    st.booleans(),
)
def test_cells_of_the_pair_have_all_mass_and_mirror_each_other(rate, noise, cuts, with_zero):
    cuts = np.unique([*cuts, -0.0, 0.0] if with_zero else cuts)
    rows = discretize.rows(((Pair(rate, noise, "exchanged"), 1),))[0]
    found, mirrored = discretize.cells(rows, cuts), discretize.cells(rows, -cuts[::-1])
    assert found.p.shape == (1, len(cuts) + 1)
    for mass in (found.p, found.q):
        assert mass.sum() == pytest.approx(1, abs=1e-12) and mass.min() >= 0
    assert np.abs(found.gain - (found.p - found.q)).max() < 1e-13
    if 0.0 not in cuts:  # the atom at a cut belongs to the cell on its left
        assert np.allclose(found.p[0], mirrored.q[0, ::-1], rtol=1e-12, atol=1e-300)
    clear = (found.q > 1e9 * found.q_error) & (found.q > 1e-290)  # denormal numbers have few digits
    p, q, wide = found.p[0, 1:-1], found.q[0, 1:-1], clear[0, 1:-1]
    inner = np.log(p[wide] / q[wide])
    assert np.all(inner >= cuts[:-1][wide] - 1e-6) and np.all(inner <= cuts[1:][wide] + 1e-6)


def outputs(records, size, noise, x):
    """The density of a sum over a uniform sample without replacement."""
    samples = list(itertools.combinations(records, size))
    return sum(normal(x, sum(sample), noise) for sample in samples) / len(samples)


def worst(noise, size, zeroed, steps, epsilon):
    """The largest δ(ε) over all neighbours among three records in {−1, 0, 1}, by integration."""
    x = np.arange(-3 - 9 * noise, 3 + 9 * noise, 0.004 if steps == 1 else 0.06)
    width, found = x[1] - x[0], 0.0
    for a, b, c in itertools.product((-1, 0, 1), repeat=3):
        for other in (0,) if zeroed else (-1, 0, 1):
            p, q = (outputs((first, b, c), size, noise, x) * width for first in (a, other))
            if steps == 2:
                p, q = np.multiply.outer(p, p), np.multiply.outer(q, q)
            for one, two in ((p, q), (q, p)):
                found = max(found, float(np.maximum(one - math.exp(epsilon) * two, 0).sum()))
    return found


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("relation", [REPLACE, ZERO])
@pytest.mark.parametrize("steps, epsilons", [(1, (0.0, 0.2, 0.7, 1.5)), (2, (0.3,))])
def test_no_three_records_are_told_apart_better_than_the_rule_says(size, relation, steps, epsilons):
    guarantee = run(FixedSize(size, 3), 1.5, steps, relation)
    for epsilon in epsilons:
        truth, told = (
            worst(1.5, size, relation == ZERO, steps, epsilon),
            guarantee.delta(epsilon).upper,
        )
        assert truth <= told + 1e-6
        if steps == 1 and relation == REPLACE:
            assert truth >= told - 1e-6  # and for one step the rule is exact


def test_smaller_costs_would_be_refuted():
    """Neither half the distance nor the pair of Poisson samples bounds what three records show."""
    epsilon, noise = 0.2, 1.5
    assert worst(noise, 1, False, 1, epsilon) > 1.5 * closed_forms.one_step_delta(
        1 / 3, 1 / noise, epsilon
    )
    poisson = run(Poisson(1 / 3), noise, 1, ZERO).delta(epsilon).upper
    assert worst(noise, 1, True, 1, epsilon) > 1.05 * poisson


def test_the_whole_data_as_a_sample_is_a_full_batch():
    assert run(FixedSize(7, 7), 3.0, 20).epsilon(DELTA) == run(Poisson(1.0), 3.0, 20).epsilon(DELTA)


@given(
    st.integers(1, 400),
    st.integers(1, 400),
    st.floats(0.5, 8),
    st.integers(1, 3000),
    st.sampled_from([1e-9, 1e-5, 1e-2]),
)
@settings(max_examples=40)
def test_brackets_are_ordered_and_narrow(size, more, noise, times, delta):
    guarantee = run(FixedSize(size, size + more), noise, times)
    lower, upper = pld.epsilon_lower(guarantee.canonical.pairs, delta), guarantee.claim(delta)
    assert (
        0 <= guarantee.epsilon(delta).lower <= lower * (1 + 1e-9) <= upper * (1 + 1e-9) < math.inf
    )
    assert upper <= 1.0011 * lower + 1.1e-6


@pytest.mark.parametrize("size, records", [(1, 10**9), (1, 10**5), (50, 100), (999_999, 10**6)])
@pytest.mark.parametrize("noise", [1e-3, 0.05, 1e6])
@pytest.mark.parametrize("times", [0, 1, 10**7])
@pytest.mark.parametrize("delta", [1e-12, 1e-5])  # of which one is a rate
def test_extremes_give_an_ordered_bracket(size, records, noise, times, delta):
    guarantee = run(FixedSize(size, records), noise, times)
    pairs, upper = guarantee.canonical.pairs, guarantee.claim(delta)
    assert 0 <= pld.epsilon_lower(pairs, delta) <= upper < math.inf
    assert pld.delta_upper(pairs, upper).value <= 1.001 * delta
    apart = size / records * math.erf(math.sqrt(0.5) / noise)  # the total variation of one step
    if times == 0 or (times == 1 and apart < delta):
        assert upper == 0
    elif apart > delta:
        assert upper > 0


def test_more_costs_more():
    def cost(size=100, noise=2.0, times=300):
        return run(FixedSize(size, 10_000), noise, times).claim(DELTA)

    for costs in (
        [cost(size=size) for size in (10, 50, 100, 101, 500, 5000)],
        [cost(noise=noise) for noise in (9.0, 4.0, 2.0, 1.0, 0.6)],
        [cost(times=times) for times in (1, 2, 30, 300, 3000)],
    ):
        assert all(0 < one < two for one, two in itertools.pairwise(costs))


def test_sizes_and_other_samples_compose():
    """Steps of all kinds in one run cost more than each kind alone and less than their sum."""
    kinds = [
        Repeated(Sampled(policy, (SumQuery(1.0, noise),)), times)
        for policy, noise, times in (
            (FixedSize(100, 10_000), 2.0, 300),
            (Poisson(0.01), 2.0, 300),
            (Shuffled(100, 10_000), 8.0, 3),
            (FixedSize(60, 10_000), 3.0, 100),
        )
    ]
    lower, upper = account(kinds, relation=REPLACE).epsilon(DELTA)
    parts = [account(kind, relation=REPLACE).claim(DELTA / len(kinds)) for kind in kinds]
    assert 0.5 * upper < lower < upper and max(parts) < upper < sum(parts)


# --- Poisson samples that are cut to a capacity
# -----------------------------------------------------------------------


def cut_outputs(records, rate, capacity, noise, x):
    """The density of a sum over a truncated Poisson sample."""
    density = np.zeros_like(x)
    for size in range(len(records) + 1):
        chance = rate**size * (1 - rate) ** (len(records) - size)
        for sample in itertools.combinations(records, size):
            kept = list(itertools.combinations(sample, min(size, capacity)))
            density += chance * sum(normal(x, sum(each), noise) for each in kept) / len(kept)
    return density


@pytest.mark.parametrize("capacity", [1, 2])
@pytest.mark.parametrize("relation", [REPLACE, ZERO])
def test_no_three_records_beat_the_rule_for_cut_samples(capacity, relation):
    noise, rate = 0.8, 0.15
    x = np.arange(-3 - 9 * noise, 3 + 9 * noise, 0.01)
    guarantee = run(TruncatedPoisson(rate, capacity, 3), noise, 1, relation)
    for epsilon in (0.0, 0.3, 1.0, 2.0):
        truth = 0.0
        for a, other, b, c in itertools.product((-1, 0, 1), repeat=4):
            if relation == REPLACE or other == 0:
                p, q = (
                    cut_outputs((first, b, c), rate, capacity, noise, x) * 0.01
                    for first in (a, other)
                )
                truth = max(
                    truth,
                    *(
                        float(np.maximum(one - math.exp(epsilon) * two, 0).sum())
                        for one, two in ((p, q), (q, p))
                    ),
                )
        lower, upper = guarantee.delta(epsilon)
        assert lower - 1e-6 <= truth <= upper + 1e-6


@pytest.mark.parametrize("capacity, relation", [(85, ZERO), (95, ZERO), (120, ZERO), (95, REPLACE)])
def test_another_analysis_of_cut_samples_lies_below(capacity, relation):
    import dp_accounting as theirs
    from dp_accounting.pld import PLDAccountant

    kind = {
        ZERO: theirs.NeighboringRelation.REPLACE_SPECIAL,
        REPLACE: theirs.NeighboringRelation.REPLACE_ONE,
    }[relation]
    step = theirs.dp_event.TruncatedSubsampledGaussianDpEvent(1000, 0.05, capacity, 2.0)
    peer = (
        PLDAccountant(kind, value_discretization_interval=1e-3).compose(step, 50).get_epsilon(DELTA)
    )
    guarantee = run(TruncatedPoisson(0.05, capacity, 1000), 2.0, 50, relation)
    assert guarantee.claim(DELTA) >= 0.998 * peer
    if capacity >= 95:  # cuts are rare, and both analyses are that of Poisson samples
        assert guarantee.claim(DELTA) <= 1.03 * peer


@given(
    st.floats(0.01, 0.3),
    st.integers(0, 12),
    st.floats(0.8, 5),
    st.integers(1, 300),
    st.sampled_from([1e-7, 1e-4]),
)
@settings(max_examples=12)
def test_claims_for_cut_samples_solve_the_equation(rate, spare, noise, times, delta):
    records = 2000
    mean = records * rate
    capacity = min(records, math.ceil(mean + (3 + spare / 2) * math.sqrt(mean)))
    guarantee = run(TruncatedPoisson(rate, capacity, records), noise, times, ZERO)
    pairs, failure = guarantee.canonical.pairs, guarantee.failure
    lower, upper = guarantee.epsilon(delta)
    assert 0 <= lower <= upper

    def bound(epsilon, profile):
        return profile(pairs, epsilon) + (1 + math.exp(epsilon)) * failure

    known = run(Poisson(1.0), noise, times, ZERO).claim(delta)  # as if samples were
    assert upper <= known
    if upper < known:
        assert bound(upper, pld.delta_lower) <= delta * (1 + 1e-9)
        assert upper == 0 or bound(0.995 * upper, lambda *at: pld.delta_upper(*at).value) > delta
    else:
        assert all(
            bound(epsilon, lambda *at: pld.delta_upper(*at).value) > delta
            for epsilon in (0, 1, 3, 9)
            if epsilon < 0.995 * known
        )
    if lower > 0:
        hidden = (1 + math.exp(0.999 * lower)) * failure
        assert pld.delta_upper(pairs, 0.999 * lower).value - hidden >= delta * (1 - 1e-6)


def test_delta_of_cut_samples_never_grows():
    guarantee = run(TruncatedPoisson(0.01, 150, 10_000), 1.0, 100, ZERO)
    deltas = [
        guarantee.delta(epsilon).upper for epsilon in (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 20.0, 300.0)
    ]
    assert 0 < guarantee.failure < 1e-3
    assert all(two <= one * 1.001 for one, two in itertools.pairwise(deltas))
    assert deltas[-1] <= 50 * guarantee.failure  # and does not exceed what the best ε gives by much


def test_every_step_may_fail():
    policies = TruncatedPoisson(0.01, 150, 10_000), TruncatedPoisson(0.02, 250, 10_000)
    one, other = (run(policy, 1.0, 1, ZERO).failure for policy in policies)
    steps = [Repeated(Sampled(policy, (SumQuery(1.0, 1.0),)), 700) for policy in policies]
    assert account([*steps, *steps], relation=ZERO).failure == pytest.approx(
        1400 * (one + other), rel=1e-8
    )
    assert run(policies[0], 1.0, 10**9, ZERO).failure == 1


def test_a_full_capacity_costs_nothing_and_a_small_one_as_much_as_all_records():
    full, poisson = (
        run(policy, 1.0, 100, ZERO)
        for policy in (TruncatedPoisson(0.01, 10_000, 10_000), Poisson(0.01))
    )
    assert full.failure == 0 and full.epsilon(DELTA) == poisson.epsilon(DELTA)
    small = run(TruncatedPoisson(0.01, 100, 10_000), 1.0, 100, ZERO)
    every = run(Poisson(1.0), 1.0, 100, ZERO)
    assert small.epsilon(DELTA).upper == every.claim(DELTA) and "known" in small.note(DELTA)
    assert small.delta(60.0).upper == every.delta(60.0).upper < 1
    costs = [
        run(TruncatedPoisson(0.01, capacity, 10_000), 1.0, 100, ZERO).claim(DELTA)
        for capacity in (170, 180, 200)
    ]
    assert costs == sorted(costs, reverse=True) and costs[-1] <= 1.001 * poisson.claim(DELTA)


@pytest.mark.parametrize(
    "records, rate, capacity",
    [
        (60_000, 0.01, 760),
        (60_000, 0.01, 601),
        (60_000, 0.01, 2000),
        (10**6, 1e-3, 1100),
        (10**7, 1e-5, 300),
        (50, 0.5, 49),
        (3, 1e-9, 1),
        (1000, 0.999, 999),
        (10**6, 0.5, 505_000),
        (200, 1e-3, 190),
    ],
)
def test_the_chance_of_a_cut_is_bounded_from_above(records, rate, capacity):
    """Against the tail in 60 digits: its terms fall geometrically, so a few thousand of them are
    all of it.
    """
    import mpmath

    with mpmath.workdps(60):
        q = mpmath.mpf(rate)
        term = (
            mpmath.binomial(records, capacity + 1)
            * q ** (capacity + 1)
            * (1 - q) ** (records - capacity - 1)
        )
        truth = mpmath.mpf(0)
        for count in range(capacity + 1, records + 1):
            truth += term
            term *= mpmath.mpf(records - count) / (count + 1) * q / (1 - q)
            if term < truth * mpmath.mpf(10) ** -40:
                break
        found = canonical(
            (
                Repeated(
                    Sampled(TruncatedPoisson(rate, capacity, records), (SumQuery(1.0, 1.0),)), 1
                ),
            ),
            "pld",
            ZERO,
        ).failure
        assert truth <= found <= truth * (1 + mpmath.mpf("1e-7")) + mpmath.mpf("1e-299")


def test_a_filter_that_rewards_no_sampling_admits_cut_samples_at_the_full_price():
    """Given the samples, the sums are Gaussian whatever was cut: no failure is owed."""
    guard = GaussianFilter(mu=1.0).guard(ZERO)
    guard.record(Sampled(TruncatedPoisson(0.01, 100, 10_000), (SumQuery(1.0, 2.0),)), 1)
    assert guard.used == pytest.approx(0.25, rel=1e-9)


# --- epochs
# ------


@pytest.mark.parametrize(
    ("policy", "relation", "distance"),
    [
        (policy, relation, distance)
        for policy in (Shuffled(100, 1000), Cyclic(100, 1000))
        for relation, distance in ((ZERO, 1), (REPLACE, 2))
    ],
)
def test_epochs_are_gaussian_sums(policy, relation, distance):
    exact = closed_forms.epsilon(distance * math.sqrt(12) / 3.0, DELTA)
    assert run(policy, 3.0, 12, relation).claim(DELTA) == pytest.approx(exact.upper, rel=1e-9)
    batches = 1 if isinstance(policy, Cyclic) else 10
    summed = closed_forms.epsilon(distance * math.sqrt(12 / batches) / 3.0, DELTA)
    assert run(policy, 3.0, 12, relation).epsilon(DELTA).lower == pytest.approx(
        summed.lower, rel=1e-9
    )
    assert run(policy, 3.0, 12, relation).note(DELTA) == "closed form"
    assert (
        exact.upper < run(policy, 3.0, 12, relation, method="rdp").claim(DELTA) < 1.2 * exact.upper
    )


def test_shuffled_epochs_cost_more_than_poisson_samples_of_the_same_size():
    """The mistake of other libraries: the numbers of Poisson samples for shuffled ones."""
    epochs, per_epoch = 10, 100
    shuffled = run(Shuffled(600, 60_000), 1.0, epochs, ZERO).claim(DELTA)
    poisson = run(Poisson(0.01), 1.0, epochs * per_epoch, ZERO).claim(DELTA)
    assert shuffled > 7 * poisson


def epoch_delta(values, zeroed, size, noise, epsilon):
    """δ(ε) of one shuffled epoch of two batches of three records whose order is secret, by
    integration.
    """
    x = np.arange(-3 - 8 * noise, 3 + 8 * noise, 0.06)

    def density(records):
        orders = list(itertools.permutations(records))
        parts = [
            np.multiply.outer(
                normal(x, sum(order[:size]), noise), normal(x, sum(order[size:]), noise)
            )
            for order in orders
        ]
        return sum(parts) / len(orders) * 0.06**2

    p, q = density(values), density((zeroed, *values[1:]))
    return max(
        float(np.maximum(one - math.exp(epsilon) * two, 0).sum()) for one, two in ((p, q), (q, p))
    )


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.5])
def test_no_epoch_of_three_records_beats_the_rule(epsilon):
    for relation, other in ((ZERO, 0), (REPLACE, -1)):
        told = run(Shuffled(2, 3), 1.2, 1, relation).delta(epsilon).upper
        for b, c in itertools.product((-1, 0, 1), repeat=2):
            assert epoch_delta((1, b, c), other, 2, 1.2, epsilon) <= told + 1e-6


# --- what has no rule
# ------

NEED_N = [
    FixedSize(10, 100),
    TruncatedPoisson(0.1, 60, 100),
    Shuffled(10, 100),
    Cyclic(10, 100),
    BallsInBins(10, 100),
]


@pytest.mark.parametrize("policy", NEED_N, ids=str)
@pytest.mark.parametrize("method", ["pld", "rdp"])
def test_adding_or_removing_is_refused_with_reason_and_remedy(policy, method):
    words = f"{policy.tag}.*how many there are.*'zero_out' or 'replace_one'.*Poisson"
    with pytest.raises(UnsupportedEvent, match=words):
        run(policy, 1.0, 1, ADD, method=method)


@pytest.mark.parametrize("policy", NEED_N[:2], ids=str)
def test_renyi_accounting_is_refused_by_name(policy):
    with pytest.raises(UnsupportedEvent, match=f"No rdp rule for {policy.tag}.*Use method 'pld'"):
        run(policy, 1.0, 1, ZERO, method="rdp")


@pytest.mark.parametrize("policy", NEED_N, ids=str)
def test_laplace_noise_is_refused_where_others_would_move(policy):
    with pytest.raises(UnsupportedEvent, match=r"laplace noise under add_or_remove_one.*public"):
        account(Sampled(policy, (LaplaceSum(1.0, 1.0),)), relation="add_or_remove_one")


@pytest.mark.parametrize("policy", NEED_N, ids=str)
def test_a_step_without_noise_has_no_finite_cost(policy):
    guarantee = run(policy, 0.0, 1, ZERO)
    assert guarantee.claim(0.001) == math.inf and guarantee.delta(1.0).upper == 1
    assert guarantee.delta(1.0).lower > 0.09
