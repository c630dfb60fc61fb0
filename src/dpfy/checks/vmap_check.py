"""Check whether a loss can be vectorised over records, so that no value decides a computation.

Tests: tests/run/test_engine_choice.py.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.func import vmap

from dpfy.checks.places import Place, stopped_at
from dpfy.gradients.base import LossCall
from dpfy.gradients.chunk import Chunk
from dpfy.gradients.losses import per_example, shown_of_each


@dataclass(frozen=True)
class TracingRefused:
    """The loss of a record cannot be traced.

    Args:
        error: The type of torch's error.
        place: The line of the user's or a library's code at which tracing stopped, if there is one.
    """

    error: str
    place: Place | None


def refuses_tracing(model: nn.Module, loss_fn: Any, chunk: Chunk) -> TracingRefused | None:
    """Return where the loss of a record cannot be traced; None if it can.

    A loss function that is given a whole chunk could branch on a value that depends on all
    records, and no synthetic input need ever take the other branch. Tracing stops at every value
    that would reach Python.
    """
    try:
        with traceable_recurrence(model):
            _of_each(model, loss_fn, chunk, lambda returned: per_example(returned, 1), "different")
    except Exception as error:
        return TracingRefused(type(error).__name__, stopped_at(error))
    return None


def can_be_vectorised(model: nn.Module) -> bool:
    """Whether no layer of a model is known to fail in :func:`alone_at_once`."""
    return not any(
        isinstance(module, nn.RNNBase)
        or (isinstance(module, nn.modules.dropout._DropoutNd) and module.training and module.p > 0)
        for module in model.modules()
    )


def alone_at_once(model: nn.Module, loss_fn: Any, chunk: Chunk) -> torch.Tensor | None:
    """Return losses and statistics of each record as if it were alone; None if that fails.

    A vectorised loss is given one record, and cannot see that there are others. Random numbers it
    would draw for all of them at once: then it fails.
    """
    try:
        rows = _of_each(model, loss_fn, chunk, lambda returned: shown_of_each(returned, 1), "error")
    except Exception:  # recurrent layers, for instance, are not vectorised
        return None
    return rows.flatten(0, 1)


def _of_each(
    model: nn.Module,
    loss_fn: Any,
    chunk: Chunk,
    shown: Callable[[Any], torch.Tensor],
    randomness: str,
) -> torch.Tensor:
    """Return what is shown of the loss of one record, vectorised over the records of a chunk."""
    tensors, rebuild = chunk.flatten()
    call = LossCall(model, loss_fn)

    def loss(*one: torch.Tensor) -> torch.Tensor:
        return shown(call(*rebuild([tensor.unsqueeze(0) for tensor in one]).arguments))

    with torch.enable_grad(), warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message="There is a performance drop", category=UserWarning
        )
        return vmap(loss, randomness=randomness)(*tensors)


@contextmanager
def traceable_recurrence(model: nn.Module) -> Iterator[None]:
    """Replace recurrent layers, which torch cannot vectorise, by functions of the same shapes.

    Recurrent layers treat every record alone, so whether they can be traced does not matter.
    Packed sequences are not replaced: packing needs the records' lengths as numbers, so that a
    loss that packs is done one record at a time unless an engine is asked for by name.
    """
    recurrent = [
        m for m in model.modules() if isinstance(m, nn.RNNBase) and "forward" not in vars(m)
    ]
    try:
        for module in recurrent:
            vars(module)["forward"] = _StandIn(module)
        yield
    finally:
        for module in recurrent:
            del vars(module)["forward"]


class _StandIn:
    """Numbers that depend on the same records as the outputs of a recurrent layer."""

    def __init__(self, module: nn.RNNBase) -> None:
        self.module = module

    def __call__(self, inputs: torch.Tensor, state: Any = None) -> tuple[torch.Tensor, Any]:
        directions = 2 if self.module.bidirectional else 1
        width = getattr(self.module, "proj_size", 0) or self.module.hidden_size
        outputs = inputs.mean(-1, keepdim=True).expand(*inputs.shape[:-1], directions * width)
        time = 1 if self.module.batch_first else 0
        last = inputs.mean((time, -1)).unsqueeze(-1)

        def final(features: int) -> torch.Tensor:
            return last.expand(directions * self.module.num_layers, len(last), features)

        return outputs, (
            final(width),
            final(self.module.hidden_size),
        ) if self.module.mode == "LSTM" else final(width)
