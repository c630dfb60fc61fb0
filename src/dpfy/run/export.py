"""Write the parameters of a model to one safetensors file, one after the other.

Tests: tests/run/test_sharded_checkpoint.py.
"""

import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dpfy.gradients.sharded.rows import Shards, is_divided
from dpfy.run.ranks import Ranks

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def export(model: nn.Module, file: str | Path) -> Path:
    """Write the parameters and buffers of a model to one file, as rank 0 has them.

    A sharded model is gathered one parameter at a time: no process ever has all of it in memory.
    Every process calls this; rank 0 writes.

    Args:
        model: the model, whole or sharded by ``fully_shard``.
        file: the file, which ``safetensors.torch.load_file`` reads.

    Returns:
        The file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     export(nn.Linear(2, 1), f"{folder}/model.safetensors").name
    'model.safetensors'
    """
    ranks, path = Ranks.present(), Path(file)
    state = model.state_dict()
    Shards.of(model)  # refuses what is divided otherwise
    header, end = {}, 0
    for name, tensor in state.items():
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    staged = path.with_name(path.name + ".tmp")
    with ranks.together():
        out: Any = open(staged, "wb") if ranks.first else None  # noqa: SIM115 - messages go between
        if out is not None:
            out.write(len(text).to_bytes(8, "little") + text)
    for tensor in state.values():
        whole = tensor.full_tensor() if is_divided(tensor) else tensor
        if out is not None:
            plain = whole.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            out.write(plain.numpy().tobytes())
    with ranks.together():
        if out is not None:
            out.flush()
            os.fsync(out.fileno())
            out.close()
            staged.replace(path)
    return path
