"""Batch normalisation by statistics from outside of the batch, so that records stay apart.

torch's BatchNorm normalises a record by the mean and variance of its neighbours. Here they are
fixed while a batch is computed, and the same in training and in inference; they come from public
rows, or from what earlier steps released. For the gradient they are constants.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from dpfy import _validate
from dpfy.errors import InvalidArgument

# the length of what one channel of one record may say: beyond it, it says no more than "far away"
_FAR = 4.0


class FrozenBatchNorm(nn.Module):
    """Normalise each channel by a fixed mean and standard deviation, then scale and shift.

    It takes inputs of shape (records, channels, …) and replaces BatchNorm1d, 2d and 3d.
    ``state_dict`` has the names that torch's BatchNorm has, so that weights go from one to the
    other and a trained model is served without this class. :func:`fit_statistics` sets mean and
    variance to those of public rows.

    Args:
        num_features: The number of channels.
        eps: The number that is added to the variance.
        affine: Whether there are a trained scale and shift for each channel.

    >>> layer = FrozenBatchNorm(2)
    >>> sorted(layer.state_dict())
    ['bias', 'running_mean', 'running_var', 'weight']
    """

    running_mean: torch.Tensor
    running_var: torch.Tensor

    def __init__(self, num_features: int, eps: float = 1e-5, affine: bool = True) -> None:
        super().__init__()
        self.num_features, self.eps = (
            _validate.count("num_features", num_features),
            _validate.positive("eps", eps),
        )
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))
        # A child: engines look into the smallest modules that own parameters, and this one has more
        # to do than those.
        self.scale = ScaleAndShift(num_features) if affine else nn.Identity()
        self.register_state_dict_post_hook(_as_torch_has_it)
        self.register_load_state_dict_pre_hook(_as_it_is_here)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return inputs of the same shape, normalised."""
        return self.scale(self.standardized(x))

    def standardized(self, x: torch.Tensor) -> torch.Tensor:
        """Return the distances from the mean in standard deviations."""
        if x.ndim < 2 or x.shape[1] != self.num_features:
            raise InvalidArgument(
                f"Expected inputs of shape (records, {self.num_features}, …), got {tuple(x.shape)}."
            )
        return F.batch_norm(x, self.running_mean, self.running_var, training=False, eps=self.eps)

    def extra_repr(self) -> str:
        """Return the arguments, for ``print(model)``."""
        return (
            f"{self.num_features}, eps={self.eps}, affine={isinstance(self.scale, ScaleAndShift)}"
        )


class PrivateBatchNorm(FrozenBatchNorm):
    """Batch normalisation whose running statistics are released sums of earlier steps.

    *Formal guarantee*: outputs depend on the record itself and on released values. What
    :meth:`observed` returns is one row per record, a function of that record and released values,
    which the run clips to the statistic's bound and releases with noise beside the gradient;
    :meth:`absorb` is given nothing else.

    *Assumes*: the plan declares the statistics, ``dpsgd(…,
    statistics=dpfy.batchnorm_statistics(model))``. Otherwise the layer keeps the statistics that
    it has.

    Where one layer is called several times in a pass, the last call counts.

    Args:
        num_features: The number of channels.
        eps: The number that is added to the variance.
        affine: Whether there are a trained scale and shift for each channel.
        momentum: The weight of one release; smaller values average more of the noise away.

    >>> layer = PrivateBatchNorm(3)
    >>> layer.statistic = "moments"
    >>> layer(torch.zeros(5, 3, 8, 8)).shape, layer.observed()["moments"].shape, layer.observed()
    (torch.Size([5, 3, 8, 8]), torch.Size([5, 2, 3]), {})

    Reference: N. Ponomareva et al., How to DP-fy ML, 2023, section 5.5.1, option (b) for batch
    normalization.
    """

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float = 0.1, affine: bool = True
    ) -> None:
        super().__init__(num_features, eps, affine)
        self.momentum = _validate.real("momentum", momentum, 0, 1, open_low=True)
        self.statistic: str | None = (
            None  # the name under which the plan releases what this layer observes
        )
        self._seen: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return normalised inputs of the same shape; a differentiated pass is also observed."""
        distances = self.standardized(x)
        if self.statistic is not None and torch.is_grad_enabled():
            self._seen = _moments(distances.detach())
        return self.scale(distances)

    def observed(self) -> dict[str, torch.Tensor]:
        """Return the statistic of each record in the last pass, and forget it. Sensitive."""
        seen, self._seen = self._seen, None
        return {} if seen is None or self.statistic is None else {self.statistic: seen}

    @torch.no_grad()
    def absorb(self, statistics: Mapping[str, torch.Tensor]) -> None:
        """Move mean and variance towards released moments; other statistics are ignored.

        With E[s] and E[s²] of the distances s = (x − mean) / √(var + ε), the records have the mean
        mean + √(var + ε)·E[s] and the variance (var + ε)·(E[s²] − E[s]²); running averages of
        these are kept, as in torch. Moments are projected to what moments can be, so that noise
        never makes the variance negative.
        """
        self._seen = None  # of a pass that was computed once more, as activation checkpointing does
        if self.statistic is None or self.statistic not in statistics:
            return
        first, excess = statistics[self.statistic].to(self.running_mean).clamp(-_FAR, _FAR)
        spread = self.running_var + self.eps
        ratio = (1 + excess - first.square()).clamp(min=0)
        self.running_mean += self.momentum * spread.sqrt() * first
        self.running_var += self.momentum * (spread * ratio - self.running_var)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for copies and pickles, without observations of a pass."""
        return {**vars(self), "_seen": None}

    def extra_repr(self) -> str:
        """Return the arguments, for ``print(model)``."""
        return f"{super().extra_repr()}, momentum={self.momentum}"


