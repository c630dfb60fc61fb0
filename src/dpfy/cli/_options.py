"""Options that several commands share, with one wording each.

Tests: tests/cli/test_commands.py.
"""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpfy.errors import InvalidArgument
from dpfy.types import Relation

if TYPE_CHECKING:
    from dpfy.trainer.config import TrainConfig


class Method(StrEnum):
    """The accountants that the command line offers."""

    PLD = "pld"
    RDP = "rdp"


DeltaOption = Annotated[
    float,
    typer.Option(
        "--delta",
        help="Failure probability δ of the guarantee, in (0, 1), such as 1e-5.",
        show_default=False,
    ),
]
RateOption = Annotated[
    float,
    typer.Option(
        "--rate",
        help="Sampling rate: the probability that a record takes part in a step, in [0, 1], such "
        "as 0.01.",
        show_default=False,
    ),
]
StepsOption = Annotated[
    int, typer.Option("--steps", help="Number of steps, such as 1000.", show_default=False)
]
MethodOption = Annotated[
    Method,
    typer.Option(
        "--method", help="Accountant: pld (privacy loss distributions) or rdp (Rényi divergences)."
    ),
]
RelationOption = Annotated[
    Relation, typer.Option("--relation", help="Relation of neighbouring data sets.")
]
JsonOption = Annotated[
    bool, typer.Option("--json", help='Print one JSON object; infinity is the string "inf".')
]


DataDirOption = Annotated[
    str | None,
    typer.Option(
        help="Folder that holds the data sets. Default: the environment variable DPFY_DATA.",
        show_default=False,
    ),
]
LedgerArgument = Annotated[
    Path,
    typer.Argument(
        help="Ledger, such as run.dpl, or the folder of a run.",
        show_default=False,
    ),
]
SourceArgument = Annotated[
    Path,
    typer.Argument(
        help="Ledger, folder of a run, or file with a JSON list of events.", show_default=False
    ),
]
AnchorOption = Annotated[
    Path | None,
    typer.Option(
        help="File in another place in which the run also kept the head of the ledger, such as "
        "/backup/run.head.",
        show_default=False,
    ),
]
SettingsArgument = Annotated[
    Path | None,
    typer.Argument(
        help="TOML or YAML file of settings; `dpfy init` writes one.", show_default=False
    ),
]
SettingsOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="TOML or YAML file of settings, as the argument CONFIG; flags override it.",
        show_default=False,
    ),
]


def settings_from(config: Path | None, config_file: Path | None) -> "TrainConfig":
    """Return the settings in the file that was given as an argument or by ``--config``."""
    from dpfy.trainer.config import TrainConfig

    if config is not None and config_file is not None:
        raise InvalidArgument(
            f"Expected one file of settings, got {config} and --config {config_file}. Leave one of "
            "them out."
        )
    path = config or config_file
    return TrainConfig() if path is None else TrainConfig.from_file(path)


def ledger_file(path: Path) -> Path:
    """Return the ledger that ``path`` is, or that the folder of a run holds."""
    return path / "ledger.dpl" if path.is_dir() else path
