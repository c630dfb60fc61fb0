"""Models of groups of rows: what their releases cost, and tables that hold next to nothing."""

import json
import math
import pickle

import numpy as np
import pytest
from estimator_neighbours import caught
from scipy.stats import norm
from sklearn.base import clone

from dpfy.accounting import account
from dpfy.errors import BudgetExhausted, InvalidArgument
from dpfy.estimators import ExplainableBoosting, KMeans, RandomTrees, shared_ledger
from dpfy.ledger import Ledger
from dpfy.tabular import Column, Schema

SCHEMA = Schema((Column("a", bounds=(0, 10), knots=(1,)), Column("b", categories=("x", "y"))))
MODELS = {
    "boosting": lambda epsilon=1.0, **given: ExplainableBoosting(
        epsilon, **{"classes": [0, 1], "rounds": 4, "random_state": 0, **given}
    ),
    "kmeans": lambda epsilon=1.0, schema=None, **given: KMeans(
        3,
        epsilon,
        **{"iterations": 8, "random_state": 0, "schema": schema and schema.without("b"), **given},
    ),
    "trees": lambda epsilon=1.0, **given: RandomTrees(
        epsilon, **{"classes": [0, 1], "n_estimators": 5, "random_state": 0, **given}
    ),
}
SPREAD = 0.25  # of a variance, relative; see test_noise_has_the_scale_that_is_on_record


def table(rows):
    random = np.random.default_rng(3)
    numbers = random.uniform(0, 10, rows)
    names = random.choice(["x", "y", "z"], rows)
    return {"a": numbers, "b": names.astype(object)}, (numbers > 5).astype(int)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("relation", ["zero_out", "add_or_remove_one"])
def test_all_releases_together_cost_what_was_asked_for(name, relation):
    """The sum of (bound/stddev)² over all releases is μ², by the δ(ε) of Dong, Roth & Su."""
    records = {} if relation == "zero_out" else {"records": 300}
    model = MODELS[name](schema=SCHEMA, delta=1e-6, epsilon=0.7, relation=relation, **records)
    with caught() as releases:
        model.fit(*table(300))
    mu = math.sqrt(sum((each.l2_bound / each.stddev) ** 2 for each, _, _ in releases))
    delta = norm.cdf(mu / 2 - 0.7 / mu) - math.exp(0.7) * norm.cdf(-mu / 2 - 0.7 / mu)
    assert 0.99e-6 < delta <= 1e-6
    assert 0.69 < model.guarantee_.claim(1e-6) <= 0.7
    assert model.delta_ == 1e-6 and model.n_records_ == 300


@pytest.mark.parametrize("name", MODELS)
def test_noise_has_the_scale_that_is_on_record(name):
    """More than 1000 numbers: a variance beyond ±25 % has a chance below 10⁻⁷, and a scale of ⅔
    or 3/2 of the right one, whose variance is 56 % less or 125 % more, is always seen."""
    found = []
    for key in range(16):
        with caught() as releases:
            MODELS[name](schema=SCHEMA, insecure_test_key=key).fit(*table(50))
        found += [((noisy - exact) / each.stddev).ravel() for each, exact, noisy in releases]
    noise = np.concatenate(found)
    assert len(noise) > 1000
    assert abs(np.mean(noise**2) - 1) < SPREAD
    assert all(abs(wrong**2 - 1) > 2 * SPREAD for wrong in (2 / 3, 3 / 2))


EDGES = {
    "one class": (lambda x, y: (x, np.ones_like(y))),
    "no known label": (lambda x, y: (x, np.full_like(y, 7))),
    "one row": (lambda x, y: ({name: each[:1] for name, each in x.items()}, y[:1])),
    "no row": (lambda x, y: ({name: each[:0] for name, each in x.items()}, y[:0])),
    "NaN": (lambda x, y: ({**x, "a": np.full(len(y), np.nan)}, y)),
    "huge": (lambda x, y: ({**x, "a": np.where(y == 1, 1e308, -np.inf)}, y)),
    "objects": (lambda x, y: ({**x, "a": np.array([{}] * len(y), dtype=object)}, y)),
}


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("error")
def test_no_table_stops_a_fit_or_is_noticed(name, edge):
    x, y = EDGES[edge](*table(40))
    model = MODELS[name](schema=SCHEMA).fit(x, y)
    full, _ = table(40)
    assert len(model.predict(full)) == 40
    assert len(model.predict(x)) == len(y)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("error")
def test_plain_numbers_of_any_kind_are_taken(name):
    x = np.array([[1e308, -1e308], [np.nan, 1], [np.inf, 2], [0.5, 0.5]])
    model = MODELS[name](bounds=([0, -1], [1, 1])).fit(x, np.array([0, 1, 1, 0]))
    assert len(model.predict(x)) == 4


@pytest.mark.parametrize("name", MODELS)
def test_copies_have_no_ledger_of_their_own(name, tmp_path):
    x, y = table(100)
    model = MODELS[name](schema=SCHEMA, ledger=tmp_path / "model.dpl").fit(x, y)
    assert not hasattr(clone(model), "guarantee_")
    again = pickle.loads(pickle.dumps(model))
    assert not hasattr(again, "_own_ledger")
    assert np.array_equal(again.predict(x), model.predict(x))
    spent = account(Ledger.read(tmp_path / "model.dpl")).claim(1e-5)
    assert spent == pytest.approx(model.guarantee_.claim(1e-5))
    written = json.dumps(model.to_json(), allow_nan=False)
    assert " object at " not in written and "array(" not in written
    assert "Privacy report" in model.report(tmp_path / "report")[0].read_text()


@pytest.mark.parametrize("name", MODELS)
def test_fits_on_one_ledger_add_up_under_its_filter(name):
    x, y = table(100)
    with shared_ledger(epsilon=1.0, delta=1e-5) as ledger:
        MODELS[name](0.6, schema=SCHEMA, ledger=ledger, delta=1e-5).fit(x, y)
        MODELS[name](0.6, schema=SCHEMA, ledger=ledger, delta=1e-5).fit(x, y)
        with pytest.raises(BudgetExhausted):
            MODELS[name](0.9, schema=SCHEMA, ledger=ledger, delta=1e-5).fit(x, y)


@pytest.mark.parametrize("name", MODELS)
def test_what_is_not_declared_is_asked_for(name):
    x, y = table(20)
    with pytest.raises(InvalidArgument, match="schema"):
        MODELS[name]().fit(x, y)


@pytest.mark.parametrize("name", MODELS)
def test_the_same_keys_give_the_same_model(name):
    x, y = table(60)
    first, second = (MODELS[name](schema=SCHEMA, insecure_test_key=5).fit(x, y) for _ in "ab")
    assert np.array_equal(first.predict(x), second.predict(x))
    assert not first.guarantee_.source.private
