"""Options that several commands share, with one wording each."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from dpfy.types import Relation


class Method(StrEnum):
    """The accountants that the command line offers."""

    PLD = "pld"
    RDP = "rdp"


DeltaOption = Annotated[
    float, typer.Option("--delta", help="The δ of the claim, in (0, 1).", show_default=False)
]
RateOption = Annotated[
    float,
    typer.Option(
        "--rate",
        help="The probability with which a record enters a step, in [0, 1].",
        show_default=False,
    ),
]
StepsOption = Annotated[int, typer.Option("--steps", help="How many steps.", show_default=False)]
MethodOption = Annotated[
    Method, typer.Option("--method", help="Privacy loss distributions, or Rényi divergences.")
]
RelationOption = Annotated[
    Relation, typer.Option("--relation", help="When two data sets are neighbours.")
]
JsonOption = Annotated[
    bool, typer.Option("--json", help='Print one JSON object; infinity is the string "inf".')
]


def ledger_file(path: Path) -> Path:
    """Return the ledger that ``path`` is, or that the folder of a run holds."""
    return path / "ledger.dpl" if path.is_dir() else path
