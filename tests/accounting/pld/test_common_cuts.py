"""Ledgers in which every step differs, and runs in which one rare step decides."""

import math

import mpmath
import numpy as np
import pytest

from dpfy.accounting.dominating_pairs import Pair, coarsened
from dpfy.accounting.pld import (
    accountant as pld,
    common_cuts,
    compose,
    discretize,
    fourier,
    one_step,
)
from dpfy.accounting.pld.compose import composed
from dpfy.accounting.pld.target import EpsilonAt

SCHEDULE = tuple(sorted((Pair(0.01, 2 * 0.35 ** (t / 9_999)), 1) for t in range(10_000)))


def scattered(count, neighbours="absent", times=1, seed=3):
    generator = np.random.default_rng(seed)
    rates = np.exp(generator.uniform(math.log(1e-3), math.log(0.05), count))
    noises = generator.uniform(0.6, 3.0, count)
    return tuple(
        sorted(
            (Pair(float(q), float(z), neighbours), times)
            for q, z in zip(rates, noises, strict=True)
        )
    )


def test_ten_thousand_noise_multipliers():
    lower, upper, _ = pld.epsilon_bracket(SCHEDULE, 1e-5, 1e-3)
    assert 6.407 <= lower <= 6.415  # the truth lies in [6.407, 6.415]
    assert 6.407 <= upper <= 6.418
    assert upper <= 1.001 * lower


@pytest.mark.parametrize(
    ("count", "neighbours"), [(200, "absent"), (200, "opposed"), (10_000, "absent")]
)
def test_different_rates_and_noise_multipliers(count, neighbours):
    """Between the costs of the run with each step rounded to cheaper and to dearer ones, composed
    one by one.
    """
    pairs = scattered(count, neighbours)
    lower, upper, note = pld.epsilon_bracket(pairs, 1e-5, 1e-3)
    assert upper <= 1.001 * lower
    assert note == ""
    cheap, dear = (
        pld.epsilon_bracket(coarsened(pairs, common_cuts.FEW, pessimistic=side), 1e-5, 1e-3)
        for side in (False, True)
    )
    assert cheap.lower < lower <= upper < dear.upper


@pytest.mark.parametrize("neighbours", ["absent", "opposed"])
def test_blocks_of_rows_agree_with_steps_one_by_one(neighbours, monkeypatch):
    """A wrong series, centre or order of rows moves an end past the composition of the same steps
    without blocks.
    """
    pairs = scattered(60, neighbours, times=30)
    together = pld.epsilon_bracket(pairs, 1e-6, 1e-4)
    monkeypatch.setattr(common_cuts, "FEW", 100)
    monkeypatch.setattr(compose, "FEW", 100)
    alone = pld.epsilon_bracket.__wrapped__(pairs, 1e-6, 1e-4)
    assert together.lower <= alone.upper and alone.lower <= together.upper
    assert together.upper == pytest.approx(alone.upper, rel=1e-4)
    assert together.lower == pytest.approx(alone.lower, rel=1e-4)


def test_more_kinds_than_fit_are_merged_and_the_note_says_so(monkeypatch):
    pairs = scattered(300)
    exact = pld.epsilon_bracket(pairs, 1e-5, 1e-3)
    monkeypatch.setattr(compose, "_MAX_KINDS", 100)
    lower, upper, note = composed(pairs, 0.0, EpsilonAt(1e-5), 1e-3)
    assert lower <= exact.upper and exact.lower <= upper
    assert "merged" in note


RARE = [
    (Pair(2.89e-5, 0.811), 1.8e-12),
    (Pair(3.7e-5, 0.5), 8.7e-6),
    (Pair(6.1e-6, 0.49, "opposed"), 3.6e-7),
    (Pair(1e-5, 2.0, noise="laplace"), 1e-6),
    (Pair(1e-6, 0.3), 1e-11),
    (Pair(0.3, 0.1, noise="laplace"), 1e-3),
]


@pytest.mark.parametrize(("pair", "delta"), RARE)
def test_a_rare_large_loss_is_split_without_loss(pair, delta):
    """Nearly all losses are far below ε: without the split, tilts and windows would have to span
    both scales.
    """
    truth = one_step.epsilon(pair, delta).upper
    lower, upper, _ = composed(((pair, 1),), 0.0, EpsilonAt(delta), 1e-4)
    assert lower <= truth <= upper <= 1.0001 * lower + 1e-7


