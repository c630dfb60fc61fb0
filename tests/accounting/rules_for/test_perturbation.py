"""Objective perturbation: its claim against the exact density of the minimiser, by quadrature."""

import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy.special import expit, logsumexp

from dpfy.accounting import account
from dpfy.accounting.pld import closed_forms
from dpfy.accounting.rules_for.perturbation import PerturbedMinimum, perturbed_minimum
from dpfy.errors import InvalidArgument
from dpfy.ledger.events import Fact, Poisson, Repeated, Sampled, SumQuery
from dpfy.ledger.perturbation import ObjectivePerturbation

DELTA = 1e-5
EXACT = 1e9  # an output multiplier that costs nothing
EPSILONS = (0.0, 0.05, 0.3, 1.0, 2.0, 4.0)


def logistic(regularisation=4.0, stddev=3.0, lipschitz=1.0, output=EXACT):
    return ObjectivePerturbation(lipschitz, lipschitz**2 / 4, regularisation, stddev, output)


def epsilon(*queries, method="pld", relation="zero_out", times=1):
    events = [Repeated(Sampled(Poisson(1.0), (query,)), times) for query in queries]
    return account(events, method, relation).epsilon(DELTA)


class Mechanism:
    """The minimisers for rows (x, y, times) with y = 0 or 1, and their density, both exactly."""

    def __init__(self, rows, regularisation, stddev):
        self.x = np.array([np.atleast_1d(x) for x, _, _ in rows], dtype=float)
        self.y, self.times = (np.array([row[i] for row in rows], dtype=float) for i in (1, 2))
        self.regularisation, self.stddev = regularisation, stddev

    def gradient(self, theta):
        if not len(self.x):
            return self.regularisation * theta
        slope = (expit(theta @ self.x.T) - self.y) * self.times
        return slope @ self.x + self.regularisation * theta

    def hessian(self, theta):
        flat = self.regularisation * np.eye(theta.shape[1])
        if not len(self.x):
            return np.broadcast_to(flat, (len(theta), *flat.shape))
        slope = expit(theta @ self.x.T)
        return np.einsum("pr,ri,rj->pij", slope * (1 - slope) * self.times, self.x, self.x) + flat

    def minimisers(self, b):
        """One θ for each b, by Newton steps that are short enough for logistic losses."""
        theta = -b / self.regularisation
        for _ in range(2000):
            missing = self.gradient(theta) + b
            if np.abs(missing).max() < 1e-10 * self.stddev:
                return theta
            step = np.linalg.solve(self.hessian(theta), missing[..., None])[..., 0]
            length = np.maximum(np.linalg.norm(step, axis=1, keepdims=True), 1e-300)
            theta = theta - step * np.log1p(length) / length
        raise AssertionError("no minimum was found")

    def log_density(self, theta):
        """Of the one b whose minimiser is θ; the derivative of that b in θ is the Hessian."""
        bell = -((self.gradient(theta) / self.stddev) ** 2).sum(axis=1) / 2
        return bell + np.linalg.slogdet(self.hessian(theta))[1]


def losses(one, other, dimension=1):
    """The losses between two mechanisms, and the weight that each has under the first."""
    axis = np.linspace(-9, 9, {1: 1001, 2: 91}[dimension])
    b = np.stack(np.meshgrid(*[axis] * dimension), axis=-1).reshape(-1, dimension)
    weight = np.exp(-(b**2).sum(axis=1) / 2)
    theta = one.minimisers(b * one.stddev)
    return one.log_density(theta) - other.log_density(theta), weight / weight.sum()


def excess(loss, weight, at):
    """The hockey-stick divergence."""
    return float(weight @ np.maximum(-np.expm1(np.minimum(at - loss, 0.0)), 0.0))


number, label = st.floats(-1, 1), st.sampled_from((0, 1))


@given(
    rows=st.lists(st.tuples(number, label, st.sampled_from((1, 30))), max_size=3),
    extra=st.tuples(number, label, st.just(1)),
    regularisation=st.sampled_from((0.05, 0.5, 4.0)),
    stddev=st.sampled_from((0.7, 3.0, 20.0)),
)
@settings(max_examples=100, deadline=None)
def test_no_neighbours_in_one_dimension_exceed_the_claim(rows, extra, regularisation, stddev):
    there, without = (Mechanism(each, regularisation, stddev) for each in ([*rows, extra], rows))
    claim = perturbed_minimum(logistic(regularisation, stddev))
    for pair in ((there, without), (without, there)):
        found = losses(*pair)
        for at in EPSILONS:
            assert excess(*found, at) <= claim.delta(at) * (1 + 1e-4) + 1e-9


def test_the_hessian_has_to_be_paid_for():
    """A rule without the Jacobian would be refuted here."""
    found = losses(Mechanism([(1.0, 1, 1)], 0.1, 10.0), Mechanism([], 0.1, 10.0))
    whole = perturbed_minimum(logistic(0.1, 10.0))
    without = PerturbedMinimum(0.0, whole.mus)
    assert without.delta(0.3) < excess(*found, 0.3) < whole.delta(0.3)


