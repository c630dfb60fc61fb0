"""Augmentation multiplicity: the loss of a record is a mean over random variations of it.

The gradient of that mean is clipped once per record. So K variations cost K times the work and
nothing in privacy, and reduce the augmentation's own noise in the clipped gradient (De et al.
2022, "Unlocking High-Accuracy Differentially Private Image Classification through Scale").
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.data import Dataset, Subset, TensorDataset

from dpfy import _validate
from dpfy.errors import InvalidArgument

LossFn = Callable[..., torch.Tensor]
Augment = Callable[[torch.Tensor], torch.Tensor]


def crop_and_flip(images: torch.Tensor, padding: int = 4) -> torch.Tensor:
    """Shift each image at random, with a reflected border, and mirror it with probability ½.

    Every image draws for itself, from torch's generator, which a run replaces by a secret one. The
    function can be traced by ``torch.func.vmap``.

    Args:
        images: Images of shape (images, …, height, width).
        padding: The largest shift in pixels.

    Returns:
        Images of the same shape.

    Raises:
        InvalidArgument: ``padding`` is not a whole number of at least 0.

    >>> crop_and_flip(torch.rand(2, 3, 32, 32)).shape
    torch.Size([2, 3, 32, 32])
    """
    count, height, width = len(images), images.shape[-2], images.shape[-1]
    padded = F.pad(images, [_validate.count("padding", padding, minimum=0)] * 4, mode="reflect")
    top, left = (torch.randint(2 * padding + 1, (count, 1), device=images.device) for _ in range(2))
    mirrored = torch.rand(count, 1, device=images.device) < 0.5
    rows, columns = (torch.arange(side, device=images.device) for side in (height, width))
    across = left + torch.where(mirrored, width - 1 - columns, columns)
    shape = (count, *(1,) * (images.ndim - 3))
    shifted = padded.take_along_dim((top + rows).view(*shape, height, 1), -2)
    return shifted.take_along_dim(across.view(*shape, 1, width), -1)


def mean_over_copies(loss_fn: LossFn) -> LossFn:
    """Return a loss that is the mean over the copies in a record's first field.

    The first field has the shape (records, copies, …). ``loss_fn`` is called once, with all copies
    of all records. The other fields of a record are the same for its copies.

    *Formal guarantee*: the loss of a record is a function of that record, if ``loss_fn`` treats
    examples alone; its gradient is the mean of the gradients of its copies.

    Args:
        loss_fn: A function from the fields of ordinary examples to one loss for each.

    Returns:
        The loss function of records with copies.

    Raises:
        InvalidArgument: When called: ``loss_fn`` does not return one loss per example.

    >>> loss = mean_over_copies(lambda x, y: (x - y).square())
    >>> loss(torch.tensor([[1.0, 3.0], [5.0, 5.0]]), torch.tensor([0.0, 5.0]))
    tensor([5., 0.])
    """

    def losses(first: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        records, copies = first.shape[:2]
        found = loss_fn(
            first.flatten(0, 1), *(field.repeat_interleave(copies, 0) for field in others)
        )
        if not isinstance(found, torch.Tensor) or found.shape != (records * copies,):
            raise InvalidArgument(
                "Expected loss_fn to return a tensor with one loss per example. Use "
                "reduction='none'."
            )
        return found.unflatten(0, (records, copies)).mean(1)

    return losses


def augmented(loss_fn: LossFn, augment: Augment, multiplicity: int) -> LossFn:
    """Return a loss that is the mean over random variations of a record's first field.

    Because the loss draws random numbers, only engines that are given one record at a time,
    ``vmap`` and ``loop``, can serve it; :class:`AugmentedData` draws with the data instead and
    suits every engine.

    Args:
        loss_fn: A function from the fields of ordinary examples to one loss for each.
        augment: A function that varies the first field of each example by itself, as
            :func:`crop_and_flip` does.
        multiplicity: The number of variations of each record.

    Returns:
        The loss function of ordinary records.

    Raises:
        InvalidArgument: ``multiplicity`` is not a positive whole number.

    >>> loss = augmented(lambda x, y: x.sum((1, 2, 3)) * y, crop_and_flip, multiplicity=4)
    >>> loss(torch.ones(3, 1, 8, 8), torch.tensor([0.0, 1.0, 2.0]))
    tensor([  0.,  64., 128.])
    """
    _validate.count("multiplicity", multiplicity)
    mean = mean_over_copies(loss_fn)

    def losses(first: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        varied = augment(first.repeat_interleave(multiplicity, 0))
        return mean(varied.unflatten(0, (len(first), multiplicity)), *others)

    return losses


class AugmentedData(Dataset[tuple[Any, ...]]):
    """A data set whose records hold random variations instead of their first field.

    The variations of a record are drawn anew every time it is loaded. With
    :func:`mean_over_copies` around the loss, every engine can be used. The unit of privacy stays
    the record: its variations are clipped together.

    Args:
        data: A map-style data set whose records are tuples.
        augment: A function that varies the first field of each example by itself.
        multiplicity: The number of variations of each record.

    >>> from torch.utils.data import TensorDataset
    >>> data = TensorDataset(torch.rand(5, 3, 32, 32), torch.arange(5))
    >>> data = AugmentedData(data, crop_and_flip, multiplicity=4)
    >>> len(data), data[1][0].shape, data[1][1]
    (5, torch.Size([4, 3, 32, 32]), tensor(1))
    """

    def __init__(self, data: Any, augment: Augment, multiplicity: int) -> None:
        self.data, self.augment = data, augment
        self.multiplicity = _validate.count("multiplicity", multiplicity)

    @property
    def example_input(self) -> tuple[torch.Tensor, ...] | None:
        """The declaration of the data inside, with variations; None if they declare nothing."""
        data = self.data
        while type(data) is Subset:
            data = data.dataset
        given = getattr(data, "example_input", None)
        if given is None and type(data) is TensorDataset:
            given = [
                torch.zeros(1, *tensor.shape[1:], dtype=tensor.dtype) for tensor in data.tensors
            ]
        if given is None:
            return None
        first, *others = given
        with torch.random.fork_rng(devices=[]):
            varied = self.augment(first[:1].repeat_interleave(self.multiplicity, 0))
        return (varied.unsqueeze(0), *(other[:1] for other in others))

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        first, *others = self.data[index]
        return (self.augment(first.unsqueeze(0).repeat_interleave(self.multiplicity, 0)), *others)
