"""Solvers that release once: bounds, noise, cost, edges, and that nothing depends on bad rows."""

import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy.stats import chi2

from dpfy.accounting import account
from dpfy.accounting.pld import closed_forms
from dpfy.accounting.rules_for.perturbation import perturbed_minimum
from dpfy.errors import BudgetExhausted, InvalidArgument, UnsupportedEvent
from dpfy.estimators import LogisticRegression, shared_ledger
from dpfy.estimators.declarations import Features
from dpfy.estimators.minimise import Objective, minimise
from dpfy.estimators.perturbation import (
    SOLVERS,
    Functional,
    Output,
    PerturbedMinimum,
    PerturbedObjective,
    _counting,
    moments,
)
from dpfy.ledger import Ledger
from dpfy.ledger.perturbation import ObjectivePerturbation
from dpfy.noise import SecureStream

DELTA = 1e-5
FALSE_ALARM = 1e-7


def table(rows=2000, seed=0, width=3):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, width))
    return x, (x[:, 0] + 0.3 * rng.normal(size=rows) > 0).astype(int)


def model(solver, epsilon=1.0, **options):
    options = {"data_norm": 4.0, "classes": [0, 1], **options}
    return LogisticRegression(epsilon, DELTA, solver=solver, **options)


# -- the guarantee


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("relation", ["zero_out", "add_or_remove_one"])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
def test_the_claim_is_the_budget(solver, relation, epsilon):
    records = None if relation == "zero_out" else 2000
    found = model(solver, epsilon, relation=relation, records=records).fit(*table(500)).guarantee_
    assert 0.999 * epsilon <= found.claim(DELTA) <= epsilon


def test_output_and_functional_cost_one_gaussian_sum():
    for solver in ("output", "functional"):
        with Ledger.in_memory() as ledger:
            model(solver, ledger=ledger).fit(*table(500))
            (use,) = ledger.uses
        (query,) = use.event.queries
        expected = closed_forms.epsilon(query.l2_bound / query.stddev, DELTA).upper
        assert expected == pytest.approx(1.0, rel=1e-3)


def test_objective_costs_what_its_formula_says():
    """The Gaussian ε of b, and the logarithm that the Hessian is worth, beside it."""
    with Ledger.in_memory() as ledger:
        model("objective", ledger=ledger, clip=1.0).fit(*table(500))
        (use,) = ledger.uses
    (query,) = use.event.queries
    assert isinstance(query, ObjectivePerturbation)
    assert query.lipschitz == pytest.approx(1.0)
    assert query.smoothness == pytest.approx(0.25)
    gaussian = closed_forms.epsilon(query.lipschitz / query.stddev, DELTA).upper
    gap = math.log1p(query.smoothness / query.regularisation)
    assert gaussian + gap == pytest.approx(1.0, rel=5e-3)


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_ledger_is_asked_before_rows_are_read(solver, monkeypatch):
    """The filter of a shared ledger knows Gaussian sums only, and so refuses ``objective``."""

    def read(*_):
        raise AssertionError("rows were read")

    monkeypatch.setattr(Features, "rows", read)
    with shared_ledger(epsilon=0.5, delta=DELTA) as ledger:
        with pytest.raises((BudgetExhausted, UnsupportedEvent)):
            model(solver, ledger=ledger).fit(*table(100))
        assert not ledger.uses


# -- one row moves what is released by at most its bound


number = st.one_of(st.floats(-1, 1), st.sampled_from((0.0, 1.0, -1.0, 1e-300)))
row = st.tuples(st.tuples(number, number), st.sampled_from((-1, 0, 1)))


def as_rows(listed):
    x = np.array([x for x, _ in listed], dtype=float).reshape(-1, 2)
    x = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1.0)
    return x, np.array([y for _, y in listed], dtype=np.int64)


@given(rows=st.lists(row, max_size=6), copies=st.sampled_from((1, 100)), place=st.integers(0, 5))
@settings(max_examples=100, deadline=None)
def test_a_zeroed_row_moves_no_vector_beyond_its_bound(rows, copies, place):
    rows = rows * copies or [((1.0, 0.0), 1)]
    zeroed = [*rows]
    zeroed[place % len(rows)] = ((0.0, 0.0), 1)
    one, other = (_counting(*as_rows(each)) for each in (rows, zeroed))
    bound = Functional(len(rows), 2).plan(1.0)[0].mechanism.l2_bound
    assert np.linalg.norm(moments(*one) - moments(*other)) <= bound
    solver = Output(len(rows), 2)
    precision, bound = solver.precision(2.0), solver.plan(2.0)[0].mechanism.l2_bound
    found = [
        minimise(Objective(*each, precision.regularisation, np.zeros(2), solver.clip), precision)
        for each in (one, other)
    ]
    assert np.linalg.norm(found[0] - found[1]) <= bound


