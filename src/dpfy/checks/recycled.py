"""Memory for gradients as large as a model, used for one record after the other.

Autograd takes fresh memory for every gradient. A system hands that out page by page when it is
first written to, which takes several times as long as the arithmetic.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dpfy.gradients.bookkeeping.workspace import Workspace

_WORTHWHILE = 2**24  # bytes; of smaller tensors the allocator keeps the memory


class RecycledProducts(TorchDispatchMode):
    """Forms the gradients of large weights in memory that no other tensor uses any more.

    Args:
        parameters: The trained parameters. Products of other shapes are left alone.
        memory: The memory of the engine that is to be compared, which uses it in every step.
    """

    def __init__(self, parameters: Iterable[torch.Tensor], memory: Workspace) -> None:
        super().__init__()
        self._shapes = {p.shape for p in parameters if p.is_cpu and p.nbytes >= _WORTHWHILE}
        self._memory = memory

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.ops.aten.mm.default or kwargs:
            return func(*args, **(kwargs or {}))
        one, other = args
        shape = torch.Size((one.shape[0], other.shape[1]))
        dense = one.layout is other.layout is torch.strided
        if shape not in self._shapes or not (one.is_cpu and dense):
            return func(one, other)
        return torch.ops.aten.mm.out(one, other, out=self._memory.like(one, *shape))
