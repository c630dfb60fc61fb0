"""Summaries of tables: what a row moves, the noise, its standard errors, and what comes of it."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy.stats import norm

from dpfy import account
from dpfy.errors import BudgetExhausted, InvalidArgument
from dpfy.estimators import Estimate, describe, shared_ledger
from dpfy.estimators.description import Categories, Numbers, square_root, summary_sum
from dpfy.ledger import Ledger
from dpfy.tabular import Column, Schema

AGE = Column("age", bounds=(0, 100), knots=(20, 60))
SALARY = Column("salary", bounds=(-1e6, 1e6))
SEX = Column("sex", categories=("F", "M"))
SCHEMA = Schema((AGE, SALARY, SEX))
LAYOUTS = [Numbers(AGE, 10), Numbers(SALARY, 10), Categories(SEX)]
BOUND = math.sqrt(sum(each.squared_bound for each in LAYOUTS))


class Nasty:
    """A cell that cannot be converted, printed or compared."""

    def __float__(self):
        raise RuntimeError("secret")

    __str__ = __repr__ = __float__


NUMBER = st.one_of(
    st.floats(),
    st.sampled_from([None, "", "x", "12", Nasty(), 10**400, -0.0, 1e308, 0, 20, 60, 100, True]),
)
ROW = st.tuples(NUMBER, NUMBER, st.sampled_from(["F", "M", "other", None, "", 3, Nasty()]))


def exact(rows):
    columns = {name: np.empty(len(rows), dtype=object) for name in SCHEMA.names}
    for number, row in enumerate(rows):
        for name, cell in zip(SCHEMA.names, row, strict=True):
            columns[name][number] = cell
    return summary_sum(columns, LAYOUTS)


@settings(max_examples=200, deadline=None)
@given(st.lists(ROW, max_size=6), ROW)
def test_one_row_moves_the_vector_by_its_bound_at_most(rows, row):
    moved = exact([*rows, row]) - exact(rows)
    assert np.linalg.norm(moved) <= BOUND * (1 + 1e-12)


def test_the_bound_is_reached():
    # a bound that is too large would cost accuracy, and hide a row that adds more
    assert np.linalg.norm(exact([(0, -1e6, "F")])) == pytest.approx(BOUND, rel=1e-12)
    assert Categories(SEX).squared_bound == 1


@pytest.mark.parametrize("size", [1, 2, 256, 300])
def test_the_matrix_is_a_root_of_the_one_that_sums_up(size):
    root = square_root(size)
    assert np.allclose(root @ root, np.tril(np.ones((size, size))), atol=1e-12)
    squares = (root**2).sum(axis=0)
    assert root[:, 0] @ root[:, 0] >= max(squares) * (1 - 1e-12)  # no other column is longer


def test_without_noise_everything_is_what_numpy_says():
    rng = np.random.default_rng(0)
    ages = np.concatenate([rng.normal(45, 20, 5000), [np.nan, np.inf]])
    clamped = np.clip(ages[:5000], 0, 100)
    layout = Numbers(AGE, 9)
    found = layout.read(layout.sums(ages), 1e-12, (0.1, 0.5, 0.9))
    assert found.count.value == pytest.approx(5000)
    assert found.missing.value == 2
    assert found.mean.value == pytest.approx(clamped.mean())
    for share, each in found.quantiles.items():
        assert each.value == pytest.approx(np.quantile(clamped, share), abs=0.5)
        assert each.error == pytest.approx(max(np.diff(layout.edges)) / 2, rel=0.6)
    edges = [0, 20 / 3, 40 / 3, 20, 100 / 3, 140 / 3, 60, 60 + 40 / 3, 60 + 80 / 3, 100]
    counts = [each.value for each in found.histogram.values()]
    assert counts == pytest.approx(np.histogram(clamped, edges)[0].tolist(), abs=1e-6)
    assert next(iter(found.histogram)) == "0 to 6.66667"
    sexes = Categories(SEX)
    found = sexes.read(sexes.sums(np.array(["F", "F", "M", "?"], dtype=object)), 1e-12, ())
    assert {name: each.value for name, each in found.histogram.items()} == {"F": 2, "M": 1}
    assert (found.count.value, found.missing.value, found.mean) == (3, 1, None)


def test_close_bounds_have_bins_of_different_names():
    layout = Numbers(Column("time", bounds=(1e9, 1e9 + 1)), 10)
    assert len(layout.read(np.zeros(layout.width), 1.0, ()).histogram) == 10


def accepted(deviations, errors):
    """Whether 400 or more deviations have these standard errors.

    The variance of 400 standard normal numbers is within [0.6, 1.5] except with a probability
    below 1e-7; of two thirds and of three halves of the scale it is 0.44 and 2.25.
    """
    return 0.6 < np.mean((np.array(deviations) / np.array(errors)) ** 2) < 1.5


def test_standard_errors_are_those_of_the_noise_and_of_no_other():
    columns = 400
    schema = Schema(tuple(Column(f"x{number}", bounds=(0, 1)) for number in range(columns)))
    values = (np.arange(2000) + 0.5) / 2000
    table = dict.fromkeys(schema.names, values)
    found = describe(table, schema, 200.0, 1e-5, quantiles=(0.4,), insecure_test_key=5).columns
    statistics = {
        "count": ([each.count for each in found], 2000),
        "missing": ([each.missing for each in found], 0),
        "mean": ([each.mean for each in found], 0.5),
        "quantile": ([each.quantiles[0.4] for each in found], 0.4),
        "bin": ([each.histogram["0.3 to 0.4"] for each in found], 200),
    }
    for name, (estimates, truth) in statistics.items():
        deviations = [each.value - truth for each in estimates]
        errors = np.array([each.error for each in estimates])
        assert accepted(deviations, errors), name
        assert not accepted(deviations, errors * 2 / 3), name
        assert not accepted(deviations, errors * 3 / 2), name


def test_categories_have_the_noise_that_the_ledger_says(tmp_path):
    schema = Schema((Column("c", categories=tuple(map(str, range(400)))),))
    ledger = tmp_path / "c.dpl"
    found = describe({"c": ["0"] * 9}, schema, 1.0, 1e-5, ledger=ledger, insecure_test_key=5)["c"]
    estimates = [*list(found.histogram.values())[1:], found.missing]
    (used,) = Ledger.read(ledger).uses
    (query,) = used.event.queries
    assert estimates[0].error == pytest.approx(query.stddev)
    assert accepted([each.value for each in estimates], [query.stddev] * 400)


@pytest.mark.parametrize("relation", ["zero_out", "add_or_remove_one"])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_the_claim_is_that_of_the_gaussian_mechanism(tmp_path, relation, epsilon):
    # by the formula of Balle & Wang 2018, Theorem 8, from what the ledger says
    table = {"age": [30, 40], "salary": [1, 2], "sex": ["F", "M"]}
    records = None if relation == "zero_out" else 2
    path = tmp_path / "d.dpl"
    found = describe(table, SCHEMA, epsilon, 1e-5, ledger=path, relation=relation, records=records)
    (used,) = Ledger.read(path).uses
    (query,) = used.event.queries
    assert query.l2_bound >= BOUND
    ratio = query.l2_bound / query.stddev
    delta = norm.cdf(ratio / 2 - epsilon / ratio) - math.exp(epsilon) * norm.cdf(
        -ratio / 2 - epsilon / ratio
    )
    assert delta == pytest.approx(1e-5, rel=1e-2) and delta <= 1e-5 * (1 + 1e-6)
    assert found.guarantee.claim(1e-5) <= epsilon
    assert account(path).claim(1e-5) <= epsilon


@pytest.mark.parametrize(
    "table",
    [
        {"age": [], "salary": [], "sex": []},
        {"age": [1], "salary": [None], "sex": [None]},
        {"age": [np.nan] * 5, "salary": ["?"] * 5, "sex": ["x"] * 5},
        {"age": [Nasty()], "salary": [10**400], "sex": [Nasty()]},
    ],
)
def test_no_cell_stops_or_shows(table, recwarn):
    found = describe(table, SCHEMA, 1.0, insecure_test_key=1)
    text = str(found)
    assert "secret" not in text and not recwarn.list
    assert 0 <= found["age"].mean.value <= 100
    assert all(0 <= each.value <= 100 for each in found["age"].quantiles.values())
    assert all(math.isfinite(row["value"] + row["error"]) for row in found.to_rows())


@pytest.mark.parametrize(
    ("table", "settings", "words"),
    [
        ({"age": [1]}, {}, "no column 'salary'"),
        ({"age": [1, 2], "salary": [1], "sex": ["F"]}, {}, "same length"),
        ([[1, 2, "F"]], {"quantiles": (1.5,)}, "quantiles"),
        ([[1, 2, "F"]], {"quantiles": "0.5"}, "quantiles"),
        ([[1, 2, "F"]], {"bins": 0}, "bins"),
        ([[1, 2, "F"]], {"bins": 10**6}, "bins"),
        ([[1, 2, "F"]], {"epsilon": 0}, "epsilon"),
        ([[1, 2, "F"]], {"records": 5}, "records"),
        ([[1, 2, "F"]], {"relation": "add_or_remove_one"}, "records"),
        ([[1, 2, "F"]], {"schema": "s.toml"}, "Schema.read"),
    ],
)
def test_wrong_declarations_are_refused_and_cost_nothing(tmp_path, table, settings, words):
    path = tmp_path / "d.dpl"
    with pytest.raises(InvalidArgument, match=words):
        describe(table, **{"schema": SCHEMA, "ledger": path, **settings})
    assert not path.exists()


def test_a_filter_refuses_before_a_cell_is_read():
    read = []

    class Cell:
        def __float__(self):
            read.append(1)
            return 1.0

    schema = Schema((Column("x", bounds=(0, 1)),))
    with shared_ledger(epsilon=1.0, delta=1e-5) as ledger:
        for _ in range(2):
            describe({"x": [Cell()]}, schema, 0.5, 1e-6, ledger=ledger)
        assert read
        read.clear()
        with pytest.raises(BudgetExhausted):
            describe({"x": [Cell()]}, schema, 1.0, 1e-6, ledger=ledger)
    assert not read


def test_a_summary_is_a_table_a_page_and_a_report(tmp_path):
    schema = Schema((Column("<b>", categories=("a&b", "c")), AGE))
    table = {"<b>": ["a&b"] * 50, "age": [30] * 50}
    found = describe(table, schema, 5.0, bins=3, insecure_test_key=1)
    assert "NOT PRIVATE" in str(found)
    assert "NOT PRIVATE" not in str(describe(table, schema, 5.0))
    lines = str(found).splitlines()
    assert lines[0].split() == ["column", "statistic", "value", "±", "noise"]
    assert len({len(line) for line in lines[:-2]}) == 1
    page = found._repr_html_()
    assert "<td>&lt;b&gt;</td>" in page and "rows: a&amp;b" in page
    paths = found.report(tmp_path / "report")
    assert [path.name for path in paths] == [
        "report.md",
        "report.json",
        "report.html",
        "summary.json",
        "summary.svg",
    ]
    numbers = json.loads(paths[3].read_text())
    assert numbers["rows"] == found.to_rows() and numbers["epsilon"] <= 5.0
    assert "NOT PRIVATE" in paths[0].read_text()
    with pytest.raises(InvalidArgument, match="It has <b>, age"):
        found["c"]


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (1234.5678, 12.3, "1235 ± 12"),
        (1.23456, 0.01234, "1.235 ± 0.012"),
        (-3.0, 250.0, "-3 ± 250"),
        (5.0, 0.0, "5 ± 0"),
    ],
)
def test_numbers_are_rounded_by_their_error(value, error, text):
    assert str(Estimate(value, error)) == text


def test_no_cell_is_read_before_the_reservation() -> None:
    order = []

    class Watched(list):
        def __iter__(self):
            order.append("cells")
            return super().__iter__()

    schema = Schema((Column("age", bounds=(0, 100)),))
    with Ledger.in_memory() as ledger:
        reserve = ledger.reserve
        ledger.reserve = lambda *a, **k: order.append("reserve") or reserve(*a, **k)
        describe({"age": Watched([1, 2, 3])}, schema, epsilon=1.0, ledger=ledger)
    assert order[0] == "reserve" and "cells" in order
