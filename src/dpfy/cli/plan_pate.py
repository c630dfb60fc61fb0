"""``dpfy plan pate``: how many labels a budget buys.

Tests: tests/cli/test_pate.py.
"""

from typing import TYPE_CHECKING, Annotated

import typer

from dpfy.cli._options import DeltaOption, JsonOption, RelationOption
from dpfy.errors import InvalidArgument
from dpfy.types import Relation

if TYPE_CHECKING:
    from dpfy.planning.pate import LabelForecast

PartsOption = Annotated[int, typer.Option(help="Number of teachers.")]
MechanismOption = Annotated[
    str, typer.Option(help="How teachers are asked: confident, gnmax, lnmax or interactive.")
]
AnswerNoiseOption = Annotated[float, typer.Option(help="Noise of each count, in votes.")]
CheckNoiseOption = Annotated[
    float | None,
    typer.Option(
        help="Noise of the comparison with the threshold, in votes. Default: 3.75 times "
        "--answer-noise.",
        show_default=False,
    ),
]
ThresholdOption = Annotated[
    float | None,
    typer.Option(
        help="Votes that an input needs to be labelled. Default: 0.8 of --parts.",
        show_default=False,
    ),
]


def pate(
    delta: DeltaOption,
    epsilon: Annotated[
        float | None, typer.Option(help="Budget ε not to exceed, such as 2.6.", show_default=False)
    ] = None,
    budgets: Annotated[
        str | None,
        typer.Option(
            help="Budget ε and share of each group of records, such as strict=1:0.4,open=3:0.6, "
            "instead of --epsilon.",
            show_default=False,
        ),
    ] = None,
    method: Annotated[
        str, typer.Option(help="How groups count: weight (of votes) or upsample (copies).")
    ] = "weight",
    classes: Annotated[int, typer.Option(help="Number of classes.")] = 10,
    parts: PartsOption = 250,
    mechanism: MechanismOption = "confident",
    answer_noise: AnswerNoiseOption = 40.0,
    check_noise: CheckNoiseOption = None,
    threshold: ThresholdOption = None,
    relation: RelationOption = Relation.ADD_OR_REMOVE_ONE,
    as_json: JsonOption = False,
) -> None:
    """Say how many labels a budget buys by PATE, before any record is read.

    Examples:
    dpfy plan pate --epsilon 2.6 --delta 1e-5 --parts 250

    dpfy plan pate --budgets strict=1:0.34,usual=2:0.43,open=3:0.23 --delta 1e-5
    """
    from dpfy.cli._output import print_json
    from dpfy.planning.pate import forecast_labels
    from dpfy.trainer.group_budgets import named_budgets

    if (epsilon is None) == (budgets is None):
        raise InvalidArgument(
            "Expected --epsilon, such as 2.6, or --budgets of groups, such as "
            "strict=1:0.4,open=3:0.6, and not both."
        )
    found = forecast_labels(
        classes=classes,
        parts=parts,
        mechanism=mechanism,
        answer_noise=answer_noise,
        check_noise=check_noise,
        threshold=threshold,
        epsilon=epsilon,
        delta=delta,
        groups=None if budgets is None else named_budgets(budgets),
        method=method,
        relation=relation,
    )
    if as_json:
        print_json({"epsilon": found.epsilon(delta), "delta": delta, **found.to_json()})
    else:
        tell(found, delta)


def tell(found: "LabelForecast", delta: float) -> None:
    """Print what a plan buys, for people."""
    from dpfy.planning.pate import SHARES

    plan, groups = found.plan, found.plan.groups
    typer.echo(f"ε = {found.epsilon(delta):.4f} at δ = {delta:g}, whatever the votes are.")
    if groups is not None:
        for name, mu, bound in zip(groups.names, groups.mus, groups.bounds, strict=True):
            counts = f"votes weigh {bound:.3f}" if groups.teachers else f"{bound:.0f} copies"
            typer.echo(f"  group {name}: μ = {mu:.4f}, {counts}")
        typer.echo(f"{found.gain:.2f} times the labels that all records had at the strictest ε.")
    if plan.check_noise is None:
        typer.echo(f"It buys {found.labels[0]:,} labels.")
    else:
        bought = (
            f"{labels:,} if {share:.0%} of the inputs have consensus"
            for share, labels in zip(SHARES, found.labels, strict=True)
        )
        typer.echo(f"It buys labels: {'; '.join(bought)}.")
    typer.echo(
        f"A class is the label in 95 % of cases if it leads by {found.lead:.0f} of {plan.parts} "
        "votes."
    )
    if not found.audible:
        typer.echo(
            "That is more than all votes: labels would be noise. Use more teachers, or less "
            "--answer-noise and fewer labels."
        )
