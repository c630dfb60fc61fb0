"""The guard lets a registered envelope pass, in order, up to its end or to the budget."""

import pytest

from dpfy.accounting import EnvelopeGuard, account
from dpfy.errors import BudgetExhausted, InvalidArgument, LedgerMismatch
from dpfy.ledger import Header, Ledger
from dpfy.ledger.events import Poisson, Repeated, Sampled, SumQuery
from dpfy.ledger.individual import Individual
from dpfy.types import Budget, GroupBudgets, budget_from_json

A = Sampled(Poisson(0.1), (SumQuery(1.0, 1.0),))
B = Sampled(Poisson(0.1), (SumQuery(1.0, 2.0),))
BARE = Sampled(Poisson(0.1), (SumQuery(1.0, 0.0),))


def test_without_a_budget_the_envelope_is_the_limit():
    guard = EnvelopeGuard((Repeated(A, 2),), None)
    for _ in range(2):
        guard.admit(A, 1)
        guard.record(A, 1)
    with pytest.raises(BudgetExhausted, match="2 of 2"):
        guard.admit(A, 1)


def test_the_order_of_the_envelope_is_kept():
    guard = EnvelopeGuard((Repeated(A, 1), Repeated(B, 2)), None)
    with pytest.raises(LedgerMismatch):
        guard.admit(B, 1)
    guard.record(A, 1)
    with pytest.raises(LedgerMismatch):
        guard.admit(A, 1)
    guard.admit(B, 2)


def test_a_block_ends_with_its_run_of_equal_steps():
    guard = EnvelopeGuard((Repeated(A, 2), Repeated(B, 2)), None)
    guard.admit(A, 2)
    with pytest.raises(BudgetExhausted):  # a ledger then tries a shorter block
        guard.admit(A, 3)


def test_steps_that_are_handed_back_can_be_taken_again():
    guard = EnvelopeGuard((Repeated(A, 4), Repeated(B, 1)), None)
    guard.record(A, 4)
    guard.admit(B, 1)
    guard.record(A, -2)
    with pytest.raises(LedgerMismatch):
        guard.admit(B, 1)
    guard.admit(A, 2)


@pytest.mark.parametrize("method", ["pld", "rdp"])
def test_the_budget_stops_before_the_step_that_would_exceed_it(method):
    budget = Budget(epsilon=4.0, delta=1e-5)
    guard = EnvelopeGuard((Repeated(A, 30), Repeated(B, 900)), budget, method=method)
    assert 0 < guard.limit < 930
    taken = [Repeated(A, min(30, guard.limit)), Repeated(B, max(0, guard.limit - 30))]
    following = A if guard.limit < 30 else B
    assert (
        account(taken, method).claim(1e-5) <= 4.0 < account([*taken, following], method).claim(1e-5)
    )
    guard.record(A, min(30, guard.limit))
    guard.record(B, max(0, guard.limit - 30))
    with pytest.raises(BudgetExhausted, match="budget"):
        guard.admit(following, 1)


def test_an_affordable_envelope_is_not_shortened():
    assert EnvelopeGuard((Repeated(B, 3),), Budget(8.0, 1e-5)).limit == 3


def test_steps_without_noise_are_never_affordable():
    assert EnvelopeGuard((Repeated(BARE, 5),), Budget(8.0, 1e-5)).limit == 0
    assert EnvelopeGuard((Repeated(B, 1), Repeated(BARE, 5)), Budget(8.0, 1e-5)).limit == 1


def test_the_relation_decides_what_is_affordable():
    budget = Budget(2.0, 1e-5)
    limits = [
        EnvelopeGuard((Repeated(B, 300),), budget, relation).limit
        for relation in ("replace_one", "zero_out", "add_or_remove_one")
    ]
    assert limits[0] < limits[1] == limits[2]


