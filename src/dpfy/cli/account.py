"""``dpfy account``: the privacy cost of a ledger, or of a list of events.

Tests: tests/cli/test_commands.py.
"""

from typing import Annotated, Any

import typer

from dpfy.cli._options import (
    DeltaOption,
    JsonOption,
    Method,
    MethodOption,
    SourceArgument,
    ledger_file,
)
from dpfy.types import Relation


def account(
    path: SourceArgument,
    delta: DeltaOption,
    method: MethodOption = Method.PLD,
    relation: Annotated[
        Relation | None,
        typer.Option(
            "--relation",
            show_default=False,
            help="Relation of neighbouring data sets. Default: the one that the ledger declares.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compute the guarantee of the steps that a ledger holds, and of those that it registered.

    A list may hold events of any kind: sampled steps, selections and other queries that are
    answered once, and streams.

    A ledger with a filter guarantees the limit of the filter; the amount spent is printed beside
    it. Groups of records with budgets of their own have one guarantee each.

    Examples:
    dpfy account run.dpl --delta 1e-5

    dpfy account events.json --delta 1e-5 --method rdp --json
    """
    from dpfy.accounting import FilterGuarantee, account as account_source, odometer
    from dpfy.cli._output import claims, group_claims, groups_of, print_json

    guarantee = account_source(ledger_file(path), str(method), relation)
    values: dict[str, Any] = claims(guarantee, delta) | {
        "private": guarantee.private,
        "durable": guarantee.durable,
    }
    registered = guarantee.envelope
    values["envelope"] = registered and {
        "epsilon": registered.claim(delta),
        "steps": registered.steps,
        **({"groups": group_claims(registered, delta)} if groups_of(registered) else {}),
    }
    reading = odometer(ledger_file(path), delta) if isinstance(guarantee, FilterGuarantee) else None
    values["odometer"] = reading and reading.to_json()
    if as_json:
        print_json(values)
    else:
        _describe(values)
        if reading is not None:
            typer.echo(f"{str(reading)[0].upper()}{str(reading)[1:]}.")


def _describe(values: dict[str, Any]) -> None:
    from dpfy.cli._output import group_rows, round_up, sentence

    if not values["private"]:
        typer.echo(
            "NOT PRIVATE: insecure test key. The numbers are what a secret key would have given."
        )
    typer.echo(sentence(values))
    if "groups" in values:
        typer.echo("By group, for neighbours that differ in one of its records:")
        typer.echo("\n".join(group_rows(values["groups"])))
    envelope = values["envelope"]
    if envelope and envelope["steps"] != values["steps"]:
        typer.echo(
            f"Registered: {envelope['steps']:,} steps, epsilon "
            f"{round_up(envelope['epsilon']):.4f}. Claim this one if the run was stopped after "
            "looking at its outputs: when it stopped then depends on the data."
        )
        if "groups" in envelope:
            typer.echo("\n".join(group_rows(envelope["groups"])))
