"""What the modules of a model keep beside parameters and buffers, as values that can be compared."""

import hashlib
from collections.abc import Hashable, Mapping
from typing import Any

import torch
from torch import nn

_OF_TORCH = set(vars(nn.Module())) - {"training"}
_DEPTH = 5


def attributes_of(model: nn.Module) -> dict[tuple[str, str], Any]:
    """Return a fingerprint of every plain attribute, by module and name."""
    return {(name, attribute): _fingerprint(value, _DEPTH) for name, module in model.named_modules()
            for attribute, value in vars(module).items() if attribute not in _OF_TORCH}


def switches_of(model: nn.Module) -> Hashable:
    """Return what decides about how a model computes and is set from outside: modes, flags, names, hooks and modules.

    >>> layer = nn.Dropout()
    >>> training = switches_of(layer)
    >>> switches_of(layer.eval()) == training
    False
    """
    return tuple((module, vars(module).get("forward"), *module._forward_hooks, *module._forward_pre_hooks,
                  *module._backward_hooks, *module._backward_pre_hooks,
                  *(value for value in vars(module).values() if isinstance(value, bool | str)))
                 for module in model.modules())


def _fingerprint(value: Any, depth: int) -> Any:
    if isinstance(value, torch.Tensor):
        plain = value.detach().to("cpu").resolve_conj().contiguous()
        data = hashlib.sha256(plain.flatten().view(torch.uint8).numpy().tobytes()).hexdigest() if plain.numel() else ""
        return ("tensor", tuple(plain.shape), str(plain.dtype), data)
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return repr(value)
    if depth and isinstance(value, Mapping):
        return [(repr(key), _fingerprint(item, depth - 1)) for key, item in value.items()]
    if depth and isinstance(value, list | tuple | set | frozenset):
        return [_fingerprint(item, depth - 1) for item in value]
    if hasattr(value, "tobytes") and hasattr(value, "dtype"):
        return ("array", str(value.dtype), hashlib.sha256(value.tobytes()).hexdigest())
    return id(value)
