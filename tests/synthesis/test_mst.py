"""MST: its list of events, their cost by another accountant, and what each vector is moved by."""

import math

import numpy as np
import pytest
from tests.support.estimator_neighbours import caught
from tests.support.synthetic import SCHEMA, people, without_mbi

from dpfy import Synthesizer, account
from dpfy.ledger.events import SumQuery
from dpfy.ledger.one_shot import ExponentialChoice
from dpfy.mechanisms.one_shot import ExponentialMechanism
from dpfy.synthesis.mst import Mst
from dpfy.tabular import Schema
from dpfy.types import Budget

CASES = [(1, None), (2, None), (3, None), (13, None), (2, 1), (3, 0), (4, 2), (13, 12)]


@pytest.fixture
def _no_package(monkeypatch):
    without_mbi(monkeypatch)


@pytest.mark.parametrize(("columns", "target"), CASES)
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_the_list_costs_what_was_asked(columns, target, epsilon):
    found = Mst.calibrated(columns, target, Budget(epsilon, 1e-9))
    claim = account(found.envelope).claim(1e-9)
    assert 0.999 * epsilon < claim <= epsilon
    assert account(found.envelope, "rdp").claim(1e-9) >= claim * (1 - 1e-6)


@pytest.mark.parametrize(("columns", "target"), CASES)
def test_vectors_and_choices_are_as_many_as_the_tree_needs(columns, target):
    found = Mst(columns, target, 5.0)
    nodes = columns - (target is not None)
    queries = [query for run in found.envelope for query in run.event.queries * run.times]
    choices = [each for each in queries if isinstance(each, ExponentialChoice)]
    bounds = {each.name: each.l2_bound**2 for each in queries if isinstance(each, SumQuery)}
    assert len(choices) == (nodes - 1 if nodes > 2 else 0)
    assert bounds["one-way marginals"] == pytest.approx(columns)
    assert bounds.get("marginals of the tree", 0) == pytest.approx(nodes - 1)
    assert bounds.get("marginals with the target", 0) == pytest.approx(
        columns - 1 if target is not None else 0
    )
    assert all(each.sensitivity == 1 and not each.monotone for each in choices)


@pytest.mark.parametrize(("columns", "target"), CASES)
def test_shares_add_up_to_the_noise_multiplier(columns, target):
    """By zCDP alone, of which all parts together are 1/2z²: an independent sum."""
    noise, rho = 5.0, 0.0
    for run in Mst(columns, target, noise).envelope:
        (query,) = run.event.queries
        if isinstance(query, SumQuery):
            rho += run.times * query.l2_bound**2 / (2 * query.stddev**2)
        else:
            rho += run.times * (2 * query.sensitivity / query.scale) ** 2 / 8
    assert rho == pytest.approx(0.5 / noise**2, rel=1e-9)


def test_the_cost_agrees_with_another_library():
    """dp_accounting composes the Gaussians; choices are bounded by pure ε-DP there."""
    from dp_accounting import dp_event, pld

    found = Mst.calibrated(13, None, Budget(1.0, 1e-6))
    accountant = pld.PLDAccountant()
    for run in found.envelope:
        (query,) = run.event.queries
        if isinstance(query, SumQuery):
            accountant.compose(dp_event.GaussianDpEvent(query.stddev / query.l2_bound))
    gaussians = [run for run in found.envelope if isinstance(run.event.queries[0], SumQuery)]
    ours = account(gaussians).claim(1e-6)
    assert accountant.get_epsilon(1e-6) == pytest.approx(ours, rel=1e-3)
    (choices,) = (run for run in found.envelope if run not in gaussians)
    pure = 2 / choices.event.queries[0].scale
    for _ in range(choices.times):
        accountant.compose(dp_event.LaplaceDpEvent(1 / pure))
    assert account(found.envelope).claim(1e-6) <= accountant.get_epsilon(1e-6) + 0.01


