"""The position of the records in the tensors that a layer is given.

Tests: tests/gradients/bookkeeping/test_capture.py.
"""

from dataclasses import dataclass

import torch

from dpfy.gradients.base import Unsupported


@dataclass(frozen=True)
class Layout:
    """The axis of the records; ``flat`` if each record is a run of equal length along axis 0.

    Layouts are learnt from synthetic batches of several sizes, never guessed from one: with as
    many records as time steps, both axes would look alike.

    Args:
        axis: The axis of the records.
        flat: Whether each record is a run of equal length along axis 0.
    """

    axis: int = 0
    flat: bool = False

    def items(self, tensor: torch.Tensor, records: int) -> torch.Tensor:
        """Return the tensor with records, or consecutive items of each record, along axis 0."""
        if self.axis >= tensor.ndim:
            raise Unsupported
        moved = tensor.movedim(self.axis, 0) if self.axis else tensor
        items = moved.shape[0]
        if items % records if self.flat else items != records:
            raise Unsupported
        return moved

    def records(self, tensor: torch.Tensor, records: int) -> torch.Tensor:
        """Return the tensor with records along axis 0."""
        items = self.items(tensor, records)
        return items.unflatten(0, (records, -1)) if self.flat else items

    def sequences(self, tensor: torch.Tensor, records: int) -> torch.Tensor:
        """Return [records, time, features], whatever axes were between them."""
        rows = self.records(tensor, records)
        return rows.reshape(records, -1, rows.shape[-1])


def learnt(small: torch.Tensor, large: torch.Tensor, records: tuple[int, int]) -> Layout | None:
    """Return the layout of a tensor seen with two numbers of records; None if it has none."""
    if small.ndim != large.ndim:
        raise Unsupported
    axes = [
        axis for axis, (a, b) in enumerate(zip(small.shape, large.shape, strict=True)) if a != b
    ]
    if not axes:
        return None
    (axis,) = axes if len(axes) == 1 else (None,)
    if axis is None or small.shape[axis] * records[1] != large.shape[axis] * records[0]:
        raise Unsupported
    flat = small.shape[axis] != records[0]
    if flat and axis:
        raise Unsupported
    return Layout(axis, flat)
