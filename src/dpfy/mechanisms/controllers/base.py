"""The interface of controllers: from released values to the configuration of the next step.

Tests: tests/mechanisms/controllers/test_controllers.py.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol

from dpfy._renamed import warn_renamed
from dpfy.errors import InvalidArgument
from dpfy.ledger.events import Envelope, Fact
from dpfy.mechanisms.controllers.former_names import HOOKS
from dpfy.mechanisms.query import LEAST, MOST, ClippedSum, NormalisedSum, Query, Statistic

State = dict[str, Any]
"""The memory of a controller: numbers, texts, lists and tensors, computed from released values."""


class Outcome(Protocol):
    """The release of a step and its public constants, as in :class:`dpfy.Released`."""

    @property
    def gradients(self) -> Mapping[str, Any]:
        """The noisy gradients, by parameter."""

    @property
    def statistics(self) -> Mapping[str, Any]:
        """The noisy statistics that were due, by name."""

    @property
    def stddevs(self) -> Mapping[str, Any]:
        """The noise of each gradient: a standard deviation, or a tensor of them."""

    @property
    def bounds(self) -> Mapping[str, float]:
        """The bounds of the step's clipped sums, by their names."""


@dataclass(frozen=True)
class Coordinates:
    """The coordinates in which a parameter's gradients are bounded: (gradient − offset) / scale.

    Args:
        offset: A tensor of the parameter's shape.
        scale: A tensor of the parameter's shape, above zero.
    """

    offset: Any
    scale: Any


@dataclass(frozen=True)
class Draw:
    """The rate and the clip bound of importance sampling.

    A record takes part with probability rate·min(norm, clip)/clip.

    Args:
        rate: The probability of a record whose norm reaches the clip bound, in [0, 1].
        clip: The clip bound, above zero.
    """

    rate: float
    clip: float


@dataclass(frozen=True)
class StepConfig:
    """The configuration of one step.

    Args:
        query: The query of the plan with its present bounds.
        noise: The noise multiplier as a factor of the planned one.
        coordinates: The coordinates of each parameter in which gradients are bounded, if these are
            not the gradient's own.
        draw: The rate and the clip bound of importance sampling, where they are not as planned.
    """

    query: Query
    noise: float = 1.0
    coordinates: Mapping[str, Coordinates] = field(default_factory=dict)
    draw: Draw | None = None


class Controller(Fact):
    """Chooses bounds, noise or coordinates of the next step from what was released.

    A controller is a frozen declaration in the plan. Its memory is an explicit state, from
    :meth:`start` through :meth:`update`, which is saved with checkpoints. A subclass overrides the
    hooks that it needs, and says in ``controls`` what it chooses: ``"bounds"``, ``"noise"`` or
    ``"coordinates"``. A plan has one controller for each.

    *Formal guarantee*: a controller sees released values and public ones only, so what it chooses
    is post-processing. Bounds and coordinates change what is summed and never its ratio to the
    noise: the events are those of the plan, and composition is ordinary. Noise is part of the
    event: a controller that chooses it is ``adaptive``, its steps are marked so, and only a filter
    accounts them.
    """

    controls: ClassVar[str]
    adaptive: ClassVar[bool] = False

    def __init_subclass__(cls, tag: str | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(tag=tag, **kwargs)
        for old, new in HOOKS.items():
            if old in cls.__dict__:
                warn_renamed(f"{cls.__name__}.{old}", f"{cls.__name__}.{new}")
                setattr(cls, new, cls.__dict__[old])

    def extend_query(self, query: Query) -> Query:
        """Return the query with the statistics that this controller needs of every sample.

        A query that has them already is returned unchanged.
        """
        return query

    def extra_events(self, steps: int) -> Envelope:
        """Return the events of what ``steps`` steps release for this controller, besides their own.

        Such releases are made before a step, apart from its query.
        """
        return ()

    def start(self, query: Query, parameters: Mapping[str, Any]) -> State:
        """Return the state before the first step."""
        return {}

    def configure(self, state: State, step: int, config: StepConfig) -> StepConfig:
        """Return the configuration of a step, counted from 1, with this controller's choices."""
        return config

    def update(self, state: State, released: Outcome) -> State:
        """Return the state after a step."""
        return state

    def on_public_metric(self, state: State, value: float) -> State:
        """Return the state after a metric was measured on public data."""
        return state


def with_statistic(query: Query, statistic: Statistic) -> Query:
    """Return the query with another statistic, unless it has one of that type and name."""
    if any(
        type(each) is type(statistic) and each.name == statistic.name for each in query.statistics
    ):
        return query
    return replace(query, statistics=(*query.statistics, statistic))


def with_bounds(config: StepConfig, bounds: Mapping[str, float]) -> StepConfig:
    """Return the configuration with other bounds of its clipped sums, kept in the usable range."""
    leaves = tuple(
        replace(leaf, bound=kept_within(bounds[leaf.name])) for leaf in config.query.leaves
    )
    return replace(config, query=replace(config.query, leaves=leaves))


def with_limits(config: StepConfig, name: str, change: Callable[[Any], Statistic]) -> StepConfig:
    """Return the configuration with one of its statistics changed."""
    statistics = tuple(
        change(each) if each.name == name else each for each in config.query.statistics
    )
    return replace(config, query=replace(config.query, statistics=statistics))


def kept_within(bound: float, least: float = LEAST, most: float = MOST) -> float:
    """Return a bound that a step can use, whatever noise did to it; NaN becomes the least one."""
    inside = min(max(bound, least), most) if bound == bound else least
    return min(max(inside, LEAST), MOST)


def require_clipping(query: Query, controller: str) -> None:
    """Refuse sums that have no clip bound to choose."""
    if any(isinstance(leaf, NormalisedSum) for leaf in query.leaves):
        raise InvalidArgument(
            f"{controller} chooses clip bounds, and automatic clipping has none: its bound is a "
            "factor of the learning rate. Use one of the two."
        )


def by_name(leaves: tuple[ClippedSum, ...]) -> dict[str, float]:
    """Return the bounds of clipped sums by name."""
    return {leaf.name: leaf.bound for leaf in leaves}
