"""Filters: how steps that were chosen from earlier outputs are paid for.

Composing a realised list is a guarantee only if the list was fixed in advance. A filter is the rule
that replaces it: declared in the ledger's header before the first step, it refuses the step that
would exceed its limit, whatever led to that step; then its limit is the guarantee. The proofs are
in ``docs/proofs/filters.md``.

Tests: tests/accounting/test_filtered.py.
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, Protocol, Self

from dpfy import _validate
from dpfy.accounting import rdp
from dpfy.accounting.dominating_pairs import Pair, unsampled
from dpfy.accounting.guarantee import account
from dpfy.accounting.guards import AdditiveGuard, DominationGuard, FilterGuard
from dpfy.accounting.known_samples import as_if_known
from dpfy.accounting.solvers import brentq, minimize_scalar
from dpfy.accounting.to_pairs import Canonical, canonical
from dpfy.errors import InvalidArgument, UnsupportedEvent
from dpfy.ledger.events import (
    Envelope,
    Event,
    Fact,
    NonPrivate,
    Poisson,
    Policy,
    Repeated,
    Sampled,
    SumQuery,
    run_lengths,
)
from dpfy.ledger.individual import FilteredPoisson, group_names
from dpfy.types import Interval, Relation

# of a limit that is itself a parameter: steps that fill it exactly fit, and claims include it
_ROUNDING = 1e-12
_UP = 1 + 1e-15
_LOG_ORDERS = (math.log(1e-4), math.log(1e6))  # of order − 1
_TUNED_LOG_ORDERS = tuple(math.log(0.1) + math.log(1e4) * step / 100 for step in range(101))


class Profile(Protocol):
    """ε for every δ, and the other way round, of everything that a filter may admit."""

    def epsilon(self, delta: float) -> Interval:
        """Return the bracket of ε at ``delta``."""

    def delta(self, epsilon: float) -> Interval:
        """Return the bracket of δ at ``epsilon``."""


class Filter(Fact):
    """A limit on what steps that are chosen from earlier outputs may cost.

    It goes into ``Header.filter`` when the ledger is created.

    >>> Filter.from_json(GaussianFilter(mu=0.5).to_json())
    GaussianFilter(mu=0.5, numerical_delta=0.0)
    """

    title: ClassVar[str]
    reference: ClassVar[str]
    rewards_sampling: ClassVar[bool]  # if not, the limit holds for full batches too
    remark: ClassVar[str] = ""  # what a report has to say of it besides
    numerical_delta: float

    @property
    def set_aside(self) -> float:
        """The δ kept for the arithmetic of the steps; ``numerical_delta`` of it may be used."""
        return self.numerical_delta * (1 + _ROUNDING)

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Return the filter that :meth:`to_json` wrote."""
        if isinstance(value, dict) and isinstance(value.get("envelope"), list):
            value = {
                **value,
                "envelope": tuple(Repeated.from_json(run) for run in value["envelope"]),
            }
        return super().from_json(value)

    def sampling_for(self, policy: Policy) -> Policy:
        """Return the policy by which a plan draws under this filter, given what it drew by."""
        return Poisson(policy.rate) if isinstance(policy, FilteredPoisson) else policy

    @abstractmethod
    def guard(self, relation: Relation | str = Relation.ADD_OR_REMOVE_ONE) -> FilterGuard:
        """Return a fresh guard that enforces this filter for ``relation``."""

    @abstractmethod
    def profile(self, method: str, relation: Relation, accuracy: float) -> Profile:
        """Return what holds for everything that the guard may admit, numerical δ aside.

        ``method`` and ``accuracy`` are those of :func:`~dpfy.accounting.account`, for filters that
        compose a list.
        """


