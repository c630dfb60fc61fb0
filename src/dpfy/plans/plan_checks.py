"""Check that the parts of a plan fit together before any record is read.

Tests: tests/plans/test_plan.py, tests/plans/test_idpsgd.py.
"""

import math
from typing import TYPE_CHECKING

from dpfy import _validate
from dpfy.accounting import DominatedBy, Filter, IndividualFilter
from dpfy.accounting.rules import REASONS
from dpfy.errors import InvalidArgument
from dpfy.ledger.events import Cyclic, CyclicPoisson, ImportanceSchedule
from dpfy.ledger.individual import FilteredPoisson, Individual
from dpfy.mechanisms.controllers import NormSumSampling
from dpfy.mechanisms.importance_bounds import check_importance
from dpfy.mechanisms.query import LEAST, MOST, ClippedSum
from dpfy.plans.correlation import check_correlation
from dpfy.types import GroupBudgets, Relation, Unit

if TYPE_CHECKING:
    from dpfy.plans.plan import Plan

# Sums are exact integers below 2^53 in lattice steps of at least bound·2^-32: see
# docs/proofs/gaussian-sum.md.
_LARGEST_EXPECTED_BATCH = 2**19


def check_plan(plan: "Plan") -> None:
    """Refuse a plan whose parts contradict each other, or that no rule accounts."""
    _validate.count("steps", plan.steps)
    _validate.real(
        "divisor",
        plan.divisor,
        0,
        _LARGEST_EXPECTED_BATCH,
        open_low=True,
        remedy="It is the expected batch size, a public constant.",
    )
    if plan.noise_multiplier is not None:
        _validate.real("noise_multiplier", plan.noise_multiplier, 0, math.inf, open_high=True)
    if plan.records is not None:
        _validate.count("records", plan.records)
    _validate.choice("unit", plan.unit, tuple(Unit))
    if plan.unit is Unit.LABEL:
        raise InvalidArgument(
            "Expected unit='record' or 'user' in a plan of private steps, got 'label': labels "
            "alone are protected before training, by dpfy.labels."
        )
    if plan.unit is Unit.REPORT:
        raise InvalidArgument(
            "Expected unit='record' or 'user' in a plan of private steps, got 'report': a report "
            "is protected before anybody collects it, by dpfy.local."
        )
    _validate.choice("relation", plan.relation, tuple(Relation))
    if reason := REASONS.get((type(plan.sampling), plan.relation)):
        raise InvalidArgument(
            f"No rule for {plan.sampling.tag} sampling under {plan.relation}: {reason}."
        )
    if isinstance(plan.sampling, Cyclic | CyclicPoisson) and (plan.unit, plan.relation) == (
        Unit.USER,
        Relation.REPLACE_ONE,
    ):
        raise InvalidArgument(
            "No rule for users in cyclic order under replace_one: a user who replaces another has "
            "another id, and moves others to other batches. Use relation='zero_out', or "
            "sampling='shuffled'."
        )
    if not isinstance(plan.filter, Filter | None):
        raise InvalidArgument(
            f"Expected filter to be a dpfy.accounting.Filter, got {type(plan.filter).__name__}."
        )
    if plan.filter is not None and plan.budget is not None:
        raise InvalidArgument(
            "Expected a budget or a filter, not both: under a filter its limit is the "
            "guarantee. Calibrate first; plan.under(filter) replaces the budget by the filter."
        )
    check_correlation(plan)
    _check_controllers(plan)
    if isinstance(plan.sampling, ImportanceSchedule):
        check_importance(plan.sampling, plan.query, plan.unit, plan.controllers)
    if any(isinstance(each, NormSumSampling) for each in plan.controllers):
        _check_norm_sums(plan)
    if isinstance(plan.filter, IndividualFilter) or isinstance(plan.sampling, FilteredPoisson):
        _check_individual(plan)
    _check_budget(plan)
    if isinstance(plan.sampling, Individual):
        _check_groups(plan)
        if set(plan.sampling.bounds) != {1.0}:
            _check_bounds(plan, plan.sampling)


def _check_budget(plan: "Plan") -> None:
    """Refuse budgets of groups that the sampling does not have, and one budget for several."""
    names = plan.sampling.names if isinstance(plan.sampling, Individual) else ()
    if isinstance(plan.budget, GroupBudgets):
        if odd := sorted(set(plan.budget.names) ^ set(names)):
            raise InvalidArgument(
                f"Expected a budget for each group of the sampling policy, which has "
                f"{', '.join(names) or 'no groups'}; got {', '.join(plan.budget.names)}. "
                f"Group {odd[0]!r} has one without the other."
            )
    elif plan.budget is not None and names:
        raise InvalidArgument(
            f"Expected GroupBudgets: an epsilon for each of the groups {', '.join(names)}. "
            "dpfy.idpsgd makes such plans."
        )


def _check_groups(plan: "Plan") -> None:
    """Refuse what is proved for records that are all treated alike."""
    if plan.filter is not None:
        raise InvalidArgument(
            "A filter gives its limit to every record, so that groups would have no epsilon of "
            "their own. Leave the filter out: the steps of groups are fixed in advance."
        )
    if plan.adaptive:
        names = [controller.tag for controller in plan.controllers if controller.adaptive]
        raise InvalidArgument(
            f"The plan's {names[0]} chooses noise from outputs, which only a filter accounts, and "
            "a filter knows no groups. Leave it out, or plan without groups by dpfy.dpsgd."
        )
    if plan.query.slots is not None or plan.query.least_sample is not None:
        raise InvalidArgument(
            "Groups are proved for records that are clipped one by one and summed: leave out "
            "microbatches and least_sample."
        )


