"""``dpfy plan resources``: memory and time of private steps, on synthetic records.

Tests: tests/cli/test_plan.py.
"""

from typing import TYPE_CHECKING, Annotated

import typer

from dpfy._objects import make_object
from dpfy.cli._options import JsonOption
from dpfy.cli.check import parse_fields
from dpfy.errors import InvalidArgument

if TYPE_CHECKING:
    from dpfy.run.resources import Resources


def resources(
    factory: Annotated[
        str,
        typer.Argument(
            help="Function that returns a model, or a tuple of a model and its loss, as "
            "package.module:name.",
            show_default=False,
        ),
    ],
    example: Annotated[
        str,
        typer.Option(
            help="Type and shape of each field of one record, such as 'float32[3,32,32],int64[]'.",
            show_default=False,
        ),
    ],
    batch_size: Annotated[int, typer.Option(help="Expected number of records in a step.")] = 1024,
    records: Annotated[
        int | None,
        typer.Option(
            help="Declared number of records; with it the time of an epoch is printed.",
            show_default=False,
        ),
    ] = None,
    steps: Annotated[
        int, typer.Option(help="Number of steps that have to fit into --hours.")
    ] = 300,
    hours: Annotated[float, typer.Option(help="Available time, in hours.")] = 1.0,
    memory: Annotated[
        float | None,
        typer.Option(
            help="Available memory, in GiB; with it the largest max_physical_batch is printed.",
            show_default=False,
        ),
    ] = None,
    ranks: Annotated[int, typer.Option(help="Number of processes, with --shard.")] = 1,
    shard: Annotated[
        bool,
        typer.Option(
            "--shard",
            help="Predict the memory of one of --ranks processes that share the parameters, "
            "instead of measuring.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Measure a few private steps on synthetic records, and say what fits. No record is read.

    Examples:
    dpfy plan resources mymodel:make --example 'float32[3,32,32],int64[]'

    dpfy plan resources mymodel:make --example 'float32[3,32,32],int64[]' --records 50000 --hours 2
    --memory 8
    """
    fields = parse_fields(example)
    made = make_object(factory)

    from dpfy.cli._output import print_json
    from dpfy.run.resources import measure_made, predict_made  # torch is loaded only when needed

    if shard:
        predicted = predict_made(made, fields, batch_size, ranks)
        print_json(vars(predicted)) if as_json else typer.echo(str(predicted))
        return
    if ranks != 1:
        raise InvalidArgument(
            f"Expected --shard with --ranks {ranks}: without it every process has the whole model, "
            "and needs what one process does."
        )

    found = measure_made(made, fields, batch_size)
    fits: dict[str, float] = {"largest_batch": found.largest_batch(3600 * hours, steps)}
    if records is not None:
        fits["seconds_per_epoch"] = found.seconds(batch_size) * records / batch_size
        fits["epochs"] = found.epochs_within(3600 * hours, records, batch_size)
    if memory is not None:
        fits["max_physical_batch"] = found.largest_chunk(memory * 2**30)
    print_json({**vars(found), **fits}) if as_json else _tell(found, fits, hours, steps)


def _tell(found: "Resources", fits: dict[str, float], hours: float, steps: int) -> None:
    typer.echo(str(found))
    typer.echo(
        f"largest batch of which {steps:,} steps fit into {hours:g} h: {fits['largest_batch']:,}"
    )
    if "epochs" in fits:
        typer.echo(
            f"an epoch takes {fits['seconds_per_epoch']:,.1f} s: {fits['epochs']:,.1f} epochs fit "
            f"into {hours:g} h"
        )
    if "max_physical_batch" in fits:
        typer.echo(
            "records at once that fit into memory (max_physical_batch): "
            f"{fits['max_physical_batch']:,}; a batch of any size is computed in such chunks"
        )
