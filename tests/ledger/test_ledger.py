from dataclasses import replace

import pytest

from dpfy.errors import (
    BudgetExhausted,
    InvalidArgument,
    LedgerDamaged,
    LedgerError,
    LedgerMismatch,
    LedgerWriteFailed,
)
from dpfy.ledger import Header, Ledger
from dpfy.ledger.events import NonPrivate, Poisson, Repeated, Sampled, SumQuery


class Limit:
    """Admits ``limit`` steps."""

    def __init__(self, limit):
        self.limit, self.spent, self.calls = limit, 0, []

    def describe(self):
        return {"name": "limit", "limit": self.limit}

    def admit(self, event, times):
        if self.spent + times > self.limit:
            raise BudgetExhausted("no more")

    def record(self, event, times):
        self.spent += times
        self.calls.append((event, times))


def lines_of(path):
    return path.read_bytes().count(b"\n")


def test_what_was_reserved_is_read_back_in_order(small, step):
    ledger = Ledger.read(small)
    other = Sampled(Poisson(0.02), (SumQuery(1.0, 2.0),))
    assert ledger.uses == (Repeated(step, 2), Repeated(other, 1), Repeated(step, 2))
    assert ledger.count == 5 and ledger.durable and ledger.torn_bytes == 0
    assert ledger.verify() == ledger.lines == 8  # header, two definitions, five uses
    assert ledger.header.plan == {"steps": 1000}


def test_in_memory_is_a_ledger_that_is_not_durable(step, header):
    ledger = Ledger.in_memory(Limit(2))
    assert ledger.header is None and ledger.path is None and not ledger.durable
    ledger.register(None, header)
    ledger.reserve(step)
    ledger.reserve(step)
    with pytest.raises(BudgetExhausted):
        ledger.reserve(step)
    assert (
        ledger.count == 2
        and ledger.header.guard == {"name": "limit", "limit": 2}
        and ledger.verify() == 4
    )


def test_a_ledger_without_a_header_gets_the_default_one(path, step):
    with Ledger.open(path) as ledger:
        ledger.reserve(step)
    assert Ledger.read(path).header.guard == {"name": "unguarded"}


def test_the_guard_is_asked_before_anything_is_written_and_told_only_after(path, header, step):
    guard = Limit(3)
    with Ledger.open(path, guard, header) as ledger:
        for _ in range(3):
            ledger.reserve(step)
        before = path.read_bytes()
        with pytest.raises(BudgetExhausted):
            ledger.reserve(step)
    assert path.read_bytes() == before
    assert guard.calls == [(step, 1)] * 3


def test_an_opened_ledger_tells_the_guard_all_that_was_spent_once(path, header, step):
    with Ledger.open(path, Limit(3), header) as ledger:
        ledger.reserve(step)
        ledger.reserve(step)
    guard = Limit(3)
    with Ledger.open(path, guard, header) as ledger:
        ledger.register(guard, header)
        assert guard.spent == 2
        ledger.reserve(step)
        with pytest.raises(BudgetExhausted):
            ledger.reserve(step)


@pytest.mark.parametrize(
    "change",
    [
        {"plan": {"steps": 2000}},
        {"unit": "user"},
        {"relation": "replace_one"},
        {"key_source": "insecure_test_key"},
        {"envelope": (Repeated(NonPrivate("x"), 1),)},
        {"filter": {"name": "rdp"}},
    ],
)
def test_another_plan_is_refused_and_the_ledger_stays_usable(small, header, change):
    before = small.read_bytes()
    with pytest.raises(LedgerMismatch, match=f"another {next(iter(change))}.*adaptive"):
        Ledger.open(small, header=replace(header, **change))
    assert small.read_bytes() == before
    Ledger.open(small, header=header).close()


def test_a_declared_filter_admits_a_second_plan_in_the_same_unit(path, header, step):
    filtered = replace(header, filter={"name": "rdp"})
    with Ledger.open(path, header=filtered) as ledger:
        ledger.reserve(step)
        ledger.register(None, replace(filtered, plan={"steps": 7}))
        ledger.reserve(step)
    ledger = Ledger.read(path)
    assert ledger.header.plan == {"steps": 7} and ledger.count == 2
    with pytest.raises(LedgerMismatch, match="unit"):
        Ledger.open(path, header=replace(filtered, unit="user"))


def test_a_budget_cannot_be_slipped_by_opening_without_its_guard(path, header, step):
    Ledger.open(path, Limit(1), header).close()
    for guard in (None, Limit(100)):
        with (
            Ledger.open(path, guard) as ledger,
            pytest.raises(LedgerMismatch, match="guarded by 'limit'"),
        ):
            ledger.reserve(step)
    with pytest.raises(LedgerMismatch, match="guard"):
        Ledger.open(path, Limit(100), header)


def test_closed_and_read_only_ledgers_do_not_reserve(small, step):
    with Ledger.open(small) as ledger:
        pass
    for closed in (ledger, Ledger.read(small)):
        with pytest.raises(LedgerError, match=r"closed or opened for reading.*Ledger\.open"):
            closed.reserve(step)


@pytest.mark.parametrize("note", [{"scale": float("nan")}, {"scale": object()}])
def test_a_note_that_is_not_json_is_refused_before_anything_is_written(path, header, step, note):
    with Ledger.open(path, header=header) as ledger:
        with pytest.raises(InvalidArgument, match="note"):
            ledger.reserve(step, note)
        ledger.reserve(step, {"scale": 1.5})
        assert ledger.count == 1
    assert b'"note":{"scale":1.5}' in path.read_bytes()


