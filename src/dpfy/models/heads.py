"""Small networks on scattering features, and the normalisation in front of them.

Normalisation matters more than the network, because coefficients of different paths differ by
orders of magnitude. It uses either the example alone (GroupNorm, :class:`~dpfy.models.Normalize`)
or statistics that are given (:class:`StandardizeChannels`), so that examples do not mix.
"""

import torch
from torch import nn

from dpfy.errors import InvalidArgument
from dpfy.models.networks import Activation

_GROUPS = 27  # of 81 or 243 channels: three or nine paths together


class StandardizeChannels(nn.Module):
    """Subtract a given mean from each channel and divide by a given standard deviation.

    Channels whose standard deviation is zero come out as zero. Mean and deviation are saved with
    the model.

    Args:
        mean: One finite number per channel.
        std: One finite number per channel, at least 0.

    Raises:
        InvalidArgument: The shapes differ, or a number is outside of its range.

    *Assumes*: both come from public data or from a release with a guarantee of its own. This module
    is given numbers and cannot know where they come from; computed from private records without
    noise, they void every guarantee.

    >>> layer = StandardizeChannels(torch.tensor([1.0, 5.0]), torch.tensor([2.0, 0.0]))
    >>> layer(torch.tensor([[3.0, 9.0]]))
    tensor([[1., 0.]])
    """

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, mean: torch.Tensor, std: torch.Tensor) -> None:
        super().__init__()
        if mean.ndim != 1 or mean.shape != std.shape:
            raise InvalidArgument(
                "Expected mean and std to have one number per channel, got the shapes "
                f"{tuple(mean.shape)} and {tuple(std.shape)}."
            )
        if not (mean.isfinite().all() and std.isfinite().all() and (std >= 0).all()):
            raise InvalidArgument(
                "Expected mean and std to be finite, and std to be at least 0. Noise can lead a "
                "released variance below it: clamp it before taking the root."
            )
        self.register_buffer("mean", mean.detach().clone())
        self.register_buffer("std", std.detach().clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return inputs of the same shape (records, channels, …)."""
        if x.ndim < 2 or x.shape[1] != len(self.mean):
            raise InvalidArgument(
                f"Expected inputs of shape (records, {len(self.mean)}, …), got {tuple(x.shape)}."
            )
        shape = (-1, *(1,) * (x.ndim - 2))
        mean, std = self.mean.view(shape), self.std.view(shape)
        return torch.where(std > 0, (x - mean) / torch.where(std > 0, std, 1), 0)


def linear_head(
    shape: tuple[int, int, int], classes: int = 10, normalization: nn.Module | None = None
) -> nn.Sequential:
    """Return softmax regression on normalised features.

    Its weights start at zero: the loss is convex, and random weights would only add noise.

    Args:
        shape: Channels, height and width of the features.
        classes: Outputs.
        normalization: A module that treats records alone; default: GroupNorm of 27 groups without
            scale and shift.

    Returns:
        A module that maps features of (records, channels, height, width) to (records, classes).

    Raises:
        InvalidArgument: 27 groups do not divide the channels, and no normalization is given.

    >>> linear_head((81, 7, 7))(torch.rand(5, 81, 7, 7)).shape
    torch.Size([5, 10])

    Reference: F. Tramèr and D. Boneh, Differentially Private Learning Needs Better Features, 2021.
    """
    channels, height, width = shape
    linear = nn.Linear(channels * height * width, classes)
    for parameter in linear.parameters():
        nn.init.zeros_(parameter)
    return nn.Sequential(_normalization(normalization, channels), nn.Flatten(), linear)


def cnn_head(
    shape: tuple[int, int, int],
    classes: int = 10,
    normalization: nn.Module | None = None,
    activation: Activation = nn.Tanh,
) -> nn.Sequential:
    """Return a small CNN on scattering features of 28×28 or of 32×32 images.

    Args:
        shape: Channels, height and width of the features: (channels, 7, 7), for which it is the
            CNN for MNIST, or (channels, 8, 8), for which it is the one for CIFAR-10.
        classes: Outputs.
        normalization: A module that treats records alone; default: GroupNorm of 27 groups without
            scale and shift.
        activation: Makes each activation; default: tanh.

    Returns:
        A module that maps features of (records, channels, height, width) to (records, classes).

    Raises:
        InvalidArgument: There is no network for this height and width, or 27 groups do not divide
            the channels and no normalization is given.

    >>> cnn_head((243, 8, 8))(torch.rand(2, 243, 8, 8)).shape
    torch.Size([2, 10])

    Reference: F. Tramèr and D. Boneh, Differentially Private Learning Needs Better Features, 2021,
    appendix.
    """
    channels, *places = shape
    match places:
        case [7, 7]:
            layers = [
                nn.Conv2d(channels, 16, 3, stride=2, padding=1),
                activation(),
                nn.Conv2d(16, 32, 3, padding=1),
                activation(),
                nn.Flatten(),
                nn.Linear(32 * 4 * 4, 32),
                activation(),
                nn.Linear(32, classes),
            ]
        case [8, 8]:
            layers = [
                nn.Conv2d(channels, 64, 3, padding=1),
                activation(),
                nn.MaxPool2d(2),
                nn.Conv2d(64, 64, 3, padding=1),
                activation(),
                nn.Flatten(),
                nn.Linear(64 * 4 * 4, classes),
            ]
        case _:
            raise InvalidArgument(
                f"Expected shape={shape!r} to be (channels, 7, 7) or (channels, 8, 8): there is a "
                "network for 28×28 and one for 32×32 images. Use linear_head for others."
            )
    return nn.Sequential(_normalization(normalization, channels), *layers)


def _normalization(given: nn.Module | None, channels: int) -> nn.Module:
    """Return the normalization that was given, or GroupNorm."""
    if given is None and channels % _GROUPS:
        raise InvalidArgument(
            f"Expected shape to have a multiple of {_GROUPS} channels, got {channels}. Give the "
            "normalization, such as nn.GroupNorm(groups, channels, affine=False)."
        )
    return nn.GroupNorm(_GROUPS, channels, affine=False) if given is None else given
