"""The ways to bound one value of a privacy profile: closed forms, composition, and simpler bounds.

The accountant decides which of them to use, in which order. It is given the methods for ε at a δ,
or those for δ at an ε, and treats both alike.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache

from dpfy.accounting import rdp
from dpfy.accounting.dominating_pairs import Pair, Pairs
from dpfy.accounting.pld import closed_forms, one_step
from dpfy.accounting.pld.bounded_range import Ranges
from dpfy.accounting.pld.compose import composed, curve
from dpfy.accounting.pld.target import Bracket, DeltaAt, EpsilonAt, Location, excess
from dpfy.types import Interval

# values of ε, in standard deviations of the loss, at which a run is composed to answer others
_FIRST_RUNG, _RUNG = 0.5, 1.5
# bounds on δ that are no further apart are not compared with those that need no composition
_CLOSE = 1.002
_LEAST_LOG_DELTA = -600.0  # float64 has no masses below

_ADDED = "by adding up ε"
_RENYI = "by Rényi divergences"
_COUNTED = "by counting participations"
_FULL_BATCH = "as if all took part in every step"

Upper = tuple[float, str]
"""An upper bound, and how it was obtained."""


class Methods(ABC):
    """The ways to bound one value of the privacy profile of a run."""

    @abstractmethod
    def at_once(self, pairs: Pairs) -> list[Bracket]:
        """Return bounds that cost nothing; if both ends are equal, nothing else is needed."""

    @abstractmethod
    def full_batch(self, mu: float) -> Interval:
        """Bound the value for a Gaussian mechanism of this μ."""

    @abstractmethod
    def one_step(self, pair: Pair) -> Interval:
        """Bound the value for one step."""

    @abstractmethod
    def compose(self, pairs: Pairs, gauss: float, accuracy: float) -> Bracket | None:
        """Bound the value by composition; None if it would leave the range of float64."""

    @abstractmethod
    def narrow(self, bracket: Bracket, accuracy: float) -> bool:
        """Tell whether a bracket is so narrow that simpler bounds cannot improve it."""

    @abstractmethod
    def renyi(self, pairs: Pairs) -> Upper:
        """Bound the value from above by Rényi divergences."""

    @abstractmethod
    def simple(self, pairs: Pairs) -> list[Upper]:
        """Bound the value from above without composition, in several ways."""

    @abstractmethod
    def attained_by(self, ranges: Ranges) -> float:
        """Return what some adaptive choice of mechanisms of bounded range costs at least."""


@dataclass(frozen=True)
class EpsilonMethods(Methods):
    """The ways to bound ε at a given δ.

    Args:
        delta: The δ.
    """

    delta: float

    def at_once(self, pairs: Pairs) -> list[Bracket]:
        """Return 0 if hardly anybody is ever drawn, and the sum of the steps' largest losses."""
        if ever_drawn(pairs) <= self.delta:
            return [Bracket(0.0, 0.0, "closed form")]
        return [Bracket(0.0, pure_epsilon(pairs), _ADDED)]

    def full_batch(self, mu: float) -> Interval:
        """Bound ε of a Gaussian mechanism."""
        return closed_forms.epsilon(mu, self.delta)

    def one_step(self, pair: Pair) -> Interval:
        """Bound ε of one step."""
        return one_step.epsilon(pair, self.delta)

    def compose(self, pairs: Pairs, gauss: float, accuracy: float) -> Bracket | None:
        """Bound ε by composition."""
        if math.log(self.delta) <= _LEAST_LOG_DELTA:
            return None
        return composed(pairs, gauss, EpsilonAt(self.delta), accuracy)

    def narrow(self, bracket: Bracket, accuracy: float) -> bool:
        """Tell whether the bracket is as narrow as asked."""
        return bracket.upper <= (1 + accuracy) * bracket.lower

    def renyi(self, pairs: Pairs) -> Upper:
        """Bound ε by Rényi divergences."""
        return rdp.epsilon_upper(pairs, self.delta).value, _RENYI

    def simple(self, pairs: Pairs) -> list[Upper]:
        """Bound ε by largest losses, Rényi divergences, participations, and full batches."""
        uppers = [(pure_epsilon(pairs), _ADDED), self.renyi(pairs)]
        if _gaussian(pairs):
            counted = closed_forms.participation_epsilon(*_worst(pairs), self.delta)
            whole = closed_forms.epsilon(_full_batch_mu(pairs), self.delta).upper
            uppers += [(counted, _COUNTED), (whole, _FULL_BATCH)]
        return uppers

    def attained_by(self, ranges: Ranges) -> float:
        """Return an ε at which some adaptive choice costs more than δ."""
        return ranges.epsilon_below(self.delta)


