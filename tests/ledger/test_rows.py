"""Rows of a stream: what they are charged as, and that there are never more than the stream has."""

from dataclasses import replace

import pytest

from dpfy.accounting import EnvelopeGuard, account
from dpfy.accounting.rules_for.nested import _selected_pld
from dpfy.errors import BudgetExhausted, InvalidArgument, LedgerMismatch, UnsupportedEvent
from dpfy.ledger import Header, Ledger
from dpfy.ledger.composite_events import Composed, Parallel
from dpfy.ledger.events import (
    Cyclic,
    CyclicPoisson,
    Event,
    Poisson,
    Repeated,
    Sampled,
    Shuffled,
    SumQuery,
    canonical_json,
    envelope_from_json,
    envelope_to_json,
)
from dpfy.ledger.scopes import composition
from dpfy.ledger.selection import PoissonTrials, Selected
from dpfy.ledger.streams import Buffered, Columns, Row, SampledStream, Stream, Toeplitz, Tree
from dpfy.types import Budget

STREAM = Stream(Toeplitz((1.0, 0.5, 0.25)), 12, 4.0, participations=3, separation=4)
ROW = Row(STREAM, Cyclic(batch_size=5, records=20))
HEADER = Header(relation="zero_out", envelope=(Repeated(ROW, 12),))
OTHER = Sampled(Poisson(0.01), (SumQuery(1.0, 1.1),))


@pytest.mark.parametrize("block", [1, 5])
def test_rows_are_reserved_one_by_one_up_to_the_last(path, block):
    guard = EnvelopeGuard(HEADER.envelope, None, "zero_out")
    with Ledger.open(path, guard, header=HEADER, block=block) as ledger:
        for taken in range(1, 13):
            ledger.reserve(ROW)
            assert ledger.count >= taken
        with pytest.raises(BudgetExhausted):
            ledger.reserve(ROW)
    assert Ledger.read(path).uses == (Repeated(ROW, 12),)


@pytest.mark.parametrize("block", [1, 5, 64])
def test_no_guard_is_needed_for_that(path, block):
    with Ledger.open(path, block=block) as ledger:
        for _ in range(7):
            ledger.reserve(ROW)
        ledger.reserve(OTHER)
    with Ledger.open(path, block=block) as ledger:
        for _ in range(5):
            ledger.reserve(ROW)
        with pytest.raises(BudgetExhausted, match="All 12 rows"):
            ledger.reserve(ROW)
        ledger.reserve(OTHER)


@pytest.mark.parametrize(("taken", "charged"), [(0, 1), (5, 6), (12, 12)])
def test_a_torn_line_is_charged_as_a_row_while_there_are_any(path, taken, charged):
    with Ledger.open(path, header=HEADER) as ledger:
        for _ in range(taken):
            ledger.reserve(ROW)
    with path.open("ab") as file:
        file.write(b'{"use":{"ev')
    assert sum(run.times for run in Ledger.read(path).uses) == charged
    with Ledger.open(path, header=HEADER) as ledger:
        assert ledger.count == charged
        assert account(ledger).claim(1e-5) == account(STREAM, relation="zero_out").claim(1e-5) or (
            charged < 12
        )


def test_a_scope_has_rows_of_its_own():
    run = Composed.of(HEADER.envelope)
    with Ledger.in_memory() as ledger:
        for _ in range(2):
            scope = composition(ledger, run)
            for _ in range(12):
                scope.reserve(ROW)
            with pytest.raises((BudgetExhausted, LedgerMismatch)):
                scope.reserve(ROW)
        assert ledger.uses == (Repeated(run, 2),)


def test_a_long_run_has_a_short_header():
    strategy = Buffered((0.999, 0.99, 0.9, 0.5), (0.02, 0.05, 0.1, 0.3))
    stream = Stream(strategy, 100_000, 4.0, participations=20, separation=5000)
    row = Row(stream, Cyclic(batch_size=100, records=500_000))
    header = Header(relation="zero_out", envelope=(Repeated(row, 100_000),))
    assert len(canonical_json(header.to_json())) < 4096
    assert Event.from_json(row.to_json()) == row


@pytest.mark.parametrize(
    "event",
    [
        ROW,
        Row(STREAM),
        Row(
            SampledStream(Toeplitz((1.0, 0.5)), 9, 2.0, rate=0.5, parts=3),
            CyclicPoisson(0.5, parts=3, records=10),
        ),
        Stream(Buffered((0.5, 0.0), (0.25, 0.75)), 9, 1.0),
        CyclicPoisson(0.5, parts=3, records=10),
    ],
)
def test_round_trip(event):
    assert type(event).from_json(event.to_json()) == event
    assert type(event).from_json(event.to_json()).address == event.address


def test_streams_of_earlier_ledgers_keep_their_address():
    """They were written without a number of parts."""
    event = SampledStream(Toeplitz((1.0, 0.5)), 50, 2.0, rate=0.04)
    assert "parts" not in event.to_json()