class Additive(Filter):
    """A filter over costs that add up along every path, which admits steps within one limit."""

    rules: ClassVar[str] = "pld"  # the table that turns a step into its pair
    gaussian_only: ClassVar[bool] = False  # whether other noise has no cost here

    @property
    @abstractmethod
    def limits(self) -> tuple[float, ...]:
        """The limit of each coordinate of the cost."""

    @abstractmethod
    def cost(self, pair: Pair) -> tuple[float, ...]:
        """Return an upper bound on what one step costs in each coordinate."""

    @abstractmethod
    def profile_of(self, share: float) -> Profile:
        """Return what would hold if the limit were this share of what it is."""

    def profile(self, method: str, relation: Relation, accuracy: float) -> Profile:
        """Return what the limit implies."""
        return self.profile_of(1.0)

    def guard(self, relation: Relation | str = Relation.ADD_OR_REMOVE_ONE) -> AdditiveGuard:
        """Return a guard that has spent nothing yet."""
        relation = Relation(_validate.choice("relation", relation, tuple(Relation)))
        return AdditiveGuard(
            description(self, relation),
            self.limits,
            lambda event: step_cost(self, event, relation),
            self.set_aside,
            lambda event: event.numerical_delta + left_out(self, event, relation),
        )


@dataclass(frozen=True)
class RenyiFilter(Additive, tag="renyi_filter"):
    """Admit steps while their Rényi divergences at one fixed order fit into (ε, δ).

    *Formal guarantee*: whatever is admitted, in any adaptive order, is (``epsilon``,
    ``delta``)-differentially private. Each of the orders is given an equal part of δ; taking the
    best order *afterwards* would need no parts and is not sound. Without ``orders`` it is the one
    that affords the most full-batch steps; :meth:`tuned` finds the one for a run with sampling.

    ``numerical_delta`` is set aside for what arithmetic adds to δ, and for the part of a
    selection's runs that no order knows: its number of runs times what arithmetic adds to one.

    Args:
        epsilon: ε, above 0.
        delta: δ, between 0 and 1, both excluded.
        orders: The Rényi orders, above 1; by default the one that is best for full batches.
        numerical_delta: The δ to set aside, at most half of ``delta``; 0 by default.

    Raises:
        InvalidArgument: An argument is out of range, or an order leaves nothing to spend.

    Reference: Feldman & Zrnic 2021; Lécuyer 2021; several orders: ``docs/proofs/filters.md``.

    >>> step = Sampled(Poisson(0.01), (SumQuery(1.0, 1.0),), adaptive=True)
    >>> guard = RenyiFilter.tuned(epsilon=2.0, delta=1e-5, to=(Repeated(step, 500),)).guard()
    >>> guard.admit(step, 500)
    """

    title: ClassVar[str] = "Rényi filter"
    reference: ClassVar[str] = "Feldman & Zrnic 2021; Lécuyer 2021"
    rewards_sampling: ClassVar[bool] = True
    rules: ClassVar[str] = "rdp"

    epsilon: float
    delta: float
    orders: tuple[float, ...] = ()
    numerical_delta: float = 0.0

    def __post_init__(self) -> None:
        _validate.epsilon(self.epsilon)
        _validate.delta(self.delta)
        _validate.real("numerical_delta", self.numerical_delta, 0, self.delta / 2)
        orders = self.orders or (_best_order(self.epsilon, self.delta - self.set_aside),)
        for order in orders:
            _validate.real("order", order, 1, math.inf, open_low=True, open_high=True)
        object.__setattr__(self, "orders", tuple(sorted(map(float, set(orders)))))
        for order, limit in zip(self.orders, self.limits, strict=True):
            if limit <= 0:
                raise InvalidArgument(
                    f"Expected orders that leave something to spend: order {order:g} alone "
                    f"converts to more than epsilon={self.epsilon:g} at its part of delta. Use "
                    "larger orders."
                )

    @classmethod
    def tuned(
        cls,
        epsilon: float,
        delta: float,
        to: Envelope,
        relation: Relation | str = Relation.ADD_OR_REMOVE_ONE,
    ) -> Self:
        """Return the filter at the one order that affords most of the steps expected in ``to``.

        Any order is sound as long as it is fixed before the first output; expecting other steps
        than will be taken makes it stop earlier, never leak more.

        Args:
            epsilon: ε, above 0.
            delta: δ, between 0 and 1, both excluded.
            to: The steps expected.
            relation: The neighbouring relation; adding or removing one record by default.

        Returns:
            The filter.

        Raises:
            InvalidArgument: ``epsilon`` or ``delta`` is out of range.
            UnsupportedEvent: An event has no Rényi rule.
        """
        cls(epsilon, delta)  # refuses bad values
        fixed = tuple(Repeated(as_fixed(run.event), run.times) for run in to)
        pairs = canonical(fixed, cls.rules, Relation(relation)).pairs

        def used(log_order: float) -> float:
            order = 1 + math.exp(log_order)
            limit = _renyi_limit(order, epsilon, delta)
            cost = math.fsum(times * rdp.renyi_divergence(pair, order) for pair, times in pairs)
            return cost / limit if limit > 0 else math.inf

        least = min(_TUNED_LOG_ORDERS, key=used)
        return cls(epsilon, delta, (float(f"{1 + math.exp(least):.3g}"),))

    @property
    def limits(self) -> tuple[float, ...]:
        """The divergence at each order that converts to ε at that order's part of δ.

        Reference: Canonne, Kamath & Steinke 2020, Proposition 12.
        """
        part = (self.delta - self.set_aside) / len(self.orders)
        return tuple(_renyi_limit(order, self.epsilon, part) for order in self.orders)

    def cost(self, pair: Pair) -> tuple[float, ...]:
        """Return the divergence at each order."""
        return tuple(rdp.renyi_divergence(pair, order) for order in self.orders)

    def profile_of(self, share: float) -> Profile:
        """Return the sum of what a share of each order's limit implies, for every ε."""
        return _RenyiProfile(self.orders, tuple(share * limit for limit in self.limits))


