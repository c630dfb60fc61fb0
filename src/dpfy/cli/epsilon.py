"""``dpfy epsilon``: the privacy cost of a run that is planned.

Tests: tests/cli/test_commands.py.
"""

from typing import Annotated

import typer

from dpfy.cli._options import (
    DeltaOption,
    JsonOption,
    Method,
    MethodOption,
    RateOption,
    RelationOption,
    StepsOption,
)
from dpfy.types import Relation


def epsilon(
    rate: RateOption,
    noise_multiplier: Annotated[
        float,
        typer.Option(
            "--noise-multiplier",
            show_default=False,
            help="Noise multiplier: the standard deviation of the noise in clip bounds, such as 1.",
        ),
    ],
    steps: StepsOption,
    delta: DeltaOption,
    method: MethodOption = Method.PLD,
    relation: RelationOption = Relation.ADD_OR_REMOVE_ONE,
    as_json: JsonOption = False,
) -> None:
    """Compute ε of DP-SGD with Poisson samples and Gaussian noise.

    Examples:
    dpfy epsilon --rate 0.01 --noise-multiplier 1.0 --steps 10000 --delta 1e-5

    dpfy epsilon --rate 0.01 --noise-multiplier 1.0 --steps 10000 --delta 1e-5 --method rdp --json
    """
    from dpfy import _validate
    from dpfy.accounting import account
    from dpfy.cli._output import claims, print_json, sentence
    from dpfy.ledger.events import Poisson, Repeated, Sampled, SumQuery

    _validate.real("noise_multiplier", noise_multiplier, 0, float("inf"), open_high=True)
    step = Sampled(Poisson(rate), (SumQuery(1.0, noise_multiplier),))
    guarantee = account(
        Repeated(step, _validate.count("steps", steps, minimum=0)), str(method), relation
    )
    values = claims(guarantee, _validate.delta(delta)) | {
        "noise_multiplier": noise_multiplier,
        "rate": rate,
    }
    print_json(values) if as_json else typer.echo(sentence(values))
