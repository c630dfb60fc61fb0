"""``dpfy plan advise``: a few questions, a recommended plan, and its reasons.

Tests: tests/cli/test_plan.py.
"""

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from dpfy.cli._options import JsonOption
from dpfy.errors import InvalidArgument

if TYPE_CHECKING:
    from dpfy.planning.advisor import Question


def _answer(help: str) -> typer.models.OptionInfo:
    return typer.Option(help=help, show_default=False)


def advise(
    sees: Annotated[
        str | None,
        _answer("Output that others see: model, predictions, data or updates. Default: asked."),
    ] = None,
    sampling: Annotated[
        str | None,
        _answer("Sampling that you can do: poisson, fixed, shuffle or stream. Default: asked."),
    ] = None,
    one_each: Annotated[
        str | None, _answer("Whether each person has one example: yes or no. Default: asked.")
    ] = None,
    labels_only: Annotated[
        str | None, _answer("Whether only labels are private: yes or no. Default: asked.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Ask the questions that no option answers; recommend a plan with its reasons.

    Examples:
    dpfy plan advise

    dpfy plan advise --sees model --sampling poisson --one-each yes --labels-only no
    """
    from dpfy.cli._output import print_json
    from dpfy.planning.advisor import QUESTIONS, advise as advice_for

    answers = {"sees": sees, "sampling": sampling, "one_each": one_each, "labels_only": labels_only}
    for question in QUESTIONS:
        if answers[question.name] is None:
            answers[question.name] = _ask(question, as_json)
    found = advice_for(**{name: value for name, value in answers.items() if value is not None})
    print_json(asdict(found)) if as_json else typer.echo(str(found))


def _ask(question: "Question", err: bool) -> str:
    """Ask until one of the answers is given; an empty line is the first of them."""
    typer.echo(question.text, err=err)
    for answer, meaning in question.answers.items():
        typer.echo(f"  {answer}: {meaning}", err=err)
    first, *_ = question.answers
    while True:
        typer.echo(f"answer [{first}]: ", nl=False, err=err)
        line = sys.stdin.readline()
        if not line:
            typer.echo(err=err)
            raise InvalidArgument(
                "The input ended before all questions were answered. Answer the open one with "
                f"--{question.name.replace('_', '-')} {first}, or all of them: dpfy plan advise "
                "--sees model --sampling poisson --one-each yes --labels-only no."
            )
        given = line.strip() or first
        if given in question.answers:
            return given
        typer.echo(f"Expected one of {', '.join(question.answers)}, got {given!r}.", err=err)