@dataclass(frozen=True)
class DeltaMethods(Methods):
    """The ways to bound δ at a given ε.

    Args:
        epsilon: The ε.
    """

    epsilon: float

    def at_once(self, pairs: Pairs) -> list[Bracket]:
        """Return nothing."""
        return []

    def full_batch(self, mu: float) -> Interval:
        """Bound δ of a Gaussian mechanism."""
        return closed_forms.delta_interval(mu, self.epsilon)

    def one_step(self, pair: Pair) -> Interval:
        """Bound δ of one step."""
        return one_step.delta(pair, self.epsilon)

    def compose(self, pairs: Pairs, gauss: float, accuracy: float) -> Bracket | None:
        """Bound δ by a composition kept from before, or by one for this ε."""
        return self._on_a_curve(pairs, gauss, accuracy) or composed(
            pairs, gauss, DeltaAt(self.epsilon), accuracy
        )

    def _on_a_curve(self, pairs: Pairs, gauss: float, accuracy: float) -> Bracket | None:
        """Read δ off the composition for the next larger of a few ε, if it is precise enough there.

        Which composition is read depends on ε alone, so that an answer does not depend on what was
        asked before.
        """
        spread = math.sqrt(
            gauss
            + math.fsum(
                times * min(pair.rate**2 * math.expm1(min(pair.mu**2, 50.0)), 1.0)
                for pair, times in pairs
            )
        )
        rung = (
            max(0, math.ceil(math.log(self.epsilon / (_FIRST_RUNG * spread)) / math.log(_RUNG)))
            if self.epsilon > 0
            else 0
        )
        kept = _curve(pairs, gauss, _FIRST_RUNG * spread * _RUNG**rung, accuracy)
        if kept is None:
            return None
        found = kept.delta(self.epsilon)
        location = Location(kept.bounds.above.line.tilt, self.epsilon, 0.0, self.epsilon)
        return found if excess(DeltaAt(self.epsilon), found, location, accuracy) <= 1 else None

    def narrow(self, bracket: Bracket, accuracy: float) -> bool:
        """Tell whether the bracket is narrower than simpler bounds ever are."""
        return bracket.upper <= _CLOSE * bracket.lower

    def renyi(self, pairs: Pairs) -> Upper:
        """Bound δ by Rényi divergences."""
        return rdp.delta_upper(pairs, self.epsilon).value, _RENYI

    def simple(self, pairs: Pairs) -> list[Upper]:
        """Bound δ by largest losses, Rényi divergences, participations, and full batches."""
        uppers = [
            (0.0 if pure_epsilon(pairs) <= self.epsilon else 1.0, _ADDED),
            self.renyi(pairs),
            (ever_drawn(pairs) * (1 + 1e-12), _COUNTED),
        ]
        if _gaussian(pairs):
            counted = closed_forms.participation_delta(*_worst(pairs), self.epsilon)
            whole = closed_forms.delta(_full_batch_mu(pairs), self.epsilon)
            uppers += [(counted, _COUNTED), (whole, _FULL_BATCH)]
        return uppers

    def attained_by(self, ranges: Ranges) -> float:
        """Return a δ that some adaptive choice costs."""
        return ranges.delta_below(self.epsilon)


_curve = lru_cache(maxsize=32)(curve)


def pure_epsilon(pairs: Pairs) -> float:
    """Return the sum of the steps' largest losses; ∞ if some step has none."""
    return math.fsum(times * one_step.pure_epsilon(pair) for pair, times in pairs)


def ever_drawn(pairs: Pairs) -> float:
    """Return the probability that one record takes part in any step.

    (0, that)-DP holds whatever the steps do.
    """
    return -math.expm1(
        sum(times * math.log1p(-pair.rate) if pair.rate < 1 else -math.inf for pair, times in pairs)
    )


def _gaussian(pairs: Pairs) -> bool:
    """Tell whether all noise is Gaussian."""
    return all(pair.noise == "gaussian" for pair, _ in pairs)


def _worst(pairs: Pairs) -> tuple[float, float, int]:
    """Return the largest rate, the largest μ and the number of steps."""
    return (
        max(pair.rate for pair, _ in pairs),
        max(pair.mu for pair, _ in pairs),
        sum(times for _, times in pairs),
    )


def _full_batch_mu(pairs: Pairs) -> float:
    """Return μ of the run at rate 1, which dominates it: a smaller rate is post-processing."""
    return math.sqrt(math.fsum(times * pair.mu**2 for pair, times in pairs)) * (1 + 1e-12)
