"""Features that are equally strong and uncorrelated in public examples, and therefore nearly so in
private records.

A few directions fill most of a record's norm and say little about its class. Clipping bounds the
norm, and noise is the same in all directions: what says more should not be weaker. Statistics of
the private records would cost some budget."""

import torch
import torch.nn.functional as F
from torch import nn

from dpfy.models import scattering_features

_SHRINKAGE = (
    0.01  # for scattering coefficients, which rise and fall together at all angles and scales
)


class Whitened(nn.Module):
    """Make channels of ``examples`` equally strong and uncorrelated, subtract what is left as their
    mean; norm one.

    Directions that have less than ``shrinkage`` of the squared norm of a record stay weak, as they
    may be noise.

    >>> examples = torch.rand(500, 3, 2, 2, generator=torch.Generator().manual_seed(0))
    >>> Whitened(examples, 0.01)(examples).flatten(1).norm(dim=1).max().item() < 1.001
    True
    """

    mix: torch.Tensor
    mean: torch.Tensor

    def __init__(self, examples: torch.Tensor, shrinkage: float) -> None:
        super().__init__()
        rows = _unit(examples).transpose(0, 1).flatten(1)
        values, vectors = torch.linalg.eigh(rows @ rows.T / len(examples))
        self.register_buffer(
            "mix", vectors @ torch.diag((values.clamp(min=0) + shrinkage).rsqrt()) @ vectors.T
        )
        self.register_buffer("mean", self._mixed(examples).mean(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return inputs of the same shape (records, channels, height, width)."""
        return _unit(self._mixed(x) - self.mean)

    def _mixed(self, x: torch.Tensor) -> torch.Tensor:
        return _unit(torch.einsum("dc,ncyx->ndyx", self.mix, _unit(x)))


def _unit(x: torch.Tensor) -> torch.Tensor:
    return F.normalize(x.flatten(1), dim=1).view_as(x)


def whitened_scattering(examples: torch.Tensor, groups: int) -> nn.Sequential:
    """Return GroupNorm and the whitening after it, for scattering coefficients of pictures like the
    ``examples``.
    """
    coefficients = scattering_features(examples)
    norm = nn.GroupNorm(groups, coefficients.shape[1], affine=False)
    return nn.Sequential(norm, Whitened(norm(coefficients), _SHRINKAGE))