@dataclass(frozen=True)
class ZcdpFilter(Additive, tag="zcdp_filter"):
    """Admit steps while Σ 1/(2z²) ≤ ρ.

    An ε-DP step costs ε²/2, and an exponential mechanism ε²/8.

    *Formal guarantee*: whatever is admitted, in any adaptive order, is ρ-zCDP, hence (ε,
    δ)-differentially private for all δ at once. Sampling is not rewarded: a step costs what it does
    on the full batch. Where every step is Gaussian, :class:`GaussianFilter` claims less for the
    same steps.

    Args:
        rho: ρ, above 0.
        numerical_delta: The δ to set aside for arithmetic, from 0 to 1; 0 by default.

    Raises:
        InvalidArgument: ``rho`` or ``numerical_delta`` is out of range.

    Reference: Feldman & Zrnic 2021; zCDP: Bun & Steinke 2016.

    >>> guard = ZcdpFilter(rho=0.5).guard()
    >>> guard.admit(Sampled(Poisson(1.0), (SumQuery(1.0, 2.0),), adaptive=True), 4)
    """

    title: ClassVar[str] = "zCDP filter"
    reference: ClassVar[str] = "Feldman & Zrnic 2021; zCDP: Bun & Steinke 2016"
    rewards_sampling: ClassVar[bool] = False

    rho: float
    numerical_delta: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "rho", _validate.positive("rho", self.rho))
        _validate.real("numerical_delta", self.numerical_delta, 0, 1, open_high=True)

    @classmethod
    def within(cls, epsilon: float, delta: float) -> Self:
        """Return the filter with the largest ρ whose claim at ``delta`` is at most ``epsilon``.

        Args:
            epsilon: ε, above 0.
            delta: δ, between 0 and 1, both excluded.

        Returns:
            The filter.

        Raises:
            InvalidArgument: ``epsilon`` or ``delta`` is out of range.

        >>> round(ZcdpFilter.within(epsilon=1.0, delta=1e-9).rho, 4)
        0.015
        """
        epsilon = _validate.epsilon(epsilon)
        _validate.delta(delta)

        def excess(log_rho: float) -> float:
            return cls(math.exp(log_rho)).profile_of(1.0).epsilon(delta).upper - epsilon

        root = brentq(excess, math.log(epsilon) - 60, math.log(epsilon + 100), xtol=1e-9)
        return cls(math.exp(root - 1e-8))

    @property
    def limits(self) -> tuple[float, ...]:
        """ρ."""
        return (self.rho * (1 + _ROUNDING),)

    def cost(self, pair: Pair) -> tuple[float, ...]:
        """Return 1/(2z²), or four times that where a record may be replaced by its opposite.

        It is ε²/2 for what is ε-DP, and what other loss distributions know of themselves.
        """
        return ((pair.mu**2 / 2 if pair.distribution is None else pair.distribution.zcdp) * _UP,)

    def profile_of(self, share: float) -> Profile:
        """Return the best conversion of a share of ρ over all orders."""
        return _ZcdpProfile(share * self.limits[0])


