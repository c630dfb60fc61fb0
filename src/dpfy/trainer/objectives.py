"""The loss that a trainer minimises, and the metric that it measures on public data.

Both are functions of the model and of the fields of collated records: ``f(model, x, y)`` for pairs,
``f(model, record)`` for dicts. They return one number for each record.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from dpfy._objects import load_object
from dpfy.errors import InvalidArgument
from dpfy.trainer.config import TrainConfig

PerRecord = Callable[..., Any]
"""A function of the model and of the fields of collated records to one number for each."""

_TARGETS = ("labels", "label", "targets", "target", "y")
_IGNORED = -100  # the label of a token that no loss counts, as everywhere in torch


@dataclass(frozen=True)
class Objective:
    """What is minimised on private records, and what is measured on public ones.

    Args:
        loss: Returns one loss per record, or :class:`dpfy.Losses`.
        measure: Returns one number per record, whose mean is the metric.
        metric: The name of the metric.
        larger_is_better: Whether the metric is to rise.
    """

    loss: PerRecord
    measure: PerRecord
    metric: str
    larger_is_better: bool

    def score(self, value: float) -> float:
        """Return a value of the metric as a number that is to rise."""
        return value if self.larger_is_better else -value


def scores_and_labels(model: nn.Module, *fields: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the scores of the classes and the labels of collated records.

    The label is the last field of a tuple, or the item of a dict that is called ``labels``,
    ``label``, ``targets``, ``target`` or ``y``; the model is given the others.

    >>> scores_and_labels(nn.Flatten(), {"input": torch.eye(2), "label": torch.tensor([0, 1])})[1]
    tensor([0, 1])
    """
    record = fields[0]
    if len(fields) > 1 or not isinstance(record, Mapping):
        return _output(model(*fields[:-1])), fields[-1]
    name = next((name for name in _TARGETS if name in record), None)
    if name is None:
        raise InvalidArgument(
            f"Expected a record with one of {', '.join(_TARGETS)}, got {', '.join(record)}. Give "
            "a loss= of your own."
        )
    return call_model(model, {k: v for k, v in record.items() if k != name}), record[name]


def call_model(model: nn.Module, record: Mapping[str, Any]) -> torch.Tensor:
    """Call a model with the items of a dict by name, or with the dict if it has no such arguments.

    Of an output with ``logits``, as models of transformers return, these are taken.
    """
    try:
        inspect.signature(model.forward).bind(**record)
    except TypeError:
        return _output(model(record))
    return _output(model(**record))


def _output(found: Any) -> torch.Tensor:
    return found if isinstance(found, torch.Tensor) else found.logits  # type: ignore[no-any-return]


def _cross_entropy(model: nn.Module, *fields: Any) -> torch.Tensor:
    return F.cross_entropy(*scores_and_labels(model, *fields), reduction="none")


def _is_right(model: nn.Module, *fields: Any) -> torch.Tensor:
    scores, labels = scores_and_labels(model, *fields)
    return (scores.argmax(1) == labels).double()


def _squared_error(model: nn.Module, *fields: Any) -> torch.Tensor:
    """Return the squared error of each record, the mean over its targets."""
    found, wanted = scores_and_labels(model, *fields)
    # [B, 1] and [B] would be broadcast to [B, B], which mixes records
    return (found.reshape(wanted.shape) - wanted).square().reshape(len(wanted), -1).mean(1)


def _next_token_loss(model: nn.Module, *fields: Any) -> torch.Tensor:
    """Return the mean loss of the next token of each record, in nats.

    Records are tokens, or tokens and labels; or dicts with ``input_ids``, and ``labels`` or an
    ``attention_mask`` if some tokens do not count.
    """
    if isinstance(fields[0], Mapping):
        record = dict(fields[0])
        labels = record.pop("labels", None)
        if labels is None:
            mask = record.get("attention_mask", torch.ones_like(record["input_ids"]))
            labels = record["input_ids"].masked_fill(mask == 0, _IGNORED)
        scores = call_model(model, record)
    else:
        scores, labels = _output(model(fields[0])), fields[-1]
    labels = labels[:, 1:]
    losses = F.cross_entropy(
        scores[:, :-1].transpose(1, 2), labels, ignore_index=_IGNORED, reduction="none"
    )
    return losses.sum(1) / (labels != _IGNORED).sum(1).clamp(min=1)


TASKS = {
    "classification": Objective(_cross_entropy, _is_right, "accuracy", True),
    "regression": Objective(_squared_error, _squared_error, "mean squared error", False),
    "language_model": Objective(_next_token_loss, _next_token_loss, "loss per token", False),
}


def objective_for(
    config: TrainConfig, loss: PerRecord | None = None, metric: PerRecord | None = None
) -> Objective:
    """Return the objective of a task, with the user's own loss and metric in their places.

    Args:
        config: The settings, which may name a loss and a metric.
        loss: The user's own loss instead of what the settings name.
        metric: The user's own metric, likewise.

    Returns:
        The objective. With an own loss and no metric, the loss is measured.

    Raises:
        InvalidArgument: The private metrics are asked for, and the task is no classification.
    """
    loss = loss if loss is not None else _named("loss", config.loss)
    metric = metric if metric is not None else _named("metric", config.metric)
    found = TASKS[config.task]
    if config.private_metrics and (loss is not None or config.task != "classification"):
        raise InvalidArgument(
            "private_metrics are the accuracy and the loss of a classification. Leave them out, or "
            "release statistics of your own: see docs/how-to/queries.md."
        )
    if metric is not None:
        name = getattr(metric, "__name__", "metric").replace("_", " ")
        return Objective(loss or found.loss, metric, name, config.metric_goal == "max")
    return found if loss is None else Objective(loss, loss, "loss", False)


def _named(setting: str, reference: str | None) -> PerRecord | None:
    """Return the function that a setting names."""
    if reference is None:
        return None
    found = load_object(reference)
    if not callable(found):
        raise InvalidArgument(
            f"Expected {setting}={reference!r} to name a function of the model and of the fields "
            f"of collated records, got {type(found).__name__}."
        )
    return found  # type: ignore[no-any-return]
