"""``dpfy plan correlated``: correlated noise beside DP-SGD at one budget.

Tests: tests/cli/test_plan.py.
"""

from typing import TYPE_CHECKING, Annotated

import typer

from dpfy.cli._options import DeltaOption, JsonOption, RelationOption
from dpfy.types import Relation

if TYPE_CHECKING:
    from dpfy.planning.correlated import NoiseChoice, NoiseComparison


def correlated(
    records: Annotated[
        int, typer.Option(help="Declared public number of records.", show_default=False)
    ],
    batch_size: Annotated[
        int, typer.Option(help="Number of records in a batch.", show_default=False)
    ],
    epochs: Annotated[float, typer.Option(help="Number of epochs.", show_default=False)],
    epsilon: Annotated[
        float, typer.Option(help="Budget ε not to exceed, such as 4.", show_default=False)
    ],
    delta: DeltaOption,
    momentum: Annotated[float, typer.Option(help="Momentum of the optimizer, in [0, 1).")] = 0.0,
    decay: Annotated[
        float, typer.Option(help="Weight decay times learning rate, in [0, 1).")
    ] = 0.0,
    objective: Annotated[
        str, typer.Option(help="Error that counts: mean, last or max of all steps.")
    ] = "mean",
    buffers: Annotated[int, typer.Option(help="Number of buffers (BLT), from 1 to 8.")] = 4,
    relation: RelationOption = Relation.ZERO_OUT,
    as_json: JsonOption = False,
) -> None:
    """Compare correlated noise (DP-FTRL) with DP-SGD at one budget, and say which to take.

    The number of records is public here: neighbours are zero_out or replace_one.

    Examples:
    dpfy plan correlated --records 60000 --batch-size 2400 --epochs 8 --epsilon 4 --delta 1e-5

    dpfy plan correlated --records 50000 --batch-size 5000 --epochs 25 --epsilon 4 --delta 1e-5
    --momentum 0.9 --json
    """
    from rich.console import Console
    from rich.progress import Progress

    from dpfy.cli._output import print_json
    from dpfy.planning.correlated import compare_correlated

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("calibrating", total=None)
        found = compare_correlated(
            records=records,
            batch_size=batch_size,
            epochs=epochs,
            epsilon=epsilon,
            delta=delta,
            momentum=momentum,
            decay=decay,
            objective=objective,  # type: ignore[arg-type]
            buffers=buffers,
            relation=relation,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    if as_json:
        print_json({"epsilon": epsilon, "delta": delta, "objective": objective, **found.to_json()})
    else:
        _tell(found, objective)


def _tell(found: "NoiseComparison", objective: str) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    table = Table("noise", "batches", "multiplier", f"RMSE ({objective})", "bytes/parameter")
    for column in table.columns[2:]:
        column.justify = "right"
    for choice in found.choices:
        numbers = f"{choice.noise_multiplier:.4f}", f"{choice.rmse:.4g}", f"{choice.memory}"
        table.add_row(choice.noise, choice.batches, *numbers)
    console.print(table)
    poisson, cyclic = (
        next(each for each in found.choices if each.method == "dpsgd" and each.draws == drawn)
        for drawn in (True, False)
    )
    for text in (
        f"{found.steps:,} steps. RMSE: the noise in each weight, in clip bounds, at a learning "
        "rate of 1.",
        f"If records can be drawn at random, take {_taken(found.best(drawn=True), poisson)}.",
        f"If their order is fixed, take {_taken(found.best(drawn=False), cyclic)}.",
    ):
        console.print(text, soft_wrap=True)


def _taken(choice: "NoiseChoice", peer: "NoiseChoice") -> str:
    if choice == peer:
        return f"{choice}: correlation does not help at this budget"
    return f"{choice}: {peer.rmse / choice.rmse:.2f} times less noise than {peer}"
