"""The interface of mechanisms that answer once, and the one way to run them.

Tests: tests/mechanisms/one_shot/test_one_shot.py.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any, Protocol, TypeVar

from dpfy import _validate
from dpfy.errors import InvalidArgument, LedgerMismatch
from dpfy.ledger import Ledger
from dpfy.ledger.events import Event, Poisson, RecordedQuery, Sampled
from dpfy.mechanisms.discrete import rounded_laplace
from dpfy.noise import SecureStream, lattice_step
from dpfy.noise.random_stream import Purpose, require_purpose

UP = 1 + 1e-15
"""Rounds a scale up by more than the error of its computation."""

Values = TypeVar("Values", contravariant=True)
Answer = TypeVar("Answer", covariant=True)


class Releasable(Protocol[Values, Answer]):
    """Anything that names what it costs and answers once."""

    @property
    def event(self) -> Event:
        """The cost of one answer."""

    def release(self, values: Values, stream: SecureStream) -> Answer:
        """Answer once, with fresh noise from ``stream``."""


class Mechanism(Releasable[Values, Answer], Protocol[Values, Answer]):
    """A declaration of what is answered on one sample, and with how much noise."""

    @property
    def event(self) -> Sampled:
        """The cost of one answer."""


def release(
    mechanism: Releasable[Values, Answer],
    ledger: Ledger,
    compute: Callable[[], Values],
    stream: SecureStream | None = None,
    *,
    adaptive: bool = False,
    note: dict[str, Any] | None = None,
) -> Answer:
    """Record a mechanism's event in ``ledger``, then compute the values and answer.

    *Formal guarantee*: when ``compute`` is called the event is on stable storage and the ledger's
    guard has admitted it.

    *Assumes* that nothing but ``compute`` touches the records, and that what it returns meets the
    mechanism's bound.

    Args:
        mechanism: The declaration of what is answered.
        ledger: Where the event is recorded; its guard may refuse it.
        compute: A function that reads the records and returns the exact values.
        stream: The source of the noise; by default a new one, keyed by the operating system.
        adaptive: Whether the mechanism was chosen from earlier outputs, so that only a filter
            accounts it.
        note: Public remarks for the ledger.

    Returns:
        The answer of the mechanism, with noise.

    Raises:
        InvalidArgument: If the mechanism is ``adaptive`` and no event says so of it.
        LedgerMismatch: If the stream has a test key and the ledger does not say so.
        BudgetExhausted: If the ledger's guard refuses the event; no record was read.

    >>> from dpfy.mechanisms.one_shot import Laplace
    >>> with Ledger.in_memory() as ledger:
    ...     stream = SecureStream(insecure_test_key=3)
    ...     noisy = release(Laplace(sensitivity=1.0, scale=2.0), ledger, lambda: 41.0, stream)
    Traceback (most recent call last):
    dpfy.errors.LedgerMismatch: ...
    """
    stream = stream_for(ledger, stream, "noise")
    event = mechanism.event
    ledger.reserve(_chosen_from_outputs(event) if adaptive else event, note)
    values = compute()
    ledger.require_opener()  # what computes may have forked
    stream.refresh()  # a restored copy of the machine has the old key
    return mechanism.release(values, stream)


def stream_for(ledger: Ledger, stream: SecureStream | None, purpose: Purpose) -> SecureStream:
    """Return the stream, or a new one, if the ledger says where its key comes from."""
    if stream is None:
        return SecureStream(purpose=purpose)
    require_purpose(stream, purpose)
    declared = ledger.header.key_source if ledger.header is not None else "operating system"
    if stream.key_source != declared and stream.key_source != "operating system":
        raise LedgerMismatch(
            f"The stream has an {stream.key_source}, but the ledger says that keys come from the "
            f"{declared}. Declare Header(key_source={stream.key_source!r}), or pass no stream."
        )
    return stream


def _chosen_from_outputs(event: Event) -> Event:
    """Return the event of a mechanism that was chosen from earlier outputs."""
    if not isinstance(event, Sampled):
        raise InvalidArgument(
            f"The event {event.tag!r} is declared in advance and cannot be adaptive. Choose the "
            "mechanism before the first answer, or run its parts one by one."
        )
    return replace(event, adaptive=True)


def once(query: RecordedQuery) -> Sampled:
    """Return the event of one query on all records."""
    return Sampled(Poisson(1.0), (query,))


def require_positive(declared: object, *names: str) -> None:
    """Validate fields of a frozen dataclass and store them as floats."""
    for name in names:
        object.__setattr__(declared, name, _validate.positive(name, getattr(declared, name)))


class NumberLattice:
    """Numbers in steps of a power of two that depends on declared scales alone.

    Rounding moves a difference of two numbers by up to a step, and a vector by up to a step for
    each of its numbers; the noise is widened for that.
    """

    def __init__(self, sensitivity: float, finest: float, numbers: int = 1) -> None:
        self.step = Fraction(lattice_step(finest))
        self._stretch = 1 + numbers * self.step / Fraction(sensitivity)

    def steps(self, value: float) -> int:
        """Return the nearest number of steps, and 0 for a value that is not finite."""
        return round(Fraction(value) / self.step) if math.isfinite(value) else 0

    def laplace(self, scale: float, stream: SecureStream) -> int:
        """Return Laplace noise of this scale, in steps."""
        return rounded_laplace(Fraction(scale) * self._stretch / self.step, stream)
