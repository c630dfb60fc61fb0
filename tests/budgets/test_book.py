import pytest
from books import DATASET, STEPS, cut_short, new_book, opened, plan_of, take

from dpfy.accounting import GaussianFilter, RenyiFilter, account
from dpfy.budgets import BudgetBook, State
from dpfy.errors import (
    BookError,
    BudgetExhausted,
    GrantRefused,
    InvalidArgument,
    LedgerMismatch,
    UnsupportedEvent,
)
from dpfy.ledger import Header, Ledger
from dpfy.ledger.events import NonPrivate, Poisson, Repeated, Sampled, SumQuery
from dpfy.plans import dpsgd
from dpfy.types import Relation


def reserve(book, plan=None, **options):
    return book.reserve(DATASET, plan or plan_of(), purpose="a test", **options)


def test_a_run_is_charged_for_what_it_used_and_the_rest_is_free_again(book, tmp_path):
    grant = reserve(book)
    kept = book.show(DATASET)
    assert kept.spent == 0 and kept.reserved > 0 and kept.free == pytest.approx(8 - kept.reserved)
    with opened(grant, tmp_path / "run.dpl") as ledger:
        take(ledger, STEPS // 2)
    assert book.show(DATASET).reserved == kept.reserved  # it may still go on
    assert book.settle(grant, tmp_path / "run.dpl").state is State.SETTLED
    charged = book.show(DATASET)
    assert charged.reserved == 0 and 0 < charged.spent < kept.reserved
    half = reserve(book, plan_of(STEPS // 2))
    assert charged.spent == pytest.approx(half.show().epsilon, rel=1e-6)


def test_a_grant_that_is_used_up_is_settled_by_its_run(book, grant, tmp_path):
    with opened(grant, tmp_path / "run.dpl") as ledger:
        take(ledger, STEPS)
    assert grant.show().state is State.SETTLED and grant.show().ledger == ledger.header.identity


def test_what_is_granted_together_stays_within_the_limit(book):
    grants = []
    with pytest.raises(BudgetExhausted, match="no room for this run: of epsilon=8"):
        while True:
            grants.append(reserve(book))
    state = book.show(DATASET)
    assert len(grants) > 2 and state.reserved <= 8 and state.free < grants[0].show().epsilon
    # one accountant of its own for all that was granted: the claim covers it
    together = [Repeated(plan_of().event, STEPS * len(grants))]
    assert account(together, "pld", Relation.ADD_OR_REMOVE_ONE).claim(1e-6) <= 8
    book.withdraw(grants[0])
    reserve(book)


def test_a_budget_is_declared_once(book):
    book.create(DATASET, unit="record", epsilon=8.0, delta=1e-6)  # as often as it is the same
    with pytest.raises(BookError, match="has a budget already"):
        book.create(DATASET, unit="record", epsilon=9.0, delta=1e-6)
    with pytest.raises(GrantRefused, match="admissions-2026"):
        book.reserve("admissions-2025", plan_of(), purpose="a test")


@pytest.mark.parametrize(
    "wrong",
    [
        {"unit": "person"},
        {"epsilon": 0},
        {"epsilon": float("nan")},
        {"delta": 1.0},
        {"tranches": (4.0, 3.0)},
        {"parts": ("north", "north")},
        {"parts": ("a/b",)},
        {"parts": ("north",), "relation": "replace_one"},
        {"name": "a#b"},
    ],
)
def test_what_cannot_be_declared_leaves_nothing(book, wrong):
    values = {"name": "other", "unit": "record", "epsilon": 1.0, "delta": 1e-6, **wrong}
    with pytest.raises(InvalidArgument):
        book.create(values.pop("name"), **values)
    assert [state.name for state in book.datasets()] == [DATASET]


def test_plans_for_another_unit_or_relation_are_refused_by_name(book):
    with pytest.raises(GrantRefused, match="unit record, and the plan is for user"):
        reserve(book, plan_of(unit="user"))
    with pytest.raises(GrantRefused, match="relation add_or_remove_one"):
        reserve(book, plan_of(relation="replace_one"))
    with pytest.raises(InvalidArgument, match="private"):
        reserve(book, [Repeated(NonPrivate("looked"), 1)])
    assert book.show(DATASET).grants == ()


def test_another_plan_unit_or_relation_than_granted_is_refused_before_a_ledger_exists(
    grant, tmp_path
):
    for header in (
        Header(envelope=plan_of(noise=3.0).envelope),
        Header(envelope=plan_of().envelope, unit="user"),
        Header(envelope=plan_of().envelope, relation="zero_out"),
        Header(filter=GaussianFilter(1.0).to_json()),
    ):
        with pytest.raises(GrantRefused):
            Ledger.open(tmp_path / "run.dpl", header=header, grant=grant)
    assert not (tmp_path / "run.dpl").exists()


def test_one_ledger_is_paid_for_by_one_grant(book, tmp_path):
    first, second = reserve(book), reserve(book)
    opened(first, tmp_path / "run.dpl").close()
    with pytest.raises(LedgerMismatch, match="another grant"):
        opened(second, tmp_path / "run.dpl")
    with pytest.raises(GrantRefused, match="bound to the ledger"):
        opened(first, tmp_path / "other.dpl")
    header = Ledger.read(tmp_path / "run.dpl")
    with pytest.raises(GrantRefused, match=f"bound to grant {first.id}"):
        book.activate(second, header.hash_at(1), header.header.identity)
    with pytest.raises(LedgerMismatch, match="paid for by grant"):
        Ledger.open(tmp_path / "run.dpl")  # without any
    assert second.show().state is State.RESERVED


def test_a_grant_settles_by_its_own_ledger_only(book, tmp_path):
    first, second = reserve(book), reserve(book)
    opened(first, tmp_path / "run.dpl").close()
    opened(second, tmp_path / "other.dpl").close()
    with pytest.raises(GrantRefused, match="bound to the ledger"):
        book.settle(first, tmp_path / "other.dpl")
    book.settle(first, tmp_path / "run.dpl")
    assert book.settle(first, tmp_path / "run.dpl").state is State.SETTLED  # once more is once
    with pytest.raises(GrantRefused, match="is settled"):
        book.withdraw(first)


def test_what_was_reserved_can_be_withdrawn_until_a_run_begins(book, tmp_path):
    grant = reserve(book)
    assert book.withdraw(grant).state is State.WITHDRAWN and book.show(DATASET).reserved == 0
    with pytest.raises(GrantRefused, match="withdrawn"):
        opened(grant, tmp_path / "run.dpl")
    active = reserve(book)
    opened(active, tmp_path / "other.dpl").close()
    with pytest.raises(GrantRefused, match="is active"):
        book.withdraw(active)


def test_a_forfeited_grant_is_charged_in_full(book, tmp_path):
    grant = reserve(book)
    kept = book.show(DATASET).reserved
    cut_short(grant, tmp_path / "run.dpl", 1)
    assert book.forfeit(grant, "the disk is lost").state is State.FORFEITED
    assert book.show(DATASET).spent == kept and book.show(DATASET).reserved == 0
    with pytest.raises(GrantRefused, match="forfeited"):
        book.settle(grant, tmp_path / "run.dpl")


def test_tranches_open_one_by_one_and_never_beyond_the_last(tmp_path):
    with new_book(f"sqlite:///{tmp_path / 'team.db'}", tranches=(4.0, 4.0)) as book:
        first = 0
        with pytest.raises(BudgetExhausted, match=r"of epsilon=4 .*open the next tranche"):
            while reserve(book):
                first += 1
        assert book.open_tranche(DATASET).opened == 2
        assert book._backend.open_tranche(DATASET, 1).opened == 2  # sent again: one is open
        second = 0
        with pytest.raises(BudgetExhausted, match="of epsilon=8"):
            while reserve(book):
                second += 1
        assert first and second
        for total, limit in ((first, 4), (first + second, 8)):
            assert account([Repeated(plan_of().event, STEPS * total)]).claim(1e-6) <= limit
        with pytest.raises(GrantRefused, match="never raised"):
            book.open_tranche(DATASET)


def test_parts_have_the_whole_budget_each_and_share_what_reads_all(tmp_path):
    with new_book(f"sqlite:///{tmp_path / 'team.db'}", parts=("north", "south")) as book:

        def fill(**options):
            count = 0
            try:
                while reserve(book, **options):
                    count += 1
            except BudgetExhausted:
                return count

        whole = reserve(book)
        north = fill(part="north")
        assert north >= 2 and fill(part="south") == north
        assert fill() == 0  # the parts left no room for what reads all
        book.withdraw(whole)
        assert fill(part="north") == fill(part="south") == 1
        with pytest.raises(GrantRefused, match="Expected a part"):
            reserve(book, part="west")


def test_a_request_is_granted_once(book):
    grant = reserve(book, key="one request")
    assert reserve(book, key="one request").id == grant.id
    with pytest.raises(GrantRefused, match="used for another request"):
        reserve(book, plan_of(5), key="one request")
    assert len(book.show(DATASET).grants) == 1


def test_a_reference_plan_affords_more_of_its_kind(tmp_path):
    """The order that full batches want is not that of plans with little noise on small samples."""
    counts = []
    plan = dpsgd(rate=0.01, divisor=60, steps=200, noise_multiplier=0.7)
    for name, reference in (("plain", None), ("tuned", Repeated(plan.event, 4000))):
        with new_book(f"sqlite:///{tmp_path / name}.db", reference=reference) as book:
            counts.append(0)
            with pytest.raises(BudgetExhausted):
                while reserve(book, plan):
                    counts[-1] += 1
    assert counts[1] > counts[0] > 0


def test_plans_under_filters_keep_what_their_filter_admits(book, tmp_path):
    step = Sampled(Poisson(1.0), (SumQuery(1.0, 20.0),), adaptive=True)
    for rule in (GaussianFilter(1.0), RenyiFilter(2.0, 1e-6)):
        plan = plan_of().under(rule)
        grant = reserve(book, plan)
        header = Header(plan=plan.to_json(), filter=rule.to_json())
        path = tmp_path / f"{rule.tag}.dpl"
        with Ledger.open(path, plan.guard(), header, grant=grant) as ledger:
            ledger.reserve(step)
            with pytest.raises(BudgetExhausted):
                ledger.reserve(Sampled(Poisson(1.0), (SumQuery(1.0, 0.1),), adaptive=True))
        kept = grant.show().epsilon
        assert book.settle(grant, path).epsilon < kept


def test_events_are_granted_without_a_plan(book, tmp_path):
    event = plan_of().event
    grant = book.reserve(DATASET, event, purpose="one release")
    with Ledger.open(tmp_path / "run.dpl", grant=grant) as ledger:
        ledger.reserve(event)
        assert ledger.header.unit == "record" and ledger.header.grant["dataset"] == DATASET
        with pytest.raises(BudgetExhausted, match="would exceed grant"):
            ledger.reserve(event)
    assert grant.show().state is State.SETTLED
    with pytest.raises(InvalidArgument, match="at least one event"):
        book.reserve(DATASET, [], purpose="nothing")
    with pytest.raises(InvalidArgument, match="purpose"):
        book.reserve(DATASET, event, purpose=" ")


def test_the_log_says_who_did_what(book, grant):
    entries = list(book.log(DATASET))
    assert [entry.kind for entry in entries] == ["create", "reserve"]
    assert {entry.actor for entry in entries} == {"steward"}
    assert [entry.number for entry in book.log(after=2)] == [3]
    assert entries[1].previous == entries[0].hash


def test_addresses_that_hold_no_book_are_refused_without_their_passwords(tmp_path):
    for url in ("team.db", "sqlite://", "mysql://host/x", f"sqlite:///{tmp_path}/no/team.db"):
        with pytest.raises(InvalidArgument):
            BudgetBook.open(url)
    with pytest.raises(InvalidArgument) as refused:
        BudgetBook.open("mysql://me:secret@host/x")
    assert "secret" not in str(refused.value)


def test_selections_are_refused_with_the_reason(book):
    from dpfy.ledger.selection import NegativeBinomialTrials, Selected

    event = Selected(plan_of().event, NegativeBinomialTrials.with_mean(10.0))
    with pytest.raises(UnsupportedEvent, match="interrupted"):
        book.reserve(DATASET, event, purpose="a search")
