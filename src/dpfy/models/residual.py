"""Wide residual networks whose normalisation treats every example alone."""

import torch
import torch.nn.functional as F
from torch import nn

from dpfy import _validate
from dpfy.errors import InvalidArgument

_STAGES = (16, 32, 64)  # channels of the three stages before they are widened


class PreactivationBlock(nn.Module):
    """Two 3×3 convolutions, each after GroupNorm and ReLU, beside a shortcut.

    Where the number of channels or the resolution changes, the shortcut is a 1×1 convolution of the activated input.

    >>> PreactivationBlock(16, 64, stride=2, groups=16)(torch.rand(2, 16, 8, 8)).shape
    torch.Size([2, 64, 4, 4])
    """

    def __init__(self, channels: int, width: int, stride: int, groups: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(groups, channels)
        self.conv1 = nn.Conv2d(channels, width, 3, stride=stride, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(groups, width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.shortcut = (None if channels == width and stride == 1
                         else nn.Conv2d(channels, width, 1, stride=stride, bias=False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of the shortcut and the two convolutions."""
        activated = F.relu(self.norm1(x))
        residual = self.conv2(F.relu(self.norm2(self.conv1(activated))))
        return residual + (x if self.shortcut is None else self.shortcut(activated))


def wide_resnet(depth: int = 16, width: int = 4, classes: int = 10, groups: int = 16) -> nn.Sequential:
    """The WideResNet for RGB images, with GroupNorm in the place of BatchNorm, which would mix the examples.

    ``depth`` counts convolutions along the main path and is 6n + 4 for n blocks in each of three stages; ``width``
    multiplies their 16, 32 and 64 channels.

    >>> wide_resnet(depth=10, width=1)(torch.rand(2, 3, 32, 32)).shape
    torch.Size([2, 10])

    Reference: Zagoruyko and Komodakis 2016, "Wide Residual Networks", Table 1; with GroupNorm of 16 groups for DP-SGD:
    De et al. 2022, "Unlocking High-Accuracy Differentially Private Image Classification through Scale".
    """
    _validate.count("width", width)
    if _validate.count("depth", depth, minimum=10) % 6 != 4:
        raise InvalidArgument(f"Expected depth={depth!r} to be 6n + 4 for n blocks in each stage: 10, 16, 22 or 28.")
    if _STAGES[0] % _validate.count("groups", groups):
        raise InvalidArgument(f"Expected groups={groups!r} to divide the {_STAGES[0]} channels of the first layer.")
    channels = _STAGES[0]
    layers: list[nn.Module] = [nn.Conv2d(3, channels, 3, padding=1, bias=False)]
    for stage, base in enumerate(_STAGES):
        for block in range((depth - 4) // 6):
            layers.append(PreactivationBlock(channels, base * width, 2 if stage and not block else 1, groups))
            channels = base * width
    return nn.Sequential(*layers, nn.GroupNorm(groups, channels), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                         nn.Linear(channels, classes))
