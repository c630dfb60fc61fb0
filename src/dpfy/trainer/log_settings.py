"""The setting ``log``: to which trackers a run is told, without torch and without the trackers."""

from collections.abc import Sequence
from urllib.parse import urlsplit

from dpfy.errors import InvalidArgument

FORM = "mlflow:ADDRESS, wandb:offline or tensorboard:FOLDER"


def named_loggers(given: str | Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return the trackers that a setting names, each with its address.

    Args:
        given: texts such as ``mlflow:sqlite:///mlflow.db``, or one with commas between them.

    Returns:
        The kind and the address of each.

    Raises:
        InvalidArgument: if one is malformed, is named twice, or holds a password.

    >>> named_loggers(["mlflow:sqlite:///mlflow.db", "wandb:offline"])
    (('mlflow', 'sqlite:///mlflow.db'), ('wandb', 'offline'))
    """
    texts = given.split(",") if isinstance(given, str) else given
    found = []
    for text in texts:
        kind, _, address = text.partition(":") if isinstance(text, str) else ("", "", "")
        kind, address = kind.strip(), address.strip()
        if kind not in ("mlflow", "wandb", "tensorboard") or not address:
            raise InvalidArgument(f"Expected log as {FORM}, got {text!r}.")
        if kind == "wandb" and address != "offline":
            raise InvalidArgument(
                f"Expected 'wandb:offline', got {text!r}: no request leaves this machine while a "
                "run trains. `wandb sync` sends the files afterwards."
            )
        if kind == "mlflow" and _has_password(address):
            raise InvalidArgument(
                "Expected an address of MLflow without a password: settings are saved. Give it in "
                "the environment, as MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD."
            )
        found.append((kind, address))
    if len(set(found)) < len(found):
        raise InvalidArgument(f"Expected each tracker in log once, got {', '.join(texts)}.")
    return tuple(found)


def _has_password(address: str) -> bool:
    try:
        return urlsplit(address).password is not None
    except ValueError:
        return False
