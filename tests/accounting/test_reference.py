"""The bounds against direct integration of the hockey-stick divergence, which shares no code or
grid with them.
"""

import math

import numpy as np
import pytest
from scipy.special import ndtr

from dpfy.accounting.dominating_pairs import Pair
from dpfy.accounting.pld import accountant as pld, one_step
from dpfy.accounting.pld.common_cuts import arranged
from dpfy.accounting.pld.compose import composed, one_direction
from dpfy.accounting.pld.target import DeltaAt, EpsilonAt

GRID = 2501


def normal(x, mean, noise):
    return np.exp(-(((x - mean) / noise) ** 2) / 2) / (noise * math.sqrt(2 * math.pi))


def densities(pair, x):
    q, z = pair.rate, pair.noise_multiplier
    p = (1 - q) * normal(x, 0, z) + q * normal(x, 1, z)
    other = (
        (1 - q) * normal(x, 0, z) + q * normal(x, -1, z)
        if pair.neighbours == "opposed"
        else normal(x, 0, z)
    )
    return p, other


def integrated(pair, steps, epsilon, swap=False):
    """δ(ε) by the product rule on steps-dimensional outputs."""
    x = np.linspace(
        -9 * pair.noise_multiplier - 1, 9 * pair.noise_multiplier + 2, GRID if steps < 3 else 181
    )
    p, q = densities(pair, x)
    p, q = (q, p) if swap else (p, q)
    width = x[1] - x[0]
    p, q = p * width, q * width
    joint_p, joint_q = p, q
    for _ in range(steps - 1):
        joint_p, joint_q = np.multiply.outer(joint_p, p), np.multiply.outer(joint_q, q)
    return float(np.maximum(joint_p - math.exp(epsilon) * joint_q, 0).sum())


CASES = [
    (Pair(0.3, 0.8), 1),
    (Pair(0.3, 0.8), 2),
    (Pair(0.05, 1.5), 2),
    (Pair(0.5, 1.0), 3),
    (Pair(0.3, 0.8, "opposed"), 1),
    (Pair(0.2, 1.2, "opposed"), 2),
    (Pair(1.0, 1.3), 2),
]


@pytest.mark.parametrize(("pair", "steps"), CASES)
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_delta_brackets_the_integral(pair, steps, epsilon):
    pairs = ((pair, steps),)
    truth = max(integrated(pair, steps, epsilon), integrated(pair, steps, epsilon, swap=True))
    upper, lower = pld.delta_upper(pairs, epsilon).value, pld.delta_lower(pairs, epsilon)
    tolerance = 2e-4 if steps == 3 else 2e-6  # of the product rule
    assert lower - tolerance <= truth <= upper + tolerance
    assert upper <= 1.001 * truth + tolerance
    assert lower >= 0.999 * truth - tolerance


@pytest.mark.parametrize("swap", [False, True])
def test_each_direction_has_its_own_law(swap):
    """Adding a record has another profile than removing one; a mix-up of the two laws shows
    here.
    """
    pair, steps, epsilon = Pair(0.3, 0.8), 2, 0.4
    truth = integrated(pair, steps, epsilon, swap)
    lower, upper, _ = one_direction(
        arranged(((pair, steps),)), 0.0, -1 if swap else 1, DeltaAt(epsilon), 1e-4
    )[0]
    assert lower - 1e-6 <= truth <= upper + 1e-6
    assert upper <= 1.0003 * lower


@pytest.mark.parametrize(
    ("pair", "accuracy"),
    [
        (Pair(0.02, 0.9), 1e-2),
        (Pair(0.02, 0.9), 1e-3),
        (Pair(0.02, 0.9), 1e-5),
        (Pair(0.02, 0.9, "opposed"), 1e-3),
        (Pair(0.02, 0.9, "opposed"), 1e-5),
        (Pair(0.3, 0.7, noise="laplace"), 1e-3),
    ],
)
def test_one_step_closed_form_lies_in_the_bracket(pair, accuracy):
    delta = 1e-5
    truth = one_step.epsilon(pair, delta).upper
    lower, upper, _ = composed(((pair, 1),), 0.0, EpsilonAt(delta), accuracy)
    assert lower <= truth <= upper <= (1 + accuracy) * lower


