"""``dpfy report``: the privacy report of a ledger, for the people who judge or sign it.

Tests: tests/reporting/test_cli.py.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpfy.cli._options import AnchorOption, LedgerArgument, ledger_file
from dpfy.errors import InvalidArgument

if TYPE_CHECKING:
    from dpfy.ledger import Ledger
    from dpfy.reporting import RunFacts


def report(
    path: LedgerArgument,
    delta: Annotated[
        float | None,
        typer.Option(
            help="Failure probability δ of the guarantee, in (0, 1). Default: that of the budget "
            "or filter.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for report.md, report.json and report.html. Default: print Markdown.",
            show_default=False,
        ),
    ] = None,
    facts: Annotated[
        Path | None,
        typer.Option(
            help="JSON file of declared facts, or an earlier report.json. Default: the report.json "
            "in the folder of the run.",
            show_default=False,
        ),
    ] = None,
    anchor: AnchorOption = None,
    model_card: Annotated[
        bool,
        typer.Option("--model-card", help="Print the privacy section of a model card instead."),
    ] = False,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Recompute the report.json beside the ledger, or the one that --facts names; exit "
            "with 1 if it differs.",
        ),
    ] = False,
) -> None:
    """State what a run guarantees, to whom, under which assumptions, and what is not covered.

    Without --out the report is printed as Markdown. The facts in the report.json of a run are
    used again.

    Examples:
    dpfy report run.dpl --delta 1e-5

    dpfy report runs/digits --out reports/digits

    dpfy report run.dpl --delta 1e-5 --facts facts.json --out .

    dpfy report runs/digits --verify
    """
    from dpfy.cli._output import note_delta
    from dpfy.ledger import Ledger
    from dpfy.reporting import report as report_on

    if facts is None and (path / "report.json").is_file():
        facts = path / "report.json"
    ledger = Ledger.read(ledger_file(path), anchor)
    if verify:
        _verify(ledger, facts or ledger_file(path).with_name("report.json"))
        return
    result = report_on(ledger, _planned_delta(ledger) if delta is None else delta, _declared(facts))
    if model_card:
        typer.echo(result.to_model_card(), nl=False)
    elif out is None:
        typer.echo(result.to_markdown(), nl=False)
    else:
        for file in result.write(out):
            typer.echo(str(file))
    note_delta(result.costs.delta, result.record.plan)


def _verify(ledger: "Ledger", file: Path) -> None:
    from dpfy.reporting.certificate import differences, read_certificate

    found = differences(ledger, read_certificate(file))
    for difference in found:
        typer.echo(difference)
    if found:
        raise typer.Exit(1)
    typer.echo(
        f"{file} says what the ledger with head {ledger.head_hash} says: every number was computed "
        "again."
    )


def _planned_delta(ledger: "Ledger") -> float:
    header = ledger.header
    for declared in () if header is None else ((header.plan or {}).get("budget"), header.filter):
        if isinstance(declared, dict) and isinstance(declared.get("delta"), float):
            return declared["delta"]
    raise InvalidArgument(
        "The ledger declares no budget, nor a filter with a δ. Give --delta, such as --delta 1e-5."
    )


def _declared(file: Path | None) -> "RunFacts | None":
    from dpfy.reporting import RunFacts

    if file is None:
        return None
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        raise InvalidArgument(
            f"Expected {str(file)!r} to hold declared facts as JSON; it is not JSON."
        ) from None
    is_report = isinstance(value, dict) and "schema_version" in value
    return RunFacts.from_json(value.get("facts") if is_report else value)