@pytest.mark.parametrize("direction", [1, -1])
def test_the_split_below_is_charged(direction):
    """With the last cut below ε, mass past it is worth less than the split says; the lower end must
    know.
    """
    pair, steps, delta = Pair(0.2, 0.8), 3, 1e-3
    truth = pld.epsilon_bracket(((pair, steps),), delta, 1e-5)
    run = common_cuts.arranged(((pair, steps),))
    cuts = np.linspace(-0.2, 0.8, 400) if direction == 1 else np.linspace(-0.1, 3.0, 400)
    up, down = common_cuts.discretized(run, cuts, direction, discretize.above, discretize.below)
    line = fourier.Line(tilt=1.0, window=60.0, smoothing=1e-5, count=22_000)
    law = fourier.moments(up, 0.0, np.geomspace(0.1, 30, 40))
    sums = [
        sum(float(block.times @ getattr(block, name)) for block in down)
        for name in ("beyond", "past")
    ]
    bounds = compose.Bounds(
        fourier.Spectrum(up, 0.0, line),
        fourier.Spectrum(down, 0.0, line),
        law,
        compose.opposite(up, 0.0, 2.0),
        float(cuts[-1] if direction == 1 else -cuts[0]),
        compose.infinite(up),
        compose.infinite(down),
        *sums,
    )
    assert bounds.delta_above(truth.lower) >= delta * (1 - 1e-6) or direction == -1
    assert bounds.delta_below(truth.upper) <= delta
    assert bounds.certain > 1e-6  # the split was put to the test


def test_cells_have_the_masses_of_the_loss():
    """Cuts are places of the output by a closed form of the inverse; rates near 1 and losses near
    the bottom cancel.
    """
    for pair in (
        Pair(0.01, 1.0),
        Pair(1 - 1e-9, 2.0),
        Pair(0.3, 0.5, "opposed"),
        Pair(1e-6, 3.0, "opposed"),
        Pair(0.2, 0.7, noise="laplace"),
        Pair(1.0, 0.7, noise="laplace"),
    ):
        low, high = discretize.place_range(pair, -20.0)
        places = np.linspace(low, high, 23)[1:-1]
        cuts = discretize.losses(pair, places)
        found = discretize.cells(discretize.rows(((pair, 1),))[0], cuts)
        z = pair.noise_multiplier
        outputs = {"laplace": places, "absent": z**2 * places + 0.5, "opposed": z**2 * places}[
            "laplace" if pair.noise == "laplace" else pair.neighbours
        ]
        means = (0.0, 1.0, 0.0 if pair.neighbours == "absent" else -1.0)
        still, drawn, other = (
            np.diff(_distribution(pair.noise, (outputs - mean) / z)) for mean in means
        )
        p, q = ((1 - pair.rate) * still + pair.rate * part for part in (drawn, other))
        assert found.p[0, 1:-1] == pytest.approx(p, rel=1e-7, abs=1e-14)
        assert found.q[0, 1:-1] == pytest.approx(q, rel=1e-7, abs=1e-14)


def _distribution(noise, x):
    if noise == "laplace":
        return np.where(x < 0, np.exp(-np.abs(x)) / 2, 1 - np.exp(-np.abs(x)) / 2)
    return np.vectorize(lambda t: math.erfc(-t / math.sqrt(2)) / 2)(x)


def any_run(generator):
    """One to four kinds of steps over wide ranges, and a δ."""
    neighbours = "opposed" if generator.random() < 0.35 else "absent"
    kinds = 1 if generator.random() < 0.6 else int(generator.integers(2, 5))
    run = {}
    for _ in range(kinds):
        pair = Pair(
            float(10 ** generator.uniform(-6, 0)),
            float(10 ** generator.uniform(-0.52, 2.3)),
            neighbours,
        )
        dice = generator.random()
        if kinds > 1 and dice < 0.2:
            pair = Pair(1.0, float(10 ** generator.uniform(0, 2)), neighbours)
        elif kinds > 1 and dice < 0.35 and neighbours == "absent":
            pair = Pair(
                float(generator.choice([1.0, 0.1, 0.01])),
                float(10 ** generator.uniform(-0.3, 1.5)),
                neighbours,
                "laplace",
            )
        run[pair] = int(10 ** generator.uniform(0, 6 if kinds == 1 else 4))
    return tuple(sorted(run.items())), float(10 ** generator.uniform(-12, -1))


def check_width(generator, accuracy):
    pairs, delta = any_run(generator)
    lower, upper, _ = pld.epsilon_bracket(pairs, delta, accuracy)
    assert upper - lower <= accuracy * max(upper, 1e-2), (pairs, delta)


@pytest.mark.parametrize("seed", range(4))
def test_any_run_is_known_to_a_thousandth(seed):
    generator = np.random.default_rng(seed)
    for _ in range(25):
        check_width(generator, 1e-3)


