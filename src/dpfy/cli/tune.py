"""``dpfy tune``: a search for settings whose cost includes the trials that lose."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

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

    from dpfy.tuning import TuneConfig, TuningResult
    from dpfy.tuning.search import Tell


def tune(
    context: typer.Context,
    config: SettingsArgument = None,
    config_file: SettingsOption = None,
    search: Annotated[
        list[str] | None,
        typer.Option(
            help="Setting and its values, such as learning_rate=log:0.05:5, momentum=0:0.95 or "
            "clip=0.5,1,2; give the option once for each setting.",
            show_default=False,
        ),
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(
            help="Privacy budget ε of the whole search, trials that lose included, such as 3.",
            show_default=False,
        ),
    ] = None,
    delta: Annotated[
        float | None,
        typer.Option(
            help="Failure probability δ of the whole search, in (0, 1). Default: that of the "
            "settings.",
            show_default=False,
        ),
    ] = None,
    trials: Annotated[
        float,
        typer.Option(
            help="Number of trials: expected, or exact with accounting compose or public."
        ),
    ] = 10,
    accounting: Annotated[
        str,
        typer.Option(
            help="Accounting of the search: select (a secret number of trials, only the best is "
            "released), compose (all of them are paid for) or public (all data are public, and "
            "nothing is charged)."
        ),
    ] = "select",
    law: Annotated[
        str,
        typer.Option(help="Law of the secret number of trials: geometric, logarithmic or poisson."),
    ] = "geometric",
    score: Annotated[
        str,
        typer.Option(
            help="Score of a trial: public (accuracy on public data) or private (noisy accuracy "
            "that the trial releases)."
        ),
    ] = "public",
    proposals: Annotated[
        str,
        typer.Option(
            help="Proposals of settings: random, or bayesian (by Optuna, not with accounting "
            "select)."
        ),
    ] = "random",
    storage: Annotated[
        str | None,
        typer.Option(
            help="Database of Optuna's study, such as sqlite:///study.db. Default: in memory.",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Data set, as for dpfy train. Default: that of the settings.", show_default=False
        ),
    ] = None,
    data_dir: DataDirOption = None,
    epochs: Annotated[
        float | None,
        typer.Option(
            help="Number of epochs of each trial. Default: that of the settings.",
            show_default=False,
        ),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            help="Expected number of records in a step. Default: that of the settings.",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            help="Name of the search, and of its folder. Default: the data set and the time.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(help="Folder of all runs. Default: that of the settings.", show_default=False),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            help="Folder of an interrupted search to go on with; not with accounting select.",
            show_default=False,
        ),
    ] = None,
    share: Annotated[
        bool,
        typer.Option(
            "--share",
            help="Declare the search and pay for all of its trials, for workers to take; not with "
            "accounting select.",
        ),
    ] = False,
    work: Annotated[
        str | None,
        typer.Option(
            help="Folder of a shared search, or its address in a storage, of which to take trials "
            "until none is left, beside any number of other workers.",
            show_default=False,
        ),
    ] = None,
    finish: Annotated[
        str | None,
        typer.Option(
            help="Folder of a shared search whose workers are done, or its address in a storage, "
            "to release the best trial.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Search for settings within one budget, and release the best trial's model.

    Settings that are not searched come from the file, or are those of dpfy train. The number of
    trials and the results of the others stay secret, unless all are paid for by composition.

    Examples:
    dpfy tune --search learning_rate=log:0.05:5 --epsilon 3 --trials 20

    dpfy tune config.toml --search clip=0.1,0.5,1 --search momentum=0:0.95 --epsilon 8 --accounting
    compose

    dpfy tune --resume runs/tune-digits-20260101-120000

    dpfy tune --search clip=0.1,0.5,1 --epsilon 8 --trials 12 --accounting compose --name wide
    --share

    dpfy tune --work runs/wide

    dpfy tune --finish runs/wide

    dpfy tune --search clip=0.1,0.5,1 --epsilon 8 --trials 12 --accounting public --name wide
    --share --storage postgresql+psycopg://server/studies

    dpfy tune --work postgresql+psycopg://server/studies#wide
    """
    from rich.console import Console

    console = Console(stderr=as_json, highlight=False)
    given = {
        "data": data,
        "data_dir": data_dir,
        "delta": delta,
        "epochs": epochs,
        "batch_size": batch_size,
        "name": name,
        "out": out,
    }
    options: dict[str, Any] = {
        "epsilon": epsilon,
        "trials": trials,
        "accounting": accounting,
        "law": law,
        "score": score,
        "proposals": proposals,
        "storage": storage,
    }
    _check_alone(context)
    from dpfy import tuning  # torch is loaded only when it is needed
    from dpfy.budgets.runs import without_password

    if work is not None:
        with _progress(console, counted=True) as tell:
            done = tuning.work_on_tuning(work, data_dir=data_dir, tell=tell)
        _say(
            {"folder": without_password(work), "trials_done": done},
            as_json,
            console,
            f"{done} trials were done here, and none is left. When all workers are done: dpfy tune "
            f"--finish {without_password(work)}",
        )
    elif finish is not None:
        _conclude(tuning.finish_tuning(finish, data_dir=data_dir), as_json, console)
    elif resume is not None:
        with _progress(console, counted=True) as tell:
            found = tuning.resume_tuning(resume, tell=tell)
        _conclude(found, as_json, console)
    else:
        base = settings_from(config, config_file).with_flags(given)
        _begin(
            tuning.TuneConfig(base, tuning.Space.parse(search or []), **options),
            share,
            as_json,
            console,
        )


