"""Whether every trained tensor has a part in the loss, as far as synthetic records show."""

from typing import Any

import torch
from torch import nn

from dpfy.errors import InvalidArgument
from dpfy.gradients import LoopEngine
from dpfy.gradients.base import LossCall, LossFn, Originals
from dpfy.records.example import as_chunk

_STEP = (
    1e-2  # by which parameters are moved: an adapter begins with zeros, which hide its gradients
)


def require_gradients(model: nn.Module, loss_fn: LossFn, example_input: Any) -> None:
    """Refuse a model of which a trained tensor would be given noise and no gradient.

    Synthetic records are differentiated one by one, at parameters that are moved a little: half of
    an adapter has no gradient where the other half is zero, as it is at first.

    Args:
        model: The model; the tensors that require gradients are trained.
        loss_fn: The loss of each record, such as :func:`private_loss` returns.
        example_input: A collated batch of synthetic records. No private record is looked at.

    Raises:
        InvalidArgument: A trained tensor has no gradient for any of the records; the text names
            the tensors.
    """
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    missing, chunk = set(trained), as_chunk(example_input)
    engine, call, state = (
        LoopEngine(model, trained),
        LossCall(model, loss_fn),
        _moved(model, trained),
    )
    with torch.random.fork_rng():
        for position in range(chunk.size):
            gradients, _ = engine.gradients(call, state, chunk.record(position))
            found = zip(trained, gradients, strict=True)
            missing -= {name for name, each in found if each is not None and bool(each.any())}
    if missing:
        raise InvalidArgument(
            "These trained tensors have no gradient for any synthetic record: "
            f"{', '.join(sorted(missing))}. They would be given nothing but noise. Freeze them "
            "with requires_grad_(False), or give example_input records that use them."
        )


def _moved(model: nn.Module, trained: dict[str, nn.Parameter]) -> Originals:
    """Return the state of a model with its trained parameters moved, without touching them."""
    state, generator = Originals(model, trained), torch.Generator().manual_seed(0)
    state.trained = {
        name: each + (_STEP * torch.randn(each.shape, generator=generator)).to(each)
        for name, each in state.trained.items()
    }
    return state
