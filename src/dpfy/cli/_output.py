"""Print numbers: strict JSON for machines, one sentence for people.

Tests: tests/cli/test_commands.py.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from dpfy.accounting import GroupGuarantee, Guarantee
from dpfy.cli._options import Method
from dpfy.errors import DpfyError

_RELATIONS = {
    "add_or_remove_one": "adding or removing one {unit}",
    "replace_one": "replacing one {unit}",
    "zero_out": "setting one {unit} to zero",
}

_SCOPES = {"label": " Labels alone are protected, and features are not."}


def print_json(values: dict[str, Any]) -> None:
    """Print one strict JSON object; infinity becomes the string "inf", which float() reads."""
    typer.echo(
        json.dumps(
            {name: _strict(value) for name, value in values.items()}, indent=2, allow_nan=False
        )
    )


def claims(guarantee: Guarantee, delta: float) -> dict[str, Any]:
    """Return the fields that every command reports about a guarantee."""
    bracket = guarantee.epsilon(delta)
    return {
        "epsilon": bracket.upper,
        "epsilon_lower": bracket.lower,
        "delta": delta,
        "method": guarantee.method,
        "noise_multiplier": guarantee.noise_multiplier,
        "rate": guarantee.rate,
        "steps": guarantee.steps,
        "relation": str(guarantee.relation),
        "unit": str(guarantee.unit),
        "numerical_delta": guarantee.numerical_delta,
        "note": guarantee.note(delta) or None,
        "exact": guarantee.exact,
        "counted": guarantee.counted,
        **({"groups": group_claims(guarantee, delta)} if groups_of(guarantee) else {}),
    }


def groups_of(guarantee: Guarantee) -> Mapping[str, Guarantee]:
    """Return the guarantee of each group of records; nothing where records have no groups."""
    return guarantee.groups if isinstance(guarantee, GroupGuarantee) else {}


def group_claims(guarantee: Guarantee, delta: float) -> dict[str, Any]:
    """Return the fields that every command reports about each group."""
    return {
        name: {
            "epsilon": (bracket := each.epsilon(delta)).upper,
            "epsilon_lower": bracket.lower,
            "noise_multiplier": each.noise_multiplier,
            "rate": each.rate,
            "note": each.note(delta) or None,
        }
        for name, each in groups_of(guarantee).items()
    }


def group_rows(groups: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Say what :func:`group_claims` returned, one row for each group."""
    width = max(map(len, groups), default=0)
    return [
        f"  {name:<{width}}  epsilon {round_up(each['epsilon']):.4f}"
        + "".join(
            f", {words} {each[field]:.6g}"
            for field, words in (("rate", "rate"), ("noise_multiplier", "noise over its bound"))
            if each[field] is not None
        )
        for name, each in groups.items()
    ]


def sentence(values: dict[str, Any]) -> str:
    """Say what :func:`claims` returned."""
    relation = _RELATIONS[values["relation"]].format(unit=values["unit"])
    counted = values["counted"]
    steps = f"{values['steps']:,} {counted.removesuffix('s') if values['steps'] == 1 else counted}"
    if math.isinf(values["epsilon"]):
        return f"{steps}: no finite epsilon holds at delta = {values['delta']:g}, for {relation}."
    floor = math.floor(values["epsilon_lower"] * 10_000) / 10_000
    # Where rules are not exact, the lower end is that of an attack on some data sets, which need
    # not be the best one.
    why = "no analysis can claim" if values["exact"] else "a known attack rules out"
    low = f", and {why} less than {floor:.4f}" if floor else ""
    note = f" ({values['note']})" if values["note"] else ""
    how = (
        f"{values['method'].upper()}{note}" if values["method"] in tuple(Method) else values["note"]
    )
    return (
        f"{steps}: ({round_up(values['epsilon']):.4f}, {values['delta']:g})-differential privacy "
        f"for {relation}, by {how}{low}.{_SCOPES.get(values['unit'], '')}"
    )


def note_delta(delta: float, plan: Mapping[str, Any] | None) -> None:
    """Say on standard error if δ is not below one over the number of records that a plan declares.

    Standard output stays what it is, so that programs can go on reading it.
    """
    from dpfy.reporting.verdict import delta_caution

    if text := delta_caution(delta, plan):
        typer.echo(f"Note: {text}", err=True)


def planned(ledger: Path) -> dict[str, Any] | None:
    """Return the plan in the header of a ledger; None if there is none, or if it is no ledger."""
    from dpfy.ledger import Ledger

    try:
        header = Ledger.read(ledger).header
    except DpfyError:
        return None
    return None if header is None else header.plan


def round_up(value: float) -> float:
    """Round a claim to four digits after the point, never down."""
    return math.ceil(value * 10_000) / 10_000 if math.isfinite(value) else value


def _strict(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _strict(item) for name, item in value.items()}
    return "inf" if isinstance(value, float) and math.isinf(value) else value
