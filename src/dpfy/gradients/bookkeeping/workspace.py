"""Memory for the gradients that a pass writes out, used again by the next one."""

import math
import sys

import numpy as np
import numpy.typing as npt
import torch

_LARGE = 2**16  # numbers; smaller tensors are left to torch


class Workspace:
    """Hand out uninitialised tensors, in memory that no other tensor uses any more.

    A tensor as large as all gradients of a chunk is new to the process every time: the kernel maps
    and clears each of its pages when it is first written to, which takes longer than to compute
    what is written. Every tensor keeps the array alive that it is made from, so memory that is
    still in use, by any view of it, is known by its references and never handed out twice.
    """

    def __init__(self) -> None:
        self._arrays: list[npt.NDArray[np.float32]] = []

    def floats(self, *shape: int) -> torch.Tensor:
        """Return a float32 tensor of this shape, whose numbers are whatever was there."""
        count = math.prod(shape)
        if count < _LARGE:
            return torch.empty(shape)
        return torch.from_numpy(self._array(count)[:count]).view(shape)

    def like(self, tensor: torch.Tensor, *shape: int) -> torch.Tensor:
        """Return a tensor of this shape, of the type and on the device of another one."""
        if tensor.dtype == torch.float32 and tensor.is_cpu:
            return self.floats(*shape)
        return tensor.new_empty(shape)

    def _array(self, count: int) -> npt.NDArray[np.float32]:
        """Return the smallest unused array with room for ``count`` numbers, or a new one.

        A new one takes the place of an unused one that is too small, so that there are never more
        arrays than were in use at the same time.
        """
        unused = sorted(self._unused(), key=lambda place: len(self._arrays[place]))
        for place in unused:
            if len(self._arrays[place]) >= count:
                return self._arrays[place]
        if unused:
            del self._arrays[unused[-1]]
        self._arrays.append(np.empty(count, dtype=np.float32))
        return self._arrays[-1]

    def _unused(self) -> list[int]:
        """Return the places of arrays that only the workspace refers to."""
        places = range(len(self._arrays))
        return [place for place in places if _references(self._arrays, place) == _UNUSED]


def _references(arrays: list[npt.NDArray[np.float32]], place: int) -> int:
    """Return the number of references to an array of a list, as this interpreter counts them."""
    return sys.getrefcount(arrays[place])


_UNUSED = _references([np.empty(1, dtype=np.float32)], 0)  # the list's own, and the call's
