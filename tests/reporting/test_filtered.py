"""A run under a filter: its limit is the guarantee, the odometer is a reading, and no format mixes
the two up.
"""

import json
import math

import pytest

from dpfy.accounting import (
    DominatedBy,
    GaussianFilter,
    IndividualFilter,
    RenyiFilter,
    ZcdpFilter,
    account,
    odometer,
)
from dpfy.cli.app import main
from dpfy.errors import UnsupportedEvent
from dpfy.ledger import Header, Ledger
from dpfy.ledger.events import Poisson, Repeated, Sampled, SumQuery
from dpfy.ledger.individual import FilteredPoisson
from dpfy.reporting import RunFacts, report
from dpfy.reporting.layout import key_facts
from dpfy.reporting.numbers import epsilon_text

DELTA = 1e-5
COMMITTED = (Repeated(Sampled(Poisson(0.2), (SumQuery(1.0, 1.5),)), 30),)
FILTERS = [RenyiFilter(2.0, DELTA), ZcdpFilter(0.1), GaussianFilter(0.5), DominatedBy(COMMITTED)]
by_name = pytest.mark.parametrize("rule", FILTERS, ids=lambda rule: rule.tag)


def filled(rule, path=None, noises=(20.0, 30.0, 25.0), **header):
    """A ledger of steps whose noise was chosen from outputs."""
    declared = Header(**{"filter": rule.to_json(), "key_source": "operating system", **header})
    guard = rule.guard(declared.relation)
    opened = (
        Ledger.in_memory(guard, declared) if path is None else Ledger.open(path, guard, declared)
    )
    with opened as ledger:
        for noise in noises:
            ledger.reserve(Sampled(Poisson(0.1), (SumQuery(1.0, noise),), adaptive=True))
    return ledger


def printed(capsys, *arguments):
    with pytest.raises(SystemExit) as caught:
        main(list(map(str, arguments)))
    output = capsys.readouterr()
    assert not caught.value.code, output.err
    return output.out


@by_name
def test_the_claim_is_the_filters_limit_however_little_was_spent(rule):
    ledger = filled(rule)
    result, limit = report(ledger, DELTA), account(ledger).epsilon(DELTA)
    assert result.verdict.private and result.costs.headline.interval == limit
    assert f"({epsilon_text(limit.upper)}, 1e-5)" in result.formal_statement
    assert report(filled(rule, noises=()), DELTA).costs.headline.interval == limit
    assert (
        0.5
        < result.costs.guess
        <= (math.exp(limit.upper) + DELTA) / (math.exp(limit.upper) + 1) * (1 + 1e-12)
    )
    assert result.costs.guess <= (1 + account(ledger).delta(0.0).upper) / 2


@by_name
def test_the_reading_is_in_a_table_of_its_own_and_nowhere_else(rule, conforms):
    ledger = filled(rule)
    result, reading = (
        report(ledger, DELTA, RunFacts(history=[(1, 0.5), (3, 0.7)])),
        odometer(ledger, DELTA),
    )
    value, text = result.to_json(), result.to_markdown()
    conforms(value)
    assert value["guarantee"]["scope"] == "filter"
    assert value["costs"]["odometer"] == {
        "is_a_guarantee": False,
        "if_fixed_in_advance": reading.if_fixed_in_advance,
        "at_delta": DELTA,
        "steps": 3,
        "used": reading.used,
    }
    shown = epsilon_text(reading.if_fixed_in_advance)
    table = next(part for part in text.split("## ") if part.startswith("Odometer"))
    assert (
        "not guarantees" in table
        and shown in table
        and text.count(shown) == table.count(shown) == 1
    )
    value["costs"].pop("odometer")
    assert str(reading.if_fixed_in_advance) not in json.dumps(value)
    assert value["costs"]["curve"]["epsilons"] == {} and "ε spent" not in text
    assert "number of reserved steps" not in result.to_html()


@by_name
def test_every_item_says_that_a_filter_was_enforced(rule):
    result = report(filled(rule), DELTA)
    said = {item.key: item for item in (*result.statement, *result.assumptions)}
    assert rule.title in said["accounting"].text and rule.reference in said["accounting"].text
    assert said["registered"].status == "holds" and rule.title in said["registered"].text
    assert rule.title in dict(key_facts(result))["Steps"]


