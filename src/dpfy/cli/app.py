"""The ``dpfy`` command: commands, and one sentence for everything that goes wrong."""

import sys
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn

import typer

from dpfy import __version__
from dpfy.cli.account import account
from dpfy.cli.audit import audit
from dpfy.cli.calibrate import calibrate
from dpfy.cli.check import check
from dpfy.cli.convert import convert
from dpfy.cli.epsilon import epsilon
from dpfy.cli.inspect_data import inspect_data
from dpfy.cli.ledger import ledger_app
from dpfy.cli.plan import plan_app
from dpfy.cli.report import report
from dpfy.cli.train import init, train
from dpfy.cli.tune import tune
from dpfy.errors import DpfyError, InvalidArgument

# Typer ships its own click or needs one, depending on the version; its base class of everything
# that it rejects is the only name that both have.
_Rejected: Any = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"
)
_INTERRUPTED = 130

app = typer.Typer(
    name="dpfy",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Train with differential privacy, and know exactly what was spent.",
)
app.command()(epsilon)
app.command()(calibrate)
app.command()(account)
app.command()(convert)
app.command()(check)
app.command()(audit)
app.command()(inspect_data)
app.command()(report)
app.command()(train)
app.command()(tune)
app.command()(init)
app.add_typer(ledger_app, name="ledger")
app.add_typer(plan_app, name="plan")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dpfy {__version__}")
        raise typer.Exit


@app.callback()
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


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; exit with 2 for what was asked wrongly and with 1 for what failed."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    try:
        code = app([argument for argument in given if argument != "--debug"], standalone_mode=False)
    except (typer.Abort, KeyboardInterrupt):
        _fail("Interrupted.", _INTERRUPTED)
    except _Rejected as error:
        _fail(error.format_message(), error.exit_code)
    except Exception as error:
        if debug:
            raise
        _fail(_sentence(error), 2 if isinstance(error, InvalidArgument) else 1)
    if code == _INTERRUPTED:  # some versions of Typer turn Ctrl-C into this number and say nothing
        _fail("Interrupted.", code)
    sys.exit(code)


def _sentence(error: Exception) -> str:
    """Say what happened and what to do; only our own errors are known to quote nothing private."""
    if isinstance(error, DpfyError):
        return str(error)
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}. Check the path, its permissions and the free space."
    return (
        f"An unexpected {type(error).__name__}. Its text may quote records and is not shown; `dpfy "
        "--debug` shows it, for the owner of the data."
    )


def _fail(sentence: str, code: int) -> NoReturn:
    if sentence:  # empty when the help text was the answer
        typer.echo(
            f"Error: {' '.join(sentence.split())}", err=True
        )  # torch's own reasons have several lines
    sys.exit(code)
