"""``dpfy describe``: a private summary of a table, before anything is fitted to it."""

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from dpfy.cli._options import JsonOption
from dpfy.errors import InvalidArgument

LEDGER = "ledger.dpl"


def describe(
    data: Annotated[
        Path,
        typer.Argument(help="Table, .csv or .parquet, one row per record.", show_default=False),
    ],
    schema: Annotated[
        Path,
        typer.Option(
            help="Declared columns, .toml or .json; `dpfy schema init` writes a template.",
            show_default=False,
        ),
    ],
    epsilon: Annotated[
        float,
        typer.Option(help="The ε of the whole summary, above 0, such as 1.", show_default=False),
    ],
    delta: Annotated[
        float | None,
        typer.Option(
            help="The δ of the summary, in (0, 1). Default: the smaller of 1e-5 and n^-1.1.",
            show_default=False,
        ),
    ] = None,
    quantile: Annotated[
        list[float] | None,
        typer.Option(
            help="Quantile of columns of numbers, between 0 and 1; may be repeated. Default: 0.25, "
            "0.5 and 0.75.",
            show_default=False,
        ),
    ] = None,
    bins: Annotated[int, typer.Option(help="About the number of bins of histograms.")] = 10,
    out: Annotated[
        Path | None,
        typer.Option(
            help="New folder for the report, summary.json, summary.svg and the ledger. Default: "
            "print only.",
            show_default=False,
        ),
    ] = None,
    ledger: Annotated[
        Path | None,
        typer.Option(
            help="Ledger to record the summary in, such as one that several fits share. Default: "
            "ledger.dpl in --out.",
            show_default=False,
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Summarise a table privately: counts, means, quantiles and histograms, for one budget.

    Every number is printed with the standard error of its noise. Numbers outside of their declared
    bounds count as the nearer bound, other categories as "other", cells without a number as
    missing. Without --out or --ledger no record is kept of what was spent.

    Examples:
    dpfy describe people.csv --schema people.toml --epsilon 1

    dpfy describe people.parquet --schema people.toml --epsilon 0.5 --out runs/people
    """
    from dpfy.cli._output import note_delta, print_json
    from dpfy.estimators import describe as summarise
    from dpfy.tabular import Schema, read_table

    declared, table = Schema.read(schema), read_table(data)
    if out is not None:
        if out.exists():
            raise InvalidArgument(f"{out} exists. Choose another folder, or move it away.")
        out.mkdir(parents=True)
        ledger = ledger or out / LEDGER
    try:
        summary = summarise(
            table,
            declared,
            epsilon,
            "auto" if delta is None else delta,
            quantiles=quantile or (0.25, 0.5, 0.75),
            bins=bins,
            ledger=ledger,
        )
    finally:
        with suppress(OSError):  # there is a ledger unless it was refused, and nothing spent
            if out is not None:
                out.rmdir()
    if json:
        print_json(summary.to_json())
    else:
        typer.echo(str(summary))
    for file in () if out is None else summary.report(out):
        typer.echo(str(file), err=json)
    note_delta(summary.delta, {"records": summary.records})
