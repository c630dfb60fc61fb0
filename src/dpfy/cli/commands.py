"""All commands of ``dpfy``, in the order in which the help lists them."""

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from dpfy import __version__
from dpfy.cli._panels import group_options
from dpfy.cli.account import account
from dpfy.cli.audit import audit
from dpfy.cli.budget import budget_app
from dpfy.cli.calibrate import calibrate
from dpfy.cli.check import check
from dpfy.cli.convert import convert
from dpfy.cli.data import data_app
from dpfy.cli.describe import describe
from dpfy.cli.epsilon import epsilon
from dpfy.cli.fit import fit
from dpfy.cli.inspect_data import inspect_data
from dpfy.cli.ledger import ledger_app
from dpfy.cli.page import page
from dpfy.cli.pate import pate
from dpfy.cli.plan import plan_app
from dpfy.cli.predict import predict
from dpfy.cli.report import report
from dpfy.cli.schema import schema_app
from dpfy.cli.serve import serve
from dpfy.cli.synth import synth
from dpfy.cli.train import init, train
from dpfy.cli.tune import tune

_app = typer.Typer(
    name="dpfy",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train with differential privacy, and know exactly what was spent.",
)
_app.command()(epsilon)
_app.command()(calibrate)
_app.command()(account)
_app.command()(convert)
_app.command()(check)
_app.command()(audit)
_app.command()(inspect_data)
_app.command()(describe)
_app.command()(report)
_app.command()(page)
_app.command()(train)
_app.command()(tune)
_app.command()(fit)
_app.command()(synth)
_app.command()(pate)
_app.command()(predict)
_app.command()(serve)
_app.command()(init)
_app.add_typer(budget_app, name="budget")
_app.add_typer(data_app, name="data")
_app.add_typer(ledger_app, name="ledger")
_app.add_typer(plan_app, name="plan")
_app.add_typer(schema_app, name="schema")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dpfy {__version__}")
        raise typer.Exit


@_app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Print the version and stop."
        ),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Options that come before any command."""


def command() -> Any:
    """Return the whole command line, with options in groups and the default of each in its help."""
    found = typer.main.get_command(_app)
    group_options(walk(found))
    for _, each in walk(found):
        each.help = _flowing(each.help or "")
        for parameter in each.params:
            _name_default(parameter)
    return found


def walk(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield a command and everything below it, with the words that call it."""
    yield path, group
    for name, each in getattr(group, "commands", {}).items():
        yield from walk(each, (*path, name))


def _flowing(text: str) -> str:
    """Let the lines of a paragraph flow; an example begins on a line of its own."""
    kept = (part.replace("Examples:\n", "Examples:\0") for part in text.split("\n\n"))
    return "\n\n".join(part.replace("\n", " ").replace("\0", "\n") for part in kept)


def _name_default(parameter: Any) -> None:
    """Let the help of an option or argument end with its default; a switch is off without it."""
    help, default = getattr(parameter, "help", None), parameter.default
    if help is None or default is None or isinstance(default, bool):
        return
    parameter.help = f"{help} Default: {default}."
    parameter.show_default = False
