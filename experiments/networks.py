"""Networks of this folder's own, for results that a processor can reach in minutes; the others are
in dpfy.models.
"""

import math

import torch
from torch import nn

_SIDE, _ANGLES, _LENGTHS = 9, 8, (4.0, 7.5)  # of the first filters, in pixels
_LOW_PASS = 0.3  # the weight of averages beside waves, which are of norm one
_BRIGHTNESS, _CONTRASTS = [1.0, 1.0, 1.0], ([1.0, -1.0, 0.0], [1.0, 1.0, -2.0])
# the weight of differences between colours, which vary less than brightness in pictures of things
_CONTRAST = 3.0


def softmax_regression(shape: tuple[int, ...], classes: int = 10) -> nn.Sequential:
    """One linear layer on all numbers of an input, from zero: the loss is convex, and chance would
    only be noise.

    >>> softmax_regression((81, 7, 7))(torch.rand(5, 81, 7, 7)).shape
    torch.Size([5, 10])
    """
    linear = nn.Linear(math.prod(shape), classes)
    for parameter in linear.parameters():
        nn.init.zeros_(parameter)
    return nn.Sequential(nn.Flatten(), linear)


class Modulus(nn.Module):
    """The length of consecutive pairs of channels, such as the responses to an even and an odd
    wave.

    >>> round(Modulus()(torch.tensor([3.0, 4.0]).view(1, 2, 1, 1)).item(), 3)
    5.0
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return half as many channels."""
        return (x.unflatten(1, (-1, 2)).square().sum(2) + 1e-4).sqrt()  # smooth where both are zero


class Beside(nn.Module):
    """What two modules make of the same input, in channels beside each other."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the channels of both."""
        return torch.cat([self.first(x), self.second(x)], 1)


def wave_cnn(shape: tuple[int, ...], hidden: int = 32, classes: int = 10) -> nn.Sequential:
    """Two convolutions and softmax regression on both, all of them trained, from a start without
    chance in most of it.

    A record's gradient has a bounded norm and every direction the same noise. So there should be
    few directions that say nothing: the usual CNN starts with random filters, and spends its first
    epochs on making them respond to strokes. Here the first filters start as plane waves of two
    lengths and eight angles, and as averages; the lengths of the responses to even and odd waves
    tell strokes of an angle whatever their place. The readout starts at zero and learns from these
    at once, while both convolutions follow. All of that is fixed before data is seen.

    >>> wave_cnn((3, 32, 32))(torch.rand(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """
    first = first_filters(shape[0])
    channels, places = len(first) // 2, (shape[1] // 4) * (shape[2] // 4)
    waves = nn.Conv2d(shape[0], len(first), _SIDE, stride=2, padding=_SIDE // 2)
    mixed = nn.Conv2d(channels, hidden, 5, stride=2, padding=2)
    readout = nn.Linear((channels + hidden) * places, classes)
    nn.init.xavier_uniform_(mixed.weight, gain=nn.init.calculate_gain("tanh"))
    with torch.no_grad():
        waves.weight.copy_(first)
        for each in (waves.bias, mixed.bias, readout.weight, readout.bias):
            assert each is not None
            each.zero_()
    return nn.Sequential(
        waves,
        Modulus(),
        nn.GroupNorm(1, channels, affine=False),
        Beside(nn.AvgPool2d(2), nn.Sequential(mixed, nn.Tanh())),
        nn.Flatten(),
        readout,
    )


def first_filters(colors: int) -> torch.Tensor:
    """Return the filters of the first convolution in pairs: even and odd waves of a contrast;
    averages and nothing.
    """
    place = torch.arange(_SIDE) - (_SIDE - 1) / 2
    y, x = torch.meshgrid(place, place, indexing="ij")
    angle = torch.arange(_ANGLES).view(-1, 1, 1) * (math.pi / _ANGLES)
    waves = []
    for length in _LENGTHS:
        phase, window = (
            2 * math.pi * (x * angle.cos() + y * angle.sin()) / length,
            (x**2 + y**2) * (-4 / length**2),
        )
        both = torch.stack([phase.cos(), phase.sin()], 1).flatten(0, 1) * window.exp()
        both -= both.mean((1, 2), keepdim=True)
        waves.append(both / both.flatten(1).norm(dim=1).view(-1, 1, 1))
    average = window.exp() * (_LOW_PASS / window.exp().norm())
    seen = torch.einsum("kc,fyx->kfcyx", _views(colors), torch.cat(waves)).flatten(0, 1)
    averages = torch.einsum(
        "kc,fyx->kfcyx", torch.eye(colors), torch.stack([average, 0 * average])
    ).flatten(0, 1)
    return torch.cat([seen, averages])


def _views(colors: int) -> torch.Tensor:
    """Grey, or brightness and two differences between colours."""
    if colors == 1:
        return torch.ones(1, 1)
    views = nn.functional.normalize(torch.tensor([_BRIGHTNESS, *_CONTRASTS]), dim=1)
    return views * torch.tensor([[1.0], [_CONTRAST], [_CONTRAST]])
