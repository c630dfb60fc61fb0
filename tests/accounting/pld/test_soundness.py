"""Nothing is ever understated: brute force, simulation, a plain lattice, closed forms, and
thousands of odd runs.
"""

import functools
import itertools
import math

import mpmath
import numpy as np
import pytest
from scipy.special import erfc, ndtr

from dpfy.accounting import account
from dpfy.accounting.dominating_pairs import Pair
from dpfy.accounting.pld import accountant as pld, discretize, methods
from dpfy.accounting.pld.compose import curve
from dpfy.accounting.pld.fourier import Line, Spectrum, moments
from dpfy.accounting.pld.target import DeltaAt
from dpfy.ledger.events import Poisson, Repeated, Sampled, SumQuery


def run(rate, noise, steps):
    return Repeated(Sampled(Poisson(rate), (SumQuery(1.0, noise),)), steps)


@pytest.mark.parametrize("epsilon", [0.1, 0.7, 1.5])
@pytest.mark.parametrize("steps", [1, 3, 6])
def test_the_fourier_sum_is_right_for_a_small_discrete_mechanism(steps, epsilon):
    """Every outcome of a three-valued mechanism, listed; a wrong kernel, alias or smoothing term
    shows here.
    """
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.3, 0.5])
    truth = sum(
        max(0.0, math.prod(p[list(way)]) - math.exp(epsilon) * math.prod(q[list(way)]))
        for way in itertools.product(range(3), repeat=steps)
    )
    none, exact = np.zeros(1), np.zeros((1, 3))
    law = [
        discretize.Block(
            np.array([float(steps)]),
            np.log(p / q),
            None,
            p[None],
            np.ones(1),
            none,
            none,
            none,
            exact,
        )
    ]
    line = Line(tilt=2.0, window=40.0, smoothing=1e-6, count=42_100)
    spectrum = Spectrum(law, 0.0, line)
    above = math.exp(spectrum.delta_above(epsilon))
    below = spectrum.delta_below(epsilon, moments(law, 0.0, np.geomspace(0.1, 20, 30)))
    assert below <= truth * (1 + 1e-9) + 1e-12
    assert above >= truth * (1 - 1e-9)
    assert above - below <= 2e-3 * above + 1e-4


def lattice_epsilon(rate, noise, steps, delta, interval, *, pessimistic):
    """A plain FFT of losses rounded to a lattice, up or down: first order, no tilt, no code in
    common.
    """
    edges = np.linspace(-10 * noise, 1 + 10 * noise, 40_001)
    mass = (1 - rate) * np.diff(ndtr(edges / noise)) + rate * np.diff(ndtr((edges - 1) / noise))
    loss = np.log1p(rate * np.expm1((2 * edges - 1) / (2 * noise**2)))
    place = np.ceil(loss[1:] / interval) if pessimistic else np.floor(loss[:-1] / interval)
    low, size = int(place.min()), 2**17
    law = np.bincount((place - low).astype(int), weights=mass, minlength=size)
    total = np.fft.irfft(np.fft.rfft(law, size) ** steps, size)
    losses = interval * (
        (np.arange(size) + 60_000) % size - 60_000 + steps * low - (steps * low) // size * size
    )
    losses = np.where(losses > size * interval / 2, losses - size * interval, losses)

    def profile(epsilon):
        return float(np.maximum(-np.expm1(np.minimum(epsilon - losses, 0.0)), 0.0) @ total)

    low_end, high_end = 0.0, 50.0
    for _ in range(60):
        middle = (low_end + high_end) / 2
        low_end, high_end = (middle, high_end) if profile(middle) > delta else (low_end, middle)
    return high_end


@pytest.mark.parametrize(
    ("rate", "noise", "steps", "delta"),
    [(0.05, 1.0, 100, 1e-5), (0.2, 2.0, 50, 1e-4), (0.5, 1.5, 5, 1e-6)],
)
def test_a_plain_lattice_brackets_the_bracket(rate, noise, steps, delta):
    lower, upper, _ = pld.epsilon_bracket(((Pair(rate, noise), steps),), delta, 1e-3)
    interval = 2e-4
    assert lower <= lattice_epsilon(rate, noise, steps, delta, interval, pessimistic=True) + 1e-9
    assert upper >= lattice_epsilon(rate, noise, steps, delta, interval, pessimistic=False) - 1e-9


