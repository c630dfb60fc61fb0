"""Streams: the sums of all steps are released with correlated noise.

A stream is paid for once, before its first step. Its strategy C is a lower triangular matrix with
one column for each step. The release is C·G plus independent Gaussian noise, where row i of G is
the bounded sum of step i; everything else, prefix sums included, is computed from it. An event
states the strategy itself, never a sensitivity, which accountants compute.

Tests: tests/accounting/rules_for/test_streams.py.
"""

import math
from dataclasses import dataclass, field

from dpfy import _validate
from dpfy.errors import InvalidArgument
from dpfy.ledger.events import Event, Fact

_MAX_ENTRIES = 1_000_000


class Strategy(Fact):
    """The matrix that mixes the sums of the steps before noise is added."""


@dataclass(frozen=True)
class Toeplitz(Strategy, tag="toeplitz"):
    """The same coefficients in every column, from the diagonal downwards.

    Args:
        coefficients: the entries of a column; (1,) gives every step independent noise.
    """

    coefficients: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "coefficients", _numbers("coefficients", self.coefficients))


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
    """A stream with a band of b whose steps sample from b parts of the data in turn.

    Args:
        strategy: the matrix of the stream; it must have a band.
        steps: the number of steps.
        noise_multiplier: standard deviation of the noise of one row, over the bound on what a
            record adds to one step.
        rate: inclusion probability of a record of the part whose turn it is, in [0, 1].
        numerical_delta: what the arithmetic of all rows adds to δ.

    *Assumes* that each record is assigned to one of b parts by its public position or at random,
    independently of the data and of the other records; that step i draws each record of part i mod
    b, independently, with probability ``rate``; and that samples stay secret.
    """

    rate: float

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "rate", _validate.real("rate", self.rate, 0, 1))
        if isinstance(self.strategy, Tree):
            raise InvalidArgument(
                "Expected a strategy with a band: a tree mixes steps that are far apart."
            )

    @property
    def band(self) -> int:
        """The number of steps that one column reaches, which is the number of parts."""
        if isinstance(self.strategy, Toeplitz):
            return min(len(self.strategy.coefficients), self.steps)
        assert isinstance(self.strategy, Columns)
        return max(len(column) for column in self.strategy.columns)


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