def test_any_run_is_known_to_a_hundred_thousandth_where_asked():
    generator = np.random.default_rng(2)
    for _ in range(8):
        check_width(generator, 1e-5)


HEAVY = [
    (
        Pair(1.2032021201945311e-05, 0.36774992583214067, "opposed"),
        2324,
        0.0030995677607845644,
        1e-3,
    ),
    (
        Pair(6.243091876626169e-06, 0.3850874870833564, "opposed"),
        29_967,
        2.2832637139614646e-11,
        1e-5,
    ),
    (Pair(8.771468133179286e-05, 0.5516165090821238, "opposed"), 155, 8.594377081182259e-11, 1e-5),
]


@pytest.mark.parametrize(("pair", "steps", "delta", "accuracy"), HEAVY)
def test_rare_losses_of_all_sizes_are_split_where_they_decide(pair, steps, delta, accuracy):
    """Losses spread over decades: a split too far out, or tilts too far apart, leave the bracket
    too wide.
    """
    lower, upper, _ = pld.epsilon_bracket(((pair, steps),), delta, accuracy)
    assert 0 < upper - lower <= accuracy * upper


@pytest.mark.parametrize(
    ("pairs", "delta"),
    [
        (((Pair(0.12652062122715124, 0.258006131005541), 689),), 0.9998777710049721),
        (
            ((Pair(0.0174, 7.469), 3), (Pair(0.2961011803804842, 0.2128879464998534), 87)),
            1 - 2.8e-6,
        ),
        (((Pair(0.13784202128579154, 0.403200246231672, "opposed"), 829),), 1 - 3.3e-6),
    ],
)
def test_a_delta_near_one_is_as_narrow(pairs, delta):
    """There 1 − δ is what counts, and Chernoff's tilt is near 0, which would need a window without
    end.
    """
    lower, upper, _ = pld.epsilon_bracket(pairs, delta, 1e-3)
    assert lower <= upper <= 1.001 * lower


def test_losses_that_end_leave_nothing_below():
    """Adding a record costs no step more than −log(1 − q); mass left beyond the cuts would exceed a
    tiny δ.
    """
    lower, upper, note = pld.epsilon_bracket(
        ((Pair(0.31202313262902365, 0.3060985530125224), 5),), 1e-107, 1e-3
    )
    assert lower <= upper <= 1.001 * lower
    assert note == ""


@pytest.mark.parametrize(
    "pair",
    [Pair(5.3e-8, 0.0816), Pair(2.8e-6, 0.158, "opposed"), Pair(0.3, 0.002, noise="laplace")],
)
def test_masses_below_all_floats_keep_their_digits(pair):
    """Q of losses of hundreds underflows; without the lift, atoms above move by whole cells and
    atoms below vanish.
    """
    cuts = np.linspace(-2.0, 430.0, 25)
    found = discretize.cells(discretize.rows(((pair, 1),))[0], cuts)
    with mpmath.workdps(60):
        ends = [_place(pair, mpmath.mpf(cut)) for cut in cuts.tolist()]
        tails = [
            sum(weight * _tail(pair, end - mean) for weight, mean in _without(pair)) for end in ends
        ]
        for cell, (left, right) in enumerate(
            zip(tails, [*tails[1:], mpmath.mpf(0)], strict=True), start=1
        ):
            truth = (left - right) * mpmath.exp(max(cuts[cell - 1], 0.0))
            assert abs(found.lifted[0, cell] - truth) <= found.lifted_error[0, cell] + 1e-300
            assert found.lifted_error[0, cell] < 1e-9 * truth
    assert np.array_equal(found.lift[1:], np.maximum(cuts, 0.0))


def _place(pair, loss):
    """The output that has this loss after sampling."""
    rate, z = mpmath.mpf(pair.rate), mpmath.mpf(pair.noise_multiplier)
    if pair.neighbours == "opposed":
        lever = (1 - rate) / rate * mpmath.exp(1 / (2 * z**2))
        return z**2 * (loss / 2 + mpmath.asinh(lever * mpmath.sinh(loss / 2)))
    ratio = mpmath.log(max((mpmath.exp(loss) - 1 + rate) / rate, mpmath.mpf(10) ** -400))
    return z**2 * ratio + 0.5 if pair.noise == "gaussian" else (ratio * z + 1) / 2


def _tail(pair, x):
    if pair.noise == "gaussian":
        return mpmath.erfc(x / (pair.noise_multiplier * mpmath.sqrt(2))) / 2
    far = mpmath.exp(-abs(x) / mpmath.mpf(pair.noise_multiplier)) / 2
    return far if x > 0 else 1 - far


