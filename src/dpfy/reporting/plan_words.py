"""The public constants of a plan in words.

Tests: tests/reporting/test_document.py, tests/reporting/test_formats.py.
"""

import math
from collections.abc import Sequence
from typing import Any

from dpfy.reporting.numbers import delta_text, plain

_FEW = 5  # groups that are listed one by one


def plan_rows(plan: dict[str, Any] | None) -> tuple[tuple[str, str], ...]:
    """Return the public constants of the plan in words.

    Fields of other kinds of plans appear only in the JSON.
    """
    plan = plan or {}
    budget = _part(plan, "budget")
    query = _part(plan, "query")
    statistics = [
        f"{each['name']} (bound {plain(each['bound'])}{_how_often(each)})"
        for each in query.get("statistics", ())
        if {"name", "bound"} <= set(each)
    ]
    values = {
        "Records": plan.get("records"),
        "Labels": _labels(plan),
        "Expected batch size": plan.get("divisor"),
        "Sampling rate": _rate(_part(plan, "sampling")),
        "Steps": plan.get("steps"),
        "Clip bound": _clip_bounds(query.get("leaves", ())),
        "Clip schedule": _clip_schedule(plan),
        "Contributions": _by_norm(plan),
        "Noise multiplier": plan.get("noise_multiplier"),
        "Teachers": plan.get("parts"),
        "Classes": plan.get("classes"),
        "Noise of an answer": plan.get("noise", plan.get("answer_noise")),
        "Votes needed": plan.get("threshold"),
        "Noise of that comparison": plan.get("check_noise"),
        "Noise schedule": _part(plan, "noise_schedule").get("name"),
        "Chosen from releases": _controllers(plan.get("controllers", ())),
        "Released statistics": ", ".join(statistics) or None,
        "Budget": f"ε ≤ {_budgeted(budget)} at δ = {delta_text(budget['delta'])}"
        if budget
        else None,
    }
    return tuple((name, plain(value)) for name, value in values.items() if value is not None)


def _labels(plan: dict[str, Any]) -> str | None:
    """Return how labels alone are protected, if that is the plan."""
    if not {"labels", "classes", "epsilon"} <= set(plan):
        return None
    options = "".join(f", {name} {value}" for name, value in _part(plan, "parameters").items())
    return f"{plan['labels']} of {plan['classes']} classes at ε = {plain(plan['epsilon'])}{options}"


def _budgeted(budget: dict[str, Any]) -> str:
    """Return the ε of a budget, or that of each group."""
    if "epsilons" not in budget:
        return plain(budget["epsilon"])
    return ", ".join(
        f"{plain(epsilon)} for group {name!r}"
        for name, epsilon in zip(budget["names"], budget["epsilons"], strict=True)
    )


def _clip_schedule(plan: dict[str, Any]) -> str | None:
    """Return the name of the schedule of clip bounds.

    That of importance sampling repeats the ratios, which have their own row, and is left out.
    """
    if _part(plan, "sampling").get("ratios"):
        return None
    return next(
        (
            _part(each, "schedule").get("name")
            for each in plan.get("controllers", ())
            if each.get("type") == "clip_schedule"
        ),
        None,
    )


def _by_norm(plan: dict[str, Any]) -> str | None:
    """Return the contributions of records that are drawn by norm, and their largest rate."""
    sampling = _part(plan, "sampling")
    if not {"ratios", "batch_size", "population", "slack", "floor"} <= set(sampling):
        return None
    least, most = min(sampling["ratios"]), max(sampling["ratios"])
    norms = (
        f"norm {plain(most) if least == most else f'{plain(least)} to {plain(most)}'} clip bounds"
    )
    limits = f"(slack {plain(sampling['slack'])}, floor {plain(sampling['floor'])})"
    if any(each.get("type") == "norm_sum" for each in plan.get("controllers", ())):
        return f"by sums of norms that are released, as planned each of {norms} {limits}"
    rate = sampling["batch_size"] / (least * sampling["population"])
    return f"each of {norms}; a record takes part with at most probability {plain(rate)} {limits}"


def _rate(sampling: dict[str, Any]) -> float | None:
    """Return the fraction of the records in a step, from whatever the policy declares."""
    size = sampling.get("size", sampling.get("batch_size"))
    if size is not None and sampling.get("records"):
        return float(size / sampling["records"])
    if sampling.get("parts"):
        return float(sampling["chance"] / sampling["parts"])
    return 1 / sampling["bins"] if sampling.get("bins") else sampling.get("rate")


def _clip_bounds(leaves: Sequence[dict[str, Any]]) -> str | None:
    """Return the bound of each clipped sum, or of many of them together."""
    bounds = [leaf["bound"] for leaf in leaves if "bound" in leaf]
    if len(bounds) > _FEW:
        return f"{len(bounds)} groups, together {plain(math.hypot(*bounds))}"
    if len(bounds) > 1:
        return ", ".join(
            f"{leaf.get('name')}: {plain(leaf['bound'])}" for leaf in leaves if "bound" in leaf
        )
    return plain(bounds[0]) if bounds else None


def _controllers(controllers: Sequence[dict[str, Any]]) -> str | None:
    """Return the controllers that choose from releases, with settings; a clip schedule does not."""
    return (
        "; ".join(
            ", ".join(
                [
                    str(each.get("type", "")).replace("_", " "),
                    *(
                        f"{name} {plain(value)}"
                        for name, value in each.items()
                        if isinstance(value, int | float | str) and name != "type"
                    ),
                ]
            )
            for each in controllers
            if each.get("type") != "clip_schedule"
        )
        or None
    )


def _how_often(statistic: dict[str, Any]) -> str:
    return f", every {statistic['every']} steps" if statistic.get("every", 1) > 1 else ""


def _part(plan: dict[str, Any], name: str) -> dict[str, Any]:
    part = plan.get(name)
    return part if isinstance(part, dict) else {}