@pytest.mark.usefixtures("_no_package")
@pytest.mark.parametrize("target", [None, "job"])
@pytest.mark.parametrize(
    "row",
    [
        {"age": 50, "job": "pilot", "sex": "F", "pay": 0},
        {"age": math.nan, "job": None, "sex": object(), "pay": "?"},
        {"age": 1e308, "job": "", "sex": "x", "pay": -math.inf},
    ],
)
def test_a_row_moves_every_vector_by_its_bound(target, row, monkeypatch):
    """The choices are fixed, so that both runs measure the same pairs."""
    monkeypatch.setattr(ExponentialMechanism, "release", lambda self, values, stream: 0)
    table = {name: list(values) for name, values in people(40).items()}
    more = {name: [*values, row[name]] for name, values in table.items()}

    def vectors(rows):
        with caught(lambda number, shape: np.full(shape, 40.0)) as found:
            Synthesizer("mst", SCHEMA, 1.0, 1e-6, target=target).fit(rows)
        return found

    one, other = vectors(table), vectors(more)
    assert len(one) == len(other) == (2 if target is None else 3)
    for less, with_it in zip(one, other, strict=True):
        moved = np.linalg.norm(with_it[1] - less[1])
        assert moved <= less[0].l2_bound
        assert moved == pytest.approx(less[0].l2_bound, rel=1e-12)


@pytest.mark.usefixtures("_no_package")
def test_a_row_moves_no_score_by_more_than_one(monkeypatch):
    scores = []

    def noting(self, values, stream):
        scores[-1].append(list(values))
        return 0

    monkeypatch.setattr(ExponentialMechanism, "release", noting)
    table = {name: list(values) for name, values in people(40).items()}
    for row in (None, {"age": 3, "job": "pilot", "sex": "M", "pay": 1}):
        scores.append([])
        rows = table if row is None else {k: [*v, row[k]] for k, v in table.items()}
        with caught(lambda number, shape: np.full(shape, 7.3)):
            Synthesizer("mst", SCHEMA, 1.0, 1e-6).fit(rows)
    moved = np.concatenate([np.subtract(a, b) for a, b in zip(*scores, strict=True)])
    assert len(moved) > 6 and np.all(abs(moved) <= 1) and np.any(abs(moved) == 1)


@pytest.mark.usefixtures("_no_package")
def test_noise_is_that_of_the_ledger_and_of_no_other(tmp_path):
    """The variance of 288 normal numbers is in [0.55, 1.6] but with a probability below 1e-6."""
    from dpfy import Ledger

    ledger = tmp_path / "t.dpl"
    wide = Schema(tuple(type(SCHEMA["pay"])(f"x{k}", bounds=(0, 1)) for k in range(9)))
    synthesizer = Synthesizer("mst", wide, 1.0, 1e-6, insecure_test_key=3)
    synthesizer.fit({name: [] for name in wide.names}, ledger)
    stddev = Ledger.read(ledger).uses[0].event.queries[0].stddev
    noise = np.concatenate([each.noisy for each in synthesizer.fitted.measured[:9]])
    assert len(noise) == 288 and synthesizer.fitted.measured[0].stddev == stddev
    for scale, right in ((1, True), (2 / 3, False), (3 / 2, False)):
        assert bool(0.55 < np.mean((noise / stddev / scale) ** 2) < 1.6) is right


@pytest.mark.usefixtures("_no_package")
def test_the_tree_finds_columns_that_go_together():
    synthesizer = Synthesizer("mst", SCHEMA, 50.0, 1e-6, insecure_test_key=1).fit(people(3000))
    edges = {each.columns for each in synthesizer.fitted.measured[4:]}
    assert {(0, 1), (1, 2)} <= edges and len(edges) == 3


@pytest.mark.usefixtures("_no_package")
def test_all_columns_are_measured_with_the_target():
    synthesizer = Synthesizer("mst", SCHEMA, 5.0, 1e-6, target="sex").fit(people(300))
    columns = [each.columns for each in synthesizer.fitted.measured]
    assert columns[4:7] == [(0, 2), (1, 2), (2, 3)]
    assert len(columns) == 9 and not any(2 in each for each in columns[7:])
