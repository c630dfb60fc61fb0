"""Wide residual networks whose normalisation treats every example alone."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from dpfy import _validate
from dpfy.errors import InvalidArgument

_STAGES = (16, 32, 64)  # channels of the three stages before they are widened
_SMALLEST = 1e-4  # sum of squares that weights are divided by the root of


class StandardizedConv2d(nn.Conv2d):
    """A convolution without bias whose weights are standardised before use.

    Each output channel's weights are shifted to mean zero, scaled to length one and multiplied by a
    learned gain, which starts at 1. Outputs therefore keep their scale whatever the weights are.

    Args:
        channels: Channels of the input.
        width: Channels of the output.
        kernel_size: Pixels of a side of the kernel.
        stride: Pixels between neighbouring outputs.
        padding: Zeros at each border of the input.

    >>> StandardizedConv2d(3, 8, 3)(torch.rand(2, 3, 8, 8)).shape
    torch.Size([2, 8, 6, 6])

    Reference: S. Qiao et al., Micro-Batch Training with Batch-Channel Normalization and Weight
    Standardization, 2019; scaled by the number of inputs: A. Brock et al., Characterizing Signal
    Propagation to Close the Performance Gap in Unnormalized ResNets, 2021, "Scaled Weight
    Standardization".
    """

    def __init__(
        self, channels: int, width: int, kernel_size: int, stride: int = 1, padding: int = 0
    ) -> None:
        super().__init__(channels, width, kernel_size, stride=stride, padding=padding, bias=False)
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the convolution with the standardised weights."""
        centred = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        scale = self.gain * centred.square().sum((1, 2, 3)).clamp(min=_SMALLEST).rsqrt()
        return F.conv2d(x, centred * scale.view(-1, 1, 1, 1), None, self.stride, self.padding)


class PreactivationBlock(nn.Module):
    """Two 3×3 convolutions, each after GroupNorm and ReLU, beside a shortcut.

    Where the number of channels or the resolution changes, the shortcut is a 1×1 convolution of the
    activated input.

    Args:
        channels: Channels of the input.
        width: Channels of the output.
        stride: Stride of the first convolution; 2 halves the resolution.
        groups: Groups of GroupNorm; divides both numbers of channels.
        standardize: Whether the weights of all convolutions are standardised.

    >>> PreactivationBlock(16, 64, stride=2, groups=16)(torch.rand(2, 16, 8, 8)).shape
    torch.Size([2, 64, 4, 4])
    """

    def __init__(
        self, channels: int, width: int, stride: int, groups: int, standardize: bool = False
    ) -> None:
        super().__init__()
        convolution = _convolution(standardize)
        self.norm1 = nn.GroupNorm(groups, channels)
        self.conv1 = convolution(channels, width, 3, stride=stride, padding=1)
        self.norm2 = nn.GroupNorm(groups, width)
        self.conv2 = convolution(width, width, 3, padding=1)
        self.shortcut = (
            None
            if channels == width and stride == 1
            else convolution(channels, width, 1, stride=stride)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of the shortcut and the two convolutions."""
        activated = F.relu(self.norm1(x))
        residual = self.conv2(F.relu(self.norm2(self.conv1(activated))))
        return residual + (x if self.shortcut is None else self.shortcut(activated))


def wide_resnet(
    depth: int = 16, width: int = 4, classes: int = 10, groups: int = 16, standardize: bool = False
) -> nn.Sequential:
    """Return a WideResNet for RGB images with GroupNorm, since BatchNorm would mix examples.

    Args:
        depth: Number of convolutions along the main path: 6n + 4 for n blocks in each of the three
            stages, at least 10.
        width: Factor of the 16, 32 and 64 channels of the stages.
        classes: Outputs.
        groups: Groups of GroupNorm; a divisor of 16.
        standardize: Whether the weights of convolutions are standardised, which helps accuracy and
            takes a copy of them for each record in a private step.

    Returns:
        A module that maps (records, 3, height, width) to (records, classes).

    Raises:
        InvalidArgument: No network has this depth, or ``groups`` does not divide 16.

    >>> wide_resnet(depth=10, width=1)(torch.rand(2, 3, 32, 32)).shape
    torch.Size([2, 10])

    Reference: Zagoruyko and Komodakis 2016, "Wide Residual Networks", Table 1; with GroupNorm of 16
    groups for DP-SGD: De et al. 2022, "Unlocking High-Accuracy Differentially Private Image
    Classification through Scale", with standardised weights and :func:`~dpfy.models.augmented`
    images.
    """
    _validate.count("width", width)
    if _validate.count("depth", depth, minimum=10) % 6 != 4:
        raise InvalidArgument(
            f"Expected depth={depth!r} to be 6n + 4 for n blocks in each stage: 10, 16, 22 or 28."
        )
    if _STAGES[0] % _validate.count("groups", groups):
        raise InvalidArgument(
            f"Expected groups={groups!r} to divide the {_STAGES[0]} channels of the first layer."
        )
    channels = _STAGES[0]
    layers: list[nn.Module] = [_convolution(standardize)(3, channels, 3, padding=1)]
    for stage, base in enumerate(_STAGES):
        for block in range((depth - 4) // 6):
            stride = 2 if stage and not block else 1
            layers.append(PreactivationBlock(channels, base * width, stride, groups, standardize))
            channels = base * width
    return nn.Sequential(
        *layers,
        nn.GroupNorm(groups, channels),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(channels, classes),
    )


def _convolution(standardize: bool) -> Callable[..., nn.Conv2d]:
    """Return what makes a convolution without bias."""
    return StandardizedConv2d if standardize else partial(nn.Conv2d, bias=False)
