"""Call a model, or its loss, on synthetic records whose fields were declared by type and shape.

Tests: tests/checks/test_check.py.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from dpfy.errors import InvalidArgument
from dpfy.gradients.base import LossFn
from dpfy.gradients.chunk import Chunk
from dpfy.gradients.synthetic import synthetic

Field = tuple[str, tuple[int, ...]]
"""The type and the shape of a field of one record."""
Fields = Sequence[Field] | Mapping[str, Field]
"""The fields of one record in their order, or by name, as models of transformers take them."""

_RECORDS = 4
_LABELS = ("labels", "label")


def shapes_of(fields: Fields) -> list[Field]:
    """Return the types and shapes of fields, without their names."""
    return list(fields.values() if isinstance(fields, Mapping) else fields)


def made_up(fields: Fields) -> tuple[Any, ...]:
    """Return a small collated batch of synthetic records of these types and shapes."""
    zeros = tuple(
        torch.zeros(1, *shape, dtype=getattr(torch, kind)) for kind, shape in shapes_of(fields)
    )
    return synthetic(Chunk(zeros, 1), _RECORDS, seed=0, scale=1.0, declared=False).arguments


def scores_of(output: Any) -> torch.Tensor:
    """Return the tensor that a model computes: its ``logits``, or the first tensor of several.

    >>> scores_of({"loss": None, "logits": torch.ones(2)})
    tensor([1., 1.])
    """
    if isinstance(output, Mapping):
        output = output.get("logits", list(output.values()))
    if isinstance(output, list | tuple):
        output = next((each for each in output if isinstance(each, torch.Tensor)), output)
    if not isinstance(output, torch.Tensor):
        raise TypeError("the model returns no tensor: pass loss_fn=")
    return output


def loss_of_fields(model: nn.Module, loss: Any, fields: Fields) -> LossFn:
    """Return a loss as a function of the fields.

    A criterion of torch compares the model's output with the last field, or with the one that is
    named ``labels``. Another function is called as in :meth:`dpfy.Run.backward`: with the fields,
    or with one mapping of those that have names.
    """
    if isinstance(loss, nn.Module):
        # the last fields of CTC are targets, input lengths and target lengths
        apart = _apart(model, fields, targets=3 if isinstance(loss, nn.CTCLoss) else 1)
        return lambda *values: loss(*apart(*values))
    if "reduction" in inspect.signature(loss).parameters:
        apart = _apart(model, fields, targets=1)
        return lambda *values: loss(*apart(*values), reduction="none")
    if isinstance(fields, Mapping):
        names = tuple(fields)
        return lambda *values: loss(dict(zip(names, values, strict=True)))
    return loss  # type: ignore[no-any-return]


def outputs_of_fields(model: nn.Module, fields: Fields) -> Callable[..., torch.Tensor]:
    """Return the model's output as a function of the fields; labels are left out."""
    if isinstance(fields, Mapping) or _of_transformers(model):
        labelled = len(fields) > 1 and (
            not isinstance(fields, Mapping) or any(name in fields for name in _LABELS)
        )
    else:
        labelled = len(fields) > 1 and not _takes(model, len(fields))
    apart = _apart(model, fields, targets=int(labelled))
    return lambda *values: apart(*values)[0]


def _apart(model: nn.Module, fields: Fields, targets: int) -> Callable[..., tuple[Any, ...]]:
    """Return a function of the fields that gives the model's scores, and then the targets."""
    if isinstance(fields, Mapping):
        names = tuple(fields)
        kept = [name for name in names if name in _LABELS] or list(names[len(names) - targets :])

        def by_name(*values: Any) -> tuple[Any, ...]:
            named = dict(zip(names, values, strict=True))
            rest = [named.pop(name) for name in kept[:targets]]
            return (scores_of(model(**named)), *rest)

        return by_name
    inputs = len(fields) - targets
    if inputs > 1 and _of_transformers(model):
        raise InvalidArgument(
            f"Expected names for {len(fields)} fields of a model of transformers, whose arguments "
            "are given by name, such as 'input_ids=int64[128],attention_mask=int64[128],"
            "labels=int64[]'."
        )
    return lambda *values: (scores_of(model(*values[:inputs])), *values[inputs:])


def _of_transformers(model: nn.Module) -> bool:
    return any(kind.__name__ == "PreTrainedModel" for kind in type(model).__mro__)


def _takes(model: nn.Module, count: int) -> bool:
    """Whether a model can be called with this number of values."""
    try:
        inspect.signature(model.forward).bind(*range(count))
    except TypeError:
        return False
    return True