def _check_bounds(plan: "Plan", sampling: Individual) -> None:
    """Refuse sums of which a group's bound is no multiple, or that would round too coarsely."""
    query = plan.query
    for controller in plan.controllers:
        query = controller.extend_query(query)
    odd = next(
        name for name, bound in zip(sampling.names, sampling.bounds, strict=True) if bound != 1
    )
    if query.statistics:
        raise InvalidArgument(
            f"Group {odd!r} has a clip bound of its own, and what its records add to the statistic "
            f"{query.statistics[0].name!r} is bounded as for all. Use method='sample', or leave "
            "statistics and what needs them out."
        )
    if len(query.leaves) > 1 or query.leaves[0].scales:
        raise InvalidArgument(
            f"Group {odd!r} has a clip bound of its own, which is proved for one norm of all "
            "parameters. Use method='sample', or one clip bound without groups of parameters or "
            "scales."
        )
    if any(controller.controls == "coordinates" for controller in plan.controllers):
        raise InvalidArgument(
            f"Group {odd!r} has a clip bound of its own, and AdaClip bounds gradients in "
            "coordinates that it chooses. Use method='sample', or leave AdaClip out."
        )
    for name, bound in zip(sampling.names, sampling.bounds, strict=True):
        _validate.real(f"clip bound of group {name!r}", bound * query.bound, LEAST, MOST)
    _validate.real(
        "divisor times the largest bound of a group",
        plan.divisor * max(sampling.bounds),
        0,
        _LARGEST_EXPECTED_BATCH,
        remedy="Larger sums are not exact.",
    )


def _check_controllers(plan: "Plan") -> None:
    """Refuse controllers that conflict, and noise that changes while one event pays for it."""
    controlled = [controller.controls for controller in plan.controllers]
    if twice := next((what for what in controlled if controlled.count(what) > 1), None):
        names = [controller.tag for controller in plan.controllers if controller.controls == twice]
        raise InvalidArgument(
            f"The {twice} of a step can follow one controller, got {' and '.join(names)}."
        )
    if {"bounds", "coordinates"} <= set(controlled):
        raise InvalidArgument(
            "AdaClip chooses its own bounds, coordinate by coordinate. Leave the controller of "
            "clip bounds out."
        )
    paid, schedule = plan.steps_per_event, plan.noise_schedule
    if paid > 1 and schedule is not None and schedule.length % paid:
        raise InvalidArgument(
            f"The noise schedule {schedule.name!r} changes every {schedule.length} steps, and "
            f"with {plan.sampling.tag} sampling one event pays for {paid} steps of equal "
            "noise. Use a schedule of epochs, or poisson sampling."
        )
    if paid > 1 and plan.adaptive:
        raise InvalidArgument(
            "Noise that is chosen from outputs needs steps that are paid for one by one; with "
            f"{plan.sampling.tag} sampling one event pays for {paid}. Use poisson sampling."
        )


def _check_norm_sums(plan: "Plan") -> None:
    """Refuse released sums of norms without importance sampling, or under a dominating list."""
    if not isinstance(plan.sampling, ImportanceSchedule):
        raise InvalidArgument(
            "Released sums of norms are followed by importance sampling, got "
            f"{plan.sampling.tag}. Make the plan with dpfy.dpis."
        )
    if isinstance(plan.filter, DominatedBy):
        raise InvalidArgument(
            "Steps that follow a released sum of norms are not dominated by those of the "
            "largest sum: with a smaller one records take part more often. Use a Rényi filter."
        )


def _check_individual(plan: "Plan") -> None:
    """Refuse what has no proof where records leave by filters of their own."""
    if not isinstance(plan.sampling, FilteredPoisson):
        raise InvalidArgument(
            "An individual filter leaves records out of Poisson samples or full batches, got "
            f"{plan.sampling.tag} sampling. Plan with sampling='poisson' or 'full', and call "
            ".under(filter)."
        )
    if not isinstance(plan.filter, IndividualFilter):
        raise InvalidArgument(
            "With filtered_poisson sampling records leave by filters of their own, and the plan "
            "has no individual filter. Calibrate the noise of a plan first, then call "
            ".under(filter)."
        )
    if plan.unit is not Unit.RECORD:
        raise InvalidArgument(
            f"An individual filter protects records, got unit={str(plan.unit)!r}: the bound of a "
            "user would have to hold for rows that are drawn later. Use another filter for users."
        )
    if plan.controllers:
        names = " and ".join(controller.tag for controller in plan.controllers)
        raise InvalidArgument(
            f"Stored bounds are parts of one clip bound, which {names} would change. Plan without "
            "controllers and clip_schedule; noise_schedule= is possible."
        )
    query = plan.query
    if len(query.leaves) > 1 or type(query.leaves[0]) is not ClippedSum or query.leaves[0].scales:
        raise InvalidArgument(
            "Under an individual filter there is one clipped sum of all parameters: a record has "
            "one stored bound, and groups would need several. Give clip a number."
        )
    if query.statistics or query.slots is not None or query.least_sample is not None:
        raise InvalidArgument(
            "Under an individual filter there are no statistics, microbatches or least_sample: the "
            "stored bound of a record limits what it adds to the gradient and to nothing else."
        )
