"""Store state dictionaries in one safetensors file.

Tensors are stored as they are, and everything else as JSON in the header: nothing is pickled.

Tests: tests/run/test_checkpoint.py.
"""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from dpfy.errors import CheckpointError

_KEY = "dpfy"


def write_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write nested dicts, lists, tuples, tensors and plain values durably, replacing ``path``."""
    write_packed(path, packed_state(state))


def packed_state(state: Mapping[str, Any]) -> bytes:
    """Return what a file of the state holds."""
    tensors: dict[str, torch.Tensor] = {}
    skeleton = _encode(state, "", tensors)
    return save(tensors, metadata={_KEY: json.dumps(skeleton, allow_nan=False)})


def write_packed(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Write a packed state durably, replacing ``path``, with permissions within ``mode``."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with open(temporary, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        raise CheckpointError(
            f"{path} could not be written: {error.strerror}. The checkpoint before it, if any, is "
            "still whole."
        ) from error


def read_state(path: Path) -> dict[str, Any]:
    """Return what :func:`write_state` wrote."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        state = _decode(json.loads(metadata[_KEY]), tensors)
    except FileNotFoundError:
        raise CheckpointError(f"There is no checkpoint at {path}. Check the path.") from None
    except (SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
        raise CheckpointError(
            f"{path} is not a whole dpfy checkpoint ({type(error).__name__}). Use another."
        ) from None
    if not isinstance(state, dict):
        raise CheckpointError(f"{path} is not a dpfy checkpoint.")
    return state


def _encode(value: Any, name: str, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        key = f"{len(tensors)}{name}"
        tensors[key] = value.detach().to("cpu").contiguous().clone()
        return {"tensor": key}
    if isinstance(value, Mapping):
        return {
            "dict": [
                [_encode(k, "", tensors), _encode(v, f"{name}.{k}", tensors)]
                for k, v in value.items()
            ]
        }
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {
            kind: [_encode(item, f"{name}.{index}", tensors) for index, item in enumerate(value)]
        }
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise CheckpointError(
        f"The state holds a {type(value).__name__} at {name.lstrip('.')!r}; only tensors, numbers, "
        "texts, lists and dicts can be saved without pickling. Leave it out or convert it."
    )


def _decode(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "dict":
        return {_decode(k, tensors): _decode(v, tensors) for k, v in content}
    if kind == "float":
        return float(content)
    items = [_decode(item, tensors) for item in content]
    return tuple(items) if kind == "tuple" else items
