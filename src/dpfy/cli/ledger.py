"""``dpfy ledger``: verify and show a ledger, without torch and without a lock.

Tests: tests/ledger/test_cli.py.
"""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dpfy.cli._options import AnchorOption, LedgerArgument, ledger_file
from dpfy.errors import LedgerError, UnsupportedEvent
from dpfy.ledger import Ledger
from dpfy.ledger.events import canonical_json
from dpfy.ledger.grant import facts_of
from dpfy.ledger.individual import group_policies

ledger_app = typer.Typer(help="Verify and show ledgers.", no_args_is_help=True)


@ledger_app.command()
def verify(path: LedgerArgument, anchor: AnchorOption = None) -> None:
    """Check every line against the hash chain, the head and the anchor; exit with 1 if one fails.

    Without --anchor, restoring an older ledger together with its head cannot be noticed.

    Examples:
    dpfy ledger verify run.dpl

    dpfy ledger verify run.dpl --anchor /backup/run.head
    """
    ledger = _read(path, anchor)
    torn = (
        f", and a torn tail of {ledger.torn_bytes} bytes that counts as spent"
        if ledger.torn_bytes
        else ""
    )
    typer.echo(f"{path}: {ledger.lines} lines, {ledger.count} steps{torn}; head {ledger.head_hash}")


@ledger_app.command()
def show(
    path: LedgerArgument,
    anchor: AnchorOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show the header, and the events that were spent with their counts.

    Examples:
    dpfy ledger show run.dpl

    dpfy ledger show run.dpl --json
    """
    ledger = _read(path, anchor)
    if as_json:
        typer.echo(json.dumps(_summary(ledger), indent=2))
    else:
        Console().print(_header_table(ledger), _uses_table(ledger), sep="\n")


def _read(path: Path, anchor: Path | None) -> Ledger:
    try:
        return Ledger.read(ledger_file(path), anchor)
    except LedgerError as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(1) from None


def _summary(ledger: Ledger) -> dict[str, Any]:
    return {
        "path": str(ledger.path),
        "lines": ledger.lines,
        "head_hash": ledger.head_hash,
        "steps": ledger.count,
        "torn_bytes": ledger.torn_bytes,
        "filter_used": _filter_used(ledger),
        "header": ledger.header.to_json() if ledger.header else None,
        "basis": list(ledger.basis),
        "uses": [run.to_json() for run in ledger.uses],
    }


def _filter_used(ledger: Ledger) -> float | None:
    """The share of the filter that is spent; None without a filter that this version knows."""
    if ledger.header is None or ledger.header.filter is None:
        return None
    # numpy and scipy, which other ledgers do not need
    from dpfy.accounting.filtered import share_used

    try:
        return share_used(ledger)
    except UnsupportedEvent:
        return None


def _header_table(ledger: Ledger) -> Table:
    table = Table(show_header=False, box=None)
    rows = {
        "ledger": str(ledger.path),
        "lines": str(ledger.lines),
        "steps": str(ledger.count),
        "head hash": ledger.head_hash,
    }
    if ledger.torn_bytes:
        rows["torn tail"] = f"{ledger.torn_bytes} bytes, counted as one step"
    if ledger.header is not None:
        header = ledger.header.to_json()
        planned = sum(run.times for run in ledger.header.envelope)
        rows |= {
            name: str(header[name])
            for name in ("unit", "relation", "key_source", "library", "created")
        }
        rows |= {
            "registered steps": str(planned) if planned else "none",
            **{name: canonical_json(header[name]).decode() for name in ("guard", "filter", "plan")},
            "strict": "yes" if ledger.header.strict else "no",
            **({"paid for by": facts_of(grant)} if (grant := ledger.header.grant) else {}),
        }
    if groups := _groups(ledger):
        rows["groups"] = groups
    if (used := _filter_used(ledger)) is not None:
        rows["filter used"] = (
            f"{used:.1%}: a reading; the guarantee is the filter's limit, however little is used"
        )
    for name, value in rows.items():
        table.add_row(name, escape(value), style=None)
    return table


def _groups(ledger: Ledger) -> str:
    """Return the groups of records with the rate and the bound of each, if there are any."""
    registered = ledger.header.envelope if ledger.header else ()
    found = group_policies((*registered, *ledger.uses))
    return "; ".join(
        f"{name}: rate {rate:.6g}, bound {bound:.6g}"
        for policy in found
        for name, rate, bound in zip(policy.names, policy.rates, policy.bounds, strict=True)
    )


def _uses_table(ledger: Ledger) -> Table:
    table = Table("times", "event")
    for run in ledger.uses:
        table.add_row(str(run.times), escape(str(run.event)))
    return table
