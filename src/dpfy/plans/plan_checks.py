"""Check that the parts of a plan fit together before any record is read.

Tests: tests/plans/test_plan.py.
"""

import math
from typing import TYPE_CHECKING

from dpfy import _validate
from dpfy.accounting import DominatedBy, Filter
from dpfy.accounting.rules import REASONS
from dpfy.errors import InvalidArgument
from dpfy.ledger.events import Cyclic, ImportanceSchedule
from dpfy.mechanisms.controllers import NormSumSampling
from dpfy.mechanisms.importance_bounds import check_importance
from dpfy.types import Relation, Unit

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
    _validate.choice("relation", plan.relation, tuple(Relation))
    if reason := REASONS.get((type(plan.sampling), plan.relation)):
        raise InvalidArgument(
            f"No rule for {plan.sampling.tag} sampling under {plan.relation}: {reason}."
        )
    if isinstance(plan.sampling, Cyclic) and (plan.unit, plan.relation) == (
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
    _check_controllers(plan)
    if isinstance(plan.sampling, ImportanceSchedule):
        check_importance(plan.sampling, plan.query, plan.unit, plan.controllers)
    if any(isinstance(each, NormSumSampling) for each in plan.controllers):
        _check_norm_sums(plan)


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
    paid, schedule = plan.sampling.steps_per_event, plan.noise_schedule
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
