"""``dpfy data``: prepare files of records."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

data_app = typer.Typer(help="Prepare files of records.", no_args_is_help=True)


@data_app.callback()
def _data() -> None:
    """Prepare files of records."""  # with a callback, a single command keeps its name


@data_app.command()
def index(
    sources: Annotated[
        list[Path],
        typer.Argument(
            help="Files whose rows are converted, one after the other: .csv, .parquet, .arrow or "
            ".feather.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path, typer.Option(help="Arrow file to write, such as train.arrow.", show_default=False)
    ],
    column: Annotated[
        list[str] | None,
        typer.Option(
            help="Column to keep, as name, name:type or name:type=a,b,c, which puts several side "
            "by side; may be repeated. Default: all, with the types of the file; those of a CSV "
            "file must be declared.",
            show_default=False,
        ),
    ] = None,
    users: Annotated[
        str | None,
        typer.Option(
            help="Column of user ids: rows are sorted by user, and .users.npy is written too.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Convert files once to an Arrow file, from which runs read single rows.

    The types of columns are declared or those of the file, and never guessed from values. A cell of
    another type becomes a missing value; a row without a user is left out where users are sorted.
    `dpfy inspect-data` lists the records that a run would leave out.

    Examples:
    dpfy data index part1.parquet part2.parquet --out train.arrow

    dpfy data index people.csv --out people.arrow --column x:float32=age,hours --column y:int64

    dpfy data index visits.parquet --out visits.arrow --users patient
    """
    from rich.console import Console

    from dpfy.data.index import index_files, starts_beside

    with _progress(Console(stderr=True)) as advance:
        index_files(sources, out, column or (), users, advance)
    typer.echo(f"Wrote {out}, for dpfy.data.ArrowRecords.")
    if users:
        typer.echo(f"Wrote {starts_beside(out)}, for dpfy.Users.sorted.")


@contextmanager
def _progress(console: "Console") -> Iterator[Callable[[float], None]]:
    """Show a bar of the share that is done: how many rows there are is private."""
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("converting"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("converting", total=1.0)
        yield lambda share: progress.update(task, completed=share)
