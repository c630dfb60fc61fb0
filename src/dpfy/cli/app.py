"""The entry of the ``dpfy`` command: one sentence for everything that goes wrong.

Typer and rich belong to the extra ``cli``; they are imported after it is known that they are there.
"""

import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from dpfy._extras import require
from dpfy.cli._status import INTERRUPTED, status_of
from dpfy.errors import DpfyError, MissingExtra


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line, and exit with a status that says how it went."""
    try:
        for package in ("typer", "rich"):
            require(package, "cli")
    except MissingExtra as error:
        _fail(str(error), 1)
    given = list(sys.argv[1:] if arguments is None else arguments)
    with warnings.catch_warnings():
        warnings.filterwarnings("always", ".* is now called ", DeprecationWarning)
        warnings.showwarning = _noting(warnings.showwarning)
        _run([each for each in given if each != "--debug"], "--debug" in given)


def _run(arguments: list[str], debug: bool) -> NoReturn:
    import typer

    from dpfy.cli.commands import command

    try:
        code = command()(arguments, standalone_mode=False)
    except (typer.Abort, KeyboardInterrupt):
        _fail("Interrupted.", INTERRUPTED)
    except _rejected() as error:
        _fail(_complaint(error), error.exit_code)
    except Exception as error:
        if debug:
            raise
        _fail(_sentence(error), status_of(error))
    if code == INTERRUPTED:  # some versions of Typer turn Ctrl-C into this number and say nothing
        _fail("Interrupted.", code)
    sys.exit(code)


def _rejected() -> Any:
    """The base class of everything that Typer rejects.

    Typer ships its own click or needs one, depending on the version; this is the only name that
    both have.
    """
    import typer

    return next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


def _complaint(error: Any) -> str:
    """What Typer says, and what an option is for that is missing."""
    text: str = error.format_message()
    missing = type(error).__name__ == "MissingParameter"
    help = getattr(error.param, "help", None) if missing else None
    return f"{text} {help}" if help else text


def _sentence(error: Exception) -> str:
    """Say what happened and what to do; only our own errors are known to quote nothing private."""
    if isinstance(error, DpfyError):
        return str(error)
    if isinstance(error, OSError) and error.filename is not None:
        return (
            f"{error.filename}: {error.strerror}. Check the path, its permissions and the free "
            "space."
        )
    return (
        f"An unexpected {type(error).__name__}. Its text may quote records and is not shown; `dpfy "
        "--debug` shows it, for the owner of the data."
    )


def _noting(show: Callable[..., None]) -> Callable[..., None]:
    """Return what shows old names as notes on standard error, and other warnings as before."""

    def note(message: Warning | str, category: type[Warning], *rest: Any, **named: Any) -> None:
        if issubclass(category, DeprecationWarning):
            sys.stderr.write(f"Note: {message}\n")
        else:
            show(message, category, *rest, **named)

    return note


def _fail(sentence: str, code: int) -> NoReturn:
    if sentence:  # empty when the help text was the answer
        # torch's own reasons have several lines
        sys.stderr.write(f"Error: {' '.join(sentence.split())}\n")
    sys.exit(code)
