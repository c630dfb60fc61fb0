"""Settings of a run that protects labels alone: what they mean, and which others have no meaning.

Nothing here loads torch.
"""

from collections.abc import Callable, Mapping
from typing import Any

from dpfy import _validate
from dpfy.errors import InvalidArgument
from dpfy.mechanisms.controllers.names import named

PROTECT = ("records", "labels")
NOT_FOR_LABELS = {
    "batchnorm": "ordinary training needs no replacement",
    "users": "labels are protected one by one",
    "rows_per_user": "labels are protected one by one",
    "budgets": "every label has the one ε",
    "groups_of": "every label has the one ε",
    "individual": "every label has the one ε",
    "example": "no per-record gradients are computed",
    "clip": "no gradient is clipped",
    "clipping": "no gradient is clipped",
    "clip_schedule": "no gradient is clipped",
    "noise_schedule": "the noise is in the labels, and drawn once",
    "groups": "no gradient is clipped",
    "noise_correlation": "the noise is in the labels, and drawn once",
    "sampling": "no amplification by sampling is claimed",
    "capacity": "no amplification by sampling is claimed",
    "importance": "no amplification by sampling is claimed",
    "relation": "it is replace_one, of one label",
    "algorithm": "training after the release is ordinary training",
    "private_metrics": "nothing is released but the noisy labels",
    "engine": "no per-record gradients are computed",
    "strict": "there is no allowance to refuse",
    "max_physical_batch": "no per-record gradients are computed",
    "num_workers": "features are tensors in memory",
    "prefetch": "features are tensors in memory",
    "budget": "a book keeps budgets for users and records",
    "checkpoint_every": "the noisy labels are what is saved",
    "task": "labels are classes",
    "loss": "the loss follows from the noise of the labels",
    "metric": "the accuracy on public data is measured",
    "metric_goal": "the accuracy on public data is measured",
}
"""Settings that a run with ``protect="labels"`` leaves at their defaults, and why."""

_OPTIMIZERS = ("sgd", "adam")
_EPOCHS, _BATCH_SIZE, _RATES, _MOMENTUM = 5.0, 128, {"sgd": 0.05, "adam": 1e-3}, 0.9


def _staged(stages: float = 2) -> dict[str, Any]:
    return {"stages": _whole("stages", stages)}


def _staged_truth(stages: float = 2) -> dict[str, Any]:
    return {**_staged(stages), "rule": "truth"}


def _clustered(clusters: float = 100) -> dict[str, Any]:
    return {"clusters": _whole("clusters", clusters)}


_METHODS: dict[str, Callable[..., dict[str, Any]]] = {
    "rr": lambda: {},
    "lp-mst": _staged,
    "lp-mst-truth": _staged_truth,
    "alibi": lambda: {},
    "cluster": _clustered,
}


def named_label_method(text: str) -> tuple[str, dict[str, Any]]:
    """Return the name of a method that protects labels, and the options that follow it.

    Args:
        text: The setting, such as ``lp-mst:2``.

    Returns:
        The name and its options.

    Raises:
        InvalidArgument: If the method is unknown, or a number is not whole.

    >>> named_label_method("cluster:50")
    ('cluster', {'clusters': 50})
    """
    return text.partition(":")[0], named("label_method", text, _METHODS)


def check_label_settings(given: Mapping[str, Any], protect: str, optimizer: str) -> None:
    """Refuse settings that have no meaning where labels, or records, are protected.

    Args:
        given: The settings that differ from their defaults.
        protect: What is protected.
        optimizer: The optimizer.

    Raises:
        InvalidArgument: If a setting has no meaning.
    """
    if protect != "labels":
        for name in ("label_method", "classes"):
            if name in given:
                raise InvalidArgument(
                    f"Expected protect='labels' with {name}={given[name]!r}, got {protect!r}."
                )
        return
    if name := next((name for name in NOT_FOR_LABELS if name in given), ""):
        raise InvalidArgument(
            f"Expected no {name}={given[name]!r} with protect='labels': {NOT_FOR_LABELS[name]}. "
            "Leave it out."
        )
    if optimizer not in _OPTIMIZERS:
        raise InvalidArgument(
            f"Expected optimizer='sgd' or 'adam' with protect='labels', got {optimizer!r}: "
            "gradients have no noise that an optimizer could correct."
        )


def label_defaults(optimizer: str) -> dict[str, Any]:
    """Return the settings of ordinary training on noisy labels that were left open.

    Args:
        optimizer: The optimizer.

    Returns:
        Settings by name.
    """
    return {
        "epochs": _EPOCHS,
        "batch_size": _BATCH_SIZE,
        "learning_rate": _RATES[optimizer],
        "momentum": _MOMENTUM,
        "ema": 0.0,
    }


def require_records(protect: str, what: str) -> None:
    """Refuse a configuration that protects labels alone, for what trains with private steps.

    Args:
        protect: What a configuration protects.
        what: What trains.

    Raises:
        InvalidArgument: If that is labels.
    """
    if protect == "labels":
        raise InvalidArgument(
            f"Expected protect='records' for {what}, got 'labels': it is about private steps, and "
            "training on noisy labels has none."
        )


def _whole(name: str, value: float) -> int:
    if value != int(value):
        raise InvalidArgument(f"Expected {name}={value!r} in label_method to be a whole number.")
    return _validate.count(name, int(value))
