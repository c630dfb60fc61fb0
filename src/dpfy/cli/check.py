"""``dpfy check``: explain what private training means for a model, without any record."""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from dpfy._objects import load_object, make_object
from dpfy.cli._options import JsonOption
from dpfy.errors import InvalidArgument

if TYPE_CHECKING:
    from rich.table import Table

    from dpfy.checks.check import Checked, Probed
    from dpfy.checks.fields import Fields
    from dpfy.run.step_cost import Expected

_PLACES = 3  # that are named before the rest is counted
_FIELD = re.compile(r"(?:(\w+)=)?(\w+)\[([\d,\s]*)\]\s*(?:,\s*|$)")
_TYPES = (
    "bool",
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
)
_COLOURS = {
    "impossible": "red",
    "needs a change": "red",
    "depends": "yellow",
    "fine": "green",
}  # the worst first


def check(
    factory: Annotated[
        str,
        typer.Argument(
            help="Function that returns a model, or a tuple of a model and its optimizers, loss "
            "and tokenizer, as package.module:name.",
            show_default=False,
        ),
    ],
    example: Annotated[
        str | None,
        typer.Option(
            help="Type and shape of each field of one record, such as 'float32[3,32,32],int64[]' "
            "or, by name, 'input_ids=int64[128],labels=int64[]'; with them the model is probed.",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Data set, or function that returns one, as package.module:name; tests whether "
            "data[i] depends on record i alone. For the owner of the data.",
            show_default=False,
        ),
    ] = None,
    collate: Annotated[
        str | None,
        typer.Option(
            help="Collate function of the run, as package.module:name. Default: that of torch.",
            show_default=False,
        ),
    ] = None,
    batch_size: Annotated[
        int, typer.Option(help="Number of synthetic records in the steps that are timed.")
    ] = 256,
    shard: Annotated[
        bool,
        typer.Option(
            "--shard",
            help="Divide the model among the processes that torchrun starts, and compare its "
            "engine with its own autograd, on synthetic records.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Explain what private training means for a model; exit with 1 if it must be changed.

    With --example the model is probed on synthetic records: whether it keeps them apart, with which
    engine, how close that engine is to one record at a time, and the memory and time of a step,
    with and without privacy.

    A loss is a function of the fields, as for run.backward; a loss of torch takes the model's
    output and the last field. Without a loss, a weighted sum of the outputs is used; a last field
    that the model does not take, a label, is left out. A model of transformers takes its fields by
    name, or one field, or one and a label; its logits count as its output.

    With --data a few records are loaded, several times and in a fresh process: a data set that
    mixes records in __getitem__, draws from a generator of its own or keeps state is an error. This
    does not notice data that were standardised by their own mean, encoded by the values in their
    rows, or read without torch (numpy, files).

    Examples:
    dpfy check mymodel:make

    dpfy check mymodel:make --example 'float32[3,32,32],int64[]'

    dpfy check mymodel:make --data mydata:train_set

    dpfy check mymodel:bert --example 'input_ids=int64[128],labels=int64[]'

    dpfy check mymodel:make --example 'int64[128]' --json
    """
    fields = None if example is None else parse_fields(example)
    if shard:
        _check_sharded(factory, fields, as_json)
        return
    made = make_object(factory)
    if data is not None:
        _check_data(data, collate)

    from dpfy.checks.check import check as check_parts  # torch is loaded only when it is needed
    from dpfy.cli._output import print_json
    from dpfy.run.step_cost import measure

    found = check_parts(made, fields)
    measured = measure(made, fields, batch_size) if fields is not None and found.trainable else None
    if as_json:
        print_json({**found.to_json(), "expected": measured and measured.to_json()})
    else:
        _describe(found, measured, asked=fields is not None)
        if data is not None:
            typer.echo(
                "A few records of the data set were loaded: nothing shows that one depends on "
                "another."
            )
    if not found.trainable:
        raise typer.Exit(1)


def _check_sharded(factory: str, fields: "Fields | None", as_json: bool) -> None:
    """Compare engines on the sharded model; rank 0 prints."""
    if fields is None:
        raise InvalidArgument("Give --example with --shard: records are synthesized from it.")

    from dpfy.checks.check import check_sharded
    from dpfy.cli._output import print_json
    from dpfy.run.ranks import grouped

    with grouped() as ranks:
        found = check_sharded(make_object(factory), fields)
        if ranks.first and as_json:
            print_json({**vars(found), "processes": ranks.size})
        elif ranks.first:
            typer.echo(f"On {ranks.size} processes, beside fully_shard's own autograd: {found}.")
    if not found.agrees:
        raise typer.Exit(1)


def _check_data(data: str, collate: str | None) -> None:
    from dpfy.checks.mixing import check_data_set

    loaded = make_object(data)
    check_data_set(
        loaded[0] if isinstance(loaded, tuple) else loaded,
        load_object(collate) if collate else None,
    )


def parse_fields(example: str) -> "Fields":
    """Parse ``float32[3,32,32],int64[]``, or ``input_ids=int64[128],labels=int64[]``."""
    fields = [
        (match[1], (match[2], tuple(int(size) for size in match[3].replace(",", " ").split())))
        for match in _FIELD.finditer(example)
    ]
    names = [name for name, _ in fields if name]
    if (
        not fields
        or _FIELD.sub("", example).strip()
        or any(kind not in _TYPES for _, (kind, _) in fields)
        or len(set(names)) not in (0, len(fields))
    ):
        raise InvalidArgument(
            f"Expected --example {example!r} to be types with shapes, such as "
            "'float32[3,32,32],int64[]', or with a name for each of them, such as "
            f"'input_ids=int64[128],labels=int64[]'; types are {', '.join(_TYPES)}."
        )
    return dict(fields) if names else [field for _, field in fields]


def _describe(found: "Checked", measured: "Expected | None", asked: bool) -> None:
    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False)
    console.print(
        _table(found)
        if found.findings
        else "No part that private training would have to treat in its own way."
    )
    if found.probed is not None:
        console.print(
            f"The probe {'passed' if found.probed.passed else 'failed'}: "
            f"{escape(found.probed.reason.rstrip('.'))}.",
            soft_wrap=True,
        )
        for line in _probe_lines(found.probed):
            console.print(escape(line), soft_wrap=True)
    elif asked:
        console.print("The probe waits until nothing has to be changed.")
    else:
        console.print("Give --example to probe the model on synthetic records.")
    if measured is not None:
        console.print(f"{measured}.", soft_wrap=True)
    console.print(
        "[green]It can be trained as it is.[/green]"
        if found.trainable
        else "[red]It cannot be trained as it is.[/red]"
    )


def _probe_lines(probed: "Probed") -> Iterator[str]:
    """The findings of the probe, in words."""
    if probed.explanation is None:
        return
    names, rest = ", ".join(probed.buffers[:_PLACES]), len(probed.buffers) - _PLACES
    yield (
        f"Buffers ({names}{f' and {rest} more' if rest > 0 else ''}) are not written to; what they "
        "hold counts as public."
        if probed.buffers
        else "It has no buffers."
    )
    yield "Engines, beside one record at a time: " + "; ".join(map(str, probed.parity)) + "."
    yield str(probed.explanation)


def _table(found: "Checked") -> "Table":
    from rich.markup import escape
    from rich.table import Table

    table = Table(show_lines=True)
    for heading in ("component", "verdict", "why, and what to do"):
        table.add_column(heading, overflow="fold")
    for finding in sorted(
        found.findings, key=lambda finding: list(_COLOURS).index(finding.component.verdict)
    ):
        row, rest = finding.component, len(finding.places) - _PLACES
        where = ", ".join(finding.places[:_PLACES]) + (f" and {rest} more" if rest > 0 else "")
        colour = _COLOURS[row.verdict]
        table.add_row(
            f"[bold]{row.name}[/bold]\n{escape(where)}",
            f"[{colour}]{row.verdict}[/{colour}]",
            escape("\n".join(filter(None, (row.why, row.remedy)))),
        )
    return table
