import tempfile
from pathlib import Path

from hypothesis import given, settings, strategies as st

from dpfy.ledger import Header, Ledger
from dpfy.ledger.events import Poisson, Repeated, Sampled, SumQuery

EVENTS = [
    Sampled(Poisson(rate), (SumQuery(1.0, 1.0),), adaptive=adaptive)
    for rate, adaptive in ((0.1, False), (0.2, False), (0.3, True))
]
HEADER = Header(envelope=(Repeated(EVENTS[0], 5), Repeated(EVENTS[1], 50)), filter={"name": "any"})

actions = st.one_of(
    st.tuples(st.just("reserve"), st.integers(0, 2)),
    st.tuples(st.just("prepay"), st.integers(0, 2)),
    st.tuples(st.just("close"), st.integers(1, 6)),
    st.tuples(st.just("crash"), st.integers(1, 6)),
    st.tuples(
        st.just("tear"), st.binary(min_size=1, max_size=6).filter(lambda torn: b"\n" not in torn)
    ),
)


@given(st.lists(actions, max_size=40))
@settings(max_examples=60)
def test_no_history_of_reservations_stops_and_crashes_counts_too_little(history):
    """Released ≤ counted always, with equality for each event as long as every stop was clean."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run.dpl")
        released = {event: 0 for event in EVENTS}
        clean = True
        ledger = Ledger.open(path, header=HEADER, block=3)
        for action, argument in history:
            if action == "reserve":
                ledger.reserve(EVENTS[argument])
                released[EVENTS[argument]] += 1
                continue
            if action == "prepay":
                before = ledger.count
                ledger.prepay(EVENTS[argument])
                assert ledger.count == before and Ledger.read(path).count > before
                continue
            if action == "close":
                ledger.close()
            else:
                ledger._store.close()
                clean = False
            if action == "tear":
                before = Ledger.read(path).count
                path.write_bytes(path.read_bytes() + argument)
                assert Ledger.read(path).count == before + 1
            spent = Ledger.read(path).count
            ledger = Ledger.open(path, header=HEADER, block=argument if action != "tear" else 1)
            assert ledger.count == spent
        ledger.close()
        counted = {
            event: sum(run.times for run in Ledger.read(path).uses if run.event == event)
            for event in EVENTS
        }
        assert all(counted[event] >= released[event] for event in EVENTS)
        assert not clean or counted == released
