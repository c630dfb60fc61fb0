"""Options that declare private predictions, for the commands that answer.

Tests: tests/cli/test_predict.py.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpfy.errors import InvalidArgument

if TYPE_CHECKING:
    from dpfy.ensembles.predictor import PrivatePredictor

TeachersArgument = Annotated[
    Path, typer.Argument(help="Folder of trained teachers.", show_default=False)
]
LedgerOption = Annotated[
    Path | None,
    typer.Option(
        help="Ledger of the predictions. Default: predictions.dpl in the folder.",
        show_default=False,
    ),
]
FormatOption = Annotated[
    str | None,
    typer.Option(
        help="How teachers are kept, as module:name of a format. Default: linear teachers.",
        show_default=False,
    ),
]


def _first(help: str) -> Any:
    return typer.Option(help=f"{help} For a new ledger.", show_default=False)


ClassesOption = Annotated[int | None, _first("Number of classes, such as 10.")]
BoundsOption = Annotated[
    str | None, _first("Bounds of a teacher's prediction in a regression, such as 0:1.")
]
NoiseOption = Annotated[float | None, _first("Standard deviation of the noise, in votes.")]
EpsilonOption = Annotated[float | None, _first("The ε of all answers together, above 0.")]
AllDeltaOption = Annotated[float | None, _first("The δ of all answers together, in (0, 1).")]
ThresholdOption = Annotated[
    float | None, _first("Votes that the most popular class needs to be answered.")
]
CheckNoiseOption = Annotated[
    float | None, _first("Standard deviation of the noise of that comparison, in votes.")
]


def declared(*, bounds: str | None, shape: Any, **given: Any) -> dict[str, Any] | None:
    """Return the settings that options declare for a new ledger, or None if none is given."""
    if bounds is None and all(value is None for value in given.values()):
        return None
    for name in ("noise", "epsilon", "delta"):
        if given[name] is None:
            raise InvalidArgument(
                f"A new ledger needs --{name} too; for one that exists, leave all of these out."
            )
    return {**given, "bounds": None if bounds is None else numbers(bounds), "shape": shape}


def spoken_budget(predictor: "PrivatePredictor") -> str:
    """Say what is left of the budget."""
    plan = predictor.plan
    return (
        f"{predictor.left:.1%} of the budget are left (epsilon {plan.epsilon:g} at delta "
        f"{plan.delta:g} for all answers together), which buys {predictor.answers_left:,} more."
    )


def numbers(text: str) -> tuple[float, ...]:
    """Return the numbers of ``low:high``."""
    try:
        return tuple(float(each) for each in text.split(":"))
    except ValueError:
        raise InvalidArgument(f"Expected --bounds low:high, got {text!r}.") from None
