"""Exchange events with other libraries: Opacus and dp_accounting.

``dp_accounting`` is imported on first use and is no dependency; Opacus histories are plain lists
and need nothing. An event without a counterpart that costs the same is refused by name.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from dpfy import _validate
from dpfy.accounting.to_pairs import noise_multiplier
from dpfy.errors import InvalidArgument, UnsupportedEvent
from dpfy.ledger.events import (
    Envelope,
    Event,
    NonPrivate,
    Poisson,
    Repeated,
    Sampled,
    SumQuery,
    run_lengths,
)


def from_opacus(history: Iterable[tuple[float, float, int]]) -> Envelope:
    """Return the steps of an Opacus accountant's ``history``.

    Args:
        history: Triples of noise multiplier, sample rate and number of steps.

    Returns:
        The steps as events.

    Raises:
        InvalidArgument: An entry is no such triple, or out of range.

    *Assumes* that the loader drew Poisson samples; with ``poisson_sampling=False`` the same history
    is written for shuffled batches, and these events do not describe them.

    >>> from dpfy.accounting import account
    >>> account(from_opacus([(1.0, 0.01, 100)])).steps
    100
    """
    steps = []
    for entry in history:
        try:
            noise, rate, times = entry
        except (TypeError, ValueError):
            raise InvalidArgument(
                "Expected a history of (noise multiplier, sample rate, steps), as Opacus keeps it."
            ) from None
        noise = _validate.real("noise_multiplier", noise, 0, math.inf, open_high=True)
        steps.append(Repeated(Sampled(Poisson(rate), (SumQuery(1.0, noise),)), times))
    return run_lengths(steps)


def to_opacus(envelope: Envelope) -> list[tuple[float, float, int]]:
    """Return the ``history`` that makes an Opacus accountant account ``envelope``.

    Args:
        envelope: The events.

    Returns:
        Triples of noise multiplier, sample rate and number of steps.

    Raises:
        UnsupportedEvent: Opacus has no counterpart of an event that costs the same.

    >>> to_opacus(from_opacus([(1.0, 0.01, 100)]))
    [(1.0, 0.01, 100)]
    """
    history = []
    for run in envelope:
        step = _plain(run.event)
        noise = noise_multiplier(step.queries)
        if math.isfinite(noise):  # nothing asked costs nothing
            history.append((noise, step.policy.rate, run.times))
    return history


def from_dp_event(event: Any) -> Envelope:
    """Return the steps of a ``dp_accounting.DpEvent``.

    Args:
        event: Gaussian sums, Poisson-sampled or not, composed in any depth.

    Returns:
        The steps as events.

    Raises:
        UnsupportedEvent: An event of dp_accounting has no counterpart here.

    >>> import dp_accounting
    >>> one = dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(2.0))
    >>> from_dp_event(dp_accounting.SelfComposedDpEvent(one, 3))[0].times
    3
    """
    return run_lengths(_steps(event))


def to_dp_event(envelope: Envelope) -> Any:
    """Return ``envelope`` as one ``dp_accounting.DpEvent``.

    Args:
        envelope: The events.

    Returns:
        The event of dp_accounting.

    Raises:
        UnsupportedEvent: dp_accounting has no counterpart of an event that costs the same.

    >>> to_dp_event(from_opacus([(2.0, 0.1, 3)]))
    SelfComposedDpEvent(event=PoissonSampledDpEvent(...GaussianDpEvent(...=2.0)), count=3)
    """
    from dp_accounting import ComposedDpEvent, SelfComposedDpEvent

    runs = [SelfComposedDpEvent(_dp_event(run.event), run.times) for run in run_lengths(envelope)]
    return runs[0] if len(runs) == 1 else ComposedDpEvent(runs)


def _steps(event: Any) -> Iterator[Repeated]:
    import dp_accounting as theirs

    match event:
        case theirs.NoOpDpEvent():
            return
        case theirs.NonPrivateDpEvent():
            yield Repeated(NonPrivate("recorded as non-private by dp_accounting"), 1)
        case theirs.ComposedDpEvent():
            for part in event.events:
                yield from _steps(part)
        case theirs.SelfComposedDpEvent():
            yield from _repeated(tuple(_steps(event.event)), event.count)
        case theirs.PoissonSampledDpEvent():
            queries = tuple(_queries(event.event))
            yield Repeated(Sampled(Poisson(event.sampling_probability), queries), 1)
        case _:
            yield Repeated(Sampled(Poisson(1.0), tuple(_queries(event))), 1)


def _repeated(steps: Envelope, count: int) -> Iterator[Repeated]:
    """Repeat a sequence; equal steps stay together, as the order of fixed steps does not matter."""
    for run in steps:
        yield replace(run, times=run.times * count)


def _queries(event: Any) -> Iterator[SumQuery]:
    """Yield the Gaussian sums that one sample answers, repeated ones as one of total precision."""
    import dp_accounting as theirs

    match event:
        case theirs.GaussianDpEvent():
            yield SumQuery(1.0, event.noise_multiplier)
        case theirs.ComposedDpEvent():
            for part in event.events:
                yield from _queries(part)
        case theirs.SelfComposedDpEvent():
            for query in _queries(event.event):
                yield SumQuery(math.sqrt(event.count) * query.l2_bound, query.stddev)
        case theirs.NoOpDpEvent():
            return
        case _:
            raise UnsupportedEvent(
                f"No event here corresponds to {type(event).__name__} of dp_accounting."
            )


def _dp_event(event: Event) -> Any:
    import dp_accounting as theirs

    if isinstance(event, NonPrivate):
        return theirs.NonPrivateDpEvent()
    step = _plain(event)
    noise = noise_multiplier(step.queries)
    if math.isinf(noise):
        return theirs.NoOpDpEvent()
    rate = step.policy.rate
    one = theirs.GaussianDpEvent(noise)
    return one if rate == 1 else theirs.PoissonSampledDpEvent(rate, one)


def _plain(event: Event) -> Sampled:
    """Return a step that other libraries can express; refuse one whose cost they would drop."""
    if not isinstance(event, Sampled) or not isinstance(event.policy, Poisson):
        raise UnsupportedEvent(
            f"Other libraries have no counterpart of the event {event.tag!r} that costs the same."
        )
    if event.numerical_delta > 0 or event.adaptive:
        what = (
            "a numerical delta" if event.numerical_delta > 0 else "the mark of an adaptive choice"
        )
        raise UnsupportedEvent(
            f"Other libraries cannot record {what}; the exported history would claim too little."
        )
    return event
