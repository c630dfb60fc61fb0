"""Importance sampling that follows the noisy sum of all gradient norms, released once an epoch."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dpfy import _validate
from dpfy.errors import InvalidArgument
from dpfy.ledger.events import Envelope, Poisson, Repeated, Sampled, SumQuery
from dpfy.mechanisms.controllers.base import (
    Controller,
    Draw,
    State,
    StepConfig,
    kept_within,
    require_clipping,
    with_bounds,
)
from dpfy.mechanisms.controllers.schedules import Schedule
from dpfy.mechanisms.query import Query

WIDEST_CLIP = 4.0
"""The largest norm that counts in full, in planned clip bounds, if the bound follows norms."""
# Relative to the planned bound: noise may make a mean of norms zero or less, but no bound.
_LEAST_CLIP = 2.0**-5
_SIZES = (1 / 8, 8.0)  # the range of the released number of records, over the declared one


@dataclass(frozen=True)
class NormSumSampling(Controller, tag="norm_sum"):
    """Chooses the contributions, the clip bound and the noise of an epoch from a sum of norms.

    An epoch has ``length`` steps. Before its first step, the sum of all records' norms, each kept
    between the floor and the clip bound C, is released with noise of ``stddev`` clip bounds.
    Divided by the number of records it is the ratio r of the epoch: contributions have the norm
    r·C. With ``clip_factor`` λ, the sum of norms cut at four planned clip bounds is released before
    it, and C is λ times their mean. With ``size_stddev`` the number of records is released too,
    once and first; otherwise the declared number is used. The noise is chosen so that the remaining
    steps spend the rest of the plan's filter; in the first ``cautious`` part of the steps, as if
    all later ratios were 1.

    *Formal guarantee*: that of the plan's filter. A record moves each of the sums by one bound, on
    all records and without amplification; rate and noise of a step follow from what was released,
    so it is marked as adaptive.

    Args:
        ratios: The expected ratios, which the noise is planned for.
        length: The number of steps in an epoch, at least 1.
        stddev: The noise of a sum of norms, in clip bounds, above zero.
        cautious: The part of the steps in which all later ratios are taken for 1, in [0, 1].
        clip_factor: The clip bound over the mean norm, above zero; by default the planned clip
            bound stays.
        size_stddev: The noise of the number of records, above zero; by default it is not released.

    Raises:
        InvalidArgument: If an argument is out of its range.

    >>> norms = NormSumSampling(Schedule("ratio", (0.5,)), length=10, stddev=20.0, clip_factor=1.0)
    >>> [query.name for query in norms.event.queries], norms.extra_events(25)[0].times
    (['norm sum', 'norms for the clip bound'], 3)

    Reference: J. Wei et al., DPIS, 2022, sections 3.3, 3.5 and 4.2; docs/proofs/dpis.md.
    """

    controls = "bounds"
    adaptive = True

    ratios: Schedule
    length: int
    stddev: float
    cautious: float = 0.8
    clip_factor: float | None = None
    size_stddev: float | None = None

    def __post_init__(self) -> None:
        _validate.count("length", self.length)
        _validate.real("cautious", self.cautious, 0, 1)
        for name in ("stddev", "clip_factor", "size_stddev"):
            if (value := getattr(self, name)) is not None or name == "stddev":
                object.__setattr__(self, name, _validate.positive(name, value))

    @property
    def event(self) -> Sampled:
        """The event that is recorded before the norms of an epoch are computed."""
        names = (
            ("norm sum",) if self.clip_factor is None else ("norm sum", "norms for the clip bound")
        )
        return _of_all(*(SumQuery(1.0, self.stddev, name) for name in names))

    @property
    def size_event(self) -> Sampled | None:
        """The event that is recorded before records are counted, or None if they are not."""
        return (
            None
            if self.size_stddev is None
            else _of_all(SumQuery(1.0, self.size_stddev, "number of records"))
        )

    def extend_query(self, query: Query) -> Query:
        """Return the query unchanged; refuse all but one clipped sum."""
        if len(query.leaves) > 1:
            raise InvalidArgument(
                "Sums of norms are followed where a record has one norm; groups of parameters have "
                "several. Give clip a number."
            )
        require_clipping(query, "A sum of norms")
        return query

    def extra_events(self, steps: int) -> Envelope:
        """Return the releases of all epochs, and that of the number of records."""
        once = () if self.size_event is None else (Repeated(self.size_event, 1),)
        return (*once, Repeated(self.event, math.ceil(steps / self.length)))

    def start(self, query: Query, parameters: Mapping[str, Any]) -> State:
        """Return the planned values: nothing was released yet."""
        return {
            "since": 0,
            "ratio": self.ratios.at(1),
            "rate": None,
            "noise": 1.0,
            "clip": query.bound,
            "size": None,
        }

    def due(self, state: State, step: int) -> bool:
        """Return whether norms have to be released before a step."""
        return state["since"] == 0 or step >= state["since"] + self.length

    def configure(self, state: State, step: int, config: StepConfig) -> StepConfig:
        """Return the configuration of this epoch.

        Noise is relative to the norm of contributions, as the planned noise is.
        """
        if state["rate"] is None:
            return with_bounds(
                config, {config.query.leaves[0].name: self.ratios.at(step) * state["clip"]}
            )
        config = with_bounds(config, {config.query.leaves[0].name: state["ratio"] * state["clip"]})
        return replace(
            config,
            noise=config.noise * self.factor(state["noise"], step, state["ratio"]),
            draw=Draw(state["rate"], state["clip"]),
        )

    def factor(self, noise: float, step: int, ratio: float) -> float:
        """Convert a factor of the planned noise over the clip bound to one over contributions."""
        return noise * self.ratios.at(step) / ratio

    def clip_of(self, planned: float, mean: float) -> float:
        """Return the clip bound for a released mean of norms, in units of where they were cut."""
        widest = WIDEST_CLIP * planned
        return kept_within((self.clip_factor or 1.0) * widest * mean, _LEAST_CLIP * planned, widest)


def size_of(declared: int, released: float) -> float:
    """Return a usable number of records, whatever noise did to the released one."""
    return kept_within(released, _SIZES[0] * declared, _SIZES[1] * declared)


def _of_all(*queries: SumQuery) -> Sampled:
    """Return the event of queries on all records, which follow from outputs: it is adaptive."""
    return Sampled(Poisson(1.0), queries, adaptive=True)
