"""Small networks on scattering features, and the normalisation in front of them.

Normalisation matters most there: coefficients of different paths differ by orders of magnitude. It
is either a function of the one example (GroupNorm, :class:`~dpfy.models.Normalize`) or by
statistics from outside (:class:`StandardizeChannels`), so that no example sees another.
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

    *Assumes*: both come from public data or from a release with a guarantee of its own. This module
    is given numbers and cannot know where they come from; computed from private records without
    noise, they void every guarantee.

    >>> StandardizeChannels(torch.tensor([1.0, 5.0]), torch.tensor([2.0, 0.0]))(torch.tensor([[3.0, 9.0]]))
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
    """Softmax regression on features of the given shape, after normalisation (GroupNorm of 27
    groups without scale).

    It starts at zero: the loss is convex, and a random start would only be more noise.

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
    """The small CNN on scattering features: that for MNIST on 7×7 places, that for CIFAR-10 on 8×8
    places.

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
    if given is None and channels % _GROUPS:
        raise InvalidArgument(
            f"Expected shape to have a multiple of {_GROUPS} channels, got {channels}. Give the "
            "normalization, such as nn.GroupNorm(groups, channels, affine=False)."
        )
    return nn.GroupNorm(_GROUPS, channels, affine=False) if given is None else given
