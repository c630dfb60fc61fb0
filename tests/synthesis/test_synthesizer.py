"""Synthesizers refuse what cannot be before anything is spent, and draw what was declared."""

import json

import numpy as np
import pytest
from tests.support.synthetic import SCHEMA, people, without_mbi

import dpfy
from dpfy import Synthesizer
from dpfy.errors import InvalidArgument
from dpfy.reporting import report as report_of
from dpfy.tabular import Column, Schema


class Odd:
    """A cell that cannot be converted, printed or compared."""

    def __str__(self):
        raise RuntimeError("secret")

    __repr__ = __float__ = __str__


@pytest.fixture
def _no_package(monkeypatch):
    without_mbi(monkeypatch)


@pytest.mark.parametrize(
    "wrong",
    [
        {"method": "mwem"},
        {"schema": {"age": (0, 100)}},
        {"epsilon": 0.0},
        {"epsilon": float("nan")},
        {"delta": 0.0},
        {"delta": 1.0},
        {"bins": 0},
        {"bins": 1001},
        {"whole": "age"},
        {"whole": ["age", "age"]},
        {"whole": ["job"]},
        {"whole": ["nobody"]},
        {"target": "nobody"},
        {"method": "aim", "target": "job"},
    ],
)
def test_a_wrong_declaration_is_refused(wrong):
    given = {"method": "mst", "schema": SCHEMA, "epsilon": 1.0, **wrong}
    with pytest.raises(InvalidArgument):
        Synthesizer(**given)


@pytest.mark.usefixtures("_no_package")
def test_a_table_without_a_column_spends_nothing(tmp_path):
    table = people(10)
    del table["job"]
    with pytest.raises(InvalidArgument, match="job"):
        Synthesizer("mst", SCHEMA, 1.0).fit(table, tmp_path / "t.dpl")
    assert not (tmp_path / "t.dpl").exists()


def test_nothing_is_drawn_before_a_fit(tmp_path):
    synthesizer = Synthesizer("mst", SCHEMA, 1.0)
    for ask in (synthesizer.sample, lambda: synthesizer.guarantee, lambda: synthesizer.report("x")):
        with pytest.raises(InvalidArgument, match="not fitted"):
            ask()


@pytest.mark.usefixtures("_no_package")
@pytest.mark.parametrize("method", ["mst", "aim"])
@pytest.mark.parametrize("rows", [0, 1, 7])
def test_odd_tables_are_as_good_as_others(method, rows, capsys, recwarn):
    odd = [np.nan, np.inf, None, "secret", Odd(), 10**400, ""]
    table = {name: np.array(odd[:rows], dtype=object) for name in SCHEMA.names}
    drawn = Synthesizer(method, SCHEMA, 1.0, 1e-6).fit(table).sample(5)
    assert drawn.rows == 5 and list(drawn) == list(SCHEMA.names)
    assert not recwarn.list and capsys.readouterr() == ("", "")


@pytest.mark.usefixtures("_no_package")
@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize("method", ["mst", "aim"])
def test_tables_of_one_and_two_columns_use_their_budget(method, columns):
    schema = Schema(SCHEMA.columns[:columns])
    synthesizer = Synthesizer(method, schema, 1.0, 1e-6).fit(people(200))
    assert 0.99 < synthesizer.guarantee.claim(1e-6) <= 1.0
    assert synthesizer.sample().rows >= 1


@pytest.mark.usefixtures("_no_package")
def test_rows_are_as_many_as_noisy_counts_tell_and_not_as_there_are():
    synthesizer = Synthesizer("mst", SCHEMA, 1.0, 1e-6, insecure_test_key=2).fit(people(3000))
    told = synthesizer.fitted.total
    assert synthesizer.sample().rows == round(told) != 3000
    assert abs(told - 3000) < 600
    assert synthesizer.sample(12).rows == 12
    with pytest.raises(InvalidArgument):
        synthesizer.sample(0)


