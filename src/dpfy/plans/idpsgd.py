"""Plan IDP-SGD: groups of records that have a budget of their own each.

Tests: tests/plans/test_idpsgd.py.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from dpfy import _validate
from dpfy.accounting import account, calibrate_group_bounds, calibrate_group_rates
from dpfy.errors import InvalidArgument
from dpfy.ledger.events import Repeated
from dpfy.ledger.individual import Individual, event_of_group
from dpfy.mechanisms.controllers import Controller, Schedule
from dpfy.mechanisms.controllers.schedules import Shape
from dpfy.mechanisms.query import ClippedSum, Statistic
from dpfy.plans.dpsgd import dpsgd
from dpfy.plans.plan import Plan, auto_delta
from dpfy.types import GroupBudgets, Relation, Unit

_METHODS = ("sample", "scale")
_CUT = 2.0**-30  # of a rate or bound whose claim is above its budget by rounding; it is doubled


def idpsgd(
    *,
    records: int,
    batch_size: float,
    groups: Mapping[str, tuple[float, float]],
    delta: float | Literal["auto"],
    epochs: float | None = None,
    steps: int | None = None,
    clip: float | ClippedSum | Sequence[ClippedSum] = 1.0,
    method: str = "sample",
    statistics: Sequence[Statistic] = (),
    unit: Unit | str = Unit.RECORD,
    relation: Relation | str = Relation.ADD_OR_REMOVE_ONE,
    controllers: Sequence[Controller] = (),
    clip_schedule: str | Shape | Schedule | None = None,
) -> Plan:
    """Plan IDP-SGD: every group of records has an ε of its own, and all train one model.

    With ``method="sample"`` cautious groups are drawn less often; with ``"scale"`` their gradients
    are clipped to a smaller bound. On average over the declared shares, the rate stays
    batch_size/records and the bound stays ``clip``. The plan is calibrated: it needs no
    :meth:`Plan.calibrate`. ``dpfy.privatize(…, group_of=…)`` is told who is in which group.

    *Formal guarantee*: for neighbours that differ in a record of group g, the released values are
    (ε_g, δ)-differentially private. Nothing smaller than the largest ε holds for all records.

    *Assumes*: ``records``, ``batch_size`` and ``groups`` are public constants, declared by you, and
    so is the group of each record: that a record changes its group is not covered. Shares that do
    not fit the data cost accuracy, never privacy.

    Args:
        records: The number of records, at least 1.
        batch_size: The expected number of records in a step, above zero and at most ``records``.
        groups: For each group's name its ε, above zero, and its share of the records, above zero;
            the shares add up to 1.
        delta: The δ of all groups, in (0, 1); ``"auto"`` is 1/records^1.1.
        epochs: The number of expected passes over the data, above zero; or give ``steps``.
        steps: The number of steps, at least 1; or give ``epochs``.
        clip: The bound of a record's gradient, or for ``"sample"`` sums as in :func:`dpfy.dpsgd`.
        method: ``"sample"`` for rates per group, ``"scale"`` for clip bounds per group.
        statistics: Statistics that are released beside the gradient, for ``"sample"``.
        unit: The unit of privacy, ``"record"`` or ``"user"``; with users, the groups are of users.
        relation: The neighbouring relation; under ``"replace_one"`` by a record of the same group.
        controllers: What chooses the clip bound of a step from releases, for ``"sample"``.
        clip_schedule: Factors of the clip bound, fixed in advance, as in :func:`dpfy.dpsgd`.

    Returns:
        A plan with a noise multiplier, and a budget for each group.

    Raises:
        InvalidArgument: If arguments contradict each other or are out of their range, or the method
            has no proof for them.

    >>> groups = {"strict": (1.0, 0.34), "usual": (2.0, 0.43), "open": (3.0, 0.23)}
    >>> plan = idpsgd(records=50_000, batch_size=1024, steps=1465, groups=groups, delta=1e-5)
    >>> round(plan.noise_multiplier, 3), [round(rate, 4) for rate in plan.sampling.rates]
    (1.839, [0.0116, 0.0217, 0.0312])

    Reference: Boenisch, Mühl, Dziedzic, Rinberg & Papernot 2023, Algorithms 2 and 3;
    docs/proofs/individual.md.
    """
    _validate.choice("method", method, _METHODS)
    names, epsilons, shares = _declared(groups)
    base = dpsgd(
        records=records,
        batch_size=batch_size,
        epochs=epochs,
        steps=steps,
        clip=clip,
        statistics=statistics,
        unit=unit,
        relation=relation,
        controllers=controllers,
        clip_schedule=clip_schedule,
    )
    everybody, ones = (base.rate,) * len(names), (1.0,) * len(names)
    policy = Individual(names, everybody, ones, shares)
    budget = GroupBudgets(
        names, epsilons, auto_delta(records) if delta == "auto" else _validate.delta(delta)
    )
    scaled = method == "scale"
    if not scaled and base.rate == 1 and len(set(epsilons)) > 1:
        raise InvalidArgument(
            f"batch_size={batch_size!r} is all records, so that no group can be drawn more often "
            "than another. Use method='scale', or smaller batches."
        )
    # whatever is refused is refused before the calibration, which takes seconds
    replace(base, sampling=replace(policy, bounds=(0.5,) * len(names)) if scaled else policy)
    calibrate = calibrate_group_bounds if scaled else calibrate_group_rates
    noise, found = calibrate(
        epsilons=epsilons,
        shares=shares,
        delta=budget.delta,
        rate=base.rate,
        steps=base.steps,
        relation=base.relation,
    )
    policy = replace(policy, bounds=found) if scaled else replace(policy, rates=found)
    return _within(replace(base, sampling=policy, noise_multiplier=noise, budget=budget), scaled)


def _declared(
    groups: Mapping[str, tuple[float, float]],
) -> tuple[tuple[str, ...], tuple[float, ...], tuple[float, ...]]:
    """Return the names, the ε's and the shares of the groups."""
    if not isinstance(groups, Mapping) or not groups:
        raise InvalidArgument(
            "Expected groups={name: (epsilon, share)} with at least one group, got "
            f"{type(groups).__name__}."
        )
    for name, pair in groups.items():
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise InvalidArgument(
                f"Expected group {name!r} to have an epsilon and a share of the records, as in "
                f"(1.0, 0.34); got {pair!r}."
            )
    epsilons = [_validate.positive(f"epsilon of group {n!r}", e) for n, (e, _) in groups.items()]
    shares = [_validate.positive(f"share of group {n!r}", s) for n, (_, s) in groups.items()]
    return tuple(groups), tuple(epsilons), tuple(shares)


def _within(plan: Plan, scaled: bool) -> Plan:
    """Return the plan with rates or bounds at which every group's claim is within its budget.

    Calibration asks for one sum of bound 1; rounding of the plan's own numbers may exceed it.
    """
    policy, budgets = plan.sampling, plan.budget
    assert isinstance(policy, Individual) and isinstance(budgets, GroupBudgets)
    values, cut = list(policy.bounds if scaled else policy.rates), _CUT
    while over := [
        place
        for place, name in enumerate(policy.names)
        if _claim(plan, name, budgets.delta) > budgets.of(name).epsilon
    ]:
        for place in over:
            values[place] *= 1 - cut
        cut *= 2
        changed = (
            replace(policy, bounds=tuple(values))
            if scaled
            else replace(policy, rates=tuple(values))
        )
        plan = replace(plan, sampling=changed)
    return plan


def _claim(plan: Plan, name: str, delta: float) -> float:
    """Return the ε that a group's records may be claimed to have after all steps."""
    events = [Repeated(event_of_group(run.event, name), run.times) for run in plan.envelope]
    return account(events, relation=plan.relation, unit=plan.unit).claim(delta)
