"""Plots show every name as it is, the noise, and no more bars than can be read."""

import numpy as np
import pytest

from dpfy.errors import InvalidArgument
from dpfy.estimators import LinearRegression, LogisticRegression, describe, plot_coefficients
from dpfy.tabular import Column, Schema

SCHEMA = Schema(
    (
        Column("price in $ or $$", bounds=(0, 1)),
        Column("many", categories=tuple(f"name{number}" for number in range(60))),
    )
)


def test_histograms_are_drawn(tmp_path):
    table = {SCHEMA.names[0]: [0.5] * 9, "many": ["name0"] * 9}
    summary = describe(table, SCHEMA, 1.0, insecure_test_key=1)
    drawn = summary.plot(tmp_path / "a.svg").read_text()
    assert "price in $ or $$" in drawn and "0.5 to 0.6" in drawn
    assert drawn.count(">name") <= 25
    assert summary.plot(tmp_path / "b.svg").read_text() == drawn
    with pytest.raises(InvalidArgument, match=r"\.png"):
        summary.plot(tmp_path / "a.txt")


def accepted(coefficients, stddev):
    """Whether 400 numbers have a standard deviation; false alarms are rarer than 1e-7.

    The mean of 400 squared standard normal numbers is within [0.6, 1.5]; of two thirds and three
    halves of the scale it is 0.44 and 2.25.
    """
    return 0.6 < np.mean((coefficients / stddev) ** 2) < 1.5


@pytest.mark.parametrize("solver", ["gd", "output", "objective", "linear"])
def test_coefficients_of_nothing_have_the_noise_that_the_model_says(solver):
    # Rows that are not finite contribute nothing, so that coefficients are noise and nothing else.
    x, y = np.full((300, 400), np.nan), np.arange(300) % 2
    given = {"bounds": (-1, 1), "insecure_test_key": 3}
    model = (
        LinearRegression(1.0, target_bounds=(0, 1), **given)
        if solver == "linear"
        else LogisticRegression(1.0, classes=[0, 1], solver=solver, **given)
    ).fit(x, y)
    assert model.coef_noise_.shape == model.coef_.shape
    assert accepted(model.coef_, model.coef_noise_)
    assert not accepted(model.coef_, model.coef_noise_ * 2 / 3)
    assert not accepted(model.coef_, model.coef_noise_ * 3 / 2)


def test_noise_of_descent_is_largest_where_no_row_points():
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (2000, 20))
    found = [
        LogisticRegression(1.0, bounds=(-1, 1), classes=[0, 1], insecure_test_key=key).fit(
            x, x[:, 0] > 0
        )
        for key in range(10)
    ]
    spread = np.std([model.coef_ for model in found], axis=0, ddof=1)
    assert np.mean((spread / found[0].coef_noise_) ** 2) < 1.3  # 180 degrees of freedom


@pytest.mark.parametrize("solver", ["functional", "adassp"])
def test_solvers_whose_noise_depends_on_the_rows_say_so(solver, tmp_path):
    x = np.random.default_rng(0).uniform(-1, 1, (50, 2))
    given = {"bounds": (-1, 1), "solver": solver}
    model = (
        LogisticRegression(classes=[0, 1], **given)
        if solver == "functional"
        else LinearRegression(target_bounds=(-1, 1), **given)
    ).fit(x, x[:, 0] > 0)
    assert model.coef_noise_ is None
    assert ">x1<" in plot_coefficients(model, tmp_path / "a.svg").read_text()


def test_coefficients_are_drawn_with_names_and_in_reports(tmp_path):
    schema = Schema((Column("a$b$", bounds=(0, 1), knots=(0.5,)), Column("c", categories=("d",))))
    table = {"a$b$": [0.1, 0.9] * 20, "c": ["d"] * 40}
    model = LogisticRegression(schema=schema, classes=["no", "perhaps", "yes"])
    *_, path = model.fit(table, ["no", "yes"] * 20).report(tmp_path)
    drawn = path.read_text()
    assert path.name == "coefficients.svg"
    for name in ("a$b$@0.5", "c=d", "c=other", "perhaps"):
        assert f">{name}<" in drawn
    short = plot_coefficients(model, tmp_path / "b.svg", most=1).read_text()
    assert short.count("$b$@") + short.count(">c=") == 3  # one for each class
    with pytest.raises(InvalidArgument, match="most"):
        plot_coefficients(model, tmp_path / "b.svg", most=0)
    with pytest.raises(InvalidArgument, match=r"\.png"):
        plot_coefficients(model, tmp_path / "b")