def test_it_guards_a_real_ledger_and_resumes_where_it_was(tmp_path):
    envelope = (Repeated(A, 2), Repeated(B, 1))
    header = Header(envelope=envelope)

    def opened():
        return Ledger.open(tmp_path / "run.dpl", EnvelopeGuard(envelope, None), header, block=2)

    with opened() as ledger:
        ledger.reserve(A)
    with opened() as ledger:
        ledger.reserve(A)
        with pytest.raises(LedgerMismatch):
            ledger.reserve(A)
        ledger.reserve(B)
        with pytest.raises(BudgetExhausted):
            ledger.reserve(B)
    assert account(tmp_path / "run.dpl").steps == 3


def test_it_describes_itself_in_plain_json():
    assert EnvelopeGuard((Repeated(B, 3),), Budget(8.0, 1e-5)).describe() == {
        "name": "envelope",
        "steps": 3,
        "budget": {"epsilon": 8.0, "delta": 1e-5},
        "relation": "add_or_remove_one",
        "method": "pld",
    }


def test_unknown_relation_and_method_are_refused():
    with pytest.raises(InvalidArgument):
        EnvelopeGuard((Repeated(A, 1),), None, "none")
    with pytest.raises(InvalidArgument):
        EnvelopeGuard((Repeated(A, 1),), None, method="none")


GROUPS = Individual(("strict", "open"), (0.01, 0.03), (1.0, 1.0), (0.5, 0.5))
GROUPED = Sampled(GROUPS, A.queries)


@pytest.mark.parametrize("method", ["pld", "rdp"])
@pytest.mark.parametrize(
    ("epsilons", "first", "rate"), [((1.0, 9.0), "strict", 0.01), ((9.0, 2.5), "open", 0.03)]
)
def test_the_first_group_without_budget_stops_all(method, epsilons, first, rate):
    budget = GroupBudgets(GROUPS.names, epsilons, 1e-5)
    guard = EnvelopeGuard((Repeated(GROUPED, 400),), budget, method=method)
    alone = Repeated(Sampled(Poisson(rate), A.queries), 400)
    assert guard.limit == EnvelopeGuard((alone,), budget.of(first), method=method).limit
    assert 0 < guard.limit < 400
    guard.record(GROUPED, guard.limit)
    with pytest.raises(BudgetExhausted, match=f"the budget of group '{first}' would be exceeded"):
        guard.admit(GROUPED, 1)


def test_one_budget_for_all_holds_for_the_weakest_group():
    guard = EnvelopeGuard((Repeated(GROUPED, 400),), Budget(2.5, 1e-5))
    alone = Repeated(Sampled(Poisson(0.03), A.queries), 400)
    assert 0 < guard.limit == EnvelopeGuard((alone,), Budget(2.5, 1e-5)).limit < 400


@pytest.mark.parametrize(
    ("step", "names", "message"),
    [
        (GROUPED, ("strict", "wide"), "budget names the group 'wide'.*'strict', 'open'"),
        (GROUPED, ("strict",), "events name the group 'open', which has no budget"),
        (A, ("strict",), "'strict', and no event does; events name no group"),
    ],
)
def test_groups_of_budget_and_events_are_the_same(step, names, message):
    budget = GroupBudgets(names, (1.0,) * len(names), 1e-5)
    with pytest.raises(InvalidArgument, match=message):
        EnvelopeGuard((Repeated(step, 2),), budget)


def test_a_ledger_declares_and_remembers_the_budget_of_each_group(tmp_path):
    budget = GroupBudgets(GROUPS.names, (0.9, 9.0), 1e-5)
    envelope = (Repeated(GROUPED, 400),)
    path = tmp_path / "run.dpl"
    header = Header(envelope=envelope)
    with Ledger.open(path, EnvelopeGuard(envelope, budget), header) as ledger:
        ledger.reserve(GROUPED)
    read = Ledger.read(path).header
    declared = {"names": ["strict", "open"], "epsilons": [0.9, 9.0], "delta": 1e-5}
    assert read.guard["budget"] == declared
    assert budget_from_json(read.guard["budget"]) == budget
    assert account(path).groups["strict"].steps == 1
