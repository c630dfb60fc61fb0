"""Streams: the sums of all steps are released with correlated noise.

The strategy C of a stream is a lower triangular matrix with one column for each step. The release
is C·G plus independent Gaussian noise, where row i of G is the bounded sum of step i; everything
else, prefix sums included, is computed from it. An event states the strategy itself, never a
sensitivity, which accountants compute.

A stream is paid for as a whole, before its first step, or row by row: what t rows cost is what the
stream of the first t steps costs.

Tests: tests/accounting/rules_for/test_streams.py, tests/ledger/test_rows.py.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Any, Self

from dpfy import _validate
from dpfy.errors import InvalidArgument, UnsupportedEvent
from dpfy.ledger.events import (
    Cyclic,
    CyclicPoisson,
    Envelope,
    Event,
    Fact,
    Policy,
    Repeated,
    Shuffled,
)

_MAX_ENTRIES = 1_000_000


class Strategy(Fact):
    """The matrix that mixes the sums of the steps before noise is added."""

    def first(self, steps: int) -> "Strategy":
        """Return the strategy of the first ``steps`` steps: itself, where every length has one."""
        return self


@dataclass(frozen=True)
class Toeplitz(Strategy, tag="toeplitz"):
    """The same coefficients in every column, from the diagonal downwards.

    Args:
        coefficients: the entries of a column; (1,) gives every step independent noise.
    """

    coefficients: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "coefficients", _numbers("coefficients", self.coefficients))

    def column(self, steps: int) -> tuple[float, ...]:
        """Return the first column of the matrix of ``steps`` steps, up to its last coefficient."""
        return self.coefficients[:steps]


@dataclass(frozen=True)
class Buffered(Strategy, tag="buffered"):
    """A Toeplitz matrix whose coefficients are a mixture of decays: 1, then Σ ω_i·θ_i^(t−1).

    Noise with it needs one buffer for each decay, however many steps there are (buffered linear
    Toeplitz, BLT).

    Args:
        decays: θ, the factors by which the buffers decay, in [0, 1).
        scales: ω, what each buffer has of the mixture, at least 0 and at most 1 together. So the
            coefficients fall and none is negative, and the sensitivity is known exactly.

    Raises:
        InvalidArgument: if a number is out of its range, or there is not one scale for each decay.

    Reference: Dvijotham, McMahan, Pillutla, Steinke & Thakurta 2024.

    >>> Buffered((0.5, 0.25), (0.5, 0.25)).column(4)
    (1.0, 0.75, 0.3125, 0.140625)
    """

    decays: tuple[float, ...]
    scales: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.decays or len(self.decays) != len(self.scales):
            raise InvalidArgument(
                f"Expected one scale for each of at least one decay, got {len(self.decays)} decays "
                f"and {len(self.scales)} scales."
            )
        decays = (_validate.real("decay", each, 0, 1, open_high=True) for each in self.decays)
        object.__setattr__(self, "decays", tuple(decays))
        scales = (_validate.real("scale", each, 0, 1) for each in self.scales)
        object.__setattr__(self, "scales", tuple(scales))
        if math.fsum(self.scales) > 1:
            raise InvalidArgument(
                f"Expected scales of at most 1 together, got {math.fsum(self.scales):.6g}: "
                "coefficients have to fall."
            )

    def column(self, steps: int) -> tuple[float, ...]:
        """Return the first column of the matrix of ``steps`` steps."""
        mixture = tuple(zip(self.decays, self.scales, strict=True))
        return 1.0, *(sum(w * decay**power for decay, w in mixture) for power in range(steps - 1))


@dataclass(frozen=True)
class Columns(Strategy, tag="columns"):
    """Any lower triangular matrix.

    Args:
        columns: for each column, its entries from the diagonal downwards; trailing zeros may be
            left out.

    Raises:
        InvalidArgument: if there are too many entries, or if a column is too long.
    """

    columns: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        if sum(len(column) for column in self.columns) > _MAX_ENTRIES:
            raise InvalidArgument(
                f"Expected at most {_MAX_ENTRIES:,} entries. Use a band, or toeplitz coefficients."
            )
        object.__setattr__(
            self, "columns", tuple(_numbers("columns", column) for column in self.columns)
        )
        size = len(self.columns)
        if any(len(column) > size - place for place, column in enumerate(self.columns)):
            raise InvalidArgument(
                f"Expected columns that end within {size} rows: column i has at most {size} − i."
            )

    def first(self, steps: int) -> "Columns":
        """Return the upper left corner of the matrix."""
        kept = enumerate(self.columns[:steps])
        return Columns(tuple(column[: steps - place] for place, column in kept))


@dataclass(frozen=True)
class Tree(Strategy, tag="tree"):
    """Binary trees over the steps.

    Every complete node releases the sum of its leaves, with noise of its own.

    Args:
        restart: the number of steps after which a new tree begins; 0 means never.
        completed: whether the last tree of each series is filled up with empty steps, so that every
            node that contains a step is released.
    """

    restart: int = 0
    completed: bool = False

    def __post_init__(self) -> None:
        _validate.count("restart", self.restart, minimum=0)
        if not isinstance(self.completed, bool):
            raise InvalidArgument(f"Expected completed={self.completed!r} to be True or False.")


@dataclass(frozen=True)
class _Stream(Event):
    """The fields that all streams state.

    Args:
        strategy: the matrix of the stream.
        steps: the number of steps.
        noise_multiplier: standard deviation of the noise of one row, over the bound on what a
            record adds to one step.
        numerical_delta: what the arithmetic of all rows adds to δ.
    """

    strategy: Strategy
    steps: int
    noise_multiplier: float
    numerical_delta: float = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.strategy, Strategy):
            raise InvalidArgument(f"Expected a strategy, got {type(self.strategy).__name__}.")
        _validate.count("steps", self.steps)
        if isinstance(self.strategy, Columns) and len(self.strategy.columns) != self.steps:
            raise InvalidArgument(
                f"Expected steps={self.steps!r} to be the number of columns, "
                f"{len(self.strategy.columns)}."
            )
        noise = _validate.real(
            "noise_multiplier", self.noise_multiplier, 0, math.inf, open_high=True
        )
        object.__setattr__(self, "noise_multiplier", noise)
        object.__setattr__(
            self, "numerical_delta", _validate.real("numerical_delta", self.numerical_delta, 0, 1)
        )

    def first(self, steps: int) -> Self:
        """Return the stream of the first ``steps`` steps, with the numerical δ of all."""
        return replace(self, strategy=self.strategy.first(steps), steps=steps)


@dataclass(frozen=True)
class Stream(_Stream, tag="stream"):
    """A stream in which the steps of one record are limited in number and kept apart.

    Args:
        strategy: the matrix of the stream.
        steps: the number of steps.
        noise_multiplier: standard deviation of the noise of one row, over the bound on what a
            record adds to one step.
        participations: the largest number of steps in which one record takes part.
        separation: the smallest distance between two steps of one record.
        numerical_delta: what the arithmetic of all rows adds to δ.

    *Assumes* that in which steps a record takes part does not depend on the data, and that each
    row's sum is fixed by the records and by what earlier rows released.

    >>> epochs = Stream(
    ...     Tree(restart=100), 1000, noise_multiplier=4.0, participations=10, separation=100
    ... )
    >>> Event.from_json(epochs.to_json()) == epochs
    True
    """

    participations: int = 1
    separation: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.count("participations", self.participations)
        _validate.count("separation", self.separation)


@dataclass(frozen=True)
class SampledStream(_Stream, tag="sampled_stream"):
    """A stream with a band of b whose steps sample from b or more parts of the data in turn.

    Args:
        strategy: the matrix of the stream; it must have a band.
        steps: the number of steps.
        noise_multiplier: standard deviation of the noise of one row, over the bound on what a
            record adds to one step.
        rate: inclusion probability of a record of the part whose turn it is, in [0, 1].
        numerical_delta: what the arithmetic of all rows adds to δ.
        parts: the number of parts, at least the band; 0 by default, for as many as the band. It is
            written only if it is given.

    *Assumes* that each record is assigned to one of the parts by its public position or at random,
    independently of the data and of the other records; that step i draws each record of part i
    modulo their number, independently, with probability ``rate``; and that samples stay secret.
    """

    rate: float
    parts: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "rate", _validate.real("rate", self.rate, 0, 1))
        if not isinstance(self.strategy, Toeplitz | Columns):
            raise InvalidArgument(
                f"Expected a strategy with a band, got a {self.strategy.tag!r}: it mixes steps "
                "that are far apart."
            )
        if _validate.count("parts", self.parts, minimum=0) and self.parts < self.band:
            raise InvalidArgument(
                f"Expected parts={self.parts} to be at least the band, {self.band}: two steps of a "
                "record would share noise. Take fewer bands or more parts."
            )

    def to_json(self) -> dict[str, Any]:
        """Return the event as plain JSON values."""
        return {
            name: value for name, value in super().to_json().items() if name != "parts" or value
        }

    @property
    def band(self) -> int:
        """The number of steps that one column reaches."""
        if isinstance(self.strategy, Toeplitz):
            return min(len(self.strategy.coefficients), self.steps)
        assert isinstance(self.strategy, Columns)
        return max(len(column) for column in self.strategy.columns)

    @property
    def round(self) -> int:
        """The number of steps in which every part has one turn."""
        return self.parts or self.band

    def first(self, steps: int) -> Self:
        """Return the stream of the first ``steps`` steps, from as many parts."""
        return replace(super().first(steps), parts=self.round)

    @property
    def unsampled(self) -> Stream:
        """The same stream if every record is in all steps that its part has a turn in."""
        return Stream(
            self.strategy,
            self.steps,
            self.noise_multiplier,
            participations=-(-self.steps // self.round),
            separation=self.round,
            numerical_delta=self.numerical_delta,
        )


@dataclass(frozen=True)
class Row(Event, tag="row"):
    """One step of a stream: the row that is next in it.

    *Formal guarantee*: t rows cost what the stream of the first t steps costs, also if their noise
    was begun anew in between (docs/proofs/streams.md, Lemma 6).

    *Assumes* that the t-th row on record is step t of the stream, whether it was released or not,
    with the records that step t has; and that all equal rows of one run belong to one stream. The
    rows that a ledger hands out name it as their run. Rows that name none are of one run, and what
    several such runs cost is the composition of
    :class:`~dpfy.ledger.composite_events.Composed` runs.

    Args:
        stream: the whole stream.
        policy: the rule that draws the records of the steps, which the stream then has to follow
            from; None, the default, if they are limited and kept apart by other means.
        source: the name of the run whose stream it is; empty, the default, on record, where all
            rows are those of one ledger. Rows of two runs are equal, and not counted together.

    Raises:
        InvalidArgument: if the stream declares more privacy than the policy gives.

    >>> stream = Stream(Buffered((0.9,), (0.5,)), 100_000, noise_multiplier=4.0)
    >>> Row(stream).charged(3)[0].event.steps
    3
    """

    stream: Stream | SampledStream
    policy: Policy | None = None
    source: str = field(default="", compare=False, repr=False, kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.stream, Stream | SampledStream):
            raise InvalidArgument(f"Expected a stream, got {type(self.stream).__name__}.")
        if not isinstance(self.source, str):
            raise InvalidArgument(f"Expected source={self.source!r} to be the name of a run.")
        if self.policy is not None:
            _check_follows(self.stream, self.policy)

    def to_json(self) -> dict[str, Any]:
        """Return the event as plain JSON values; a run is written only if it has a name."""
        return {
            name: value for name, value in super().to_json().items() if name != "source" or value
        }

    @property
    def address(self) -> str:
        """The content address, which rows of all runs share."""
        return self.unnamed.address if self.source else super().address

    @property
    def unnamed(self) -> "Row":
        """The row without the name of its run."""
        return replace(self, source="") if self.source else self

    @property
    def numerical_delta(self) -> float:
        """The δ that the arithmetic of the whole stream adds."""
        return self.stream.numerical_delta

    @property
    def at_most(self) -> int:
        """The number of rows that the stream has."""
        return self.stream.steps

    def charged(self, times: int) -> Envelope:
        """Return the stream of the first ``times`` steps.

        Raises:
            UnsupportedEvent: if the stream has fewer. A further row could share the noise of all
                others, so that neither a longer stream nor a second one bounds its cost.
        """
        if times > self.stream.steps:
            raise UnsupportedEvent(
                f"The stream has {self.stream.steps:,} rows, and {times:,} are on record: nothing "
                "bounds what the others cost. If they are of several runs, account each run as a "
                "Composed event."
            )
        return (Repeated(self.stream.first(times), 1),) if times else ()


def _check_follows(stream: Stream | SampledStream, policy: Policy) -> None:
    """Refuse a stream whose participations or rate are less than those of the policy."""
    if isinstance(stream, SampledStream) != isinstance(policy, CyclicPoisson):
        raise InvalidArgument(
            f"Expected rows of a {stream.tag!r} to be drawn as it declares, got {policy.tag!r}. "
            "A sampled stream goes with cyclic_poisson, any other with cyclic or shuffled batches."
        )
    if isinstance(stream, SampledStream):
        assert isinstance(policy, CyclicPoisson)
        if stream.rate < policy.chance or stream.round != policy.parts:
            raise InvalidArgument(
                f"Expected a stream of rate {policy.chance!r} and {policy.parts} parts, as the "
                f"policy draws, got {stream.rate!r} and {stream.round}."
            )
        return
    if not isinstance(policy, Cyclic | Shuffled):
        raise InvalidArgument(f"Expected cyclic or shuffled batches, got {policy.tag!r}.")
    epoch = policy.steps_per_event
    often, apart = -(-stream.steps // epoch), epoch if isinstance(policy, Cyclic) else 1
    if stream.participations < often or (often > 1 and stream.separation > apart):
        raise InvalidArgument(
            f"{policy.tag} batches give a record {often} participations {apart} or more steps "
            f"apart in {stream.steps} steps, got participations={stream.participations} and "
            f"separation={stream.separation}."
        )


def _numbers(name: str, values: tuple[float, ...]) -> tuple[float, ...]:
    """Return the values as finite floats without trailing zeros."""
    result = list(values)
    if not all(type(value) is float and -1e100 <= value <= 1e100 for value in result):
        result = [_validate.real(name, value, -1e100, 1e100) for value in result]
    while len(result) > 1 and result[-1] == 0:
        result.pop()
    if not result:
        raise InvalidArgument(f"Expected {name} to hold at least one number.")
    return tuple(result)