def test_without_sampling_is_claimed_where_the_filter_does_not_count_on_it():
    without = {rule.tag: report(filled(rule), DELTA).costs.without_sampling for rule in FILTERS}
    for tag, rule in (("zcdp_filter", FILTERS[1]), ("gaussian_filter", FILTERS[2])):
        assert without[tag].interval == account(filled(rule)).epsilon(DELTA)
    assert without["renyi_filter"].interval is None
    full = account(Repeated(Sampled(Poisson(1.0), (SumQuery(1.0, 1.5),)), 30))
    assert without["dominated_by"].interval.upper == pytest.approx(full.claim(DELTA))


def test_a_committed_list_without_a_renyi_rule_still_has_its_other_claim():
    result = report(filled(DominatedBy(COMMITTED), relation="replace_one"), DELTA)
    claims = {claim.method: claim for claim in result.costs.claims}
    assert claims["rdp"].interval is None and math.isfinite(claims["pld"].interval.upper)
    assert result.costs.headline == claims["pld"]


def test_a_filter_that_nothing_enforced_is_no_report():
    with Ledger.in_memory(header=Header(filter=GaussianFilter(1.0).to_json())) as ledger:
        ledger.reserve(Sampled(Poisson(1.0), (SumQuery(1.0, 9.0),), adaptive=True))
    with pytest.raises(UnsupportedEvent, match="unguarded"):
        report(ledger, DELTA)


def test_a_test_key_voids_a_filter_too():
    value = report(filled(GaussianFilter(1.0), key_source="insecure test key"), DELTA).to_json()
    assert value["guarantee"]["epsilon"] is None and not value["verdict"]["private"]


# As a user types it


@by_name
def test_account_prints_the_limit_and_labels_the_reading(rule, tmp_path, capsys):
    ledger = filled(rule, tmp_path / "run.dpl")
    limit, reading = account(ledger).claim(DELTA), odometer(ledger, DELTA)
    lines = printed(capsys, "account", tmp_path / "run.dpl", "--delta", DELTA).splitlines()
    assert (
        len(lines) == 2
        and f"({math.ceil(limit * 1e4) / 1e4:.4f}, 1e-05)" in lines[0]
        and "limit" in lines[0]
    )
    assert lines[1].startswith("Odometer reading, not a guarantee")
    value = json.loads(printed(capsys, "account", tmp_path / "run.dpl", "--delta", DELTA, "--json"))
    assert value["epsilon"] == limit and value["envelope"] is None
    assert (
        value["odometer"]["used"] == reading.used and value["odometer"]["is_a_guarantee"] is False
    )


def test_report_takes_delta_from_the_filter(tmp_path, capsys):
    filled(RenyiFilter(2.0, 1e-6), tmp_path / "run.dpl")
    assert "ε = 2.000 at δ = 1e-6" in printed(capsys, "report", tmp_path / "run.dpl")


def test_show_labels_how_much_is_used(tmp_path, capsys):
    ledger = filled(GaussianFilter(1.0), tmp_path / "run.dpl", noises=(2.0,))
    shown = " ".join(printed(capsys, "ledger", "show", tmp_path / "run.dpl").split())
    assert "filter used 25.0%: a reading" in shown and "the filter's limit" in shown
    value = json.loads(printed(capsys, "ledger", "show", tmp_path / "run.dpl", "--json"))
    assert value["filter_used"] == odometer(ledger, DELTA).used


def test_show_reads_a_filter_of_a_later_version(tmp_path, capsys):
    Ledger.open(tmp_path / "run.dpl", None, Header(filter={"type": "from the future"})).close()
    assert "from the future" in printed(capsys, "ledger", "show", tmp_path / "run.dpl")


@pytest.mark.parametrize("each", [RenyiFilter(2.0, DELTA), GaussianFilter(0.5)])
def test_the_filter_of_each_record_is_what_is_claimed_for_all(each, conforms):
    """Of records the report says that they were dropped, and neither how many nor when."""
    rule = IndividualFilter(each)
    declared = Header(filter=rule.to_json(), key_source="operating system")
    with Ledger.in_memory(rule.guard(), declared) as ledger:
        for _ in range(400):  # more than a record at the clip bound could afford
            ledger.reserve(Sampled(FilteredPoisson(0.1), (SumQuery(1.0, 1.0),)))
    result, limit = report(ledger, DELTA), each.profile("", declared.relation, 1e-3).epsilon(DELTA)
    assert result.verdict.private and result.costs.headline.interval == limit
    text = result.to_markdown()
    conforms(result.to_json())
    assert "every record was dropped when its own budget was used" in text
    assert "filtered\\_poisson" in text and "under a per-record filter" in text
