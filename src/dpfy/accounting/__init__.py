"""Compute what a run cost: from the events of a ledger to a guarantee, without torch."""

from dpfy.accounting.calibrate import (
    calibrate_envelope,
    calibrate_noise,
    calibrate_rate,
    calibrate_steps,
)
from dpfy.accounting.filtered import FilterGuarantee, Reading, odometer
from dpfy.accounting.filters import DominatedBy, Filter, GaussianFilter, RenyiFilter, ZcdpFilter
from dpfy.accounting.grouped import GroupGuarantee
from dpfy.accounting.guarantee import Guarantee, account
from dpfy.accounting.guards import EnvelopeGuard
from dpfy.accounting.individual import (
    Group,
    account_groups,
    calibrate_group_bounds,
    calibrate_group_rates,
)
from dpfy.accounting.individual_filter import IndividualFilter
from dpfy.accounting.rules import RULES, Rule, supported
from dpfy.accounting.rules_for import nested as nested, streams as streams

__all__ = [
    "RULES",
    "DominatedBy",
    "EnvelopeGuard",
    "Filter",
    "FilterGuarantee",
    "GaussianFilter",
    "Group",
    "GroupGuarantee",
    "Guarantee",
    "IndividualFilter",
    "Reading",
    "RenyiFilter",
    "Rule",
    "ZcdpFilter",
    "account",
    "account_groups",
    "calibrate_envelope",
    "calibrate_group_bounds",
    "calibrate_group_rates",
    "calibrate_noise",
    "calibrate_rate",
    "calibrate_steps",
    "odometer",
    "supported",
]
