"""The report of a search: what holds for the choice, whether it ended or not, and never how many
trials there were.
"""

import json
import os

import pytest

from dpfy.accounting import account
from dpfy.ledger import Header, Ledger
from dpfy.ledger.composite_events import Composed
from dpfy.ledger.events import Repeated
from dpfy.ledger.scopes import Selection, composition
from dpfy.ledger.selection import NegativeBinomialTrials, PoissonTrials, Selected
from dpfy.reporting import report
from dpfy.reporting.numbers import epsilon_text
from dpfy.reporting.record import LedgerRecord

from .conftest import DELTA, PLAN, step_of

RUN = Composed((step_of(8.0, rate=1.0),), (4,))
EVENT = Selected(RUN, NegativeBinomialTrials.with_mean(10.0))


def header(event=EVENT, times=1, **values):
    return Header(
        **{
            "plan": PLAN,
            "envelope": (Repeated(event, times),),
            "key_source": "operating system",
            "created": "2026-01-01T00:00:00+00:00",
            "identity": "5e" * 16,
            **values,
        }
    )


def searched(number, ledger=None):
    """A ledger whose search had so many trials."""
    with (
        ledger or Ledger.in_memory(header=header()) as ledger,
        Selection(ledger, EVENT, lambda: number) as trials,
    ):
        for _ in trials:
            pass
    return ledger


def stopped(number):
    """A ledger whose search was interrupted in its first trial."""
    with (
        Ledger.in_memory(header=header()) as ledger,
        pytest.raises(KeyboardInterrupt),
        Selection(ledger, EVENT, lambda: number),
    ):
        raise KeyboardInterrupt
    return ledger


def said(found, name="statement"):
    return {item.key: item.text for item in getattr(found, name)}


@pytest.fixture(scope="module")
def ended():
    return report(searched(3), DELTA)


def test_the_choice_is_covered_and_one_trial_stands_beside_it(ended, conforms):
    """Fails if a tuning ledger says that nothing is stated for the choice, or claims what one trial
    would cost.
    """
    found = ended
    whole, alone = account(EVENT).claim(DELTA), account(RUN).claim(DELTA)
    assert found.verdict.private and found.costs.headline.interval.upper == whole > alone
    text = said(found)["tuning_statement"]
    assert (
        "The choice is covered" in text
        and f"({epsilon_text(whole)}, 1e-5)-differentially private" in text
    )
    assert (
        f"would be ({epsilon_text(alone)}, 1e-5)" in text
        and "no guarantee for a model that was chosen" in text
    )
    assert "geometric law of mean 10" in text and "No guarantee is stated" not in text
    values = found.to_json()
    conforms(values)
    beside = {
        claim["method"]: claim
        for claim in values["costs"]["claims"]
        if claim["scope"] == "one_trial"
    }
    assert beside["pld"]["epsilon"] == alone and values["guarantee"]["epsilon"] == whole
    assert "poisson" in said(found, "assumptions")["sampling"]  # of the trials, which are inside
    assert "stay with whoever ran the search" in said(found, "assumptions")["secret_trials"]
    for page in (found.to_markdown(), found.to_html(), found.to_model_card()):
        assert "the best of a secret number of trials" in page


def test_what_is_covered_is_the_chosen_trial_and_no_other(ended):
    """Fails if the report promises that whatever any trial released may be shown."""
    assert "whole sequence of released noisy sums" not in ended.formal_statement
    assert "what the best of a secret number of trials released" in ended.formal_statement
    assert "nothing about the others may be seen" in said(ended, "protection")["threat_level"]


def test_no_report_tells_the_number_of_trials(monkeypatch):
    """Fails if a word, a number or a hash in any format differs between one trial and five."""
    monkeypatch.setattr("secrets.token_hex", lambda count: "5e" * count)
    one, five = (report(searched(number), DELTA) for number in (1, 5))
    assert json.dumps(five.to_json()) == json.dumps(one.to_json())
    assert (five.to_markdown(), five.to_html()) == (one.to_markdown(), one.to_html())


