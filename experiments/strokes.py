"""Pictures of random strokes, and what scattering coefficients of pen strokes have in common.

The coefficients of a stroke at all angles and scales rise and fall together, so that a few directions fill most of a
record's norm and say little about the digit. Which ones they are can be told from any strokes. Here they are drawn by a
program with a fixed seed: it has seen no digit, and its result is a public constant.
"""

import torch
import torch.nn.functional as F
from torch import nn

from dpfy.models import scattering_features

_PICTURES, _SEED, _SIDE, _CURVES = 2000, 0, 28, 3
_WIDTH = 2.0  # pixels from the middle of a stroke to where its ink ends
_SHRINKAGE = 0.01  # of the norm of a record: directions with less than that stay as they are
_PART = 250


def strokes(count: int, seed: int = _SEED) -> torch.Tensor:
    """Return pictures (count, 1, 28, 28) of one to three curves each, in the middle as digits are.

    >>> strokes(2).shape
    torch.Size([2, 1, 28, 28])
    """
    generator = torch.Generator().manual_seed(seed)
    time = torch.linspace(0, 1, 24)
    bezier = torch.stack([(1 - time) ** 2, 2 * time * (1 - time), time**2])
    y, x = torch.meshgrid(torch.arange(_SIDE), torch.arange(_SIDE), indexing="ij")
    pictures = []
    for begin in range(0, count, _PART):
        size = min(_PART, count - begin)
        corners = _SIDE * (0.2 + 0.6 * torch.rand(size, _CURVES, 3, 2, generator=generator))
        drawn = torch.arange(_CURVES) <= torch.randint(_CURVES, (size, 1), generator=generator)
        points = torch.einsum("nkcd,ct->nktd", corners, bezier)[..., None, None]
        distance = torch.hypot(points[:, :, :, 0] - x, points[:, :, :, 1] - y).amin(2)
        pictures.append(((_WIDTH - distance).clamp(0, 1) * drawn[..., None, None]).amax(1, keepdim=True))
    return torch.cat(pictures)


class Whitened(nn.Module):
    """Make channels of ``examples`` equally strong and uncorrelated, subtract what is left as their mean; norm one.

    >>> examples = torch.rand(500, 3, 2, 2, generator=torch.Generator().manual_seed(0))
    >>> Whitened(examples)(examples).flatten(1).norm(dim=1).max().item() < 1.001
    True
    """

    mix: torch.Tensor
    mean: torch.Tensor

    def __init__(self, examples: torch.Tensor) -> None:
        super().__init__()
        rows = _unit(examples).transpose(0, 1).flatten(1)
        values, vectors = torch.linalg.eigh(rows @ rows.T / len(examples))
        self.register_buffer("mix", vectors @ torch.diag((values.clamp(min=0) + _SHRINKAGE).rsqrt()) @ vectors.T)
        self.register_buffer("mean", self._mixed(examples).mean(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return inputs of the same shape (records, channels, height, width)."""
        return _unit(self._mixed(x) - self.mean)

    def _mixed(self, x: torch.Tensor) -> torch.Tensor:
        return _unit(torch.einsum("dc,ncyx->ndyx", self.mix, _unit(x)))


def whitening(groups: int) -> nn.Sequential:
    """Return GroupNorm and the whitening of strokes after it, for coefficients of 28×28 grey images."""
    norm = nn.GroupNorm(groups, 81, affine=False)
    return nn.Sequential(norm, Whitened(norm(scattering_features(strokes(_PICTURES)))))


def _unit(x: torch.Tensor) -> torch.Tensor:
    return F.normalize(x.flatten(1), dim=1).view_as(x)
