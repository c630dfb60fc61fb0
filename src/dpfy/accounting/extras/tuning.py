"""The cost of tuning: ways to account several runs of which one is released, side by side.

Tests: tests/accounting/rules_for/test_selection.py.
"""

import math
from dataclasses import dataclass

from dpfy import _validate
from dpfy.accounting.guarantee import account
from dpfy.accounting.solvers import brentq
from dpfy.errors import UnsupportedEvent
from dpfy.ledger.events import Event, Repeated
from dpfy.ledger.selection import Selected, Trials
from dpfy.types import Relation


@dataclass(frozen=True)
class TuningCost:
    """One way to account tuning, and the ε that it gives.

    Args:
        name: The name of the way.
        epsilon: Its ε.
        claimed: Whether one may claim it.
        note: What to know about it.
    """

    name: str
    epsilon: float
    claimed: bool
    note: str


def tuning_costs(
    run: Event,
    trials: Trials,
    delta: float,
    relation: Relation | str = Relation.ADD_OR_REMOVE_ONE,
) -> tuple[TuningCost, ...]:
    """Return the cost of tuning with ``run``, by every method that has a rule.

    *Formal guarantee*: that of each row that is ``claimed``. Rows of a fixed number of runs are for
    the mean, rounded up.

    Args:
        run: The events of one run.
        trials: The distribution of the number of runs.
        delta: δ, between 0 and 1, both excluded.
        relation: The neighbouring relation; adding or removing one record by default.

    Returns:
        One row for each way to account it.

    >>> from dpfy.ledger.events import Poisson, Sampled, SumQuery
    >>> from dpfy.ledger.selection import NegativeBinomialTrials
    >>> run = Sampled(Poisson(1.0), (SumQuery(1.0, 10.0),))
    >>> rows = tuning_costs(run, NegativeBinomialTrials.with_mean(50.0, shape=0.0), delta=1e-6)
    >>> [row.name for row in sorted(rows, key=lambda row: row.epsilon) if row.claimed][0]
    'best of a secret number, pld'
    """
    count = math.ceil(trials.mean * (1 - 1e-12))
    found = [
        TuningCost(
            "exponential mechanism, as in the literature",
            exponential_heuristic(count),
            False,
            "a heuristic of Abadi et al. 2016: not a composition of the runs, shown for comparison",
        )
    ]
    for method in ("pld", "rdp"):
        for name, source in (
            (f"best of a secret number, {method}", Selected(run, trials)),
            (f"all of {count}, {method}", Repeated(run, count)),
        ):
            try:
                epsilon = account(source, method, relation).claim(delta)
            except UnsupportedEvent:
                continue
            found.append(TuningCost(name, epsilon, True, ""))
    return tuple(found)


def exponential_heuristic(candidates: int, within: float = 100.0, failure: float = 0.01) -> float:
    """Return the ε that the literature quotes for choosing by an exponential mechanism.

    It solves ``within`` = (4/ε′)·log(candidates/(failure·ε′)), so that the choice is within that
    many validation records of the best one, and quotes 8ε′. **Not claimed**: it accounts neither
    the runs nor their composition with the choice.

    Args:
        candidates: The number of candidates, at least 1.
        within: How many validation records the choice may be worse than the best; 100 by default.
        failure: The probability that it is worse than that; 0.01 by default.

    Returns:
        The ε that is quoted.

    Raises:
        InvalidArgument: An argument is out of range.

    Reference: Abadi et al. 2016, Appendix D; "How to DP-fy ML", Appendix C.3.

    >>> round(exponential_heuristic(100), 2)
    3.24
    """
    candidates, within = (
        _validate.count("candidates", candidates),
        _validate.positive("within", within),
    )
    failure = _validate.real("failure", failure, 0, 1, open_low=True, open_high=True)
    root = brentq(
        lambda log: within - 4 * math.exp(-log) * (math.log(candidates / failure) - log),
        -30.0,
        math.log(candidates / failure),
    )
    return 8 * math.exp(float(root))
