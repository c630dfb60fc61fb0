"""Load the model that a training run left in its folder."""

from pathlib import Path

from safetensors.torch import load_model as load_weights
from torch import nn

from dpfy.checks.fix import fix
from dpfy.errors import CheckpointError
from dpfy.trainer.builders import completed, load_data, make_model, without_batchnorm
from dpfy.trainer.config import TrainConfig
from dpfy.trainer.trainer import MODEL, saved_settings


def load_model(folder: str | Path, model: nn.Module | None = None) -> nn.Module:
    """Load the released model of a finished run of :class:`dpfy.Trainer` or ``dpfy train``.

    Args:
        folder: The folder of the run.
        model: A model of the architecture that was trained, if it was given to the trainer as an
            object. Default: the one that the settings in the folder name.

    Returns:
        The model with the released weights, in evaluation mode.

    Raises:
        CheckpointError: The folder holds no finished run, or a run of another architecture.
    """
    path = Path(folder)
    config = completed(TrainConfig.from_mapping(saved_settings(path)))
    if not (path / MODEL).exists():
        raise CheckpointError(
            f"{path} has no {MODEL}: the run is not finished. Go on with `dpfy train --resume "
            f"{path}`."
        )
    if model is None:
        model = _named_model(config)
    elif config.batchnorm in ("group", "private"):
        model = fix(model, config.batchnorm)
    try:
        load_weights(model, path / MODEL)
    except (RuntimeError, ValueError) as error:
        raise CheckpointError(
            f"The weights in {path / MODEL} are of another architecture than "
            f"{type(model).__name__}. If the trainer was given a model, give one like it as "
            f"model=. {' '.join(str(error).split())}"
        ) from None
    return model.eval()


def _named_model(config: TrainConfig) -> nn.Module:
    """Return the untrained model that the settings name; private data is loaded only if needed."""
    if config.model is not None and config.batchnorm in ("refuse", "group", "private"):
        model = make_model(config, None)
        return model if config.batchnorm == "refuse" else fix(model, config.batchnorm)
    data = load_data(config, None, None)
    return without_batchnorm(config, make_model(config, data), data)
