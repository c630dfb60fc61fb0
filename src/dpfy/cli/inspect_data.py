"""``dpfy inspect-data``: the owner's tool for finding bad records. It prints private facts, and
says so.
"""

from typing import Annotated

import typer

from dpfy._objects import load_object, make_object


def inspect_data(
    data: Annotated[
        str,
        typer.Argument(
            help="A data set, or a function that returns one: package.module:name.",
            show_default=False,
        ),
    ],
    collate: Annotated[
        str | None, typer.Option(help="The collate function of the run: package.module:name.")
    ] = None,
    example: Annotated[
        str | None,
        typer.Option(
            help="The example_input of the run, or a function that returns it: package.module:name."
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many findings to print.")] = 50,
) -> None:
    """List the records that a run would silently leave out, and why. FOR THE OWNER OF THE DATA
    ONLY.

    Whether data[i] depends on record i alone is looked at first, as far as a few records show it: a
    data set that mixes records, draws from a generator of its own or keeps state is an error. That
    it was standardised by its own mean, or encoded by what its rows say, cannot be seen.

    What it prints are facts about single records: it is not differentially private and is not
    recorded in any ledger.

    Examples:
    dpfy inspect-data mydata:train_set

    dpfy inspect-data mydata:load --collate mydata:collate --example mydata:example
    """
    from dpfy.checks.mixing import check_data_set
    from dpfy.records.inspection import inspect_records  # torch is loaded only when it is needed

    made = make_object(data)
    records = (
        made[0] if isinstance(made, tuple) else made
    )  # a loader may return a private and a public data set
    collate_fn = load_object(collate) if collate else None
    check_data_set(records, collate_fn)
    findings = list(inspect_records(records, collate_fn, make_object(example) if example else None))
    typer.echo(
        "Private facts about single records follow; keep this output with the data.", err=True
    )
    for finding in findings[:limit]:
        typer.echo(f"record {finding.index}: {finding.problem}")
    more = f", of which {limit} are shown; see --limit" if len(findings) > limit else ""
    typer.echo(f"{len(findings)} findings in {len(records)} records{more}.")
