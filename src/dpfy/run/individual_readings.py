"""Read what individual filters have left: for everybody as a paid release, or for one person.

What a record has spent of its own filter follows from its gradients, and is as private as they are.
"""

from dataclasses import dataclass

import numpy as np
import torch

from dpfy import _validate
from dpfy.accounting.individual_filter import BUDGET, IndividualFilter
from dpfy.errors import InvalidArgument
from dpfy.ledger.events import Poisson, Sampled, SumQuery
from dpfy.mechanisms.gaussian_sum import GaussianSum
from dpfy.run.individual_sampling import IndividualSampling, RecordBudgets
from dpfy.run.run import Run
from dpfy.sandbox.torch_settings import certified


@dataclass(frozen=True)
class BudgetHistogram:
    """How many records have used how much of their budget, with noise. Released.

    Args:
        counts: noisy counts of equal parts of the budget, from none of it on; then of the records
            that have left.
        stddev: the standard deviation of the noise of each count.
    """

    counts: tuple[float, ...]
    stddev: float


@dataclass(frozen=True, repr=False)
class OwnReading:
    """What one record has used of its own filter. Private: for the person whose it is.

    Args:
        epsilon: an upper bound on the ε of the steps so far, had their costs been fixed in advance.
        delta: the δ that it belongs to.
        used: the share of the record's budget that is used.
        guaranteed: the ε that the filter guarantees to everybody.
    """

    epsilon: float
    delta: float
    used: float
    guaranteed: float

    def __repr__(self) -> str:
        return "OwnReading(private)"

    def __str__(self) -> str:
        return (
            "PRIVATE FACT about one record, for the person whose it is and for nobody else: "
            f"{self.used:.1%} of its budget is used, about epsilon = {self.epsilon:.4f} at delta = "
            f"{self.delta:g}. This is a reading and no guarantee; guaranteed, to every record, is "
            f"epsilon = {self.guaranteed:.4f}."
        )


def budget_histogram(run: Run, stddev: float, bins: int = 10) -> BudgetHistogram:
    """Release a histogram of what records have used of their budgets, with Gaussian noise.

    *Formal guarantee*: the event is durable, and the guard has admitted it within what the filter
    set ``aside``, before a record's budget is looked at. One record is in one count, or in none, so
    that the counts are one Gaussian sum of sensitivity 1 on all records.

    Args:
        run: a run under an individual filter with something ``aside``.
        stddev: the standard deviation of the noise of each count, above 0.
        bins: the number of equal parts of the budget, from 1 to 1000.

    Returns:
        The noisy counts. Records that have spent nothing are in none.

    Raises:
        InvalidArgument: if the run has no individual filter, or an argument is out of its range.
        BudgetExhausted: if what is aside does not pay for it; nothing was read then.

    Reference: docs/proofs/individual-filter.md.
    """
    budgets = _budgets(run)
    _validate.positive("stddev", stddev)
    _validate.real("bins", _validate.count("bins", bins), 1, 1000)
    query = SumQuery(1.0, float(stddev), "histogram of used budgets")
    with certified():
        run.context.streams.refresh()
        run.ledger.reserve(Sampled(Poisson(1.0), (query,), adaptive=True))
        places = np.minimum(budgets.spent * bins // (BUDGET + 1), bins)
        places[~budgets.remaining] = bins
        counts = np.bincount(places[budgets.own > 0], minlength=bins + 1).astype(np.float64)
        mechanism = GaussianSum(1.0, float(stddev), bins + 1)
        noisy = mechanism.release(torch.from_numpy(counts), run.context.noise)
    return BudgetHistogram(tuple(noisy.tolist()), mechanism.stddev)


def own_reading(run: Run, index: int, delta: float) -> OwnReading:
    """Return what one record has used of its own filter, for the person whose record it is.

    *Formal guarantee*: none. The answer is computed from a private record without noise, and is
    recorded nowhere. Show it to that person, and to nobody else.

    Args:
        run: a run under an individual filter.
        index: the place of the record in the data set.
        delta: δ, between 0 and 1, both excluded.

    Returns:
        The reading, whose text says that it is a private fact.

    Raises:
        InvalidArgument: if the run has no individual filter, or there is no such record.
    """
    budgets, rule = _budgets(run), run.plan.filter
    assert isinstance(rule, IndividualFilter)
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < len(budgets.spent):
        raise InvalidArgument(f"Expected the place of a record in the data set, got {index!r}.")
    spent = min(int(budgets.spent[index]), BUDGET)
    epsilon = rule.epsilon_of(spent, delta)
    return OwnReading(epsilon, delta, spent / BUDGET, run.spent(delta).upper)


def _budgets(run: Run) -> RecordBudgets:
    """Return the budgets of a run's records."""
    if not isinstance(run.context.sampling, IndividualSampling):
        raise InvalidArgument(
            "Expected a run whose plan is under an IndividualFilter: only there records have "
            "budgets of their own."
        )
    return run.context.sampling.budgets