class ScaleAndShift(nn.Module):
    """One factor and one summand for each channel."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight, self.bias = (
            nn.Parameter(torch.ones(features)),
            nn.Parameter(torch.zeros(features)),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x·weight + bias along the second axis."""
        shape = (-1, *(1,) * (x.ndim - 2))
        return x * self.weight.view(shape) + self.bias.view(shape)


@torch.no_grad()
def fit_statistics(model: nn.Module, *inputs: Any) -> None:
    """Set the statistics of every frozen or private BatchNorm to those of *public* inputs.

    In one forward pass, ``model(*inputs)``, each layer takes the mean and variance of its input,
    then normalises by them, so that the next one sees what torch's BatchNorm would give these rows
    in training. It costs no privacy and may be repeated as the weights change. No record of the
    private data may be among the inputs.

    Args:
        model: A module with such layers.
        inputs: The public inputs of the model.

    >>> layer = FrozenBatchNorm(1)
    >>> fit_statistics(layer, torch.tensor([[1.0], [3.0]]))
    >>> layer.running_mean, layer.running_var
    (tensor([2.]), tensor([1.]))
    """
    handles = [
        module.register_forward_pre_hook(_fit)
        for module in model.modules()
        if isinstance(module, FrozenBatchNorm)
    ]
    try:
        model(*inputs)
    finally:
        for handle in handles:
            handle.remove()


def _fit(layer: FrozenBatchNorm, inputs: tuple[Any, ...]) -> None:
    rows = inputs[0].transpose(0, 1).flatten(1)  # one for each channel
    layer.running_mean.copy_(rows.mean(1))
    layer.running_var.copy_(rows.var(1, correction=0))


def _moments(distances: torch.Tensor) -> torch.Tensor:
    """Return the means of s and s² − 1 over positions, [records, 2, channels].

    The two numbers of a channel are shortened together to a length of at most ``_FAR``: a channel
    that is far off would otherwise use up the whole bound of its record, and the others would
    learn nothing until it has come near.
    """
    s = distances.float().reshape(*distances.shape[:2], -1)
    pairs = torch.stack([s.mean(2), s.square().mean(2) - 1], dim=1)
    return pairs * (_FAR / torch.linalg.vector_norm(pairs, dim=1, keepdim=True).clamp(min=_FAR))


def _as_torch_has_it(module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    for name in ("weight", "bias"):
        if f"{prefix}scale.{name}" in state:
            state[f"{prefix}{name}"] = state.pop(f"{prefix}scale.{name}")


def _as_it_is_here(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    state.pop(f"{prefix}num_batches_tracked", None)
    for name in ("weight", "bias"):
        if f"{prefix}{name}" in state:
            state[f"{prefix}scale.{name}"] = state.pop(f"{prefix}{name}")