def test_a_prefix_is_the_upper_left_corner():
    columns = Columns(((1.0, 0.2, 0.7), (0.4,), (2.0,)))
    (run,) = Row(Stream(columns, 3, 1.0, numerical_delta=1e-9)).charged(2)
    assert run == Repeated(Stream(Columns(((1.0, 0.2), (0.4,))), 2, 1.0, numerical_delta=1e-9), 1)
    sampled = SampledStream(columns, 3, 1.0, rate=0.1)
    assert Row(sampled).charged(2)[0].event.round == sampled.round == 3
    assert Row(STREAM).charged(0) == ()


def test_the_numerical_delta_of_a_stream_is_charged_once():
    row = Row(Stream(Tree(), 8, 4.0, numerical_delta=1e-7))
    assert account(Repeated(row, 5), relation="zero_out").numerical_delta == pytest.approx(1e-7)
    run = Composed.of([Repeated(row, 5)])
    assert account(run, relation="zero_out").numerical_delta == pytest.approx(1e-7)


def test_a_policy_must_give_what_the_stream_declares():
    cyclic, shuffled = Cyclic(5, 20), Shuffled(5, 20)
    Row(STREAM, cyclic)
    Row(Stream(Tree(), 4, 4.0), shuffled)  # one epoch, in any order
    Row(Stream(Tree(), 8, 4.0, participations=2), shuffled)
    for stream, policy in (
        (Stream(Tree(), 12, 4.0, participations=2, separation=4), cyclic),  # three epochs
        (Stream(Tree(), 12, 4.0, participations=3, separation=5), cyclic),
        (Stream(Tree(), 8, 4.0, participations=2, separation=4), shuffled),
        (STREAM, Poisson(0.25)),
        (STREAM, CyclicPoisson(0.5, 4, 20)),
    ):
        with pytest.raises(InvalidArgument):
            Row(stream, policy)


def test_fixed_order_is_never_taken_for_samples():
    """A known failure: batches in a fixed order, accounted as if they had been drawn."""
    sampled = SampledStream(Toeplitz((1.0, 0.5)), 12, 4.0, rate=0.5, parts=4)
    for policy in (Cyclic(5, 20), Shuffled(5, 20), Poisson(0.5)):
        with pytest.raises(InvalidArgument, match="cyclic_poisson"):
            Row(sampled, policy)
    Row(sampled, CyclicPoisson(0.5, 4, 20))
    for policy in (CyclicPoisson(0.6, 4, 20), CyclicPoisson(0.5, 3, 20)):
        with pytest.raises(InvalidArgument, match=r"of rate 0\.\d and \d parts"):
            Row(sampled, policy)


def test_bad_values_are_refused():
    for decays, scales in (((), ()), ((1.0,), (0.5,)), ((0.5,), (-0.1,)), ((0.5, 0.5), (0.6, 0.6))):
        with pytest.raises(InvalidArgument):
            Buffered(decays, scales)
    with pytest.raises(InvalidArgument, match="scale for each"):
        Buffered((0.5,), (0.5, 0.5))
    with pytest.raises(InvalidArgument, match="fewer bands"):
        SampledStream(Toeplitz((1.0, 0.5, 0.2)), 12, 4.0, rate=0.5, parts=2)
    with pytest.raises(InvalidArgument, match="band"):
        SampledStream(Buffered((0.5,), (0.5,)), 12, 4.0, rate=0.5)
    with pytest.raises(InvalidArgument, match="stream"):
        Row(OTHER)
    with pytest.raises(InvalidArgument, match=r"Composed\.of"):
        Selected(ROW, PoissonTrials(3.0))
    with pytest.raises(InvalidArgument, match="parts"):
        CyclicPoisson(0.5, parts=11, records=10)


def test_the_budget_ends_a_run_of_rows_before_the_row_that_would_exceed_it():
    stream = Stream(Toeplitz((1.0,)), 40, 2.0, participations=10, separation=4)
    row, budget = Row(stream), Budget(4.0, 1e-5)
    guard = EnvelopeGuard((Repeated(row, 40),), budget, "zero_out")
    claims = [
        account(Repeated(row, rows), relation="zero_out").claim(1e-5)
        for rows in (guard.limit, guard.limit + 1)
    ]
    assert 0 < guard.limit < 40
    assert claims[0] <= 4.0 < claims[1]


def test_more_rows_than_there_are_have_no_cost_that_anyone_knows():
    with pytest.raises(UnsupportedEvent, match="12 rows, and 13"):
        account(Repeated(ROW, 13), relation="zero_out")
    account([Repeated(Composed.of([Repeated(ROW, 12)]), 2)], relation="zero_out")


# Rows of two runs


def begun(rows, other=0):
    """Return a ledger with so many rows, and other events between them."""
    ledger = Ledger.in_memory(header=Header(relation="zero_out", envelope=HEADER.envelope))
    for place in range(rows):
        ledger.reserve(ROW)
        if place < other:
            ledger.reserve(OTHER)
    return ledger


def cost(source):
    return account(source, relation="zero_out").epsilon(1e-5).upper


