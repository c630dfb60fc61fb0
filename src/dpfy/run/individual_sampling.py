"""Leave out of a step the records that have used up a filter of their own.

    reserve ─▶ draw ─▶ refresh bounds, if due ─▶ charge every record ─▶ leave out who has left

Bounds and what records have spent are as private as the records: they stay in the memory of the
process, and are in no checkpoint, log, text or exception. Proof: docs/proofs/individual-filter.md.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import NoReturn

import numpy as np
import torch
from torch import nn

from dpfy.accounting.individual_filter import BUDGET, IndividualFilter
from dpfy.errors import BudgetExhausted, InvalidArgument
from dpfy.gradients import EXACT_NORMS, Engine, LoopEngine
from dpfy.gradients.base import BoundedSums, LossFn
from dpfy.ledger import Ledger
from dpfy.ledger.individual import FilteredPoisson
from dpfy.mechanisms.clipping import Clipping
from dpfy.mechanisms.controllers import StepConfig
from dpfy.mechanisms.gaussian_sum import GaussianSum
from dpfy.mechanisms.sampling.poisson import PoissonSampler
from dpfy.noise import SecureStream
from dpfy.plans.plan import Plan
from dpfy.records.records import visit_loaded
from dpfy.run.context import StepContext
from dpfy.run.partition import even_parts
from dpfy.run.sampling_strategy import IndependentSampling, Sample
from dpfy.run.terms import event_of, mechanism_for

_LOADED = 256  # records at a time when bounds are refreshed; each is computed alone


class RecordBudgets:
    """What every record has spent, and the bound that it is clipped to. Sensitive.

    *Formal guarantee*: the entries of a record follow from this record, its own random numbers and
    earlier outputs. Sums are whole numbers, and never fall.

    Args:
        plan: a plan under an individual filter.
        ledger: the ledger; what it holds already is charged to all records at the clip bound.
        records: the number of records.

    Raises:
        BudgetExhausted: if what the ledger holds leaves no record enough for a step.
    """

    def __init__(self, plan: Plan, ledger: Ledger, records: int) -> None:
        assert isinstance(plan.filter, IndividualFilter)
        self._plan, self._rule, self._ledger = plan, plan.filter, ledger
        self._taken, self._taken_at_clip = 0, 0  # steps of this object, and their largest cost
        self._counted, self._before = 0, 0  # steps of others, and their largest cost
        self.levels = np.zeros(records, dtype=np.int64)
        self.spent = np.zeros(records, dtype=np.int64)
        self._charge_others()
        cheapest = self._rule.costs(plan.event, 0.0, plan.relation)[1]
        if self._before and self._before + cheapest > BUDGET:
            raise BudgetExhausted(
                "The ledger holds steps of an earlier run, which are charged to every record at "
                "the clip bound, since what records really spent is never saved. That is all of "
                "the individual filter: no record could take part. Begin a new ledger."
            )

    def __repr__(self) -> str:
        return "RecordBudgets(sensitive)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("What records have spent is private, and is never written anywhere.")

    @property
    def remaining(self) -> np.ndarray:
        """Whether each record has not left."""
        return self.spent <= BUDGET

    @property
    def own(self) -> np.ndarray:
        """What each record has spent in the steps of this object."""
        return self.spent - self._before

    def due(self, step: int) -> bool:
        """Tell whether bounds are refreshed in a step: the first, and again after some epochs."""
        length = self._rule.refresh_epochs * self._plan.steps_per_epoch
        return self._taken == 0 or (step - 1) % length == 0

    def store(self, indices: np.ndarray, norms: np.ndarray) -> None:
        """Keep the bounds of records with these norms; all other records take no part.

        A norm that is zero or not finite is the level 0: the record takes no part until the next
        refresh, and pays nothing.
        """
        levels, shares = self._rule.levels, self._rule.slack * norms / self._plan.clip
        usable = np.where(np.isfinite(norms), shares, 0.0)
        self.levels[:] = 0
        self.levels[indices] = np.ceil(levels * np.minimum(usable, 1.0)).astype(np.int64)

    def charge(self, costs: tuple[int, ...]) -> None:
        """Charge a step to every record by its level; ``costs`` are those of the levels."""
        self._taken += 1
        self._taken_at_clip += costs[-1]
        self._charge_others()
        self._add(np.array(costs, dtype=np.int64)[self.levels])

    def take_part(self, indices: np.ndarray) -> np.ndarray:
        """Tell which of some records take part in the step that was charged last."""
        return self.remaining[indices] & (self.levels[indices] > 0)

    def shares(self, indices: np.ndarray) -> np.ndarray:
        """Return the bounds of some records, in clip bounds."""
        return self.levels[indices] / self._rule.levels

    def _charge_others(self) -> None:
        """Charge all records, at the clip bound, what the ledger has from other runs.

        The ledger already has the step that is being charged.
        """
        counted = self._ledger.count - self._taken
        if counted != self._counted:
            known = self._rule.spent(self._ledger.uses, self._plan.relation)
            before = max(self._before, min(known - self._taken_at_clip, BUDGET + 1))
            self._add(before - self._before)
            self._counted, self._before = counted, before

    def _add(self, costs: np.ndarray | int) -> None:
        """Add costs; a sum beyond the budget stays at one more than it, however many follow."""
        self.spent = np.minimum(self.spent + costs, BUDGET + 1)


class IndividualSampling(IndependentSampling):
    """Draw Poisson samples, and leave out the records that have left.

    Args:
        plan: a plan under an individual filter.
        stream: the generator of samples.
        budgets: what records have spent, and their bounds.
    """

    engines = EXACT_NORMS  # they weigh every record once, in order
    stores_norms = True

    def __init__(self, plan: Plan, stream: SecureStream, budgets: RecordBudgets) -> None:
        super().__init__(PoissonSampler(plan.rate, stream))
        self.budgets = budgets

    @property
    def policy(self) -> FilteredPoisson:
        """The policy of the samples, after records are left out."""
        return FilteredPoisson(self.sampler.policy.rate)

    def propose(
        self,
        context: StepContext,
        sample: Sample,
        step: int,
        config: StepConfig,
        engine: Engine,
        loss_fn: LossFn,
        clipping: Clipping,
    ) -> Sample:
        """Return the drawn records that have not left, once all are charged for the step.

        A record that has left is removed before the sample is divided, so that the others are
        computed as if it were not there, to the last bit.
        """
        budgets, plan = self.budgets, context.plan
        assert isinstance(plan.filter, IndividualFilter)
        if budgets.due(step):
            remaining = np.flatnonzero(budgets.remaining)
            budgets.store(remaining, _norms(context, remaining, loss_fn, clipping))
        layout = context.buffer.layout_of(step, config, context.trained())
        allowance = allowance_of(mechanism_for(context, engine, step, config, layout))
        event = event_of(context, step, config)
        budgets.charge(plan.filter.costs(event, allowance, plan.relation))
        kept = torch.from_numpy(budgets.take_part(sample.indices.numpy()))
        return Sample(sample.indices[kept], sample.tags[kept], sample.seeds[:, kept])


class IndividualBounds:
    """Clip every record to its own stored bound.

    Args:
        budgets: what records have spent, and their bounds.
    """

    def __init__(self, budgets: RecordBudgets) -> None:
        self._budgets = budgets

    def clipping_for(self, clipping: Clipping, indices: tuple[int, ...]) -> Clipping:
        """Return the clipping that bounds each record of a chunk by itself."""
        shares = self._budgets.shares(np.array(indices, dtype=np.int64))
        return replace(clipping, factors=tuple(shares.tolist()))

    def widen(self, mechanism: GaussianSum) -> GaussianSum:
        """Return the mechanism as it is: what rounding adds is charged to each record instead."""
        return mechanism


def allowance_of(mechanism: GaussianSum) -> float:
    """Return the part of a sum's sensitivity that is for arithmetic, and not for the clip bound.

    A record moves the sum by this part whatever its own bound is: it rounds the sum, and moves the
    rounding of others.
    """
    return max(0.0, 1 - mechanism.bound / mechanism.sensitivity) + 2.0**-50


def check_individual(engine: str, ranks: int, parameters: Mapping[str, nn.Parameter]) -> None:
    """Refuse what individual filters have no proof for, before a step is paid for.

    Raises:
        InvalidArgument: if the engine, the processes or the device do not allow it.
    """
    if engine not in ("auto", *EXACT_NORMS):
        names = " or ".join(map(repr, EXACT_NORMS))
        raise InvalidArgument(
            "Individual filters are proved for engines that take the norm of the very gradient "
            f"that they add, got engine {engine!r}. Use {names}."
        )
    if ranks > 1:
        raise InvalidArgument(
            f"Individual filters run in one process, got {ranks}: what records have spent, and "
            "their bounds, are not shared. Use another filter with several."
        )
    if others := sorted({p.device.type for p in parameters.values()} - {"cpu"}):
        raise InvalidArgument(
            f"Expected a model on the CPU under an individual filter, got {', '.join(others)}: "
            "bounds must have the same bits whatever the other records are, and that kernels there "
            "give equal bits for equal records is not known."
        )


def _norms(
    context: StepContext, indices: np.ndarray, loss_fn: LossFn, clipping: Clipping
) -> np.ndarray:
    """Return the norms of some records' gradients, each computed alone; NaN for one without.

    Rounding that depended on other records could move a bound by a whole level, and a record's
    last step with it.
    """
    engine = LoopEngine(context.model, context.trained())
    norms = np.full(len(context.records), np.nan)
    measuring = replace(clipping, weigh=torch.zeros_like)

    def take(found: tuple[tuple[int, ...], BoundedSums]) -> None:
        squared = torch.cat([some.norms[:, 0] for some in found[1].seen])
        norms[list(found[0])] = squared.double().sqrt().numpy()

    visit_loaded(
        context.records.fresh(),
        even_parts(torch.from_numpy(indices), _LOADED),
        lambda loaded: (loaded.indices, engine.bounded_sums(loss_fn, loaded.chunk, measuring)),
        take,
    )
    return norms[indices]