@dataclass(frozen=True)
class GaussianFilter(Additive, tag="gaussian_filter"):
    """Admit steps while Σ 1/z² ≤ μ².

    *Formal guarantee*: whatever is admitted, in any adaptive order, is exactly as private as one
    Gaussian sum with noise 1/μ: μ-GDP, with nothing lost to adaptivity. Sampling is not rewarded: a
    step costs what it does on the full batch.

    Args:
        mu: μ, above 0.
        numerical_delta: The δ to set aside for arithmetic, from 0 to 1; 0 by default.

    Raises:
        InvalidArgument: ``mu`` or ``numerical_delta`` is out of range.

    Reference: Smith & Thakurta 2022; Koskela, Tobaben & Honkela 2023.

    >>> guard = GaussianFilter(mu=1.0).guard()
    >>> guard.admit(Sampled(Poisson(1.0), (SumQuery(1.0, 3.0),), adaptive=True), 9)
    """

    title: ClassVar[str] = "Gaussian filter"
    gaussian_only: ClassVar[bool] = True
    reference: ClassVar[str] = "Smith & Thakurta 2022; Koskela, Tobaben & Honkela 2023"
    rewards_sampling: ClassVar[bool] = False

    mu: float
    numerical_delta: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "mu", _validate.positive("mu", self.mu))
        _validate.real("numerical_delta", self.numerical_delta, 0, 1, open_high=True)

    @classmethod
    def within(cls, epsilon: float, delta: float) -> Self:
        """Return the filter with the largest μ whose claim at ``delta`` is at most ``epsilon``.

        Args:
            epsilon: ε, above 0.
            delta: δ, between 0 and 1, both excluded.

        Returns:
            The filter.

        Raises:
            InvalidArgument: ``epsilon`` or ``delta`` is out of range.

        >>> round(GaussianFilter.within(epsilon=1.0, delta=1e-5).mu, 4)
        0.268
        """
        from dpfy.accounting.calibrate import calibrate_noise  # it builds on guarantees

        noise = calibrate_noise(epsilon=epsilon, delta=delta, rate=1.0, steps=1)
        return cls(1 / noise / (1 + 1e-8))  # the guard admits a trillionth more

    @property
    def limits(self) -> tuple[float, ...]:
        """μ²."""
        return (self.mu**2 * (1 + _ROUNDING),)

    def cost(self, pair: Pair) -> tuple[float, ...]:
        """Return 1/z², or four times that where a record may be replaced by its opposite."""
        return (pair.mu**2 * _UP,)

    def profile_of(self, share: float) -> Profile:
        """Return the guarantee of the one Gaussian sum that a share of μ² pays for."""
        mu = math.sqrt(share * self.limits[0])
        one_sum = Sampled(Poisson(1.0), (SumQuery(1.0, 1 / mu),) if mu else ())
        return account(one_sum, "pld", Relation.ADD_OR_REMOVE_ONE)


