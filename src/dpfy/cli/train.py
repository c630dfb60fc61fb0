"""``dpfy train`` and ``dpfy init``: from settings to a model, a ledger and a report."""

import inspect
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer
from rich.console import Console
from rich.markup import escape

from dpfy._renamed import warn_renamed
from dpfy.cli._options import JsonOption, SettingsArgument, SettingsOption, settings_from
from dpfy.cli._status import status_of
from dpfy.errors import DpfyError, InvalidArgument
from dpfy.trainer.config import all_settings, sections, template
from dpfy.trainer.old_names import OLD_NAMES

if TYPE_CHECKING:
    from dpfy.trainer.result import TrainingResult

_RENAMED = {old: new for old, new in OLD_NAMES.items() if "." not in new}
ResumeOption = Annotated[
    Path | None,
    typer.Option(
        help="Folder of an interrupted run to go on with, such as runs/small.", show_default=False
    ),
]
ResumeIfExistsOption = Annotated[
    bool,
    typer.Option(
        "--resume-if-exists",
        help="Go on with the run of this --name if there is one, with the same settings; else "
        "begin it. For jobs that a scheduler starts again.",
    ),
]


def train(
    config: SettingsArgument = None,
    config_file: SettingsOption = None,
    resume: ResumeOption = None,
    resume_if_exists: ResumeIfExistsOption = False,
    as_json: JsonOption = False,
    **flags: Any,
) -> None:
    """Train with differential privacy; without arguments, on the embedded digits at ε = 3.

    Flags override the settings in the file. The folder of the run holds the model, the ledger and
    the report. Ctrl-C and SIGTERM end the run after the step under way, save it, and exit with 130
    and 143. With --json the bar is on standard error.

    A record of your own data that cannot be used contributes nothing, without a word: look at them
    first with `dpfy inspect-data`.

    Examples:
    dpfy train

    dpfy train --data mnist --data-dir ~/data --epsilon 1 --epochs 20

    dpfy train --protect labels --label-method lp-mst:2 --epsilon 1

    dpfy train --config dpfy.toml --name second-try

    dpfy train --resume runs/digits-20260101-120000

    dpfy train --epochs 8 --json

    dpfy train --config dpfy.toml --name nightly --resume-if-exists

    torchrun --nproc-per-node 2 -m dpfy train
    """
    from dpfy.cli._output import note_delta, planned

    shown = Console(stderr=as_json)  # with --json the answer has standard output to itself
    if os.environ.get("RANK", "0") == "0":
        result = _trained(config, config_file, resume, resume_if_exists, flags, shown)
        _print_json(result) if as_json else _conclude(result, shown)
        note_delta(result.delta, planned(result.folder / "ledger.dpl"))
        return
    try:  # what goes wrong goes wrong on rank 0 too, which says so
        _trained(config, config_file, resume, resume_if_exists, flags, shown)
    except DpfyError as error:
        sys.exit(status_of(error))


def _trained(
    config: Path | None,
    config_file: Path | None,
    resume: Path | None,
    resume_if_exists: bool,
    flags: dict[str, Any],
    shown: Console,
) -> "TrainingResult":
    given = {name: value for name, value in flags.items() if value is not None}
    if resume is not None and (config or config_file or resume_if_exists or given):
        raise InvalidArgument(
            "--resume goes on with the settings of the run; leave the other settings out."
        )
    if "delta" in given and given["delta"] != "auto":
        given["delta"] = _number("delta", given["delta"])
    for old, new in _RENAMED.items():
        if old in given:
            warn_renamed(_dashed(old), _dashed(new))
            given.setdefault(new, given.pop(old))
    settings = settings_from(config, config_file).with_flags(given)

    from dpfy.run.progress import ProgressBar  # these load torch, and the help does not need it
    from dpfy.trainer.trainer import Trainer, resume_training

    bar = ProgressBar(shown)
    return (
        resume_training(resume, [bar], progress=False)
        if resume is not None
        else Trainer(settings, callbacks=[bar]).fit(
            resume_if_exists=resume_if_exists, progress=False
        )
    )