def test_an_interrupted_search_says_what_holds():
    """Fails if an interruption that was charged leaves no guarantee at all, or one that leaves
    trials out.
    """
    found = report(stopped(3), DELTA)
    whole = account([EVENT, Composed((RUN,), (3,))]).claim(DELTA)
    assert found.verdict.private and found.costs.headline.interval.upper == pytest.approx(whole)
    text = said(found)["tuning_statement"]
    assert (
        "was interrupted" in text
        and "No model was chosen" in text
        and f"({epsilon_text(whole)}, 1e-5)" in text
    )
    assert "any trial of the interrupted search" in found.formal_statement
    assert "secret_trials" not in said(found, "assumptions")


def test_an_interruption_is_no_excuse_for_other_steps():
    """Fails if steps that nobody registered pass for the charge of an interruption."""
    with Ledger.in_memory(header=header()) as ledger:
        with pytest.raises(KeyboardInterrupt), Selection(ledger, EVENT, lambda: 2):
            raise KeyboardInterrupt
        ledger.reserve(Composed((RUN,), (2,)))
    assert LedgerRecord.of(ledger).unregistered == 1


def test_a_search_that_has_not_ended_claims_nothing_until_it_is_charged(tmp_path):
    path = tmp_path / "a.dpl"
    with Ledger.open(path, header=header()) as ledger:
        selection = Selection(ledger, EVENT, lambda: 2)
        selection.__enter__()
        found = report(path, DELTA)
        assert not found.verdict.private and "has not ended" in " ".join(found.verdict.reasons)
        assert "--resume" in said(found)["tuning_statement"]
        assert found.to_json()["guarantee"]["epsilon"] is None
    Ledger.open(path).close()  # by the next one, as the process was lost
    assert "was interrupted" in said(report(path, DELTA))["tuning_statement"]


def test_a_lost_number_of_trials_is_told(tmp_path):
    path = tmp_path / "a.dpl"
    with Ledger.open(path, header=header()) as ledger:
        Selection(ledger, EVENT, lambda: 2).__enter__()
    for place in tmp_path.glob("*.sealed"):
        os.unlink(place)
    Ledger.open(path).close()
    found = report(path, DELTA)
    assert (
        not found.verdict.private
        and "whose number of trials is lost" in said(found)["tuning_statement"]
    )


def test_a_composition_counts_all_of_its_trials():
    declared = header(RUN, 3, plan={**PLAN, "tuning": {"accounting": "compose"}})
    with Ledger.in_memory(header=declared) as ledger:
        for _ in range(3):
            composition(ledger, RUN)
    found = report(ledger, DELTA)
    text, alone = said(found)["tuning_statement"], account(RUN).claim(DELTA)
    assert "all trials are counted" in text and f"({epsilon_text(alone)}, 1e-5)" in text
    assert f"({epsilon_text(account([Repeated(RUN, 3)]).claim(DELTA))}, 1e-5)" in text


def test_a_search_among_other_steps_and_a_second_one():
    other = Selected(step_of(), PoissonTrials(5.0))
    events = (Repeated(step_of(), 1), Repeated(EVENT, 1), Repeated(other, 1))
    with Ledger.in_memory(header=header(envelope=events)) as ledger:
        ledger.reserve(step_of())
        for event in (EVENT, other):
            with Selection(ledger, event, lambda: 0):
                pass
    found = LedgerRecord.of(ledger).search
    assert "all other recorded steps" in found.output and "all other steps" in found.reads
    assert "geometric law of mean 10; Poisson law of mean 5" in found.statement("(1, 1e-5)", None)
    assert found.run is None  # there are two kinds of trials, and no number of one of them is shown


def test_a_training_ledger_says_as_before_that_nothing_is_stated(good):
    assert "No guarantee is stated for the choice" in said(good)["tuning_statement"]
    assert "whole sequence of released noisy sums" in good.formal_statement
