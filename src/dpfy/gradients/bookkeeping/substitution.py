"""Put other tensors in the places of a model's parameters and buffers while a chunk is computed."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from dpfy.gradients.base import Unsupported
from dpfy.gradients.modules import modules_of


@contextmanager
def substituted(
    model: nn.Module, parameters: Mapping[str, nn.Parameter], others: Mapping[str, torch.Tensor]
) -> Iterator[None]:
    """Compute with other tensors instead of some parameters, and with copies of all buffers.

    ``torch.func.functional_call`` does the same by name, in several walks over the model. Here one
    walk finds every place of a tensor: a parameter that several modules share has one substitute.

    Args:
        model: The model; whatever is written to its buffers inside of the block is lost.
        parameters: The parameters that others stand in for.
        others: The tensors that do, by the same names.

    Raises:
        Unsupported: If a parameter has no place in the model any more.
    """
    copies = {id(parameter): others[name] for name, parameter in parameters.items()}
    missing = set(copies)
    places: list[tuple[dict[str, Any], str, torch.Tensor, torch.Tensor]] = []
    for module in modules_of(model):
        for name, parameter in module._parameters.items():
            if parameter is not None and (copy := copies.get(id(parameter))) is not None:
                missing.discard(id(parameter))
                places.append((module._parameters, name, parameter, copy))
        for name, buffer in module._buffers.items():
            if buffer is not None:
                copy = copies.setdefault(id(buffer), buffer.clone())
                places.append((module._buffers, name, buffer, copy))
    if missing:
        raise Unsupported("a trained parameter was taken out of the model")
    try:
        for tensors, name, _, copy in places:
            tensors[name] = copy
        yield
    finally:
        for tensors, name, original, _ in places:
            tensors[name] = original
