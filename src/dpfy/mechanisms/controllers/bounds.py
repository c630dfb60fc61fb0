"""Clip bounds that follow released statistics of the gradients' norms.

Tests: tests/mechanisms/controllers/test_controllers.py.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from dpfy import _validate
from dpfy.errors import InvalidArgument
from dpfy.mechanisms.controllers.base import (
    Controller,
    Outcome,
    State,
    StepConfig,
    by_name,
    kept_within,
    require_clipping,
    with_bounds,
    with_limits,
    with_statistic,
)
from dpfy.mechanisms.query import Query, RecordNormsBelow, SumOfRecordNorms

_BELOW, _NORMS = "below the clip bound", "norms for the clip bound"


@dataclass(frozen=True)
class QuantileClipping(Controller, tag="quantile_clipping"):
    """Moves every clip bound to a quantile of the gradients' norms.

    The rule is C ← C·exp(−learning_rate·(b − quantile)), where b is the noisy share of records in
    the sample whose norm is at most C. The bounds of the plan are the first ones; with groups
    (:func:`dpfy.clip_groups`) each has a bound of its own.

    *Formal guarantee*: that of the plan. The K shares are centred, so a record moves them by √K/2;
    they take ``share`` of the noise budget, σ_b = (z/2)·√(K/share), and leave the gradients the
    noise multiplier z/√(1 − share) = (z⁻² − K/(2σ_b)²)^-½. The bounds are post-processing of what
    was released, and the noise is in proportion to them.

    Args:
        quantile: The share of records that should have a norm of at most the bound, in [0, 1].
        learning_rate: The step size in the logarithm of the bound, above zero.
        share: The part of the noise budget that releases the shares of norms, in (0, 1).
        every: The number of steps between two releases of these shares, at least 1.
        allocation: How groups share the noise: ``"equal"`` gives each the same share of the budget
            and noise in proportion to its bound, ``"global"`` the same noise to all coordinates.
        rescale: Whether the bounds keep the sum of squares that they have in the plan, so that the
            quantiles decide about their ratios only.

    Raises:
        InvalidArgument: If an argument is out of its range.

    >>> from dpfy.plans import dpsgd
    >>> quantile = QuantileClipping(0.5)
    >>> plan = dpsgd(
    ...     rate=0.01, divisor=600, steps=100, noise_multiplier=1.0, controllers=[quantile]
    ... )
    >>> [query.name for query in plan.event.queries]
    ['gradient', 'below the clip bound']

    Reference: G. Andrew et al., Differentially Private Learning with Adaptive Clipping, 2021,
    Algorithm 1; groups: J. He et al., Exploring the Limits of Differentially Private Deep Learning
    with Group-wise Clipping, 2023, Algorithm 1.
    """

    controls = "bounds"

    quantile: float = 0.5
    learning_rate: float = 0.2
    share: float = 0.01
    every: int = 1
    allocation: Literal["equal", "global"] = "equal"
    rescale: bool = False

    def __post_init__(self) -> None:
        _validate.real("quantile", self.quantile, 0, 1)
        _validate.positive("learning_rate", self.learning_rate)
        _validate.real("share", self.share, 0, 1, open_low=True, open_high=True)
        _validate.count("every", self.every)
        _validate.choice("allocation", self.allocation, ("equal", "global"))

    def extend_query(self, query: Query) -> Query:
        """Return the query with the shares of norms below the bounds."""
        require_clipping(query, "Quantile clipping")
        if self.allocation == "global":
            query = replace(query, pooled=True)
        bounds = by_name(query.leaves)
        return with_statistic(
            query,
            RecordNormsBelow(
                name=_BELOW,
                thresholds=tuple(bounds.values()),
                of=tuple(bounds),
                every=self.every,
                share=self.share,
            ),
        )

    def start(self, query: Query, parameters: Mapping[str, Any]) -> State:
        """Return the bounds of the plan."""
        bounds = by_name(query.leaves)
        return {"bounds": bounds, "norm": math.hypot(*bounds.values())}

    def configure(self, state: State, step: int, config: StepConfig) -> StepConfig:
        """Return the configuration with the present bounds, which are the thresholds too."""
        bounds = state["bounds"]
        config = with_bounds(config, bounds)
        if self.allocation == "global":
            total = math.fsum(bound**2 for bound in bounds.values())
            leaves = tuple(
                replace(leaf, share=leaf.bound**2 / total) for leaf in config.query.leaves
            )
            config = replace(config, query=replace(config.query, leaves=leaves))
        return with_limits(
            config, _BELOW, lambda below: replace(below, thresholds=tuple(bounds.values()))
        )

    def update(self, state: State, released: Outcome) -> State:
        """Return the bounds after a step of gradient descent in their logarithms."""
        if _BELOW not in released.statistics:
            return state
        below = (released.statistics[_BELOW] + 0.5).tolist()
        bounds = {
            name: _moved(bound, self.learning_rate * (self.quantile - share))
            for (name, bound), share in zip(state["bounds"].items(), below, strict=True)
        }
        if self.rescale:
            factor = state["norm"] / math.hypot(*bounds.values())
            bounds = {name: kept_within(bound * factor) for name, bound in bounds.items()}
        return {**state, "bounds": bounds}


@dataclass(frozen=True)
class MeanNormClipping(Controller, tag="norm_clipping"):
    """Sets every clip bound to a multiple of the mean norm of the gradients of the step before.

    The rule is C = factor·(mean of min(‖g‖, L)), with noise in the mean, where a norm counts up to
    L = limit·(present bound). It is made for groups (:func:`dpfy.clip_groups`); a flat clip is a
    single group. The first step has the plan's bounds, and no bound leaves [least, most] times its
    first one.

    *Formal guarantee*: that of the plan. A record moves the K sums of norms, each in units of its
    limit, by √K; they take ``share`` of the noise budget: σ_n = z·√(K/share) in these units. The
    bounds are post-processing of what was released, and the noise is in proportion to them.

    Args:
        factor: The clip bound over the mean norm, above zero.
        limit: The largest norm that counts in full, as a factor of the present bound, above zero.
        share: The part of the noise budget that releases the sums of norms, in (0, 1).
        least: The least bound as a factor of the first one, above zero.
        most: The largest bound as a factor of the first one, at least ``least``.

    Raises:
        InvalidArgument: If an argument is out of its range.

    >>> from dpfy.plans import dpsgd
    >>> clipping = MeanNormClipping()
    >>> plan = dpsgd(
    ...     rate=0.01, divisor=600, steps=100, noise_multiplier=1.0, controllers=[clipping]
    ... )
    >>> [query.name for query in plan.event.queries]
    ['gradient', 'norms for the clip bound']

    Reference: K. van der Veen et al., Three Tools for Practical Differential Privacy, 2018, section
    2.
    """

    controls = "bounds"

    factor: float = 1.0
    limit: float = 2.0
    share: float = 0.01
    least: float = 0.01
    most: float = 100.0

    def __post_init__(self) -> None:
        for name in ("factor", "limit", "least", "most"):
            _validate.positive(name, getattr(self, name))
        _validate.real("share", self.share, 0, 1, open_low=True, open_high=True)
        if self.least > self.most:
            raise InvalidArgument(
                f"Expected least={self.least!r} to be at most most={self.most!r}."
            )

    def extend_query(self, query: Query) -> Query:
        """Return the query with the sums of norms."""
        require_clipping(query, "Norm-based clipping")
        bounds = by_name(query.leaves)
        return with_statistic(
            query,
            SumOfRecordNorms(
                name=_NORMS, limits=self._limits(bounds), of=tuple(bounds), share=self.share
            ),
        )

    def start(self, query: Query, parameters: Mapping[str, Any]) -> State:
        """Return the bounds of the plan."""
        return {"first": by_name(query.leaves), "bounds": by_name(query.leaves)}

    def configure(self, state: State, step: int, config: StepConfig) -> StepConfig:
        """Return the configuration with the present bounds and limits of norms."""
        limits = self._limits(state["bounds"])
        return with_limits(
            with_bounds(config, state["bounds"]),
            _NORMS,
            lambda norms: replace(norms, limits=limits),
        )

    def update(self, state: State, released: Outcome) -> State:
        """Return bounds in proportion to the released means."""
        means = released.statistics[_NORMS].tolist()
        bounds = {
            name: kept_within(
                self.factor * self.limit * bound * mean,
                self.least * state["first"][name],
                self.most * state["first"][name],
            )
            for (name, bound), mean in zip(state["bounds"].items(), means, strict=True)
        }
        return {**state, "bounds": bounds}

    def _limits(self, bounds: Mapping[str, float]) -> tuple[float, ...]:
        """Return the largest norms that count in full."""
        return tuple(self.limit * bound for bound in bounds.values())


def _moved(bound: float, logarithm: float) -> float:
    """Return bound·e^logarithm, which noise cannot make overflow."""
    return kept_within(bound * math.exp(min(max(logarithm, -50.0), 50.0)))
