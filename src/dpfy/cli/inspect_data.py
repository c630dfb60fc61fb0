"""``dpfy inspect-data``: find bad records, for the owner of the data.

It prints private facts, and says so.
"""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpfy._objects import load_object, make_object
from dpfy.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable

    from dpfy.records.duplicates import Shared


def inspect_data(
    data: Annotated[
        str,
        typer.Argument(
            help="Data set, or function that returns one, as package.module:name.",
            show_default=False,
        ),
    ],
    collate: Annotated[
        str | None,
        typer.Option(
            help="Collate function of the run, as package.module:name. Default: that of torch.",
            show_default=False,
        ),
    ] = None,
    example: Annotated[
        str | None,
        typer.Option(
            help="The example_input of the run, or a function that returns it, as "
            "package.module:name. Default: the one that the data set declares.",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Model, or function that returns one, as package.module:name; with it the loss of "
            "every record is computed, which shows labels and tokens out of range.",
            show_default=False,
        ),
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option(
            help="Loss of the run as package.module:name, a function of the model and of the "
            "fields of collated records. Default: that of --task.",
            show_default=False,
        ),
    ] = None,
    task: Annotated[
        str, typer.Option(help="Task: classification, regression or language_model.")
    ] = "classification",
    duplicates: Annotated[
        bool,
        typer.Option(
            "--duplicates", help="Also count the texts that several units of privacy have."
        ),
    ] = False,
    users: Annotated[
        str | None,
        typer.Option(
            help="The unit of each row for --duplicates, the unit_of of the run, as "
            "package.module:name. Default: every row is one.",
            show_default=False,
        ),
    ] = None,
    field: Annotated[
        str | None,
        typer.Option(
            help="Name or number of the field to compare for --duplicates. Default: whole records.",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Largest number of findings to print.")] = 50,
) -> None:
    """List the records that a run would leave out, and why. FOR THE OWNER OF THE DATA ONLY.

    Exits with 1 if there are any. With --model it computes the loss of every record: a label that
    the model has no class for, or a token beyond its vocabulary, is a finding.

    The command first loads a few records to test whether data[i] depends on record i alone: a data
    set that mixes records, draws from a generator of its own or keeps state is an error. It cannot
    notice that the data were standardised by their own mean, or encoded by the values in their
    rows.

    A guarantee is about one unit of privacy. With --duplicates the command counts the texts that
    several units have, to the letter and but for case, spaces and punctuation; what k units have
    is protected by about k times the ε.

    The output has facts about single records: it is not differentially private, and no ledger
    records it.

    Examples:
    dpfy inspect-data mydata:train_set

    dpfy inspect-data mydata:load --collate mydata:collate --example mydata:example

    dpfy inspect-data mydata:train_set --model mymodel:make --loss mymodel:loss

    dpfy inspect-data mydata:texts --duplicates --users mydata:authors
    """
    from dpfy.checks.mixing import check_data_set
    from dpfy.records.inspection import inspect_records  # torch is loaded only when it is needed

    made = make_object(data)
    records = (
        made[0] if isinstance(made, tuple) else made
    )  # a loader may return a private and a public data set
    collate_fn = load_object(collate) if collate else None
    check_data_set(records, collate_fn)
    example_input = make_object(example) if example else None
    loss_fn = _loss(model, loss, task)
    findings = list(inspect_records(records, collate_fn, example_input, loss_fn))
    typer.echo(
        "Private facts about single records follow; keep this output with the data.", err=True
    )
    for finding in findings[:limit]:
        typer.echo(f"record {finding.index}: {finding.problem}")
    more = f", of which {limit} are shown; see --limit" if len(findings) > limit else ""
    typer.echo(f"{len(findings)} findings in {len(records)} records{more}.")
    if duplicates:
        from dpfy.records.duplicates import find_duplicates

        place = int(field) if field is not None and field.isdecimal() else field
        found = find_duplicates(records, make_object(users) if users else None, place)
        _describe("to the letter", found.exact, found.units, limit)
        _describe("word for word", found.similar, found.units, limit)
    if findings:
        raise typer.Exit(1)


def _loss(model: str | None, loss: str | None, task: str) -> "Callable[..., Any] | None":
    """Return the loss as a function of the fields of collated records, or None without a model."""
    if model is None:
        if loss is not None:
            raise InvalidArgument("--loss is a function of the model: give --model too.")
        return None

    from dpfy.trainer.builders import named_model
    from dpfy.trainer.config import TrainConfig
    from dpfy.trainer.objectives import objective_for

    objective = objective_for(TrainConfig(task=task, loss=loss))
    made = named_model(model).eval()
    return lambda *fields: objective.loss(made, *fields)


def _describe(how: str, shared: "Shared", units: int, limit: int) -> None:
    """Print how much several units share; not the texts themselves."""
    typer.echo(
        f"texts that several units have {how}: {shared.texts}; units with one of them: "
        f"{shared.units} of {units}; most units with the same: {shared.most}."
    )
    for rows in shared.groups[:limit]:
        typer.echo(f"records {', '.join(map(str, rows))}: the same {how}")
