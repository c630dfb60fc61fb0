"""``dpfy audit``: attack a private run with canaries, and test that the checks notice mistakes.

Tests: tests/auditing/test_audit.py, tests/auditing/test_self_test.py.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpfy._extras import require
from dpfy.cli._options import (
    DataDirOption,
    JsonOption,
    SettingsArgument,
    SettingsOption,
    settings_from,
)
from dpfy.errors import InvalidArgument

if TYPE_CHECKING:
    from rich.console import Console

    from dpfy.auditing import Audit, Verdict
    from dpfy.budgets.runs import Booking
    from dpfy.trainer.config import TrainConfig

_REPEATS = 100


def audit(
    config: SettingsArgument = None,
    config_file: SettingsOption = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Data set, as for dpfy train. Default: that of the settings.", show_default=False
        ),
    ] = None,
    data_dir: DataDirOption = None,
    epsilon: Annotated[
        float | None,
        typer.Option(
            help="Privacy budget ε of the audited plan. Default: that of the settings.",
            show_default=False,
        ),
    ] = None,
    epochs: Annotated[
        float | None,
        typer.Option(
            help="Number of epochs of the audited plan. Default: that of the settings.",
            show_default=False,
        ),
    ] = None,
    canaries: Annotated[
        int, typer.Option(help="Number of canaries, each planted with probability 1/2.")
    ] = 1000,
    kind: Annotated[
        str,
        typer.Option(
            help="Kind of canaries: gradient (each has a direction of its own), or records: "
            "mislabelled (random patterns) or crafted."
        ),
    ] = "gradient",
    attack: Annotated[
        str,
        typer.Option(
            help="Output that the attack sees: white-box (every released gradient) or black-box "
            "(losses of the last model)."
        ),
    ] = "white-box",
    public: Annotated[
        bool,
        typer.Option(
            "--public",
            help="Declare the data public, and plant canaries that are records among them; without "
            "it these run alone.",
        ),
    ] = False,
    guesses: Annotated[
        int | None,
        typer.Option(
            help="Number of canaries about which the attack guesses. Default: an eighth of them.",
            show_default=False,
        ),
    ] = None,
    confidence: Annotated[
        float, typer.Option(help="Confidence of the lower bounds, in (0, 1).")
    ] = 0.95,
    budget: Annotated[
        str | None,
        typer.Option(
            help="Budget book and data set, as URL#dataset, whose budget pays for the audited run. "
            "Its ledger is audit.dpl in the folder of the page.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for audit.html and audit.json.")] = Path(
        "audit"
    ),
    self_test: Annotated[
        bool,
        typer.Option(
            "--self-test",
            help="Plant known mistakes in the pipeline, and test whether the checks notice them.",
        ),
    ] = False,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help=f"Check the correct pipeline once instead of {_REPEATS} times."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Attack a private run with canaries; exit with 1 if they show more than its ledger allows.

    The audited run is a new one. Canaries that are records run alone, because their results would
    depend on the records beside them. With --self-test: exit with 1 unless every planted mistake,
    and nothing else, is flagged.

    Examples:
    dpfy audit

    dpfy audit --data mnist --data-dir ~/data --epsilon 8 --canaries 2000

    dpfy audit --kind crafted --attack black-box --canaries 200

    dpfy audit --self-test --quick --json
    """
    from rich.console import Console

    console = Console(stderr=as_json, highlight=False)
    if self_test:
        _self_test(console, 1 if quick else _REPEATS, as_json)
        return
    if quick:
        raise InvalidArgument(
            "--quick belongs to --self-test. Give fewer --epochs for a shorter audit."
        )
    given = {"data": data, "data_dir": data_dir, "epsilon": epsilon, "epochs": epochs}
    require("matplotlib", "report")  # before the attack, whose page draws figures
    with _booked(budget, out) as booking:
        found = _audited(
            console,
            settings_from(config, config_file),
            {name: value for name, value in given.items() if value is not None},
            {
                "canaries": canaries,
                "kind": kind,
                "attack": attack,
                "public": public,
                "guesses": guesses,
                "confidence": confidence,
                "booking": booking,
            },
        )
    _show(found, out, as_json, console)
    if found.refuted:
        raise typer.Exit(1)


@contextmanager
def _booked(budget: str | None, out: Path) -> "Iterator[Booking | None]":
    """Open the book that pays for the audited run, if there is one."""
    if budget is None:
        yield None
        return
    from dpfy.budgets import BudgetBook
    from dpfy.budgets.runs import split_address

    url, dataset = split_address(budget)
    out.mkdir(parents=True, exist_ok=True)
    with BudgetBook.open(url) as book:
        yield book.pay_for(dataset, out / "audit.dpl", purpose="audit")


def _audited(
    console: "Console", settings: "TrainConfig", given: dict[str, Any], options: dict[str, Any]
) -> "Audit":
    from dpfy.auditing.audit import audit_settings  # torch is loaded only when it is needed

    with _progress(console) as progress:
        task = progress.add_task("auditing", total=None)
        return audit_settings(
            settings.with_flags(given),
            tell=lambda step, steps: progress.update(task, completed=step, total=steps),
            **options,
        )


def _show(found: "Audit", out: Path, as_json: bool, console: "Console") -> None:
    from dpfy.auditing import page
    from dpfy.cli._output import print_json

    written = page.write(found, out)
    if as_json:
        print_json(found.to_json())
        return
    console.print(f"[bold {'red' if found.refuted else 'green'}]{page.headline(found)}[/]")
    for name, value in page.facts(found):
        console.print(f"  {name}: {value}", soft_wrap=True)
    console.print(f"{page.explanation(found)}\npage: {written}", soft_wrap=True, markup=False)


def _self_test(console: "Console", repeats: int, as_json: bool) -> None:
    from dpfy.auditing.mutants import MUTANTS
    from dpfy.auditing.self_test import self_test

    with _progress(console) as progress:
        task = progress.add_task("checking", total=len(MUTANTS) + repeats - 1)
        verdicts = self_test(repeats, tell=_teller(progress, task))
    if as_json:
        typer.echo(json.dumps([verdict.to_json() for verdict in verdicts], indent=2))
    else:
        console.print(_table(verdicts))
    if any(verdict.flagged == (verdict.mutant == "none") for verdict in verdicts):
        raise typer.Exit(1)


def _teller(progress: Any, task: Any) -> Callable[[str], None]:
    def tell(name: str) -> None:
        progress.update(task, description=f"checking: {name}")
        progress.advance(task)

    return tell


def _progress(console: "Console") -> Any:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
    )


def _table(verdicts: "list[Verdict]") -> Any:
    from rich.markup import escape
    from rich.table import Table

    table = Table()
    for heading in ("mutant", "flagged", "evidence"):
        table.add_column(heading, overflow="fold")
    for verdict in verdicts:
        right = verdict.flagged != (verdict.mutant == "none")
        table.add_row(
            verdict.mutant,
            f"[{'green' if right else 'red'}]{'yes' if verdict.flagged else 'no'}[/]",
            escape(verdict.evidence),
        )
    return table
