"""What a controller is: from released values to the setting of the next step."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol

from dpfy.errors import InvalidArgument
from dpfy.ledger.events import Envelope, Fact
from dpfy.mechanisms.query import LEAST, MOST, ClippedSum, NormalisedSum, Query, Statistic

State = dict[str, Any]
"""What a controller remembers: numbers, texts, lists and tensors, all computed from released
values.
"""


class Outcome(Protocol):
    """What a step released, with the public constants it was released with; see
    :class:`dpfy.Released`.
    """

    @property
    def gradients(self) -> Mapping[str, Any]:
        """The noisy gradients, by parameter."""

    @property
    def statistics(self) -> Mapping[str, Any]:
        """The noisy statistics that were due, by name."""

    @property
    def stddevs(self) -> Mapping[str, Any]:
        """The standard deviation of the noise in each gradient: a number, or a tensor of the
        gradient's shape.
        """

    @property
    def bounds(self) -> Mapping[str, float]:
        """The bounds of the step's clipped sums, by their names."""


@dataclass(frozen=True)
class Coordinates:
    """The coordinates in which a parameter's gradients are bounded: (gradient − offset) / scale."""

    offset: Any
    scale: Any


@dataclass(frozen=True)
class Draw:
    """How importance sampling draws: a record takes part with probability rate·min(norm,
    clip)/clip.
    """

    rate: float
    clip: float


@dataclass(frozen=True)
class StepConfig:
    """What a step is run with: the query in its present bounds, noise as a factor of the planned,
    and coordinates.

    ``draw`` is how records are drawn, where that is not as planned.
    """

    query: Query
    noise: float = 1.0
    coordinates: Mapping[str, Coordinates] = field(default_factory=dict)
    draw: Draw | None = None


class Controller(Fact):
    """Chooses bounds, noise or coordinates of the next step from what was released.

    A controller is a frozen declaration in the plan. What it remembers is an explicit state, from
    :meth:`start` through :meth:`updated`, which is saved with checkpoints.

    *Formal guarantee*: a controller sees released values and public ones only, so what it chooses
    is post-processing. Bounds and coordinates change what is summed and never its ratio to the
    noise: the events are those of the plan, and composition is ordinary. Noise is part of the
    event: a controller that chooses it is ``adaptive``, its steps are marked so, and only a filter
    accounts them.
    """

    controls: ClassVar[str]  # bounds, noise or coordinates; a plan has one controller for each
    adaptive: ClassVar[bool] = False

    def extend_query(self, query: Query) -> Query:
        """Return the query with what this controller has to be told of every sample; a query that
        has it stays.
        """
        return query

    def extra_events(self, steps: int) -> Envelope:
        """Return what is released for this controller in so many steps, beside them."""
        return ()

    def start(self, query: Query, parameters: Mapping[str, Any]) -> State:
        """Return the state before the first step."""
        return {}

    def configure(self, state: State, step: int, setting: StepConfig) -> StepConfig:
        """Return the setting of a step, counted from 1, with what this controller chooses in it."""
        return setting

    def update(self, state: State, released: Outcome) -> State:
        """Return the state after a step."""
        return state

    def on_public_metric(self, state: State, value: float) -> State:
        """Return the state after something was measured on public data."""
        return state


def with_statistic(query: Query, statistic: Statistic) -> Query:
    """Return the query with one more statistic, unless one of that type and name is there."""
    if any(
        type(each) is type(statistic) and each.name == statistic.name for each in query.statistics
    ):
        return query
    return replace(query, statistics=(*query.statistics, statistic))


def with_bounds(setting: StepConfig, bounds: Mapping[str, float]) -> StepConfig:
    """Return the setting with other bounds of its clipped sums, by their names, as far as these can
    be used.
    """
    leaves = tuple(
        replace(leaf, bound=kept_within(bounds[leaf.name])) for leaf in setting.query.leaves
    )
    return replace(setting, query=replace(setting.query, leaves=leaves))


def with_limits(setting: StepConfig, name: str, change: Callable[[Any], Statistic]) -> StepConfig:
    """Return the setting with one of its statistics changed."""
    statistics = tuple(
        change(each) if each.name == name else each for each in setting.query.statistics
    )
    return replace(setting, query=replace(setting.query, statistics=statistics))


def kept_within(bound: float, least: float = LEAST, most: float = MOST) -> float:
    """Return a bound that a step can use, whatever noise has made of it; NaN becomes the least."""
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
    """Return the bounds of clipped sums."""
    return {leaf.name: leaf.bound for leaf in leaves}
