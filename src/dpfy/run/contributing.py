"""Follow the share of records that contribute, and warn when it is too low to be chance.

A record that cannot be loaded, or whose loss or gradient is not finite, contributes nothing, and
nobody is told. If all records are like that, a run trains on pure noise. Counts that were released
with noise, and paid for, can tell.
"""

import math
from typing import Any

from dpfy.errors import InvalidArgument
from dpfy.ledger.events import Cyclic, CyclicPoisson, Shuffled, TruncatedPoisson
from dpfy.mechanisms.query import Contributing
from dpfy.plans import Plan
from dpfy.run.released import Released

LOW = 0.9
_FALSE_ALARM = 1e-6  # in a run, at whatever step
_WIDENED = 1.1  # by how much arithmetic may widen the noise beyond the plan's, generously


class ContributingShare:
    """Follow what steps release of :class:`dpfy.Contributing`, and warn once when it is low.

    Args:
        plan: a plan that releases :class:`dpfy.Contributing`.

    Raises:
        InvalidArgument: if the plan does not release it.

    *Formal guarantee*: it sees released values alone. If at least nine tenths of the declared
    records contribute at every step, :meth:`observe` speaks in the course of a whole run with a
    probability below 10⁻⁶: the noise and the random size of samples are allowed for. Proof:
    docs/proofs/queries.md.

    >>> import dpfy, torch
    >>> plan = dpfy.dpsgd(
    ...     records=1000, batch_size=100, steps=5, statistics=[dpfy.Contributing()]
    ... )
    >>> share = ContributingShare(plan)
    >>> released = Released({}, 1, {"contributing": torch.tensor(0.02)}, noise_multiplier=1.0)
    >>> text = share.observe(released)
    >>> text[:32], round(share.upper, 2)
    ('Only about 2% of the expected re', 0.82)
    """

    def __init__(self, plan: Plan) -> None:
        found = [each for each in plan.query.statistics if isinstance(each, Contributing)]
        if not found:
            raise InvalidArgument(
                "The plan does not release how many records contribute. Make it with "
                "statistics=[dpfy.Contributing()]."
            )
        self._statistic, self._plan, self._told = found[0], plan, False
        self._expected = _expected_sample(plan)
        self._counted, self._variance, self._steps = 0.0, 0.0, 0

    @property
    def mean(self) -> float | None:
        """The mean released share of the expected sample; None before there is one."""
        return (
            self._counted / (self._steps * self._expected)
            if self._steps and self._expected > 0
            else None
        )

    @property
    def upper(self) -> float:
        """An upper bound of the share, at any time, but for a probability of 10⁻⁶; ∞ at first."""
        if self.mean is None:
            return math.inf
        # The lower tail of a sample's size is no heavier than that of a Gaussian whose variance is
        # the mean (Chernoff). All steps together have 10⁻⁶, of which step t has the part 1/(t(t +
        # 1)).
        likely = math.log(self._steps * (self._steps + 1) / _FALSE_ALARM)
        return (self._counted + math.sqrt(2 * self._variance * likely)) / (
            self._steps * self._expected
        )

    def observe(self, released: Released) -> str | None:
        """Take in what a step released.

        Args:
            released: what left the step.

        Returns:
            A warning if hardly any record contributes, once; otherwise None.
        """
        value = released.statistics.get(self._statistic.name)
        if value is None:
            return None
        noise = _WIDENED * released.noise_multiplier * self._plan.query.sum_scale(self._statistic)
        self._counted += float(value) * self._plan.divisor
        self._variance += self._plan.expected_batch + noise**2
        self._steps += 1
        if self._told or self.upper >= LOW:
            return None
        self._told = True
        return self._text()

    def _text(self) -> str:
        assert self.mean is not None  # something was released
        return (
            f"Only about {max(0.0, self.mean):.0%} of the expected records contributed so far, "
            f"surely less than {math.ceil(100 * self.upper)}% (a noisy count that is paid for). "
            "The others fail to load or have no finite gradient, and are left out. Usual causes: "
            "labels outside the classes, token ids beyond the vocabulary, columns of NaN, another "
            "shape than the declared example, fewer records than declared. The owner of the data "
            "can look at them with `dpfy inspect-data`."
        )

    def state_dict(self) -> dict[str, Any]:
        """Return what was released so far, as plain numbers."""
        return {"counted": self._counted, "variance": self._variance, "steps": self._steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self._counted, self._variance, self._steps = (
            state["counted"],
            state["variance"],
            state["steps"],
        )


def _expected_sample(plan: Plan) -> float:
    """Return how many records a sample has in expectation, or somewhat fewer.

    A truncated sample has at most its capacity c: E min(N, c) is at least min(E N, c) − √(E N)/2,
    by the mean deviation of N. Batches of an epoch have no more than all records, and the smallest
    comes last; parts that take turns differ by one record.
    """
    expected = plan.expected_batch
    match plan.sampling:
        case TruncatedPoisson(capacity=capacity):
            return min(expected, capacity) - math.sqrt(expected) / 2
        case Cyclic(records=records) | Shuffled(records=records):
            return records / plan.sampling.steps_per_event
        case CyclicPoisson(chance, parts, records):
            return chance * (records // parts)
    return expected
