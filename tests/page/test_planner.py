"""The page that plans says what the accountant says."""

import re
import shlex

import pytest

from dpfy.page.planner import Wish, answer, contours, planner
from dpfy.planning import solve

ASKED = {"epsilon": "2", "delta": "1e-6", "batch": "500", "epochs": "4", "records": "20000"}


def test_the_noise_is_the_accountants_own():
    found = solve(records=20_000, epsilon=2.0, delta=1e-6, batch_size=500.0, epochs=4.0)
    assert f"<dd>{found.noise_multiplier:.6g}<" in answer(ASKED)
    assert f"<dd>{found.steps}<" in answer(ASKED)


def test_the_command_gives_the_same_answer(monkeypatch, capsys):
    from dpfy.cli.app import main

    shown = re.search(r"<code>(dpfy plan .*)</code>", answer(ASKED))[1]
    monkeypatch.setattr("sys.argv", shlex.split(shown))
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code in (0, None)
    noise = re.search(r"noise multiplier ([\d.]+)", capsys.readouterr().out)[1]
    assert f"<dd>{noise}<" in answer(ASKED)


@pytest.mark.parametrize(
    "wrong",
    [
        {"epsilon": "x"},
        {"epsilon": "nan"},
        {"epsilon": "-1"},
        {"delta": "1"},
        {"delta": "0"},
        {"batch": "1e9"},
        {"batch": "0"},
        {"records": "0.5"},
        {"records": "1e300"},
        {"epochs": "inf"},
        {"epochs": "1e9"},
        {"epsilon": "<script>"},
    ],
)
def test_what_cannot_be_answered_is_said_in_words(wrong):
    asked = {**ASKED, **wrong}
    assert '<p class="caution">' in answer(asked) and "<script>" not in answer(asked)
    assert contours(asked) == ""
    assert '<p class="caution">' in planner(asked) and "<script>" not in planner(asked)


def test_what_is_left_out_has_a_default():
    assert Wish.of({}) == Wish()
    assert Wish.of({"records": "1000000"}).delta < 1e-6


def test_contours_pass_through_the_answer():
    figures = contours(ASKED)
    assert figures.count('<svg class="chart"') == 2 and figures.count('class="here"') == 2
    for figure in figures.split("</figure>")[:2]:
        here = re.search(r'class="here" cx="([\d.]+)" cy="([\d.]+)"', figure)
        assert f"{here[1]},{here[2]}" in figure  # a point of the line


def test_a_batch_of_all_records_has_an_answer_and_no_contours():
    asked = {**ASKED, "records": "1", "batch": "1"}
    assert "Noise multiplier" in answer(asked) and contours(asked) == ""
