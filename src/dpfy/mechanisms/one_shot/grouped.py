"""One answer for groups of records with budgets of their own: samples, partitions and choices.

Each declaration names an event by which every group is accounted for itself. The proofs are in
``docs/proofs/personalised.md``.

Tests: tests/mechanisms/one_shot/test_grouped.py, tests/mechanisms/one_shot/test_personalised.py.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dpfy import _validate
from dpfy.errors import InvalidArgument, UnsupportedEvent
from dpfy.ledger import Ledger
from dpfy.ledger.composite_events import Parallel
from dpfy.ledger.events import LaplaceSum, Poisson, RecordedQuery, Sampled
from dpfy.ledger.one_shot import Bounded, ExponentialChoice, ListedChoice
from dpfy.mechanisms.one_shot.base import Mechanism, release, stream_for
from dpfy.mechanisms.one_shot.budgets import Budgets
from dpfy.mechanisms.one_shot.choices import ExponentialMechanism
from dpfy.mechanisms.sampling.individual import IndividualSampler
from dpfy.noise import SecureStream

Indices = npt.NDArray[np.int64]
Compute = Callable[[Indices], Any]

_ROUNDED = 1 + 1e-14  # what is added to an ε when it is rounded up
_PRICE_BITS, _MOST = 20, 2**31  # of the smallest price, and the largest one


@dataclass(frozen=True)
class PersonalisedSample:
    """A mechanism on a sample in which the records of strict groups are less likely to be.

    A record of a group with budget ε is kept with probability (e^ε − 1)/(e^t − 1), where t is the
    ``threshold``, and for sure if ε ≥ t.

    *Formal guarantee*: if the mechanism is t-differentially private when a record is added or
    removed, the answer is ε-differentially private for the records of a group with budget ε, and
    min(ε, t) if that is less; :func:`dpfy.account` has the whole profile of each group. If the
    mechanism is (t, δ)-differentially private, a group of rate q has (ε, q·δ).

    *Assumes* that a record's group is public or depends on nothing that is asked, and what the
    mechanism assumes of its values.

    Args:
        mechanism: The declaration of what is answered on the sample.
        budgets: The ε of each group.
        threshold: t, above 0 and at most the largest ε of a group, which is the default.

    Raises:
        InvalidArgument: If the threshold is out of its range, or the mechanism costs more than it.
        UnsupportedEvent: If the mechanism does not run on all records.

    Reference: Jorgensen, Yu & Cormode 2015 (the sample mechanism); docs/proofs/personalised.md,
    Theorem 1.

    >>> from dpfy.mechanisms.one_shot import Laplace
    >>> budgets = Budgets.of({"strict": (0.5, 0.4), "open": (2.0, 0.6)})
    >>> sample = PersonalisedSample(Laplace.with_epsilon(2.0), budgets)
    >>> [round(rate, 3) for rate in sample.event.policy.rates]
    [0.102, 1.0]
    """

    mechanism: Mechanism[Any, Any]
    budgets: Budgets
    threshold: float | None = None

    def __post_init__(self) -> None:
        threshold = check_threshold(self.budgets, self.threshold)
        object.__setattr__(self, "threshold", threshold)
        _check_cost(self.mechanism, threshold, "the threshold")

    @property
    def event(self) -> Sampled:
        """The cost of one answer, for every group."""
        assert self.threshold is not None
        policy = self.budgets.policy(rates=self.budgets.rates(self.threshold))
        return replace(_step(self.mechanism), policy=policy)

    @property
    def kept(self) -> float:
        """The share of all records that is kept on average, by the declared shares."""
        return self.event.policy.rate

    def values(self, numbers: Indices, compute: Compute, coins: SecureStream) -> Any:
        """Flip a coin for each record, and compute the values of those that are kept."""
        policy = self.event.policy
        return compute(IndividualSampler(policy, numbers, coins).draw(len(numbers)))  # type: ignore[arg-type]

    def release(self, values: Any, stream: SecureStream) -> Any:
        """Answer once, with fresh noise from ``stream``."""
        return self.mechanism.release(values, stream)


@dataclass(frozen=True)
class PersonalisedParts:
    """One mechanism for each of several bins of groups, at the smallest ε of the bin.

    *Formal guarantee*: if each mechanism is ε-differentially private for the smallest ε of its bin,
    so are all answers together for the records of that bin.

    *Assumes* that a record's group is public or depends on nothing that is asked, and what the
    mechanisms assume of their values.

    Args:
        mechanisms: The declaration of what is answered on each bin.
        budgets: The ε of each group.
        bins: The names of the groups in each bin; no group is in two.

    Raises:
        InvalidArgument: If a group is not in one bin, or a mechanism costs more than a group of its
            bin allows.
        UnsupportedEvent: If a mechanism does not run on all records.

    Reference: Li et al. 2017 (partitioning); docs/proofs/personalised.md, Theorem 2.

    >>> from dpfy.mechanisms.one_shot import Laplace
    >>> budgets = Budgets.of({"strict": (0.5, 0.4), "open": (2.0, 0.6)})
    >>> counts = Laplace.with_epsilon(0.5), Laplace.with_epsilon(2.0)
    >>> parts = PersonalisedParts(counts, budgets, (("strict",), ("open",)))
    >>> [part.policy.rates for part in parts.event.parts]
    [(1.0, 0.0), (0.0, 1.0)]
    """

    mechanisms: tuple[Mechanism[Any, Any], ...]
    budgets: Budgets
    bins: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        named = [name for names in self.bins for name in names]
        if sorted(named) != sorted(self.budgets.names) or not all(self.bins):
            raise InvalidArgument(
                f"Expected every group of {list(self.budgets.names)!r} in one bin, got "
                f"{[list(names) for names in self.bins]!r}."
            )
        if len(self.mechanisms) != len(self.bins):
            raise InvalidArgument(
                f"Expected one mechanism for each of {len(self.bins)} bins, got "
                f"{len(self.mechanisms)}."
            )
        allowed = dict(zip(self.budgets.names, self.budgets.epsilons, strict=True))
        for mechanism, names in zip(self.mechanisms, self.bins, strict=True):
            strictest = min(names, key=lambda name: allowed[name])
            _check_cost(mechanism, allowed[strictest], f"the epsilon of group {strictest!r}")

    @property
    def event(self) -> Parallel:
        """The cost of all answers: a record takes part in that of its own bin alone."""
        return Parallel(
            tuple(
                replace(_step(mechanism), policy=self.budgets.policy(rates=self._members(names)))
                for mechanism, names in zip(self.mechanisms, self.bins, strict=True)
            ),
            moves=False,
        )

    def values(self, numbers: Indices, compute: Compute, coins: SecureStream) -> list[Any]:
        """Compute the values of the records of each bin; no coin is needed."""
        taking = [np.array([*self._members(names), 0.0]) for names in self.bins]  # last: no group
        return [compute(np.flatnonzero(members[numbers])) for members in taking]

    def release(self, values: Sequence[Any], stream: SecureStream) -> list[Any]:
        """Answer once for each bin, with fresh noise from ``stream``."""
        return [
            mechanism.release(each, stream)
            for mechanism, each in zip(self.mechanisms, values, strict=True)
        ]

    def _members(self, names: tuple[str, ...]) -> list[float]:
        return [float(name in names) for name in self.budgets.names]


@dataclass(frozen=True)
class PersonalisedChoice:
    """A choice in proportion to e^{score/2}, where a record moves scores by what its group allows.

    *Formal guarantee*: for the records of group g losses span at most ``bounds[g]``, which is the
    group's ε or up to a millionth less, so the choice is ε-differentially private for them. The
    odds are exact.

    *Assumes* that a record of group g moves every score, as computed, by at most ``bounds[g]``, and
    that nobody measures how long the choice takes.

    Args:
        budgets: The ε of each group.
        name: The name of the query in the ledger.
        listed: Whether scores meet their bounds only where neighbours have the same public list of
            people, so that no guarantee holds for a relation under which that list is private.

    Reference: Jorgensen, Yu & Cormode 2015 (the PE mechanism); docs/proofs/personalised.md,
    Theorem 4.

    >>> choice = PersonalisedChoice(Budgets.of({"strict": (0.5, 0.4), "open": (2.0, 0.6)}))
    >>> choice.release([-40.0, 0.0, -30.0], SecureStream(insecure_test_key=3))
    1
    """

    budgets: Budgets
    name: str = "choice"
    listed: bool = False

    @property
    def unit(self) -> float:
        """The power of two of which all bounds are multiples, so that sums of bounds are exact."""
        return 2.0 ** (math.frexp(min(self.budgets.epsilons))[1] - 1 - _PRICE_BITS)

    @property
    def prices(self) -> Indices:
        """The bound of each group as a number of units: its ε, rounded down."""
        units = (math.floor(epsilon / self.unit) for epsilon in self.budgets.epsilons)
        return np.array([min(price, _MOST) for price in units], dtype=np.int64)

    @property
    def bounds(self) -> tuple[float, ...]:
        """The most that a record of each group moves a score."""
        return tuple((self.prices * self.unit).tolist())

    @property
    def event(self) -> Sampled:
        """The cost of one answer, for every group."""
        policy = self.budgets.policy(bounds=self.bounds)
        kind = ListedChoice if self.listed else ExponentialChoice
        return Sampled(policy, (kind(1.0, 2.0, False, self.name),))

    def release(self, values: Sequence[float], stream: SecureStream) -> int:
        """Return the index of a random candidate, by odds of e^{score/2}."""
        return ExponentialMechanism(1.0, 2.0, False, self.name).release(values, stream)


def release_personalised(
    mechanism: PersonalisedSample | PersonalisedParts,
    ledger: Ledger,
    compute: Compute,
    group_of: Sequence[Any],
    stream: SecureStream | None = None,
    coins: SecureStream | None = None,
    *,
    note: dict[str, Any] | None = None,
) -> Any:
    """Record the event of all groups, then choose records, compute their values and answer.

    *Formal guarantee*: when the first coin is flipped and ``compute`` is called, the event is on
    stable storage and the ledger's guard has admitted it. A record of no known group is never
    among those that ``compute`` is given.

    *Assumes* that nothing but ``compute`` touches the records, and that what it returns for some
    of them depends on these alone and meets the mechanism's bound.

    Args:
        mechanism: The declaration: a :class:`PersonalisedSample` or :class:`PersonalisedParts`.
        ledger: Where the event is recorded; its guard may refuse it.
        compute: A function that is given the indices of records and returns their exact values;
            for parts it is called once for each bin.
        group_of: The name of each record's group.
        stream: The source of the noise; by default a new one, keyed by the operating system.
        coins: The source of the coins, of purpose "sampling"; by default a new one likewise.
        note: Public remarks for the ledger.

    Returns:
        The answer of the mechanism, with noise; of parts, the list of their answers.

    Raises:
        LedgerMismatch: If a stream has a test key and the ledger does not say so.
        BudgetExhausted: If the ledger's guard refuses the event; no record was read.

    >>> from dpfy.mechanisms.one_shot import Laplace
    >>> budgets = Budgets.of({"strict": (0.5, 0.4), "open": (2.0, 0.6)})
    >>> sample = PersonalisedSample(Laplace.with_epsilon(2.0), budgets)
    >>> with Ledger.in_memory() as ledger:
    ...     kept = release_personalised(
    ...         sample, ledger, lambda indices: float(len(indices)), ["open", "strict", "open"]
    ...     )
    >>> ledger.count
    1
    """
    coins = stream_for(ledger, coins, "sampling")

    def values() -> Any:
        coins.refresh()  # a restored copy of the machine has the old key
        return mechanism.values(mechanism.budgets.numbers(group_of), compute, coins)

    return release(mechanism, ledger, values, stream, note=note)


def check_threshold(budgets: Budgets, threshold: float | None) -> float:
    """Return the threshold of a sample, by default the largest ε of a group.

    Raises:
        InvalidArgument: If it is no number above 0 and up to that.
    """
    if threshold is None:
        return budgets.largest
    return _validate.real(
        "threshold",
        threshold,
        0,
        budgets.largest,
        open_low=True,
        remedy="It is a public number, up to the largest epsilon of a group. One that is chosen "
        "from the records would tell something about them which no event pays for; best_threshold "
        "chooses one from declared shares.",
    )


def _step(mechanism: Mechanism[Any, Any]) -> Sampled:
    """Return the event of a mechanism that runs on all records."""
    event = mechanism.event
    if not isinstance(event, Sampled) or event.policy != Poisson(1.0):
        raise UnsupportedEvent(
            f"Expected a mechanism that answers once on all records, got {type(mechanism).__name__}"
            "."
        )
    return event


def _check_cost(mechanism: Mechanism[Any, Any], epsilon: float, whose: str) -> None:
    """Raise if a mechanism is known to cost more than ε.

    For one without a pure guarantee, such as Gaussian noise, there is nothing to compare.
    """
    cost = math.fsum(_pure_epsilon(query) for query in _step(mechanism).queries)
    if epsilon * _ROUNDED < cost:
        raise InvalidArgument(
            f"The mechanism costs an epsilon of {cost:.6g}, more than {whose}, {epsilon:.6g}. Give "
            f"it more noise, as with_epsilon({epsilon:.6g}) does."
        )


def _pure_epsilon(query: RecordedQuery) -> float:
    """Return the ε of a query at δ = 0, or 0 where it has none."""
    if isinstance(query, LaplaceSum):
        return query.l1_bound / query.scale if query.scale else math.inf
    return query.largest_loss if isinstance(query, Bounded) else 0.0