def _check_alone(context: typer.Context) -> None:
    """Refuse options that would change a declared search; each worker has its own data_dir."""
    given = [
        name
        for name in context.params
        if (source := context.get_parameter_source(name)) is not None
        and source.name == "COMMANDLINE"
    ]
    chosen = next((name for name in ("resume", "work", "finish") if name in given), None)
    if chosen is not None and set(given) - {
        chosen,
        "as_json",
        *(["data_dir"] if chosen != "resume" else []),
    }:
        raise InvalidArgument(
            f"--{chosen} goes on with the search as it was declared; leave the other options out."
        )


def _begin(declared: "TuneConfig", share: bool, as_json: bool, console: "Console") -> None:
    from dpfy import tuning
    from dpfy.budgets.runs import without_password

    if share:
        folder = without_password(str(tuning.share_tuning(declared)))
        _say(
            {"folder": folder},
            as_json,
            console,
            f"The search is declared in {folder}. On every machine: dpfy tune --work {folder}; "
            f"after that: dpfy tune --finish {folder}",
        )
        return
    with _progress(console, counted=declared.accounting != "select") as tell:
        found = tuning.tune(declared, tell=tell)
    _conclude(found, as_json, console)


def _say(values: dict[str, Any], as_json: bool, console: "Console", words: str) -> None:
    from dpfy.cli._output import print_json

    print_json(values) if as_json else console.print(words, soft_wrap=True, markup=False)


@contextmanager
def _progress(console: "Console", counted: bool) -> "Iterator[Tell]":
    """Show a bar where all trials are paid for, one line for a selection.

    A bar that moves would tell how many trials a selection has.
    """
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    if not counted:
        console.print("tuning: a secret number of trials, of which nothing is said")
        yield lambda done, trials: None
        return
    columns = (
        TextColumn("tuning"),
        BarColumn(),
        TextColumn("{task.completed} of {task.total} trials"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=None, visible=False)
        yield lambda done, trials: progress.update(task, completed=done, total=trials, visible=True)


def _conclude(found: "TuningResult", as_json: bool, console: "Console") -> None:
    from dpfy.cli._output import note_delta, planned, print_json, round_up

    note_delta(found.delta, planned(found.folder / "ledger.dpl"))
    if as_json:
        print_json(found.to_json())
        return
    if found.settings is None:
        console.print("There was no trial, as a Poisson law allows: nothing was trained.")
    else:
        console.print(
            "best settings: "
            + ", ".join(f"{name} = {value}" for name, value in found.settings.items()),
            markup=False,
        )
    if found.failure is not None:
        console.print(
            f"The best trial failed ({found.failure}), so there is no model. That is what the "
            "search found; it is not repeated.",
            markup=False,
        )
    if found.accuracy is not None:
        console.print(f"accuracy on public data: [bold]{found.accuracy:.1%}[/bold]")
    if found.with_tuning == 0:
        console.print(
            "[bold]Nothing was charged[/bold]: the search looked at public data only. A run on "
            f"private records with these settings: ({round_up(found.final_run):.4f}, "
            f"{found.delta:g})",
            soft_wrap=True,
        )
    else:
        console.print(
            f"[bold]({round_up(found.with_tuning):.4f}, {found.delta:g})-differential "
            "privacy[/bold], the search included; the final run only, had its settings been fixed "
            f"in advance: ({round_up(found.final_run):.4f}, {found.delta:g})",
            soft_wrap=True,
        )
    page = "report.md" if found.with_tuning == 0 else "report.html"
    console.print(f"report: {found.folder}/{page}", markup=False, soft_wrap=True)
