"""``dpfy page``: look at runs, budgets and plans in a browser.

Tests: tests/page/test_server.py.
"""

from pathlib import Path
from typing import Annotated

import typer

from dpfy._extras import require


def page(
    runs: Annotated[Path, typer.Argument(help="Folder of runs.", show_default=False)] = Path(
        "runs"
    ),
    budget: Annotated[
        str | None,
        typer.Option(
            help="Address of a book of budgets to show, such as sqlite:///team.db.",
            show_default=False,
        ),
    ] = None,
    port: Annotated[int, typer.Option(help="Port to listen at; 0 takes a free one.")] = 8765,
) -> None:
    """Show runs, budgets and plans in a browser, read-only and from this machine alone.

    Examples:
    dpfy page

    dpfy page runs/ --budget sqlite:///team.db --port 0
    """
    for package in ("starlette", "uvicorn"):
        require(package, "page")
    from dpfy.page.server import serve

    serve(runs, budget, port, ready=lambda address: typer.echo(f"{address} (Ctrl-C ends it)"))