@pytest.mark.usefixtures("_no_package")
def test_what_is_drawn_is_inside_of_the_schema_and_looks_like_the_table():
    schema = Schema(
        (
            Column("age", bounds=(0, 100)),
            Column("job", categories=("cook", "nurse")),  # pilots are none of them
        )
    )
    table = people(4000)
    synthesizer = Synthesizer("mst", schema, 20.0, 1e-6, whole=["age"], insecure_test_key=1)
    drawn = synthesizer.fit(table).sample(4000, seed=0)
    assert drawn["age"].dtype == np.int64
    assert drawn["age"].min() >= 0 and drawn["age"].max() <= 100
    assert set(drawn["job"]) == {"cook", "nurse", None}
    pilots = np.mean(table["job"] == "pilot")
    assert abs(np.mean([each is None for each in drawn["job"]]) - pilots) < 0.02


@pytest.mark.usefixtures("_no_package")
def test_drawing_again_costs_nothing_and_a_seed_repeats(tmp_path):
    path = tmp_path / "t.dpl"
    synthesizer = Synthesizer("mst", SCHEMA, 1.0, 1e-6).fit(people(100), path)
    size, state = path.stat().st_size, np.random.get_state()[1].copy()
    first, same, other = (synthesizer.sample(40, seed=s) for s in (1, 1, 2))
    assert all(np.array_equal(first[name], same[name]) for name in first)
    assert not all(np.array_equal(first[name], other[name]) for name in first)
    assert path.stat().st_size == size
    assert np.array_equal(np.random.get_state()[1], state)  # numpy's own chance is not used


@pytest.mark.usefixtures("_no_package")
@pytest.mark.parametrize("method", ["mst", "aim"])
def test_progress_is_told_from_released_values(method):
    told = []
    Synthesizer(method, SCHEMA, 1.0, 1e-6).fit(
        people(100), tell=lambda what, done, total: told.append((what, done <= total))
    )
    assert told and all(fine for _, fine in told)


@pytest.mark.usefixtures("_no_package")
@pytest.mark.parametrize("method", ["mst", "aim"])
def test_the_report_says_what_is_released(method, tmp_path):
    ledger = tmp_path / "t.dpl"
    synthesizer = Synthesizer(method, SCHEMA, 1.0, 1e-6).fit(people(100), ledger)
    written = synthesizer.report(tmp_path / "report")
    assert [path.name for path in written] == [
        "report.md",
        "report.json",
        "report.html",
        "quality.html",
    ]
    found = json.loads(written[1].read_text(encoding="utf-8"))
    items = {item["key"]: item["text"] for item in (*found["protection"], *found["statement"])}
    assert found["verdict"]["private"] and found["guarantee"]["epsilon"] <= 1.0
    assert items["table_1"].startswith("Mode of access: data")
    assert found["formal_statement"].startswith("The release of noisy marginals")
    assert "teachers" not in written[0].read_text(encoding="utf-8")
    assert report_of(ledger, 1e-6).verdict.private


@pytest.mark.usefixtures("_no_package")
def test_a_table_without_a_file_has_a_report_that_says_so(tmp_path):
    synthesizer = Synthesizer("mst", SCHEMA, 1.0, 1e-6).fit(people(100))
    assert "NOT DURABLE" in synthesizer.report(tmp_path)[0].read_text(encoding="utf-8")


@pytest.mark.usefixtures("_no_package")
def test_a_page_is_about_no_table_but_a_synthetic_one(tmp_path):
    table = people(100)
    synthesizer = Synthesizer("mst", SCHEMA, 1.0, 1e-6).fit(table)
    with pytest.raises(InvalidArgument, match="nothing pays for"):
        synthesizer.report(tmp_path / "report", table)
    assert not (tmp_path / "report").exists()


def test_the_name_is_public():
    assert dpfy.Synthesizer is Synthesizer
