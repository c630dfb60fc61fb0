"""The bounds against direct integration of the hockey-stick divergence, which shares no code or grid with them."""

import math

import numpy as np
import pytest
from scipy.special import ndtr

from dpfy.accounting import lattice, pld
from dpfy.accounting.pairs import Pair

GRID = 2501


def normal(x, mean, noise):
    return np.exp(-((x - mean) / noise) ** 2 / 2) / (noise * math.sqrt(2 * math.pi))


def densities(pair, x):
    q, z = pair.rate, pair.noise_multiplier
    p = (1 - q) * normal(x, 0, z) + q * normal(x, 1, z)
    other = (1 - q) * normal(x, 0, z) + q * normal(x, -1, z) if pair.neighbours == "opposed" else normal(x, 0, z)
    return p, other


def integrated(pair, steps, epsilon, swap=False):
    """δ(ε) by the product rule on steps-dimensional outputs."""
    x = np.linspace(-9 * pair.noise_multiplier - 1, 9 * pair.noise_multiplier + 2, GRID if steps < 3 else 181)
    p, q = densities(pair, x)
    p, q = (q, p) if swap else (p, q)
    width = x[1] - x[0]
    p, q = p * width, q * width
    joint_p, joint_q = p, q
    for _ in range(steps - 1):
        joint_p, joint_q = np.multiply.outer(joint_p, p), np.multiply.outer(joint_q, q)
    return float(np.maximum(joint_p - math.exp(epsilon) * joint_q, 0).sum())


CASES = [(Pair(0.3, 0.8), 1), (Pair(0.3, 0.8), 2), (Pair(0.05, 1.5), 2), (Pair(0.5, 1.0), 3),
         (Pair(0.3, 0.8, "opposed"), 1), (Pair(0.2, 1.2, "opposed"), 2), (Pair(1.0, 1.3), 2)]


@pytest.mark.parametrize(("pair", "steps"), CASES)
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_delta_brackets_the_integral(pair, steps, epsilon):
    pairs = ((pair, steps),)
    truth = max(integrated(pair, steps, epsilon), integrated(pair, steps, epsilon, swap=True))
    upper, lower = pld.delta_upper(pairs, epsilon).value, pld.delta_lower(pairs, epsilon)
    tolerance = 2e-4 if steps == 3 else 2e-6  # of the product rule
    assert lower - tolerance <= truth <= upper + tolerance
    assert upper <= 1.001 * truth + tolerance
    assert lower >= 0.995 * truth - tolerance


@pytest.mark.parametrize("swap", [False, True])
def test_each_direction_has_its_own_law(swap):
    """Adding a record has another profile than removing one; a mix-up of the two laws shows here."""
    pair, steps, epsilon = Pair(0.3, 0.8), 2, 0.4
    truth = integrated(pair, steps, epsilon, swap)
    above = lattice.upper(((pair, steps),), 1e-3, 1e-10)[swap].delta(epsilon)
    below = lattice.lower(((pair, steps),), 1e-3, 1e-10)[swap].delta(epsilon)
    assert below - 1e-6 <= truth <= above + 1e-6
    assert above == pytest.approx(truth, rel=1e-3)
    assert below == pytest.approx(truth, rel=1e-2)


@pytest.mark.parametrize("interval", [1e-2, 1e-3, 1e-4])
def test_one_step_closed_form_lies_between_the_lattices(interval):
    pair, delta = Pair(0.02, 0.9), 1e-5
    truth = pld.epsilon_upper(((pair, 1),), delta).value
    above = max(law.epsilon(delta) for law in lattice.upper(((pair, 1),), interval, 1e-10))
    below = max(law.epsilon(delta) for law in lattice.lower(((pair, 1),), interval, 1e-10))
    assert below <= truth <= above
    assert above - below < 2 * interval


def test_full_batch_lattice_agrees_with_the_analytic_gaussian():
    pair, steps, epsilon = Pair(1.0, 12.0), 40, 1.5
    mu = math.sqrt(steps) / 12
    truth = ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu)
    assert pld.delta_upper(((pair, steps),), epsilon).value == pytest.approx(truth, rel=1e-9)
    above = lattice.upper(((pair, steps),), 1e-3, 1e-12)[0].delta(epsilon)
    below = lattice.lower(((pair, steps),), 1e-3, 1e-12)[0].delta(epsilon)
    assert below <= truth <= above <= 1.001 * truth


@pytest.mark.parametrize(("pair", "steps", "interval"), [
    (Pair(0.01, 1.0), 1000, 1e-3), (Pair(0.1, 2.0), 300, 1e-3), (Pair(0.02, 3.0, "opposed"), 500, 1e-3)])
def test_upper_bound_agrees_with_another_implementation(pair, steps, interval):
    """Same discretisation, other code: what differs is the tail that is charged to δ."""
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution as engine

    relation = {"absent": NeighboringRelation.ADD_OR_REMOVE_ONE, "opposed": NeighboringRelation.REPLACE_ONE}
    peer = engine.from_gaussian_mechanism(
        pair.noise_multiplier, value_discretization_interval=interval, sampling_prob=pair.rate,
        neighboring_relation=relation[pair.neighbours]).self_compose(steps).get_epsilon_for_delta(1e-6)
    mine = max(law.epsilon(1e-6) for law in lattice.upper(((pair, steps),), interval, 1e-12))
    assert mine == pytest.approx(peer, rel=1e-5)
    assert max(law.epsilon(1e-6) for law in lattice.lower(((pair, steps),), interval, 1e-12)) <= peer


def test_heterogeneous_composition_agrees_with_another_implementation():
    from dp_accounting.pld import privacy_loss_distribution as engine

    pairs = ((Pair(0.02, 1.0), 100), (Pair(0.05, 2.0), 50), (Pair(1.0, 9.0), 4))
    peer = None
    for pair, steps in pairs:
        part = engine.from_gaussian_mechanism(pair.noise_multiplier, value_discretization_interval=1e-3,
                                              sampling_prob=pair.rate).self_compose(steps)
        peer = part if peer is None else peer.compose(part)
    lower, upper = pld.epsilon_lower(pairs, 1e-5), pld.epsilon_upper(pairs, 1e-5).value
    assert lower <= peer.get_epsilon_for_delta(1e-5)
    assert upper == pytest.approx(peer.get_epsilon_for_delta(1e-5), rel=2e-3)
    assert lower >= 0.995 * upper
