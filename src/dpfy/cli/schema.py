"""``dpfy schema``: begin the declaration of a table's columns.

Tests: tests/cli/test_fit.py.
"""

from pathlib import Path
from typing import Annotated

import typer

from dpfy.errors import InvalidArgument

schema_app = typer.Typer(help="Declare what the columns of a table may hold.", no_args_is_help=True)


@schema_app.callback()
def _schema() -> None:
    """Declare what the columns of a table may hold."""  # so that a single command keeps its name


@schema_app.command()
def init(
    data: Annotated[
        Path,
        typer.Argument(
            help="Table, .csv with a line of names at the top, or .parquet.", show_default=False
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="File to write. Default: the name of the table, with .toml."),
    ] = None,
    from_public: Annotated[
        Path | None,
        typer.Option(
            help="Public table with the same columns, from which bounds and categories are taken.",
            show_default=False,
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Write a schema to fill in, for `dpfy fit --schema`.

    Of a private table only the names of the columns are read, and the template shows them: they are
    taken to be public. Bounds, categories and even kinds of columns are yours to declare, or come
    from --from-public, a table that everybody may see, such as an older release.

    Examples:
    dpfy schema init visits.csv

    dpfy schema init visits.csv --from-public published.csv --out visits.toml
    """
    from dpfy.tabular import read_table, schema_from_public, template
    from dpfy.tabular.tables import header_of

    target = out or data.with_suffix(".toml")
    if target.exists() and not force:
        raise InvalidArgument(
            f"{target} exists. Choose another name, or give --force to replace it."
        )
    if from_public is None:
        text = template(data)
    else:
        table, names = read_table(from_public), header_of(data)
        shared = tuple(name for name in names if name in table)
        text = f"# From the public table {from_public.name}.\n"
        text += f"{schema_from_public(table, shared).to_toml()}\n"
    target.write_text(text, encoding="utf-8")
    typer.echo(
        f"Wrote {target}. Declare the columns, then: dpfy fit logistic {data} "
        f"--schema {target} --target COLUMN --out runs/first"
    )
