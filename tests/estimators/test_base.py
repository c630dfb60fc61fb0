"""Clones, pickles, ledgers and reports of estimators; nothing of the rows is kept."""

import json
import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import Pipeline

from dpfy.errors import BudgetExhausted, InvalidArgument, LedgerLocked
from dpfy.estimators import LogisticRegression, shared_ledger
from dpfy.ledger import Ledger
from dpfy.tabular import Column, Encoder, Schema

X = np.random.default_rng(0).uniform(-1, 1, (300, 2))
Y = (X[:, 0] > 0).astype(int)
SCHEMA = Schema((Column("a", bounds=(-1, 1)), Column("b", bounds=(-1, 1))))


def model(**options):
    given = {"epsilon": 5.0, "data_norm": 1.5, "classes": [0, 1], "steps": 4, **options}
    return LogisticRegression(**given)


def test_a_fit_says_what_it_cost():
    fitted = model().fit(X, Y)
    assert fitted.delta_ == 1e-5 and fitted.n_records_ == 300
    assert 4.99 < fitted.guarantee_.claim(1e-5) <= 5.0
    assert fitted.guarantee_.private and not fitted.guarantee_.durable
    assert not model(insecure_test_key=1).fit(X, Y).guarantee_.private


def test_a_test_key_repeats_a_fit_and_fresh_keys_do_not():
    def coefficients(key):
        return model(insecure_test_key=key).fit(X, Y).coef_.tolist()

    assert coefficients(1) == coefficients(1) != coefficients(2)
    assert coefficients(None) != coefficients(None)


def test_a_clone_shares_the_ledger_and_nothing_else():
    with shared_ledger(epsilon=9.0, delta=1e-4) as ledger:
        fitted = model(epsilon=1.0, ledger=ledger).fit(X, Y)
        copy = clone(fitted)
        assert copy.ledger is ledger and not hasattr(copy, "guarantee_")
        copy.fit(X, Y)
        assert ledger.count == 8


def test_cross_validation_pays_for_every_fold():
    with shared_ledger(epsilon=9.0, delta=1e-4) as ledger:
        cross_val_score(model(epsilon=1.0, ledger=ledger), X, Y, cv=3, error_score="raise")
        assert ledger.count == 12
    with shared_ledger(epsilon=1.4, delta=1e-4) as ledger, pytest.raises(BudgetExhausted):
        cross_val_score(model(epsilon=1.0, ledger=ledger), X, Y, cv=3, error_score="raise")


def test_a_pickle_holds_no_ledger_and_no_row(tmp_path):
    secret = 0.123456789012345
    x = X.copy()
    x[5] = secret
    with Ledger.open(tmp_path / "a.dpl") as ledger:
        fitted = model(ledger=ledger).fit(x, Y)
        data = pickle.dumps(fitted)
        copy = pickle.loads(data)
        assert copy.ledger == str(tmp_path / "a.dpl")
        with pytest.raises(LedgerLocked):
            copy.fit(x, Y)
    assert np.float64(secret).tobytes() not in data and repr(secret).encode() not in data
    assert copy.predict(X).tolist() == fitted.predict(X).tolist()
    assert copy.guarantee_.claim(1e-5) == fitted.guarantee_.claim(1e-5)


def test_an_estimator_on_a_ledger_in_memory_is_not_pickled():
    with (
        shared_ledger(epsilon=9.0, delta=1e-4) as ledger,
        pytest.raises(InvalidArgument, match="ledger file"),
    ):
        pickle.dumps(model(ledger=ledger))


@pytest.mark.parametrize("durable", [True, False])
def test_a_report_says_what_was_declared(durable, tmp_path):
    ledger = tmp_path / "a.dpl" if durable else None
    fitted = model(classes="observed", ledger=ledger).fit(X, Y)
    _, page, *_ = fitted.report(tmp_path / "report")
    found = json.loads(page.read_text(encoding="utf-8"))
    assert found["verdict"]["private"] and found["guarantee"]["epsilon"] <= 5.0
    assert found["guarantee"]["relation"] == "zero_out"
    assert found["ledger"]["plan"]["records"] == 300
    assert "classes='observed'" in page.read_text(encoding="utf-8")
    assert found["ledger"]["durable"] is durable
    status = {each["key"]: each for each in found["assumptions"]}
    assert status["isolation"]["status"] == status["rounding"]["status"] == "holds"
    assert "The number of rows is public" in status["public_constants"]["text"]