@dataclass(frozen=True)
class DominatedBy(Filter, tag="dominated_by"):
    """Admit steps that have at most the rate and at least the noise of committed ones.

    The steps are compared one by one with a list that is fixed in advance.

    *Formal guarantee*: whatever is admitted, in any adaptive order, is dominated by the committed
    list, whose composition by PLD or RDP is then the guarantee.

    *Assumes* that a smaller rate and more noise are post-processing, as they are for Poisson
    samples with Gaussian noise.

    Args:
        envelope: The committed list, in order.

    Raises:
        InvalidArgument: A committed step is not private, is adaptive, or has groups of records.

    Reference: adaptive composition of dominating pairs, Zhu, Dong & Wang 2022.

    >>> def step(rate, noise):
    ...     return Sampled(Poisson(rate), (SumQuery(1.0, noise),))
    >>> guard = DominatedBy((Repeated(step(0.1, 1.0), 2),)).guard()
    >>> guard.admit(step(0.05, 1.5), 1)
    """

    title: ClassVar[str] = "domination filter"
    reference: ClassVar[str] = "adaptive composition of dominating pairs: Zhu, Dong & Wang 2022"
    rewards_sampling: ClassVar[bool] = True

    envelope: Envelope

    def __post_init__(self) -> None:
        object.__setattr__(self, "envelope", run_lengths(self.envelope))
        if any(isinstance(run.event, NonPrivate) or run.event.adaptive for run in self.envelope):
            raise InvalidArgument(
                "Expected the committed list to hold steps that are private and not adaptive: it "
                "is fixed before the first output."
            )
        if names := group_names(self.envelope):
            raise InvalidArgument(
                "A filter gives one guarantee to every record, and the committed list has groups "
                f"with one each ({', '.join(names)}). Commit to event_of_group of one of them."
            )

    @property
    def numerical_delta(self) -> float:  # type: ignore[override]
        """0: the committed steps carry their own."""
        return 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the filter as plain JSON values."""
        return {"type": self.tag, "envelope": [run.to_json() for run in self.envelope]}

    def guard(self, relation: Relation | str = Relation.ADD_OR_REMOVE_ONE) -> DominationGuard:
        """Return a guard at the first committed step."""
        relation = Relation(_validate.choice("relation", relation, tuple(Relation)))
        return DominationGuard(description(self, relation), self.envelope)

    def profile(self, method: str, relation: Relation, accuracy: float) -> Profile:
        """Return the guarantee of the committed list."""
        return account(self.envelope, method, relation, accuracy=accuracy)


@dataclass(frozen=True)
class _RenyiProfile:
    """The profile that a limit at each of several orders implies.

    On every path one of the limits is kept, so their δ add up.
    """

    orders: tuple[float, ...]
    limits: tuple[float, ...]

    def delta(self, epsilon: float) -> Interval:
        """Return the bracket of δ at ``epsilon``."""
        logs = (
            _log_delta(order, limit, epsilon)
            for order, limit in zip(self.orders, self.limits, strict=True)
        )
        return Interval(
            0.0, min(1.0, math.fsum(math.exp(min(0.0, value)) for value in logs) * (1 + _ROUNDING))
        )

    def epsilon(self, delta: float) -> Interval:
        """Return the bracket of ε at ``delta``."""
        part = delta / len(self.orders)
        ceiling = max(
            renyi_epsilon(order, limit, part)
            for order, limit in zip(self.orders, self.limits, strict=True)
        )
        if ceiling <= 0 or self.delta(0.0).upper <= delta:
            return Interval(0.0, 0.0)
        if (
            self.delta(ceiling).upper >= delta
        ):  # up to rounding they are equal where every order has the same part
            return Interval(0.0, ceiling)
        root = float(
            brentq(lambda value: self.delta(value).upper - delta, 0.0, ceiling, xtol=1e-12)
        )
        return Interval(0.0, min(ceiling, root + 2e-12))


@dataclass(frozen=True)
class _ZcdpProfile:
    """The profile of ρ-zCDP: the best of all orders, with a divergence of order·ρ at each."""

    rho: float

    def delta(self, epsilon: float) -> Interval:
        """Return the bracket of δ at ``epsilon``."""
        best = _best(lambda order: _log_delta(order, order * self.rho, epsilon))
        return Interval(0.0, math.exp(min(0.0, best)) * (1 + _ROUNDING))

    def epsilon(self, delta: float) -> Interval:
        """Return the bracket of ε at ``delta``."""
        return Interval(
            0.0, max(0.0, _best(lambda order: renyi_epsilon(order, order * self.rho, delta)))
        )


def renyi_epsilon(order: float, divergence: float, delta: float) -> float:
    """Return ε at ``delta`` of a divergence (Canonne, Kamath & Steinke 2020, Proposition 12)."""
    return divergence + math.log1p(-1 / order) - math.log(delta * order) / (order - 1)


def _log_delta(order: float, divergence: float, epsilon: float) -> float:
    """Return log δ at ``epsilon`` by the same proposition."""
    return (order - 1) * (divergence - epsilon + math.log1p(-1 / order)) - math.log(order)


def _renyi_limit(order: float, epsilon: float, delta: float) -> float:
    """Return the divergence whose ε at ``delta`` is ``epsilon``, rounded down."""
    overhead = renyi_epsilon(order, 0.0, delta)
    return epsilon - overhead - 4e-15 * (epsilon + abs(overhead))


def _best_order(epsilon: float, delta: float) -> float:
    """Return the order at which (ε, δ) affords the largest Σ 1/z² on full batches, to 3 digits."""
    log_order = float(
        minimize_scalar(
            lambda value: (
                -_renyi_limit(1 + math.exp(value), epsilon, delta) / (1 + math.exp(value))
            ),
            bounds=_LOG_ORDERS,
            method="bounded",
        ).x
    )
    return float(f"{1 + math.exp(log_order):.3g}")


def _best(bound: Callable[[float], float]) -> float:
    """Return the least ``bound`` over the orders; each is valid, so any search will do."""
    return float(
        minimize_scalar(
            lambda value: bound(1 + math.exp(value)),
            bounds=_LOG_ORDERS,
            method="bounded",
            options={"xatol": 1e-9},
        ).fun
    )


def description(rule: Filter, relation: Relation) -> dict[str, Any]:
    """Return what a guard says of the filter that it enforces."""
    return {"name": "filter", "filter": rule.to_json(), "relation": str(relation)}


def as_fixed(event: Event) -> Event:
    """Return the same step without the mark that it was chosen from outputs."""
    return replace(event, adaptive=False) if event.adaptive else event  # type: ignore[type-var]


@lru_cache(maxsize=4096)
def _found(rule: Additive, event: Event, relation: Relation) -> Canonical:
    """Return one step, adaptive or not, as accountants see it.

    A filter that does not reward sampling takes samples for known where they may be cut. So it owes
    nothing for cuts, also where a loss distribution includes the rate.
    """
    fixed = as_fixed(event)
    if fixed.at_most is not None:
        raise UnsupportedEvent(
            f"A {rule.tag!r} adds up what each step costs by itself, and events of the kind "
            f"{fixed.tag!r} are paid for together. Reserve the stream as one event, or use a "
            "ledger without a filter."
        )
    found = canonical((Repeated(fixed, 1),), rule.rules, relation)
    if found.failure > 0 and not rule.rewards_sampling:
        found = canonical((Repeated(as_if_known(fixed), 1),), rule.rules, relation)
    return found


def left_out(rule: Additive, event: Event, relation: Relation) -> float:
    """Return the mass that is set apart from one step before its cost is taken: a part of δ.

    Reference: ``docs/proofs/filters.md``.
    """
    return 0.0 if isinstance(event, NonPrivate) else _found(rule, event, relation).failure


@lru_cache(maxsize=4096)
def step_cost(rule: Additive, event: Event, relation: Relation) -> tuple[float, ...]:
    """Return the cost of one step, adaptive or not; ∞ without any protection."""
    if isinstance(event, NonPrivate):
        return tuple(math.inf for _ in rule.limits)
    found = _found(rule, event, relation)
    if found.unprotected > 0:
        return tuple(math.inf for _ in rule.limits)
    pairs = found.pairs if rule.rewards_sampling else unsampled(found.pairs)
    if rule.gaussian_only and any(pair.noise != "gaussian" for pair, _ in pairs):
        raise UnsupportedEvent(
            f"A {rule.tag!r} has costs for sums with Gaussian noise only. Use ZcdpFilter or "
            "RenyiFilter."
        )
    costs = [[times * cost for cost in rule.cost(pair)] for pair, times in pairs]
    return (
        tuple(math.fsum(column) * _UP for column in zip(*costs, strict=True))
        if costs
        else (0.0,) * len(rule.limits)
    )