def _without(pair):
    """Weights and means of the outputs without the record."""
    return (
        [(1, 0)]
        if pair.neighbours == "absent"
        else [(1 - mpmath.mpf(pair.rate), 0), (mpmath.mpf(pair.rate), -1)]
    )


@pytest.mark.parametrize(
    ("rate", "noise", "delta"), [(2.8e-6, 0.158, 1e-202), (1e-8, 0.08, 1e-150), (1e-3, 0.4, 1e-250)]
)
def test_two_rare_losses_agree_with_an_integral_in_many_digits(rate, noise, delta):
    """δ of two steps is the mean of one step's δ(ε − L); an underflow, or a wrong lift, moves an
    end past the truth.
    """
    lower, upper, _ = composed(((Pair(rate, noise), 2),), 0.0, EpsilonAt(delta), 1e-3)
    assert upper <= 1.001 * lower
    with mpmath.workdps(40):
        assert _delta_of_two(rate, noise, upper) <= delta <= _delta_of_two(rate, noise, lower)


def _delta_of_two(rate, noise, epsilon):
    pair, q, z = Pair(rate, noise), mpmath.mpf(rate), mpmath.mpf(noise)

    def one_step(level):
        if mpmath.exp(level) <= 1 - q:
            return 1 - mpmath.exp(level)
        place = _place(pair, level)
        still, drawn = _tail(pair, place), _tail(pair, place - 1)
        return (1 - q) * still + q * drawn - mpmath.exp(level) * still

    def part(x):
        ratio = 1 - q + q * mpmath.exp((2 * x - 1) / (2 * z**2))
        return ratio * mpmath.npdf(x, 0, z) * one_step(epsilon - mpmath.log(ratio))

    end = _place(
        pair, mpmath.mpf(epsilon)
    )  # between 0 and here, and past both, lies all that counts
    return mpmath.quad(part, [*mpmath.linspace(-8 * z, end + 8 * z, 120)], maxdegree=3)


FEW_RARE = [
    (((Pair(2.8e-6, 0.158), 2), (Pair(1.1e-5, 0.47), 2), (Pair(2.1e-4, 1.16), 690)), 3e-202),
    (
        (
            (Pair(2.8e-9, 0.153), 2),
            (Pair(4e-7, 0.0712), 4),
            (Pair(7.4e-6, 0.266), 1),
            (Pair(4.4e-4, 3.35), 97),
        ),
        3.1e-238,
    ),
    (
        (
            (Pair(5.3e-6, 0.27, "opposed"), 2),
            (Pair(7e-6, 0.106, "opposed"), 2),
            (Pair(0.0068, 0.955, "opposed"), 1561),
        ),
        4.9e-174,
    ),
    (((Pair(9e-7, 0.0849), 1), (Pair(5.5e-4, 4.0), 3408), (Pair(0.0018, 0.652), 420)), 6.7e-125),
]


@pytest.mark.parametrize(("pairs", "delta"), FEW_RARE)
def test_a_few_rare_steps_among_many_are_known_to_a_thousandth_at_a_tiny_delta(pairs, delta):
    """Tilts too far apart, a late guess of ε, or cells for one rare loss too many leave brackets of
    several percent.
    """
    lower, upper, note = pld.epsilon_bracket(pairs, delta, 1e-3)
    assert lower <= upper <= 1.001 * lower
    assert note == ""


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3, 8))
def test_many_runs_are_known_to_a_hundred_thousandth_where_asked(seed):
    generator = np.random.default_rng(seed)
    for _ in range(20):
        check_width(generator, 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 30))
def test_thousands_of_runs_are_known_to_a_thousandth(seed):
    generator = np.random.default_rng(seed)
    for _ in range(100):
        check_width(generator, 1e-3)


def test_a_mixed_run_agrees_with_another_implementation():
    from dp_accounting.pld import privacy_loss_distribution as engine

    pairs = (
        (Pair(0.01, 1.0), 1000),
        (Pair(0.4, 3.0), 5),
        (Pair(1.0, 2.0, noise="laplace"), 1),
        (Pair(1.0, 5.0), 1),
    )
    peer = engine.from_laplace_mechanism(2.0, value_discretization_interval=1e-4)
    for pair, steps in pairs:
        if pair.noise == "gaussian":
            peer = peer.compose(
                engine.from_gaussian_mechanism(
                    pair.noise_multiplier,
                    value_discretization_interval=1e-4,
                    sampling_prob=pair.rate,
                ).self_compose(steps)
            )
    lower, upper, _ = pld.epsilon_bracket(pairs, 1e-6, 1e-4)
    assert lower <= peer.get_epsilon_for_delta(1e-6)
    assert upper == pytest.approx(peer.get_epsilon_for_delta(1e-6), rel=2e-4)
