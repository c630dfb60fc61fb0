"""Open the loggers that the setting ``log`` names, before a run has a folder or a ledger.

Tests: tests/trainer/test_log_settings.py, tests/integrations/loggers.
"""

from pathlib import Path

from dpfy.run.callbacks import Logger, TensorBoardLog
from dpfy.run.loggers import MlflowLog, WandbLog
from dpfy.trainer.config import TrainConfig
from dpfy.trainer.log_settings import named_loggers


def open_loggers(config: TrainConfig, folder: Path) -> tuple[Logger, ...]:
    """Return the loggers of a run; they write nothing into its folder yet.

    Args:
        config: the settings.
        folder: the folder that the run will have.

    Returns:
        The loggers.

    Raises:
        InvalidArgument: if nothing answers at an address.
        MissingExtra: if a package is not installed.
    """
    return tuple(_logger(kind, where, folder) for kind, where in named_loggers(config.log or ()))


def _logger(kind: str, where: str, folder: Path) -> Logger:
    if kind == "mlflow":
        return MlflowLog(where, folder.name)
    if kind == "wandb":
        return WandbLog(folder, folder.name)
    return TensorBoardLog(Path(where) / folder.name)