def test_simulation_agrees_and_would_notice_five_percent():
    """Means of bounded variables: 2.5 million draws put 5 % of δ at more than 6 standard errors
    (1e-9 false alarms).
    """
    rate, noise, steps, epsilon, draws = 0.2, 1.0, 10, 1.0, 2_500_000
    generator = np.random.default_rng(7)
    loss = np.zeros(draws)
    for _ in range(steps):
        x = noise * generator.standard_normal(draws) + (generator.random(draws) < rate)
        loss += np.log1p(rate * np.expm1((2 * x - 1) / (2 * noise**2)))
    values = np.maximum(-np.expm1(np.minimum(epsilon - loss, 0.0)), 0.0)
    mean, error = values.mean(), values.std() / math.sqrt(draws)
    lower, upper, _ = pld.delta_bracket(((Pair(rate, noise), steps),), epsilon, 1e-3)
    assert 6 * error < 0.05 * upper
    assert lower - 6 * error <= mean <= upper + 6 * error


def test_the_normal_distribution_is_as_precise_as_the_proof_says():
    points = np.concatenate((np.linspace(-37, 8, 400), [-1e-9, 0.0, 1e-3]))
    for point, value in zip(points, erfc(-points * math.sqrt(0.5)) / 2, strict=True):
        with mpmath.workdps(40):
            truth = mpmath.ncdf(mpmath.mpf(float(point)))
            assert abs(value - truth) <= (8 + 2 * point**2) * discretize.EPS * truth


@pytest.mark.parametrize("log_delta", [-2, -5, -9, -14])
@pytest.mark.parametrize(
    ("rate", "noise", "steps"),
    [
        (0.01, 1.0, 1000),
        (0.3, 0.7, 3),
        (1e-3, 0.6, 10**5),
        (0.2, 20.0, 200),
        (0.01, 0.25, 50),
        (0.5, 2.0, 2),
    ],
)
def test_epsilon_and_delta_invert_each_other(rate, noise, steps, log_delta):
    """From ε back to δ: what ε moves within its bracket, δ moves by that times the slope, and no
    further.
    """
    delta, pairs = 10.0**log_delta, ((Pair(rate, noise), steps),)
    lower, upper, _ = pld.epsilon_bracket(pairs, delta, 1e-3)
    if upper == 0:
        assert pld.delta_bracket(pairs, 0.0, 1e-3).lower <= delta
        return
    assert upper <= 1.0012 * lower
    assert pld.delta_bracket(pairs, upper, 1e-3).lower <= delta
    assert pld.delta_bracket(pairs, lower, 1e-3).upper >= delta
    beyond = pld.delta_bracket(pairs, upper * 1.002, 1e-3).upper
    assert beyond <= delta * (1 + 1e-9)


@pytest.mark.parametrize(
    "pairs",
    [
        ((Pair(0.01, 1.0), 1000),),
        ((Pair(1e-5, 0.5, "opposed"), 10**5),),
        ((Pair(0.2, 2.0), 20), (Pair(1.0, 0.8, noise="laplace"), 2), (Pair(1.0, 9.0), 3)),
    ],
)
def test_a_law_is_composed_once_for_many_points_of_the_profile(pairs, monkeypatch):
    """Each point agrees with a composition for that ε alone, whatever was asked before; few laws
    are composed.
    """
    points = np.linspace(0, pld.epsilon_bracket(pairs, 1e-7, 1e-3).upper, 33).tolist()
    composed = []
    monkeypatch.setattr(
        methods, "_curve", functools.cache(lambda *run: composed.append(run) or curve(*run))
    )
    ask = pld.delta_bracket.__wrapped__
    brackets = [ask(pairs, point, 1e-3) for point in points]
    assert len(composed) <= 13
    assert brackets[7] == ask(pairs, points[7], 1e-3)
    for point, (lower, upper, _) in list(zip(points, brackets, strict=True))[::4]:
        rest, gauss = pld.split(pairs)
        alone = methods.composed(rest, gauss, DeltaAt(point), 1e-3)
        assert lower <= alone.upper * (1 + 1e-12) and alone.lower <= upper * (1 + 1e-12)
        assert upper <= lower * math.exp(1e-3 * max(1, 60 * point))


