"""Attention masks and positions, built record by record.

transformers looks at the padding of a whole batch and drops the mask if no record has any, so that
whether one record is padded decides how all others are computed. It takes a mask with four
dimensions as it is; such masks are built here.
"""

from typing import Any

import torch

from dpfy.errors import InvalidArgument

_FULL, _SLIDING = "full_attention", "sliding_attention"


def positions(attended: torch.Tensor) -> torch.Tensor:
    """Return the place of every token among those of its record, whichever side is padded.

    Args:
        attended: Which tokens are none of padding, as booleans [records, length].

    Returns:
        Whole numbers [records, length]; padding has a position that exists.

    >>> positions(torch.tensor([[False, True, True], [True, True, False]]))
    tensor([[0, 0, 1],
            [0, 1, 1]])
    """
    return (attended.long().cumsum(-1) - 1).clamp(min=0)


def bidirectional(attended: torch.Tensor, window: int | None = None) -> torch.Tensor:
    """Return the mask by which tokens of a record see one another, [records, 1, ·, length].

    With a window, a token sees those at most so far away. A record that is nothing but padding
    sees all of it: a softmax over no token is not a number.
    """
    if window is not None:
        distance = _distances(attended)
        return _or_itself(attended[:, None, :] & (distance.abs() <= window), distance)
    return (attended | ~attended.any(-1, keepdim=True))[:, None, None, :]


def causal(attended: torch.Tensor, window: int | None = None) -> torch.Tensor:
    """Return the mask by which a token sees itself and those before, [records, 1, length, length].

    With a window, a token sees no more than so many.
    """
    distance = _distances(attended)
    seen = distance >= 0
    if window is not None:
        seen = seen & (distance < window)
    return _or_itself(attended[:, None, :] & seen, distance)


def _distances(attended: torch.Tensor) -> torch.Tensor:
    """Return how far each token is behind each other one, [length, length]."""
    place = torch.arange(attended.shape[-1], device=attended.device)
    return place[:, None] - place


def _or_itself(seen: torch.Tensor, distance: torch.Tensor) -> torch.Tensor:
    """Let padding see itself as well, so that every row of the softmax has a token."""
    return (seen | (distance == 0))[:, None]


def by_layer(
    config: Any, attended: torch.Tensor, *, decoder: bool
) -> torch.Tensor | dict[str, torch.Tensor]:
    """Return the mask of a model or, where its layers differ, one for each kind of layer.

    Args:
        config: The model's configuration.
        attended: Which tokens are none of padding, as booleans [records, length].
        decoder: Whether a token sees only the past.

    Raises:
        InvalidArgument: The model has layers or attention that take no mask for each record.
    """
    window = getattr(config, "sliding_window", None)
    kinds = set(getattr(config, "layer_types", None) or [_FULL if window is None else _SLIDING])
    if unknown := kinds - {_FULL, _SLIDING}:
        raise InvalidArgument(
            f"The layers of this model attend by {', '.join(sorted(unknown))}. Masks are built for "
            f"{_FULL} and {_SLIDING} only: compute its loss with a function of your own."
        )
    build = causal if decoder else bidirectional
    masks = {
        kind: as_expected(config, build(attended, window if kind == _SLIDING else None))
        for kind in sorted(kinds)
    }
    return masks if len(masks) > 1 else masks[kinds.pop()]


def as_expected(config: Any, mask: torch.Tensor) -> torch.Tensor:
    """Return a mask in the form that the model's implementation of attention computes with."""
    implementation = getattr(config, "_attn_implementation", "sdpa")
    if implementation == "sdpa":
        return mask
    if implementation == "eager":  # which adds the mask to the scores
        return torch.zeros(mask.shape, device=mask.device).masked_fill(
            ~mask, torch.finfo(torch.float32).min
        )
    raise InvalidArgument(
        f"Expected a model with attn_implementation 'sdpa' or 'eager', got {implementation!r}: "
        "only these take a mask for each record. Load it with attn_implementation='sdpa'."
    )
