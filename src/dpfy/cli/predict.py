"""``dpfy predict``: answers of teachers to the inputs of a file, with noise, within a budget."""

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpfy.cli._prediction import (
    AllDeltaOption,
    BoundsOption,
    CheckNoiseOption,
    ClassesOption,
    EpsilonOption,
    FormatOption,
    LedgerOption,
    NoiseOption,
    TeachersArgument,
    ThresholdOption,
    declared,
    spoken_budget,
)
from dpfy.errors import BudgetExhausted, InvalidArgument

if TYPE_CHECKING:
    from dpfy.ensembles.predictor import PrivatePredictor


def predict(
    teachers: TeachersArgument,
    inputs: Annotated[
        Path, typer.Argument(help="Inputs, one in each row of an .npy file.", show_default=False)
    ],
    out: Annotated[Path, typer.Option(help="New file for the answers, .csv.", show_default=False)],
    ledger: LedgerOption = None,
    classes: ClassesOption = None,
    bounds: BoundsOption = None,
    noise: NoiseOption = None,
    epsilon: EpsilonOption = None,
    delta: AllDeltaOption = None,
    threshold: ThresholdOption = None,
    check_noise: CheckNoiseOption = None,
    format: FormatOption = None,
    partial: Annotated[
        bool, typer.Option("--partial", help="Answer as many inputs as the budget buys.")
    ] = False,
) -> None:
    """Answer inputs by the noisy votes of teachers, and pay for each answer first.

    Inputs that were answered before cost nothing. The options that declare a budget are for a new
    ledger; later calls go on with it.

    Examples:
    dpfy predict runs/ensemble inputs.npy --out answers.csv --classes 10 --noise 40 --epsilon 2.6
    --delta 1e-5

    dpfy predict runs/ensemble more.npy --out more.csv
    """
    from dpfy.ensembles.prediction_folder import open_predictor

    if out.exists():
        raise InvalidArgument(f"{out} exists. Choose another file, or move it away.")
    rows = _rows(inputs)
    settings = declared(
        classes=classes,
        bounds=bounds,
        noise=noise,
        epsilon=epsilon,
        delta=delta,
        threshold=threshold,
        check_noise=check_noise,
        shape=rows.shape[1:],
    )
    predictor = open_predictor(teachers, ledger, format, settings)
    if not partial:
        _check_affordable(predictor, rows)
    answers = predictor.predict_each(rows)
    _write(out, answers)
    refused = answers.count(None)
    typer.echo(f"{len(answers) - refused} answers in {out}. {spoken_budget(predictor)}")
    if refused:
        raise BudgetExhausted(f"{refused} inputs were refused: the budget is used up.")


def _rows(path: Path) -> Any:
    import numpy as np

    try:
        found = np.load(path, allow_pickle=False)
    except ValueError:
        found = None
    if not isinstance(found, np.ndarray) or not found.ndim:
        raise InvalidArgument(f"Expected {path} to be an .npy file of numbers, a row for an input.")
    return found


def _check_affordable(predictor: "PrivatePredictor", rows: Any) -> None:
    """Refuse what the budget cannot buy, before anything is spent."""
    new, left = predictor.count_new(rows), predictor.answers_left
    if new > left:
        raise BudgetExhausted(
            f"{new:,} of the inputs are new, and the budget buys {left:,} more answers. Nothing "
            "was spent: give fewer inputs, or pass --partial for as many answers as it buys."
        )


def _write(out: Path, answers: list[Any]) -> None:
    with out.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(("row", "answer"))
        table.writerows(enumerate("" if answer is None else answer for answer in answers))
