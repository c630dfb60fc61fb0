from dataclasses import replace

import pytest
from books import plan_of
from hypothesis import given, strategies as st

from dpfy.budgets.costs import nothing
from dpfy.budgets.declarations import Declaration
from dpfy.budgets.records import DatasetRecord, GrantRecord
from dpfy.budgets.values import State
from dpfy.errors import BudgetExhausted, GrantRefused
from dpfy.ledger.journal import Head

DECLARATION = Declaration.make(
    "x", unit="record", epsilon=8.0, delta=1e-6, tranches=(4.0, 4.0), parts=("north", "south")
)
COST = DECLARATION.cost(plan_of().envelope)
ZERO = nothing(DECLARATION.orders)
HEADS = [Head(count, f"{count:064x}") for count in range(9)]


def grant(**values):
    given = {"id": "g", "dataset": "x", "account": "", "purpose": "", "holder": ""}
    start = {"state": State.RESERVED, "cost": COST, "lost": ZERO, "charged": None}
    return GrantRecord(**{**given, **start, **values})


def test_records_are_read_back_as_they_were_written():
    record = grant().bind("ledger", "header", HEADS[2], 0)
    assert GrantRecord.from_json(record.to_json()) == record
    dataset = DatasetRecord.new(DECLARATION).keeping("north", COST)
    assert DatasetRecord.from_json(DECLARATION, dataset.to_json()) == dataset
    assert Declaration.from_json(DECLARATION.to_json()) == DECLARATION


def test_a_run_begins_after_the_one_before_has_ended():
    first = grant().bind("ledger", "header", HEADS[2], 0)
    assert first.sessions == 1 and first.state is State.ACTIVE
    second = first.bind("ledger", "header", HEADS[5], 1)
    for ended in (None, 0, 1):
        with pytest.raises(GrantRefused, match="no known end"):
            second.bind("ledger", "header", HEADS[6], ended)
    with pytest.raises(GrantRefused, match="rolled back"):
        second.bind("ledger", "header", HEADS[4], 2)
    with pytest.raises(GrantRefused, match="rolled back"):
        second.bind("ledger", "header", Head(5, "f" * 64), 2)
    for other in (("another", "header"), ("ledger", "another")):
        with pytest.raises(GrantRefused, match="bound to the ledger"):
            second.bind(*other, HEADS[6], 2)


def test_a_reopened_grant_has_paid_for_all_that_its_ledger_does_not_show():
    half = tuple(part // 2 for part in COST)
    record = grant().bind("ledger", "header", HEADS[1], 0).repaid(half, HEADS[3])
    assert record.lost == tuple(part - part // 2 for part in COST)
    again = record.bind("ledger", "header", HEADS[4], None)
    with pytest.raises(GrantRefused, match="no known end"):
        again.bind("ledger", "header", HEADS[5], None)


@given(
    st.lists(
        st.tuples(st.sampled_from(("", "north", "south")), st.floats(0, 1), st.booleans()),
        max_size=30,
    )
)
def test_no_order_of_decisions_exceeds_the_filter(decisions):
    """A limit checked for one part only, or after the tranche alone, lets a total pass."""
    dataset, kept = DatasetRecord.new(DECLARATION), []
    for account, share, ends in decisions:
        cost = tuple(int(part * share) for part in COST)
        if ends and kept:
            record = kept.pop()
            dataset = dataset.settling(record, tuple(part // 2 for part in record.cost))
            continue
        try:
            dataset = dataset.keeping(account, cost)
            kept.append(grant(account=account, cost=cost))
        except BudgetExhausted:
            pass
    rule = DECLARATION.filters[0]  # the first tranche is open
    place = 1 + DECLARATION.orders.index(rule.orders[0])
    whole = dataset.accounts[""].total[place]
    for part in DECLARATION.parts:
        assert whole + dataset.accounts[part].total[place] <= rule.limits[0] * 2**80


def test_a_torn_line_is_not_charged_beyond_the_grant():
    shown, fewer = plan_of(steps=21).envelope, plan_of(steps=3).envelope
    place = 1 + DECLARATION.orders.index(DECLARATION.limited[0])
    assert DECLARATION.cost(shown)[place] > COST[place]
    assert DECLARATION.charge(shown, COST)[place] == COST[place]
    assert DECLARATION.charge(fewer, COST) == DECLARATION.cost(fewer)


def test_ended_grants_have_no_way_back():
    for state in (State.SETTLED, State.FORFEITED, State.WITHDRAWN):
        ended = replace(grant(), state=state)
        with pytest.raises(GrantRefused, match=state):
            ended.bind("ledger", "header", HEADS[1], 0)
        with pytest.raises(GrantRefused, match=state):
            ended.anchored(HEADS[1])