def odd_run(generator):
    noise = generator.choice(
        [0.0, 1e-3, 1e6, 10 ** generator.uniform(-3, 6), 10 ** generator.uniform(-1, 2)],
        p=[0.05, 0.05, 0.05, 0.25, 0.6],
    )
    rate = generator.choice(
        [0.0, 1e-9, 1.0, 10 ** generator.uniform(-9, 0)], p=[0.05, 0.05, 0.1, 0.8]
    )
    steps = int(
        generator.choice([0, 1, 10**7, 10 ** generator.uniform(0, 7)], p=[0.03, 0.1, 0.07, 0.8])
    )
    delta = generator.choice(
        [1e-300, 1 - 1e-9, 10 ** generator.uniform(-300, -15), 10 ** generator.uniform(-15, -0.1)],
        p=[0.03, 0.03, 0.14, 0.8],
    )
    return (
        float(noise),
        float(rate),
        steps,
        float(delta),
        str(generator.choice(["add_or_remove_one", "replace_one"])),
    )


def check_odd_run(noise, rate, steps, delta, relation):
    guarantee = account(run(rate, noise, steps), relation=relation)
    lower, upper = guarantee.epsilon(delta)
    assert 0 <= lower <= upper
    if relation == "add_or_remove_one":
        renyi = account(run(rate, noise, steps), "rdp").claim(delta)
        assert lower <= renyi and (renyi == upper or rate * steps * noise > 0)
    if rate == 0 or steps == 0:
        assert upper == 0
    elif noise == 0:
        assert upper == math.inf
    elif (
        upper == 0
        # (0, δ) is claimed only if the total variation of the run is below δ: a single step's is a
        # floor
    ):
        distance = (1 if relation == "add_or_remove_one" else 2) / noise
        assert rate * math.erf(distance / math.sqrt(8)) <= delta * (1 + 1e-9)
        assert guarantee.delta(0.0).lower <= delta


@pytest.mark.parametrize("seed", range(10))
def test_odd_runs_are_bracketed(seed):
    generator = np.random.default_rng(seed)
    for _ in range(30):
        check_odd_run(*odd_run(generator))


@pytest.mark.parametrize(
    ("noise", "rate", "steps", "delta"),
    [
        (0.03165673777360994, 1.716035960238164e-05, 10001, 4.59408817074228e-162),
        (0.031228867275917706, 0.0033367399577215635, 5601572, 2.9441902735388076e-12),
    ],
)
def test_losses_beyond_float64_are_bounded_without_composition(noise, rate, steps, delta):
    check_odd_run(noise, rate, steps, delta, "add_or_remove_one")
    assert account(run(rate, noise, steps)).epsilon(delta).upper < math.inf


@pytest.mark.parametrize(
    ("noise", "rate", "steps", "delta"),
    [
        (0.052131058996586856, 3.440078674730499e-08, 5_464_518, 0.999999999),
        (0.04874591821478459, 7.230117990263615e-09, 2040, 9.028307802454848e-05),
        (0.042944327806124595, 0.0002694576523357877, 1157, 0.6630625239152153),
        (1e6, 1.5449863586349137e-05, 1_150_899, 7.472665049642115e-244),
    ],
)
def test_a_finite_part_that_vanishes_is_no_obstacle(noise, rate, steps, delta):
    """All but the split losses is one tiny negative number, or δ underflows: no tilt, slope or
    logarithm may fail.
    """
    check_odd_run(noise, rate, steps, delta, "add_or_remove_one")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 200))
def test_ten_thousand_odd_runs_are_bracketed(seed):
    generator = np.random.default_rng(seed)
    for _ in range(100):
        check_odd_run(*odd_run(generator))


@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
def test_cost_falls_with_noise_and_grows_with_rate_and_steps(relation):
    def cost(rate, noise, steps):
        return account(run(rate, noise, steps), relation=relation).epsilon(1e-6)

    for chain in (
        [(0.01, z, 500) for z in (2.0, 1.5, 1.0, 0.7, 0.4)],
        [(q, 1.0, 300) for q in (1e-4, 1e-3, 0.01, 0.1, 1.0)],
        [(0.02, 1.0, steps) for steps in (1, 2, 5, 30, 1000, 10**6)],
    ):
        brackets = [cost(*case) for case in chain]
        for cheaper, dearer in itertools.pairwise(brackets):
            assert cheaper.lower <= dearer.upper and cheaper.upper <= dearer.upper
