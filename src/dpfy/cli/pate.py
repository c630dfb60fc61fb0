"""``dpfy pate``: teachers on private records label public inputs for a student."""

from pathlib import Path
from typing import Annotated

import typer

from dpfy.cli._options import DataDirOption, DeltaOption
from dpfy.cli.plan_pate import (
    AnswerNoiseOption,
    CheckNoiseOption,
    MechanismOption,
    PartsOption,
    ThresholdOption,
    tell,
)
from dpfy.errors import InvalidArgument


def pate(
    out: Annotated[
        Path,
        typer.Option(
            help="Folder of the run, such as runs/pate; a run that is there goes on.",
            show_default=False,
        ),
    ],
    epsilon: Annotated[
        float, typer.Option(help="Budget ε not to exceed, such as 2.6.", show_default=False)
    ],
    delta: DeltaOption = 1e-5,
    data: Annotated[
        str, typer.Option(help="Data set: digits, mnist, fashion-mnist, cifar-10 or adult.")
    ] = "digits",
    data_dir: DataDirOption = None,
    parts: PartsOption = 250,
    mechanism: MechanismOption = "confident",
    answer_noise: AnswerNoiseOption = 40.0,
    check_noise: CheckNoiseOption = None,
    threshold: ThresholdOption = None,
    workers: Annotated[
        int, typer.Option(help="Number of processes that train teachers; 0 trains in this one.")
    ] = 0,
) -> None:
    """Train teachers on parts of the records, and a student on the labels that they agree on.

    Public inputs are the test records without their labels, but for the last tenth, on which the
    student is evaluated. In the folder, teachers is as sensitive as the records. The labels, the
    student, the ledger and the report may be published.

    Examples:
    dpfy pate --data mnist --parts 250 --epsilon 2.6 --out runs/pate

    dpfy pate --data digits --parts 40 --answer-noise 8 --epsilon 3 --out runs/digits
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from dpfy.data import load
    from dpfy.ensembles.label_run import label_and_teach
    from dpfy.ensembles.pate import pate as plan_pate
    from dpfy.planning.pate import forecast_of

    if mechanism == "interactive":
        raise InvalidArgument(
            "Interactive PATE asks by what a student predicts: use dpfy.pate(...).ask(..., "
            "predicted=...) in Python, or another --mechanism here."
        )
    source = load(data, data_dir)
    plan = plan_pate(
        classes=source.classes,
        parts=parts,
        mechanism=mechanism,
        answer_noise=answer_noise,
        check_noise=check_noise,
        threshold=threshold,
        epsilon=epsilon,
        delta=delta,
    )
    tell(forecast_of(plan), delta)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks = {name: bars.add_task(name, total=None) for name in ("teachers", "public inputs")}
        found = label_and_teach(
            plan,
            source,
            out,
            delta=delta,
            workers=workers,
            tell=lambda what, done, total: bars.update(tasks[what], completed=done, total=total),
        )
    typer.echo(
        f"{found.labels:,} of {found.inputs:,} public inputs are labelled; the student has "
        f"{found.accuracy:.1%} of held-out public records right.\n"
        f"The report is in {out / 'report'}. Keep {out / 'teachers'} as secret as the records."
    )
