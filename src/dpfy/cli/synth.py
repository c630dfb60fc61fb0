"""``dpfy synth``: a synthetic table of a private one, with its ledger and report."""

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from dpfy.cli._output import note_delta, round_up
from dpfy.errors import InvalidArgument

LEDGER = "ledger.dpl"


def synth(
    data: Annotated[
        Path, typer.Argument(help="Private table, .csv or .parquet.", show_default=False)
    ],
    schema: Annotated[
        Path,
        typer.Option(
            help="Schema of the table, .toml or .json; `dpfy schema init` begins one.",
            show_default=False,
        ),
    ],
    epsilon: Annotated[
        float,
        typer.Option(help="The ε of the synthetic table, above 0, such as 1.", show_default=False),
    ],
    out: Annotated[
        Path,
        typer.Option(
            help="New CSV file. Ledger, privacy report and quality page go to a new folder of its "
            "name without .csv.",
            show_default=False,
        ),
    ],
    delta: Annotated[float, typer.Option(help="The δ of the synthetic table, in (0, 1).")] = 1e-9,
    method: Annotated[
        str, typer.Option(help="Method: mst (fast) or aim (closer to the table).")
    ] = "mst",
    target: Annotated[
        str | None,
        typer.Option(
            help="Column whose pair with every other one is measured, for mst.", show_default=False
        ),
    ] = None,
    rows: Annotated[
        int | None,
        typer.Option(
            help="Number of rows to draw. Default: as many as noisy counts tell.",
            show_default=False,
        ),
    ] = None,
    bins: Annotated[
        int, typer.Option(help="About the number of cells of a column of numbers.")
    ] = 32,
    whole: Annotated[
        list[str] | None,
        typer.Option(help="Column of whole numbers; may be repeated.", show_default=False),
    ] = None,
) -> None:
    """Write a synthetic table of a private one, its ledger, privacy report and quality page.

    Nothing is read off the rows but what is paid for: bounds, categories and knots are those of the
    schema. The synthetic table, the report and the page may be published.

    Examples:
    dpfy synth adult.csv --schema adult.toml --epsilon 1 --out synthetic.csv

    dpfy synth visits.parquet --schema visits.toml --epsilon 2 --method aim --out visits-dp.csv
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from dpfy.synthesis import Synthesizer
    from dpfy.tabular import Schema, read_table

    folder = out.with_suffix("")
    if out.suffix != ".csv":
        raise InvalidArgument(f"Expected --out to name a file that ends in .csv, got {out}.")
    for path in (out, folder):
        if path.exists():
            raise InvalidArgument(f"{path} exists. Choose another name, or move it away.")
    if rows is not None and rows < 1:
        raise InvalidArgument(f"Expected --rows {rows} to be at least 1.")
    synthesizer = Synthesizer(
        method, Schema.read(schema), epsilon, delta, target=target, bins=bins, whole=whole or ()
    )
    table = read_table(data)
    folder.mkdir(parents=True)
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    try:
        with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
            task = bars.add_task("measure columns", total=None)
            synthesizer.fit(
                table,
                folder / LEDGER,
                tell=lambda what, done, total: bars.update(
                    task, description=what, completed=done, total=total
                ),
            )
    finally:
        with suppress(OSError):  # there is a ledger unless the fit was refused, and nothing spent
            folder.rmdir()
    drawn = synthesizer.sample(rows)
    drawn.to_csv(out)
    synthesizer.report(folder, drawn)
    claim = round_up(synthesizer.guarantee.claim(delta))
    typer.echo(
        f"{out}: {drawn.rows:,} rows, ({claim:.4f}, {delta:g})-differential privacy\n"
        f"privacy report: {folder / 'report.html'}\nquality: {folder / 'quality.html'}"
    )
    note_delta(delta, {"records": drawn.rows})
