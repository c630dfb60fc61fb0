"""``dpfy plan predictions``: how many private predictions a budget buys.

Tests: tests/cli/test_plan.py.
"""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpfy.cli._options import DeltaOption, JsonOption
from dpfy.cli._prediction import numbers

if TYPE_CHECKING:
    from dpfy.planning.prediction_costs import Predictions


def _optional(help: str) -> Any:
    return typer.Option(help=help, show_default=False)


def predictions(
    parts: Annotated[int, typer.Option(help="Number of teachers.", show_default=False)],
    epsilon: Annotated[
        float, typer.Option(help="The ε of all answers together, above 0.", show_default=False)
    ],
    delta: DeltaOption,
    noise: Annotated[float | None, _optional("Standard deviation of the noise, in votes.")] = None,
    answers: Annotated[int | None, _optional("Number of answers, in place of --noise.")] = None,
    classes: Annotated[int | None, _optional("Number of classes, such as 10.")] = None,
    bounds: Annotated[
        str | None, _optional("Bounds of a teacher's prediction in a regression, such as 0:1.")
    ] = None,
    threshold: Annotated[
        float | None, _optional("Votes that the most popular class needs to be answered.")
    ] = None,
    check_noise: Annotated[
        float | None, _optional("Standard deviation of the noise of that comparison, in votes.")
    ] = None,
    trained_epsilon: Annotated[
        float | None,
        _optional("The ε at which a privately trained model is as good, to compare with."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say how many private predictions a budget buys, and from when on training is cheaper.

    Examples:
    dpfy plan predictions --parts 250 --epsilon 2.6 --delta 1e-5 --noise 40 --classes 10

    dpfy plan predictions --parts 250 --epsilon 2.6 --delta 1e-5 --answers 300 --classes 10
    --trained-epsilon 0.5
    """
    from dpfy.cli._output import print_json
    from dpfy.planning.prediction_costs import predictions as found_by

    found = found_by(
        parts=parts,
        epsilon=epsilon,
        delta=delta,
        noise=noise,
        answers=answers,
        classes=classes,
        bounds=None if bounds is None else numbers(bounds),  # type: ignore[arg-type]
        threshold=threshold,
        check_noise=check_noise,
        trained_epsilon=trained_epsilon,
    )
    if as_json:
        print_json(found.to_json())
    else:
        typer.echo(_sentences(found))


def _sentences(found: "Predictions") -> str:
    from dpfy.cli._output import round_up

    texts = [
        f"{found.answers:,} answers with noise {found.plan.noise:.4g} cost epsilon "
        f"{round_up(found.epsilon):.4f} at delta {found.plan.delta:g}."
    ]
    if found.right_at_best is not None:
        texts.append(
            f"Where all {found.plan.parts} teachers agree, {found.right_at_best:.1%} of the "
            "answers are theirs; elsewhere fewer."
        )
    if found.error is not None:
        texts.append(f"Noise adds a standard deviation of {found.error:.4g} to each answer.")
    if found.training_cheaper_from is not None:
        texts.append(
            f"From {found.training_cheaper_from:,} answers on, training privately is cheaper."
        )
    return "\n".join(texts)