def test_composed_full_batches_agree_with_the_analytic_gaussian():
    """The atoms of a rate just below 1, and the exact Gaussian factor beside it, against the closed
    form.
    """
    mu, epsilon = math.sqrt(41) / 12, 1.5
    truth = ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu)
    assert pld.delta_upper(((Pair(1.0, 12.0), 41),), epsilon).value == pytest.approx(
        truth, rel=1e-9
    )
    lower, upper, _ = composed(((Pair(1 - 1e-12, 12.0), 40),), 1 / 144, DeltaAt(epsilon), 1e-4)
    assert lower * (1 - 1e-9) <= truth <= upper * (1 + 1e-9)
    assert upper <= 1.001 * lower


@pytest.mark.parametrize(
    ("pair", "steps"),
    [(Pair(0.01, 1.0), 1000), (Pair(0.1, 2.0), 300), (Pair(0.02, 3.0, "opposed"), 500)],
)
def test_another_implementation_lies_just_above_the_lower_end(pair, steps):
    """Its connect-the-dots on a lattice of 1e-4 is a valid upper bound with an error of its own."""
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution as engine

    relation = {
        "absent": NeighboringRelation.ADD_OR_REMOVE_ONE,
        "opposed": NeighboringRelation.REPLACE_ONE,
    }
    peer = (
        engine.from_gaussian_mechanism(
            pair.noise_multiplier,
            value_discretization_interval=1e-4,
            sampling_prob=pair.rate,
            neighboring_relation=relation[pair.neighbours],
        )
        .self_compose(steps)
        .get_epsilon_for_delta(1e-6)
    )
    lower, upper, _ = pld.epsilon_bracket(((pair, steps),), 1e-6, 1e-4)
    assert lower <= peer
    assert upper == pytest.approx(peer, rel=1e-4)


def test_heterogeneous_composition_agrees_with_another_implementation():
    from dp_accounting.pld import privacy_loss_distribution as engine

    pairs = ((Pair(0.02, 1.0), 100), (Pair(0.05, 2.0), 50), (Pair(1.0, 9.0), 4))
    peer = None
    for pair, steps in pairs:
        part = engine.from_gaussian_mechanism(
            pair.noise_multiplier, value_discretization_interval=1e-3, sampling_prob=pair.rate
        ).self_compose(steps)
        peer = part if peer is None else peer.compose(part)
    lower, upper = pld.epsilon_lower(pairs, 1e-5), pld.epsilon_upper(pairs, 1e-5).value
    assert lower <= peer.get_epsilon_for_delta(1e-5)
    assert upper == pytest.approx(peer.get_epsilon_for_delta(1e-5), rel=1e-3)
    assert lower >= 0.999 * upper


def test_no_two_records_are_told_apart_better_than_opposed_ones():
    """The theorem of docs/proofs/accounting-replace-one.md, in two dimensions, by the midpoint
    rule.
    """
    generator = np.random.default_rng(5)
    axis = np.linspace(-7, 7, 281)
    grid = np.stack(np.meshgrid(axis, axis), axis=-1)
    area = (axis[1] - axis[0]) ** 2
    for _ in range(40):
        q, z, gamma = (
            generator.uniform(0.05, 0.9),
            generator.uniform(0.6, 1.2),
            math.exp(generator.uniform(-1, 1.5)),
        )
        turns, radii = generator.uniform(0, 2 * math.pi, 2), generator.random(2) ** 0.25
        a, b = (
            radius * np.array([math.cos(turn), math.sin(turn)])
            for radius, turn in zip(radii, turns, strict=True)
        )
        none, first, second = (
            np.exp(-((grid - mean) ** 2).sum(axis=-1) / (2 * z**2)) / (2 * math.pi * z**2)
            for mean in (np.zeros(2), a, b)
        )
        one, other = (1 - q) * none + q * first, (1 - q) * none + q * second
        found = area * np.maximum(one - gamma * other, 0).sum()
        log = math.log(gamma)
        worst = one_step.profile(Pair(q, z, "opposed"), abs(log))
        assert found <= (worst if log >= 0 else 1 - gamma + gamma * worst) + 1e-5