def test_a_report_needs_a_ledger(tmp_path):
    with pytest.raises(InvalidArgument, match="not fitted"):
        model().report(tmp_path)
    with pytest.raises(InvalidArgument, match="pickle"):
        pickle.loads(pickle.dumps(model().fit(X, Y))).report(tmp_path)


def test_a_pipeline_encodes_by_a_schema_and_fits():
    pipeline = Pipeline(
        [
            ("encode", Encoder(SCHEMA)),
            (
                "model",
                LogisticRegression(50.0, data_norm=1.0, classes=[0, 1], insecure_test_key=1),
            ),
        ]
    )
    table = {"a": X[:, 0], "b": X[:, 1]}
    pipeline.fit(table, Y)
    assert pipeline.predict(table).shape == Y.shape
    assert pipeline.score(table, Y) > 0.9


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"epsilon": 0}, "epsilon=0"),
        ({"epsilon": None}, "epsilon=None"),
        ({"delta": 2}, "delta=2"),
        ({"delta": "small"}, "delta='small'"),
        ({"classes": None}, "classes='observed'"),
        ({"data_norm": None}, "schema=Schema.read"),
        ({"solver": "magic"}, "solver='magic'"),
        ({"steps": 0}, "steps=0"),
        ({"classes": [1]}, "two or more classes"),
        ({"relation": "add_or_remove_one"}, "records=10_000"),
    ],
)
def test_a_wrong_declaration_spends_nothing(options, says, tmp_path):
    with pytest.raises(InvalidArgument, match=says):
        model(ledger=tmp_path / "a.dpl", **options).fit(X, Y)
    assert not (tmp_path / "a.dpl").exists()


def test_sample_weights_are_refused():
    with pytest.raises(TypeError, match="sample_weight"):
        model().fit(X, Y, sample_weight=np.ones(300))


def test_an_unknown_column_is_told_before_anything_is_spent(tmp_path):
    fitted = LogisticRegression(schema=SCHEMA, classes=[0, 1], ledger=tmp_path / "a.dpl")
    with pytest.raises(InvalidArgument, match="no column 'b'"):
        fitted.fit({"a": [1.0]}, [0])
    with pytest.raises(InvalidArgument, match="inconsistent"):
        fitted.fit({"a": [1.0], "b": [1.0]}, [0, 1])
    assert not (tmp_path / "a.dpl").exists()


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_any_number_of_rows_is_fitted_where_it_is_private(rows):
    fitted = model(relation="add_or_remove_one", records=300).fit(X[:rows], Y[:rows])
    assert fitted.n_records_ == 300 and fitted.guarantee_.relation == "add_or_remove_one"


SECRET = 7.25e77


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (np.full(5, SECRET), [0, 1, 0, 1, 0]),
        (np.full((5, 2, 2), SECRET), [0, 1, 0, 1, 0]),
        (np.full((5, 2), SECRET * 1j), [0, 1, 0, 1, 0]),
        ([[SECRET, SECRET], [SECRET]], [0, 1]),
        (X[:5], np.full((5, 2), SECRET)),
        (X[:5], np.full(5, SECRET * 1j)),
        (X[:5], np.full(3, SECRET)),
        (X[:5], [[SECRET], [SECRET, SECRET]]),
        ({"a": [SECRET]}, [0]),
    ],
)
def test_an_error_quotes_no_cell(x, y, tmp_path):
    estimator = model(ledger=tmp_path / "a.dpl")
    with pytest.raises((ValueError, TypeError)) as caught:
        estimator.fit(x, y)
    assert "7.25" not in str(caught.value) and not (tmp_path / "a.dpl").exists()


def test_a_notebook_shows_declarations_and_the_guarantee_and_no_ledger_or_key(tmp_path):
    schema = Schema((Column("<b>", bounds=(-1, 1)), Column("b", bounds=(-1, 1))))
    options = {"schema": schema, "data_norm": None, "ledger": tmp_path / "mine.dpl"}
    bundle = model(**options)._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html"}
    assert "Not fitted yet" in bundle["text/html"] and "mine.dpl" not in bundle["text/html"]
    page = model(**options).fit({"<b>": X[:, 0], "b": X[:, 1]}, Y)._repr_html_()
    assert "ε = 5.000 at δ = 1e-5" in page and "mine.dpl" not in page
    assert "<b>" not in page and "&lt;b&gt;" in page and "<script" not in page
    assert "<svg" in page  # the coefficients, with their noise
    tested = model(insecure_test_key=271828).fit(X, Y)._repr_html_()
    assert "NOT PRIVATE" in tested and "271828" not in tested and "ε = " not in tested