@pytest.mark.parametrize("as_json", [False, True])
def test_rows_of_two_ledgers_are_two_streams(as_json):
    """A record takes part in both, which one stream of their rows would not count."""
    first, second = begun(2), begun(2)
    runs = [*first.uses, *second.uses]
    assert first.uses[0].event == second.uses[0].event == ROW
    apart = cost([Composed.of([Repeated(ROW, 2)])] * 2)
    one = cost(Repeated(ROW, 4))
    found = cost([run.to_json() for run in runs] if as_json else runs)
    assert found == pytest.approx(apart, rel=1e-6) and found > 1.1 * one


def test_rows_of_one_ledger_are_one_stream_wherever_they_are():
    ledger = begun(5, other=2)
    assert len(ledger.uses) == 5
    assert cost(ledger) == cost(ledger.uses) == cost([*ledger.uses[::2], *ledger.uses[1::2]])
    assert cost(ledger) == cost([Repeated(ROW, 5), Repeated(OTHER, 2)])


@pytest.mark.parametrize("runs", [1, 2])
def test_rows_that_name_no_run_are_refused_beside_equal_ones_that_do(runs):
    """They could be of that run or of another one, which costs more."""
    named = [use for _ in range(runs) for use in begun(4).uses]
    for mixed in ([*named, Repeated(ROW, 1)], [Repeated(ROW, 1), *named]):
        with pytest.raises(UnsupportedEvent, match="Rows that name no run"):
            cost(mixed)
    assert cost([*named, Repeated(OTHER, 1)]) > cost(named)


def test_a_row_that_is_still_to_come_is_one_more_of_its_run():
    uses = begun(4).uses
    assert cost([*uses, Repeated(uses[0].event, 1)]) == cost(Repeated(ROW, 5))


def test_a_name_changes_neither_a_record_nor_its_address():
    named = begun(1).uses[0].event
    assert named.source and named == ROW and named.address == ROW.address
    assert "source" not in ROW.to_json()
    assert Event.from_json(named.to_json()).source == named.source
    with pytest.raises(InvalidArgument, match="name of a run"):
        Row(STREAM, source=3)


def test_a_composed_run_holds_rows_without_a_name():
    """Composed runs that are equal cost the same, wherever one of them stands for the other."""
    named = Composed.of(begun(4, other=1).uses)
    plain = Composed.of([Repeated(ROW, 1), Repeated(OTHER, 1), Repeated(ROW, 3)])
    assert named == plain and named.to_json() == plain.to_json()
    assert named.address == plain.address and cost(named) == cost(plain)
    part = Parallel(tuple(use.event for use in begun(1).uses))
    assert part.to_json() == Parallel((ROW,)).to_json() and part.address == Parallel((ROW,)).address


@pytest.mark.parametrize("names", [("a", "b"), ("a", ""), ("", "b")])
def test_a_composed_event_of_several_runs_is_refused(names):
    """It would equal that of one run, which costs less, in caches and on record."""
    rows = tuple(replace(ROW, source=name) for name in names)
    with pytest.raises(InvalidArgument, match="equal rows of a composed event"):
        Composed(rows, (2, 2))
    value = Composed((ROW, OTHER), (2, 2)).to_json() | {"events": [row.to_json() for row in rows]}
    with pytest.raises(InvalidArgument):
        Event.from_json(value)
    with pytest.raises(InvalidArgument, match="equal rows of a composed event"):
        Composed.of(Repeated(row, 2) for row in rows)
    other = Row(replace(STREAM, noise_multiplier=5.0), source=names[1])
    assert Composed((rows[0], other), (2, 2)).events[1].source == ""


def test_a_selection_of_two_runs_costs_the_same_before_and_after_that_of_one():
    """Selections are remembered by equality."""
    first, second = (Composed.of(begun(4).uses) for _ in range(2))
    one, two = (
        Selected(Composed.of([Repeated(run, 1) for run in runs]), PoissonTrials(3.0))
        for runs in ((first,), (first, second))
    )
    assert one != two
    after = cost(one), cost(two)
    _selected_pld.cache_clear()
    assert after[::-1] == (cost(two), cost(one)) and after[0] < after[1]


def test_a_ledger_has_composed_runs_at_what_they_cost_whatever_was_reserved_before():
    runs = [Composed.of(begun(4).uses) for _ in range(2)]
    with Ledger.in_memory(header=Header(relation="zero_out")) as ledger:
        for run in runs:
            ledger.reserve(run)
        assert cost(ledger) == cost(runs) == cost([*begun(4).uses, *begun(4).uses])


def test_a_ledger_refuses_rows_of_another_run():
    """They would count as its own, as one stream."""
    with Ledger.in_memory(header=HEADER) as ledger:
        with pytest.raises(LedgerMismatch, match="without the name of a run"):
            ledger.reserve(begun(1).uses[0].event)
        assert ledger.uses == ()


def test_an_envelope_keeps_rows_of_two_runs_apart():
    both = (*begun(2).uses, *begun(2).uses)
    found = envelope_from_json(envelope_to_json(both))
    assert [run.event.source for run in found] == [run.event.source for run in both]
    assert cost(found) == cost(both)
