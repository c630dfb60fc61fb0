"""Count the numbers that are alive at once: deterministic, where the memory of a process is not.

Tests: tests/gradients/bookkeeping/test_checkpointing.py.
"""

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveMemory(TorchDispatchMode):
    """Watches the memory of all tensors that are made inside the block.

    ``peak`` is the largest number of bytes that were alive at once.
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._bytes: dict[int, int] = {}
        self._alive = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._note(leaf.untyped_storage())
        return result

    def _note(self, storage: torch.UntypedStorage) -> None:
        """Count a storage until nothing refers to it any more."""
        if storage._cdata in self._bytes:
            return
        self._bytes[storage._cdata] = storage.nbytes()
        self._alive += storage.nbytes()
        self.peak = max(self.peak, self._alive)
        weakref.finalize(storage, self._forget, storage._cdata)

    def _forget(self, address: int) -> None:
        self._alive -= self._bytes.pop(address)
