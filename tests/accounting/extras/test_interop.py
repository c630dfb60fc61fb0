"""Other libraries' histories keep their cost on the way in and on the way out."""

import dp_accounting
import pytest
from dp_accounting.rdp import RdpAccountant

from dpfy.accounting import account
from dpfy.accounting.extras.interop import from_dp_event, from_opacus, to_dp_event, to_opacus
from dpfy.errors import InvalidArgument, UnsupportedEvent
from dpfy.ledger.events import NonPrivate, Poisson, Repeated, Sampled, SumQuery, run_lengths

DELTA = 1e-5
GAUSSIAN = dp_accounting.GaussianDpEvent(2.0)
SAMPLED = dp_accounting.PoissonSampledDpEvent(0.1, GAUSSIAN)


def step(rate: float, noise: float, **fields: object) -> Sampled:
    return Sampled(Poisson(rate), (SumQuery(1.0, noise),), **fields)


def test_opacus_history_goes_in_and_out():
    history = [(1.1, 0.01, 40), (0.9, 0.02, 7)]
    envelope = from_opacus(history)
    assert envelope == (Repeated(step(0.01, 1.1), 40), Repeated(step(0.02, 0.9), 7))
    assert to_opacus(envelope) == history


@pytest.mark.parametrize(
    "history", [[(1.0, 0.1)], [3], [(-1.0, 0.1, 2)], [(1.0, 1.1, 2)], [(1.0, 0.1, 1.5)]]
)
def test_what_is_no_history_is_refused(history):
    with pytest.raises(InvalidArgument):
        from_opacus(history)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (GAUSSIAN, [step(1.0, 2.0)]),
        (SAMPLED, [step(0.1, 2.0)]),
        (dp_accounting.NoOpDpEvent(), []),
        (dp_accounting.NonPrivateDpEvent(), None),
        (dp_accounting.SelfComposedDpEvent(SAMPLED, 5), [Repeated(step(0.1, 2.0), 5)]),
        (
            dp_accounting.SelfComposedDpEvent(dp_accounting.SelfComposedDpEvent(SAMPLED, 5), 3),
            [Repeated(step(0.1, 2.0), 15)],
        ),
        (
            dp_accounting.SelfComposedDpEvent(
                dp_accounting.ComposedDpEvent([SAMPLED, GAUSSIAN]), 2
            ),
            [Repeated(step(0.1, 2.0), 2), Repeated(step(1.0, 2.0), 2)],
        ),
    ],
)
def test_composed_events_keep_their_counts(theirs, ours):
    envelope = from_dp_event(theirs)
    if ours is None:
        assert isinstance(envelope[0].event, NonPrivate)
    else:
        assert envelope == run_lengths(
            Repeated(item, 1) if isinstance(item, Sampled) else item for item in ours
        )


def test_queries_on_one_sample_stay_on_one_sample():
    # Sampled apart, the two sums would be amplified twice: ε would be too small.
    both = dp_accounting.PoissonSampledDpEvent(
        0.1, dp_accounting.ComposedDpEvent([GAUSSIAN, GAUSSIAN])
    )
    twice = dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.SelfComposedDpEvent(GAUSSIAN, 2))
    for theirs in (both, twice):
        envelope = from_dp_event(theirs)
        assert sum(run.times for run in envelope) == 1
        assert account(envelope).claim(DELTA) == pytest.approx(
            account(step(0.1, 2.0 / 2**0.5)).claim(DELTA), rel=1e-9
        )


@pytest.mark.parametrize(
    "envelope",
    [
        (Repeated(step(0.02, 1.2), 300),),
        (Repeated(step(0.02, 1.2), 30), Repeated(step(1.0, 9.0), 2), Repeated(step(0.1, 3.0), 10)),
        (Repeated(Sampled(Poisson(0.1), (SumQuery(3.0, 9.0), SumQuery(4.0, 12.0))), 20),),
    ],
)
def test_exported_events_cost_the_same_over_there(envelope):
    accountant = RdpAccountant()
    accountant.compose(to_dp_event(envelope))
    assert accountant.get_epsilon(DELTA) == pytest.approx(
        account(envelope, "rdp").claim(DELTA), rel=0.01
    )
    again = from_dp_event(to_dp_event(envelope))
    assert account(again).claim(DELTA) == pytest.approx(account(envelope).claim(DELTA), rel=1e-9)


def test_nothing_and_no_privacy_are_exported_as_such():
    free, bare = Repeated(Sampled(Poisson(0.1), ()), 3), Repeated(NonPrivate("looked"), 1)
    assert isinstance(to_dp_event((free,)).event, dp_accounting.NoOpDpEvent)
    assert isinstance(to_dp_event((bare,)).event, dp_accounting.NonPrivateDpEvent)
    assert to_opacus((free,)) == []
    assert to_dp_event(()) == dp_accounting.ComposedDpEvent([])


@pytest.mark.parametrize(
    "event", [step(0.1, 1.0, adaptive=True), step(0.1, 1.0, numerical_delta=1e-9)]
)
@pytest.mark.parametrize("export", [to_dp_event, to_opacus])
def test_what_would_be_lost_on_the_way_out_is_refused(export, event):
    with pytest.raises(UnsupportedEvent, match="claim too little"):
        export((Repeated(event, 1),))


@pytest.mark.parametrize(
    "event",
    [
        dp_accounting.LaplaceDpEvent(1.0),
        dp_accounting.SampledWithoutReplacementDpEvent(100, 10, GAUSSIAN),
        dp_accounting.PoissonSampledDpEvent(0.1, SAMPLED),
        object(),
    ],
)
def test_what_has_no_counterpart_here_is_refused_by_name(event):
    with pytest.raises(
        UnsupportedEvent, match=type(event).__name__ if event is not object else "object"
    ):
        from_dp_event(event)


def test_opacus_cannot_record_a_non_private_step():
    with pytest.raises(UnsupportedEvent, match="non_private"):
        to_opacus((Repeated(NonPrivate("looked"), 1),))
