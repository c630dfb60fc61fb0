"""``dpfy convert``: a guarantee as membership tests, Gaussian DP and groups of records see it."""

from typing import Annotated, Any

import typer

from dpfy.cli._options import DeltaOption, JsonOption, SourceArgument, ledger_file
from dpfy.types import Relation


def convert(
    path: SourceArgument,
    delta: DeltaOption,
    fpr: Annotated[
        float, typer.Option("--fpr", help="False positive rate of a membership test, in [0, 1].")
    ] = 0.001,
    group: Annotated[
        int,
        typer.Option("--group", help="Number of records that one person may have, from 1 to 1000."),
    ] = 1,
    as_json: JsonOption = False,
) -> None:
    """Translate the guarantee of a ledger; each number is a bound that may be claimed.

    Examples:
    dpfy convert run.dpl --delta 1e-5

    dpfy convert run.dpl --delta 1e-5 --fpr 0.01 --group 5 --json
    """
    from dpfy import _validate
    from dpfy.accounting import account
    from dpfy.accounting.conversions import (
        dominating_mu,
        group_claim,
        membership_advantage,
        tpr_at_fpr,
    )
    from dpfy.accounting.group import group_epsilon
    from dpfy.cli._output import groups_of, print_json

    _validate.real("fpr", fpr, 0, 1)
    _validate.real("group", group, 1, 1000, remedy="Larger groups have no useful guarantee.")
    guarantee = account(ledger_file(path))
    guarantee = guarantee.envelope or guarantee  # what may be claimed whenever the run stopped
    gaussian = dominating_mu(guarantee, floor=delta)
    fixed = (
        guarantee.source.filter is None and guarantee.relation != Relation.REPLACE_ONE
    )  # else the curve is all
    together = (
        group_epsilon(guarantee.source.events, group, delta)
        if fixed
        else group_claim(guarantee, group, delta)
    )
    values: dict[str, Any] = {
        "epsilon": guarantee.claim(delta),
        "delta": delta,
        "relation": str(guarantee.relation),
        "unit": str(guarantee.unit),
        "steps": guarantee.steps,
        "private": guarantee.private,
        "mu": gaussian.mu,
        "membership_advantage": membership_advantage(guarantee),
        "fpr": fpr,
        "tpr": tpr_at_fpr(guarantee, fpr),
        "group": group,
        "group_epsilon": together,
    }
    if named := groups_of(guarantee):
        values["groups"] = {
            name: {
                "epsilon": each.claim(delta),
                "mu": dominating_mu(each, floor=delta).mu,
                "membership_advantage": membership_advantage(each),
                "tpr": tpr_at_fpr(each, fpr),
            }
            for name, each in named.items()
        }
    print_json(values) if as_json else _describe(values)


def _describe(values: dict[str, Any]) -> None:
    from dpfy.cli._output import round_up

    if not values["private"]:
        typer.echo(
            "NOT PRIVATE: insecure test key. The numbers are what a secret key would have given."
        )
    typer.echo(
        f"{values['steps']:,} steps: epsilon {round_up(values['epsilon']):.4f} at delta = "
        f"{values['delta']:g}, for {values['relation']} of one {values['unit']}."
        + (" Labels alone are protected, and features are not." * (values["unit"] == "label"))
    )
    typer.echo(
        f"Gaussian DP: mu = {round_up(values['mu']):.4f}, wherever delta is above "
        f"{values['delta']:g}."
    )
    typer.echo(
        "Membership tests: the true positive rate exceeds the false positive rate by at most "
        f"{round_up(values['membership_advantage']):.4f}, and is at most "
        f"{round_up(values['tpr']):.4f} where that one is {values['fpr']:g}."
    )
    if values["group"] > 1:
        typer.echo(
            f"Groups of {values['group']} records: epsilon {round_up(values['group_epsilon']):.4f} "
            f"at delta = {values['delta']:g}."
        )
    if "groups" in values:
        typer.echo("These are of the weakest group of records. By group:")
        width = max(map(len, values["groups"]))
        for name, each in values["groups"].items():
            typer.echo(
                f"  {name:<{width}}  epsilon {round_up(each['epsilon']):.4f}, mu "
                f"{round_up(each['mu']):.4f}, advantage at most "
                f"{round_up(each['membership_advantage']):.4f}, true positives at most "
                f"{round_up(each['tpr']):.4f}"
            )
