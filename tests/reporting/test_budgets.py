import dataclasses

from dpfy.ledger import Header, Ledger
from dpfy.ledger.events import Poisson, Repeated, Sampled, SumQuery
from dpfy.reporting import RunFacts, report

STEP = Sampled(Poisson(0.1), (SumQuery(1.0, 2.0),))
GRANT = {"book": "b" * 32, "dataset": "admissions", "grant": "g" * 16}
BOOK = {"name": "admissions", "epsilon": 8.0, "delta": 1e-6, "spent": 2.5, "reserved": 1.25}
TOLD = {**BOOK, "free": 4.25, "grants": 3, "state": "settled"}


def reported(facts=None, **options):
    header = Header(envelope=(Repeated(STEP, 3),), **options)
    with Ledger.in_memory(header=dataclasses.replace(header, grant=None)) as ledger:
        ledger.reserve(STEP)
        ledger._journal.headers[-1] = dataclasses.replace(ledger.header, grant=header.grant)
        return report(ledger, 1e-5, facts)


def items(found):
    return {item.key: item.text for item in (*found.statement, *found.exclusions)}


def test_a_run_under_no_book_says_what_is_not_known():
    found = reported()
    assert "Other ledgers of this data are not known" in items(found)["dataset_budget"]
    assert "Other ledgers of this data are not known" in items(found)["other_ledgers"]
    assert "grant" not in found.to_json()["ledger"] and "book" not in found.to_json()["facts"]


def test_a_run_under_a_book_has_the_state_of_the_data_set_beside_its_own():
    found = reported(RunFacts(book=TOLD), grant=GRANT)
    said = items(found)["dataset_budget"]
    for text in ("'admissions'", "g" * 16, "ε = 8.000", "1e-6", "2.500", "1.250", "settled", "3"):
        assert text in said
    assert "not known" not in items(found)["other_ledgers"]
    written = found.to_json()
    assert written["ledger"]["grant"] == GRANT
    assert RunFacts.from_json(written["facts"]) == found.facts


def test_a_book_that_said_nothing_leaves_no_number():
    said = items(reported(grant={**GRANT, "part": "north"}))["dataset_budget"]
    assert "part 'north'" in said and "ε" not in said
