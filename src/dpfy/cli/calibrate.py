"""``dpfy calibrate``: the noise that a run needs.

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


def calibrate(
    epsilon: Annotated[
        float,
        typer.Option(
            "--epsilon",
            help="Budget ε that the run must not exceed, such as 3.",
            show_default=False,
        ),
    ],
    delta: DeltaOption,
    rate: RateOption,
    steps: StepsOption,
    method: MethodOption = Method.PLD,
    relation: RelationOption = Relation.ADD_OR_REMOVE_ONE,
    as_json: JsonOption = False,
) -> None:
    """Find the least noise multiplier that keeps DP-SGD within a budget.

    Examples:
    dpfy calibrate --epsilon 3 --delta 1e-5 --rate 0.02 --steps 3000

    dpfy calibrate --epsilon 3 --delta 1e-5 --rate 0.02 --steps 3000 --relation replace_one --json
    """
    from dpfy.accounting import account, calibrate_noise
    from dpfy.cli._output import claims, print_json, sentence
    from dpfy.ledger.events import Poisson, Repeated, Sampled, SumQuery

    noise = calibrate_noise(
        epsilon=epsilon, delta=delta, rate=rate, steps=steps, relation=relation, method=str(method)
    )
    step = Sampled(Poisson(rate), (SumQuery(1.0, noise),))
    values = claims(account(Repeated(step, steps), str(method), relation), delta) | {
        "noise_multiplier": noise,
        "rate": rate,
    }
    print_json(values) if as_json else typer.echo(f"Noise multiplier {noise!r}. {sentence(values)}")