def test_a_block_is_paid_once_and_its_rest_handed_back_on_close(path, header, step):
    guard = Limit(100)
    with Ledger.open(path, guard, header, block=10) as ledger:
        for taken in range(1, 13):
            ledger.reserve(step)
            assert ledger.count == taken
            assert Ledger.read(path).count == (
                10 if taken <= 10 else 20
            )  # what a crash now would leave
    assert lines_of(path) == 5  # header, define, use, use, settle
    assert Ledger.read(path).count == guard.spent == 12


@pytest.mark.parametrize("block", [1, 4])
def test_a_step_paid_in_advance_is_taken_by_its_reservation_or_handed_back(
    path, header, step, block
):
    """A second line for it would count it twice; one that stays would count what never was."""
    guard = Limit(100)
    with Ledger.open(path, guard, header, block=block) as ledger:
        for taken in range(5):
            ledger.prepay(step)
            ledger.prepay(step)
            assert ledger.count == taken < Ledger.read(path).count
            ledger.reserve(step)
            assert ledger.count == taken + 1
        ledger.prepay(step)
    assert Ledger.read(path).count == guard.spent == 5
    assert path.read_bytes().count(b'"void"') == (1 if block == 1 else 0)


def test_a_line_between_hands_a_prepaid_step_back_and_its_reservation_pays_again(
    path, header, step
):
    with Ledger.open(path, header=header) as ledger:
        ledger.prepay(step)
        ledger.record_basis({"engine": "loop"})
        assert Ledger.read(path).count == 0
        ledger.reserve(step)
        assert Ledger.read(path).uses == (Repeated(step, 1),)


def test_a_crash_does_not_hand_a_prepaid_step_back(path, header, step):
    ledger = Ledger.open(path, header=header)
    ledger.prepay(step)
    ledger._store.close()  # as when the process dies
    with Ledger.open(path, header=header) as again:
        again.prepay(step)
    assert Ledger.read(path).count == 1


def test_a_crash_does_not_hand_back(path, header, step):
    ledger = Ledger.open(path, header=header, block=10)
    ledger.reserve(step)
    ledger._store.close()  # as when the process dies
    assert Ledger.read(path).count == 10
    with Ledger.open(path, header=header, block=10) as again:
        again.reserve(step)
    assert Ledger.read(path).count == 11


@pytest.mark.parametrize("limit, steps", [(1, 1), (7, 7), (25, 25), (1000, 33)])
def test_blocks_stay_within_the_guard_and_the_envelope(path, step, limit, steps):
    header = Header(envelope=(Repeated(step, 33),))
    with Ledger.open(path, Limit(limit), header, block=10) as ledger:
        for _ in range(steps):
            ledger.reserve(step)
            assert Ledger.read(path).count <= min(limit, 33)


def test_a_block_that_the_guard_refuses_is_tried_smaller(path, step):
    with Ledger.open(path, Limit(7), Header(), block=10) as ledger:
        ledger.reserve(step)
        assert Ledger.read(path).count == 5


def test_adaptive_events_and_changed_notes_are_never_prepaid(path, header, step):
    adaptive = replace(step, adaptive=True)
    with Ledger.open(
        path, header=replace(header, envelope=(), filter={"name": "rdp"}), block=10
    ) as ledger:
        ledger.reserve(adaptive)
        assert Ledger.read(path).count == 1
        ledger.reserve(step, {"scale": 1.0})
        ledger.reserve(step, {"scale": 2.0})
        assert ledger.count == 3 and Ledger.read(path).count == 12  # the first block was settled
    assert Ledger.read(path).uses == (Repeated(adaptive, 1), Repeated(step, 2))
    assert path.read_bytes().count(b'"scale":2.0') == 1


def test_settling_frees_the_guard_for_another_event(path, step):
    other = replace(step, numerical_delta=1e-9)
    guard = Limit(10)
    with Ledger.open(path, guard, Header(), block=10) as ledger:
        ledger.reserve(step)
        for _ in range(9):
            ledger.reserve(other)
        with pytest.raises(BudgetExhausted):
            ledger.reserve(other)
    assert guard.spent == Ledger.read(path).count == 10


def test_an_interrupt_inside_an_append_poisons_the_ledger(path, header, step, monkeypatch):
    ledger = Ledger.open(path, header=header)
    with monkeypatch.context() as patch:
        patch.setattr(
            ledger._journal, "feed", lambda line: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        with pytest.raises(KeyboardInterrupt):
            ledger.reserve(step)
    with pytest.raises(LedgerWriteFailed, match="earlier write"):
        ledger.reserve(step)
    ledger.close()
    assert Ledger.read(path).count == 1


def test_fifty_thousand_lines_are_read_without_keeping_them(path, header, step):
    ledger = Ledger.in_memory(header=header)
    for _ in range(50_000):
        ledger.reserve(step)
    assert ledger.verify() == 50_002
    assert ledger.uses == (Repeated(step, 50_000),)
    assert len(ledger._journal._known_uses) == 1


@pytest.mark.slow
def test_a_million_lines_are_read_from_a_file(path, header, step):
    from dpfy.ledger.journal import Head
    from dpfy.ledger.store import FileStore

    memory = Ledger.in_memory(header=header)
    for _ in range(1_000_000):
        memory.reserve(step)
    store = FileStore(path)
    store.acquire()
    store.append(b"".join(memory._store.lines()), Head(memory.lines, memory.head_hash))
    store.close()
    assert Ledger.read(path).count == 1_000_000


def test_damage_found_by_verify_names_the_place(small):
    ledger = Ledger.read(small)
    data = small.read_bytes()
    small.write_bytes(data.replace(b'"times":1}', b'"times":0}', 1))
    with pytest.raises(LedgerDamaged, match=r"run\.dpl, line 3 \(byte \d+\)"):
        ledger.verify()