def test_moments_of_one_row_attain_their_bound():
    x = np.array([[0.6, 0.8]])
    assert np.linalg.norm(moments(x, np.ones(1))) == pytest.approx(math.hypot(1.0, 0.5))
    gram, slopes = np.split(moments(x, np.zeros(1)), [3])
    assert gram == pytest.approx([0.36, math.sqrt(2) * 0.48, 0.64])
    assert slopes == pytest.approx([-0.3, -0.4])


# -- noise


def spread(values, scale):
    """Whether numbers look like noise of this scale, with a false-alarm rate of 1e-7."""
    low, high = chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], values.size)
    return low <= ((values / scale) ** 2).sum() <= high


def released(solver, count=400):
    """The difference of each release from the exact vector, in which nothing else is random."""
    x, positions = as_rows([((0.6, 0.8), 1), ((-1.0, 0.0), 0)] * 200)
    data, stream = _counting(x, positions), SecureStream(insecure_test_key=11)
    planned = solver.plan(3.0)[0].mechanism
    if isinstance(solver, Functional):
        exact = moments(*data)
        return np.array([planned.release(exact, stream).numpy() - exact for _ in range(count)])
    precision = solver.precision(3.0)
    objective = Objective(*data, precision.regularisation, np.zeros(2), solver.clip)
    if isinstance(solver, Output):
        exact = minimise(objective, precision)
        return np.array([planned.release(exact, stream).numpy() - exact for _ in range(count)])
    thetas = [planned.release(data, stream).numpy() for _ in range(count)]
    return np.array([objective.gradient(theta) for theta in thetas])  # is −b at the minimum


@pytest.mark.parametrize("kind", [Output, PerturbedObjective, Functional])
def test_noise_has_its_scale_and_no_other(kind):
    solver = kind(400, 2)
    noise, (planned,) = released(solver), solver.plan(3.0)
    query = planned.mechanism.event.queries[0]
    assert spread(noise, query.stddev)
    assert not spread(noise, query.stddev * 2 / 3)
    assert not spread(noise, query.stddev * 3 / 2)


def test_the_minimum_gets_noise_for_its_approximation():
    """Released minima differ from exact ones of the same b by the declared output noise."""
    solver = PerturbedObjective(400, 2)
    mechanism = solver.plan(3.0)[0].mechanism
    query = mechanism.event.queries[0]
    precision = mechanism.precision
    scale = query.output_multiplier * 2 * precision.tolerance / precision.regularisation
    data = (np.empty((0, 2)), np.empty(0))  # the minimum is −b/Λ
    off = []
    for key in range(200):
        theta = mechanism.release(data, SecureStream(insecure_test_key=key)).numpy()
        linear = drawn(SecureStream(insecure_test_key=key), query.stddev)
        off.append(theta + linear / precision.regularisation)
    assert spread(np.array(off), scale)
    assert not spread(np.array(off), scale * 2 / 3)
    assert not spread(np.array(off), scale * 3 / 2)


def drawn(stream, stddev):
    import torch

    from dpfy.noise import LatticeGaussian, lattice_step

    zeros = torch.zeros(2, dtype=torch.float64)
    return LatticeGaussian(stream).add_noise(zeros, stddev, lattice_step(stddev)).numpy()


class HalfNoise(PerturbedMinimum):
    """Draws a linear term of half the declared scale."""

    @property
    def _stddev(self):
        return super()._stddev / 2


def advantage(mechanism, times=600):
    """What the best test of one row among opposed ones gains, in as many releases of each."""
    x, positions = as_rows([((1.0, 0.0), 0)] * 300 + [((1.0, 0.0), 1)])
    absent, there = (_counting(x[:end], positions[:end]) for end in (300, 301))
    precision, stream = mechanism.precision, SecureStream(insecure_test_key=23)
    attacked = Objective(*absent, precision.regularisation, np.zeros(2), mechanism.clip)

    def rate(data):
        thetas = (mechanism.release(data, stream).numpy() for _ in range(times))
        return np.mean([attacked.gradient(theta)[0] > mechanism.clip / 2 for theta in thetas])

    return rate(there) - rate(absent)