def test_the_gaussian_profile_is_approached_among_opposed_records():
    """What lower ends rest on; a rule that claims more noise than there is would be refuted."""
    rows = [(1.0, 0, 4000)]
    found = losses(Mechanism([*rows, (1.0, 1, 1)], 1.0, 3.0), Mechanism(rows, 1.0, 3.0))
    gaussian = closed_forms.delta(1 / 3.0, 0.2)
    assert excess(*found, 0.2) == pytest.approx(gaussian, rel=0.02)


@pytest.mark.parametrize("old", [(1.0, 0.0), (0.6, 0.8)])
@pytest.mark.parametrize("new", [(-1.0, 0.0), (-0.8, 0.6), (0.0, 1.0), (0.0, 0.0)])
@pytest.mark.parametrize("others", [0, 25])
def test_a_replaced_record_in_two_dimensions(old, new, others):
    rows = [((0.0, 1.0), 0, others)]
    before, after = (Mechanism([*rows, (x, 1, 1)], 1.0, 1.5) for x in (old, new))
    found = losses(before, after, dimension=2)
    claim = perturbed_minimum(logistic(1.0, 1.5), replaced=True)
    for at in EPSILONS:
        assert excess(*found, at) <= claim.delta(at) * (1 + 1e-3) + 1e-9


@pytest.mark.parametrize("rows", [[], [(1.0, 1, 5)], [(1.0, 0, 50)]])
@pytest.mark.parametrize("order", [1.5, 2.0, 8.0])
def test_renyi_divergences_are_below_the_claim(rows, order):
    there, without = (Mechanism(each, 0.5, 3.0) for each in ([*rows, (1.0, 1, 1)], rows))
    claim = perturbed_minimum(logistic(0.5, 3.0))
    bound = float(claim.divergence(np.array([order]), 1.0)[0])
    for pair in ((there, without), (without, there)):
        loss, weight = losses(*pair)
        assert math.log(weight @ np.exp((order - 1) * loss)) / (order - 1) <= bound * (1 + 1e-6)
    assert bound <= order * claim.zcdp


@pytest.mark.parametrize("mus", [(0.3, 0.01), (2.0, 1.0, 1.0, 0.1)])
@pytest.mark.parametrize("order", [1.001, 3.0, 30.0])
def test_the_renyi_curve_is_the_moment_of_the_positive_losses(mus, order):
    """E e^{(order − 1)·max(0, loss)} of each Gaussian, by quadrature."""
    w = np.linspace(-100, 100, 400_001)
    weight = -(w**2) / 2 - math.log(2 * math.pi) / 2 + math.log(w[1] - w[0])
    logs = [logsumexp(np.maximum(mu * w + mu**2 / 2, 0) * (order - 1) + weight) for mu in mus]
    gains = logsumexp([log + math.log(-math.expm1(-log)) for log in logs])
    expected = 0.2 + np.logaddexp(0, gains) / (order - 1)
    found = PerturbedMinimum(0.2, mus).divergence(np.array([order]), 1.0)[0]
    assert found == pytest.approx(expected, rel=1e-6)


def test_one_release_costs_the_gaussian_epsilon_and_the_gap():
    gap = math.log1p(0.25 / 4)
    gaussian = closed_forms.epsilon(1 / 3.0, DELTA).upper
    assert gap + gaussian <= epsilon(logistic()).upper <= (gap + gaussian) * 1.001
    assert epsilon(logistic()).lower == pytest.approx(gaussian, rel=1e-6)
    twice = closed_forms.epsilon(2 / 3.0, DELTA).upper
    found = epsilon(logistic(), relation="replace_one").upper
    assert gap + twice <= found <= (gap + twice) * 1.001


def test_noise_of_the_output_is_paid_for():
    """As one Gaussian vector where the gap is nothing, and composed with a sum where it is not."""
    flat = ObjectivePerturbation(1.0, 0.0, 1.0, 4.0, 4.0)
    joint = closed_forms.epsilon(math.sqrt(2) / 4, DELTA).upper
    assert joint <= epsilon(flat).upper <= joint * 1.01
    composed = epsilon(logistic(stddev=4.0), SumQuery(1.0, 4.0)).upper
    assert epsilon(logistic(stddev=4.0, output=4.0)).upper <= composed * 1.01


def test_pld_composes_what_rdp_does():
    for times in (2, 10):
        pld, rdp = (epsilon(logistic(100.0), method=name, times=times) for name in ("pld", "rdp"))
        assert rdp.lower <= pld.lower <= pld.upper <= rdp.upper


def test_without_noise_there_is_no_protection_and_without_records_no_cost():
    assert epsilon(logistic(stddev=0.0)).upper == math.inf
    assert epsilon(logistic(output=0.0)).upper == math.inf
    assert epsilon(logistic(lipschitz=0.0)).upper == 0.0
    steep = epsilon(logistic(regularisation=1e-300)).upper
    assert steep >= math.log(0.25e300) + closed_forms.epsilon(1 / 3.0, DELTA).lower


def test_the_query_survives_json_and_refuses_what_it_cannot_mean():
    query = logistic()
    assert Fact.from_json(query.to_json()) == query
    for wrong in ({"regularisation": 0.0}, {"stddev": -1.0}, {"lipschitz": math.nan}):
        with pytest.raises(InvalidArgument, match="Expected"):
            logistic(**wrong)
