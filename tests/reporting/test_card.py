"""The card says each thing once, explains its words, and warns of a δ that protects nobody."""

import html
import re

import pytest

from dpfy.reporting import RunFacts, report
from dpfy.reporting.card import cautions, heading, key_facts

DELTA = 1e-5


def card_of(result):
    return {fact.name: fact for fact in key_facts(result)}


@pytest.mark.parametrize(
    ("name", "title", "expected"),
    [
        ("ward 3", "Privacy report", "Privacy report: ward 3"),
        ("a", "Privacy report: a", "Privacy report: a"),  # what trainers declare
        ("report", "Privacy report", "Privacy report: report"),
        ("wards", "wards", "wards"),
    ],
)
def test_the_title_names_the_run_once(name, title, expected):
    assert heading(RunFacts(name=name, title=title)) == expected


def test_every_format_has_the_title_once(good):
    page = good.to_html()
    for tag in ("title", "h1"):
        assert re.findall(f"<{tag}>(.*?)</{tag}>", page) == ["Length of stay: wards"]
    assert page.partition("</header>")[0].count("wards") == 2  # in these two, and nowhere else
    assert good.to_markdown().splitlines()[0] == "# Length of stay: wards"


@pytest.mark.parametrize(("delta", "warned"), [(9.99e-4, False), (1e-3, True)], ids=["below", "at"])
def test_a_delta_that_is_not_below_one_over_the_records_is_on_the_card(make, delta, warned):
    result = report(make(), delta)
    found = [text for text in cautions(result) if "1/1000, one over the number of records" in text]
    assert bool(found) is warned
    header = result.to_html().partition("</header>")[0]
    assert ("is not below 1/1000" in header) is warned
    assert ("is not below 1/1000" in result.to_markdown()) is warned


def test_words_on_the_card_are_explained(good, make):
    card = card_of(good)
    for level in ("B4", "B5", "B6"):
        assert level in card["Protected from"].meaning
    assert card["Tier"].value == "Tier 2" and card["Tier"].meaning.startswith("Reasonable")
    assert "never saved" in card["Key"].meaning
    undeclared = card_of(report(make(), DELTA))["Tier"]
    assert undeclared.value == "not applicable" and "nobody declared" in undeclared.meaning
    assert "up to 10" in undeclared.meaning
    public = card_of(report(make(key_source="test"), DELTA))
    assert "not secret" in public["Key"].meaning and public["Protected from"].value == "nobody"
    page, text = html.unescape(good.to_html()), good.to_markdown().replace("\\", "")
    assert all(fact.meaning in page and fact.meaning in text for fact in card.values())


def test_date_and_accuracy_are_on_the_card(good, make):
    card = card_of(good)
    assert card["Date"].value == "2026-01-01"
    assert card["Accuracy"].value == "80.0 %" and "step 40" in card["Accuracy"].meaning
    losses = RunFacts(metric="loss", history=[(20, 0.25), (10, 0.5)])
    assert card_of(report(make(), DELTA, losses))["Loss"].value == "0.25"
    assert "Metric" not in card_of(report(make(), DELTA))