def init(
    path: Annotated[Path, typer.Argument(help="File to write.")] = Path("dpfy.toml"),
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Write a file with every setting, commented out, for `dpfy train --config`.

    Examples:
    dpfy init

    dpfy init experiments/mnist.toml
    """
    if path.exists() and not force:
        raise InvalidArgument(f"{path} exists. Choose another name, or give --force to replace it.")
    path.write_text(template(), encoding="utf-8")
    typer.echo(f"Wrote {path}. Edit it, then: dpfy train --config {path}")


def _conclude(result: "TrainingResult", console: Console) -> None:
    from dpfy.cli._output import round_up

    early = (
        " (stopped early on public data: the claim is the whole plan's)"
        if result.stopped_early and result.unit != "label"
        else ""
    )
    if result.evaluations:
        last = result.evaluations[-1]
        shown = str(last).removeprefix(last.metric).strip()
        console.print(f"{escape(last.metric)} on public data: [bold]{shown}[/bold]")
    kind, scope = (
        ("label differential privacy", ": features are not protected")
        if result.unit == "label"
        else ("differential privacy", "")
    )
    for name, claim in result.groups.items():
        console.print(
            f"[bold]({round_up(claim):.4f}, {result.delta:g})-differential privacy[/bold] for "
            f"records of group {escape(repr(name))}{early}"
        )
    weakest = f", the weakest of {len(result.groups)} groups, for all" if result.groups else ""
    console.print(
        f"[bold]({round_up(result.claim):.4f}, {result.delta:g})-{kind}[/bold]"
        f"{scope}{weakest}{early}"
    )
    folder = escape(str(result.folder))
    console.print(
        f"report: {folder}/report.html\nnext:   {escape(_program())} account {folder}/ledger.dpl "
        f"--delta {result.delta:g}",
        highlight=False,
        soft_wrap=True,
    )


def _print_json(result: "TrainingResult") -> None:
    from dpfy.cli._output import print_json

    last = result.evaluations[-1] if result.evaluations else None
    print_json(
        {
            "epsilon": result.claim,
            "epsilon_spent": result.spent.upper,
            "delta": result.delta,
            "groups": dict(result.groups),
            last.metric if last else "accuracy": last and last.value,
            "stopped_early": result.stopped_early,
            "folder": str(result.folder),
            **{
                name: str(result.folder / file)
                for name, file in (
                    ("model", "model.safetensors"),
                    ("ledger", "ledger.dpl"),
                    ("report", "report.html"),
                )
            },
        }
    )


def _program() -> str:
    """How to call this program again: by its path where the shell would not find its name."""
    called = sys.argv[0]
    return called if Path(called).name == "dpfy" and shutil.which("dpfy") is None else "dpfy"


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidArgument(f"Expected {name}={text!r} to be a number or 'auto'.") from None


def _dashed(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _flag(
    name: str, annotation: Any, help: str, panel: str = "", hidden: bool = False
) -> inspect.Parameter:
    """The command-line flag of one setting; None means that it was not given."""
    kinds = [kind for kind in get_args(annotation) or (annotation,) if kind is not type(None)]
    kind = str if str in kinds else kinds[0]
    flag = _dashed(name)
    declaration = f"{flag}/--no-{flag.removeprefix('--')}" if kind is bool else flag
    option = typer.Option(
        declaration, help=help, show_default=False, hidden=hidden, rich_help_panel=panel or None
    )
    described: Any = Annotated[kind | None, option]  # type: ignore[valid-type]
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=described
    )


def _add_flags() -> None:
    """Give :func:`train` one flag per setting, so that there is one schema for files and flags."""
    settings = {each.name: each for each in all_settings()}
    flags = [
        _flag(each.flag, each.type, each.description, title)
        for title, members in sections().items()
        for each in members
    ]
    flags += [
        _flag(old, settings[new].type, f"Old name of {_dashed(new)}.", hidden=True)
        for old, new in _RENAMED.items()
    ]
    own = [
        p
        for p in inspect.signature(train).parameters.values()
        if p.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    train.__signature__ = inspect.Signature([*own, *flags])  # type: ignore[attr-defined]
    train.__annotations__ = {p.name: p.annotation for p in [*own, *flags]}


_add_flags()