def test_an_attack_succeeds_no_more_than_claimed_and_detects_half_the_noise():
    """The margin of .14 is five standard deviations of the rates' difference: 1e-6."""
    solver = PerturbedObjective(300, 2, clip=0.9)
    mechanism = solver.plan(0.7)[0].mechanism
    claim = perturbed_minimum(mechanism.event.queries[0]).delta(0.0)
    assert claim < 0.55
    assert claim - 0.14 <= advantage(mechanism) <= claim + 0.14
    broken = HalfNoise(mechanism.precision, mechanism.clip, mechanism.noise_multiplier)
    assert advantage(broken) > claim + 0.14


# -- edges: rows never stop a fit, or announce themselves


BAD = [np.nan, np.inf, -np.inf, 1e308, -1e200, 0.0, 1e-320]


@pytest.mark.parametrize("solver", SOLVERS)
def test_bad_values_are_silent(solver, recwarn):
    x, y = table(200)
    x[: len(BAD), 1] = BAD
    y[10:20] = 7  # no class
    fitted = model(solver).fit(x, y)
    assert np.isfinite(fitted.coef_).all()
    assert not recwarn.list


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(
    ("x", "y"),
    [
        (np.zeros((1, 2)), [1]),
        (np.ones((1, 2)), [0]),
        (np.full((50, 2), np.nan), [0] * 50),
        (np.ones((50, 2)), [1] * 50),  # one class only
        (np.ones((50, 2)), [5] * 50),  # none of the classes
        (np.array([[1.0, 0.0], [-1.0, 0.0]] * 500), [1, 0] * 500),  # separable
    ],
)
def test_small_and_strange_tables_are_fitted(solver, x, y, recwarn):
    fitted = model(solver).fit(x, np.array(y))
    assert np.isfinite(fitted.coef_).all()
    assert set(fitted.predict(x[:1])) <= {0, 1}
    assert not recwarn.list


@pytest.mark.parametrize("solver", SOLVERS)
def test_no_rows_are_noise(solver):
    fitted = model(solver, relation="add_or_remove_one", records=100).fit(np.empty((0, 2)), [])
    assert np.isfinite(fitted.coef_).all() and (fitted.coef_ != 0).all()


@pytest.mark.parametrize("solver", SOLVERS)
def test_nothing_of_the_rows_is_kept(solver):
    """Attributes beside the released weights are the same for another table of this shape."""
    (x, y), (other, labels) = table(300, seed=1), table(300, seed=2)
    one, two = (model(solver, insecure_test_key=5).fit(*data) for data in ((x, y), (other, labels)))
    hidden = {"coef_", "intercept_", "guarantee_", "_own_ledger", "_public_map"}
    assert vars(one).keys() == vars(two).keys()
    for name in vars(one).keys() - hidden:
        assert np.array_equal(getattr(one, name), getattr(two, name)), name


@pytest.mark.parametrize("solver", SOLVERS)
def test_the_report_says_what_is_proved(solver, tmp_path):
    """Not that rows are evaluated at released parameters, which holds for sums only."""
    report = model(solver).fit(*table(100)).report(tmp_path)[0].read_text(encoding="utf-8")
    page = "estimators.md" if solver == "functional" else "perturbation.md, section 3"
    assert f"docs/proofs/{page}" in report


# -- declarations


@pytest.mark.parametrize("solver", SOLVERS)
def test_more_than_two_classes_are_refused_with_the_reason(solver):
    x, y = table(100)
    with pytest.raises(InvalidArgument, match=r"losses of one score\. Use solver='gd'"):
        model(solver, classes=[0, 1, 2]).fit(x, y)


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"regularisation": 0.0}, "regularisation=0.0"),
        ({"regularisation": 1e-12}, "rounding errors would decide"),
        ({"clip": 1.5}, "clip=1.5"),
        ({"clip": 0.0}, "clip=0.0"),
        ({"steps": 5}, "no steps= with solver='output'"),
        ({"solver": "gd", "regularisation": 1.0}, "no regularisation= with solver='gd'"),
    ],
)
def test_declarations_out_of_range_are_refused(wrong, match):
    with pytest.raises(InvalidArgument, match=match):
        model(**{"solver": "output", **wrong}).fit(*table(100))


def test_a_declared_regularisation_is_used():
    with Ledger.in_memory() as ledger:
        model("objective", regularisation=12.5, ledger=ledger).fit(*table(100))
        assert ledger.uses[0].event.queries[0].regularisation == 12.5


# -- use


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_clear_rule_is_learnt(solver):
    x, y = table(20_000)
    fitted = model(solver, 1.0, insecure_test_key=1).fit(x, y)
    assert fitted.score(x, y) > 0.9
    assert account(fitted._own_ledger).claim(DELTA) <= 1.0
