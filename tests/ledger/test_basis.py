"""What a run rests on is in the ledger: chained, free of charge, and no reason to refuse what older
versions wrote.
"""

import json

import pytest

from dpfy.errors import InvalidArgument, LedgerDamaged, LedgerError, LedgerMismatch
from dpfy.ledger import Header, Ledger
from dpfy.ledger.composite_events import Composed
from dpfy.ledger.events import Poisson, Repeated, Sampled, SumQuery, canonical_json
from dpfy.ledger.journal import GENESIS, Journal, seal
from dpfy.ledger.scopes import composition

FACTS = {"engine": "loop", "torch": "2.0", "co_batched": 12}


def test_facts_are_durable_and_cost_nothing(path, header, step):
    with Ledger.open(path, header=header) as ledger:
        ledger.reserve(step)
        ledger.record_basis(FACTS)
        ledger.reserve(step)
        counted = ledger.count, ledger.uses
    found = Ledger.read(path)
    assert found.basis == (FACTS,) and (found.count, found.uses) == counted == (
        2,
        (Repeated(step, 2),),
    )


def test_what_is_on_record_is_not_written_again(path, header, step):
    # One line per run and engine: a run that chooses an engine for every new loss would fill the
    # file.
    for _ in range(2):
        with Ledger.open(path, header=header) as ledger:
            ledger.record_basis(FACTS)
            ledger.record_basis({**FACTS, "engine": "vmap"})
            ledger.record_basis(dict(reversed(FACTS.items())))
    assert [each["engine"] for each in Ledger.read(path).basis] == ["loop", "vmap"]


def test_a_block_that_was_paid_for_stays_paid_for_once(path, header, step):
    # A settlement is accepted directly behind its use only; facts in between must not make close()
    # a damaged ledger.
    with Ledger.open(path, header=header, block=10) as ledger:
        ledger.reserve(step)
        ledger.record_basis(FACTS)
        for _ in range(4):
            ledger.reserve(step)
    assert Ledger.read(path).count == 5


def test_an_edited_fact_is_a_damaged_ledger(path, header, step):
    with Ledger.open(path, header=header) as ledger:
        ledger.reserve(step)
        ledger.record_basis(FACTS)
    path.write_bytes(path.read_bytes().replace(b'"co_batched":12', b'"co_batched":10'))
    with pytest.raises(LedgerDamaged, match="line 4"):
        Ledger.read(path)


@pytest.mark.parametrize(
    "wrong",
    [{"x": float("nan")}, {"x": object()}, ["x"], None],
    ids=["nan", "object", "list", "none"],
)
def test_facts_are_plain_values(wrong):
    with Ledger.in_memory() as ledger, pytest.raises(InvalidArgument, match="facts"):
        ledger.record_basis(wrong)


def test_nothing_is_recorded_where_nothing_can_be_reserved(path, header, small):
    with pytest.raises(LedgerError, match="opened for reading"):
        Ledger.read(small).record_basis(FACTS)


def test_facts_follow_a_header_and_are_an_object(header):
    for entries in ([("basis", FACTS)], [("header", header.to_json()), ("basis", [1])]):
        journal = Journal("test")
        with pytest.raises(LedgerDamaged, match="not allowed here"):
            for kind, payload in entries:
                journal.feed(seal(journal.head.hash, canonical_json({kind: payload}))[0])


def test_a_kind_of_entry_that_is_not_known_may_be_a_charge_and_is_refused(header):
    # Passing over it would under-count what a newer version charged.
    journal = Journal("test")
    journal.feed(seal(GENESIS, canonical_json({"header": header.to_json()}))[0])
    with pytest.raises(LedgerDamaged, match="a newer version may"):
        journal.feed(seal(journal.head.hash, canonical_json({"surcharge": {"times": 3}}))[0])


def test_a_scope_keeps_its_facts_to_itself(step):
    # As many lines as trials in the outer ledger would tell how many there were.
    with Ledger.in_memory() as ledger:
        scope = composition(ledger, Composed((step,), (2,)))
        scope.record_basis(FACTS)
        assert ledger.basis == () and scope.basis == (FACTS,)


def test_headers_have_the_bytes_that_they_always_had(header):
    # Of a header that is not strict; and what older versions wrote is read.
    fields = {
        "schema",
        "unit",
        "relation",
        "plan",
        "envelope",
        "key_source",
        "guard",
        "filter",
        "library",
        "created",
        "identity",
    }
    written = json.loads(canonical_json(header.to_json()))
    assert set(written) == fields
    assert Header.from_json(written) == header and not header.strict


def test_a_strict_header_says_so_and_only_in_one_way(header):
    strict = {**header.to_json(), "strict": True}
    assert Header.from_json(strict).to_json() == strict
    for wrong in (False, 1, "yes", None):
        with pytest.raises(InvalidArgument):
            Header.from_json({**strict, "strict": wrong})
    with pytest.raises(InvalidArgument, match="strict"):
        Header(strict="yes")


@pytest.mark.parametrize("strict", [True, False])
def test_strict_is_kept_for_life(path, strict):
    step = Sampled(Poisson(0.01), (SumQuery(1.0, 1.1),))
    with Ledger.open(path, header=Header(strict=strict)) as ledger:
        ledger.reserve(step)
    with pytest.raises(LedgerMismatch, match=f"begun with strict={strict}"):
        Ledger.open(path, header=Header(strict=not strict))
    Ledger.open(path, header=Header(strict=strict)).close()


def test_a_later_plan_under_a_filter_is_as_strict_as_the_first():
    first, second = (
        Header(filter={"name": "some"}, plan={"steps": n}, strict=strict)
        for n, strict in ((1, True), (2, False))
    )
    with Ledger.in_memory(header=first) as ledger, pytest.raises(LedgerMismatch, match="strict"):
        ledger.register(None, second)
    journal = Journal("test")
    journal.feed(seal(GENESIS, canonical_json({"header": first.to_json()}))[0])
    with pytest.raises(LedgerDamaged, match="strict"):
        journal.feed(seal(journal.head.hash, canonical_json({"header": second.to_json()}))[0])


def test_an_anchor_is_known_of(path, header, tmp_path):
    with Ledger.open(path, header=header, anchor=tmp_path / "elsewhere.head") as ledger:
        assert ledger.anchored and composition(ledger, Composed((step_of(),), (1,))).anchored
    assert not Ledger.read(path).anchored and not Ledger.in_memory().anchored


def step_of():
    return Sampled(Poisson(0.01), (SumQuery(1.0, 1.1),))
