"""Replace layers that mix examples by layers that do not."""

import math
import sys
from collections.abc import Iterable
from itertools import chain
from typing import Any

import torch
from torch import nn

from dpfy import _validate
from dpfy.errors import InvalidArgument
from dpfy.mechanisms.query import Statistic
from dpfy.models.batchnorm import FrozenBatchNorm, PrivateBatchNorm, fit_statistics

_MOST_GROUPS = 32
_MOMENTUM = 0.1  # torch's own


def fix(
    model: nn.Module, batchnorm: str = "group", *, public: Any = None, pretrained: bool = False
) -> nn.Module:
    """Replace BatchNorm layers, in place, by layers that treat every example alone.

    Call it before you make the optimizer: the new layers have new parameters. Scale and shift
    carry over. The changes are printed to standard output. The values of ``batchnorm``:

    * ``"group"``: GroupNorm, which needs no statistics of other examples;
    * ``"private"``: :class:`dpfy.models.PrivateBatchNorm`, whose statistics are released with the
      gradient: give the plan ``statistics=dpfy.batchnorm_statistics(model)``;
    * ``"public"``: :class:`dpfy.models.FrozenBatchNorm`, whose statistics are those of public rows
      and never change.

    Args:
        model: The module whose layers are replaced.
        batchnorm: What replaces BatchNorm: ``"group"``, ``"private"`` or ``"public"``.
        public: Public rows for the statistics: the input of the model, a tuple of its arguments,
            or a
        loader of whose batches the first field is the input. All of them go through the model at
            once.
        pretrained: Whether the running statistics of the model come from public data: your word
            for
            it. They are kept then; otherwise private statistics start from mean 0 and variance 1.

    Returns:
        The same model.

    Raises:
        InvalidArgument: ``batchnorm`` is none of these, or the statistics that it needs are
            missing or cannot be computed from ``public``.

    >>> _ = fix(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)))
    dpfy.fix: '1': BatchNorm2d(8) became GroupNorm(4, 8)
    >>> model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8))
    >>> _ = fix(model, "public", public=torch.randn(64, 3))
    dpfy.fix: '1': BatchNorm1d(8) became FrozenBatchNorm(8)
    """
    _validate.choice("batchnorm", batchnorm, ("group", "private", "public"))
    if batchnorm == "public" and public is None and not pretrained:
        raise InvalidArgument(
            "batchnorm='public' needs statistics of public rows: give them as public=, or "
            "pretrained=True if the model's own running statistics come from public data."
        )
    replacements = [
        (name, module, new)
        for name, module in model.named_modules()
        if (new := _replacement(module, batchnorm, pretrained))
    ]
    for name, module, new in replacements:
        sys.stdout.write(f"dpfy.fix: {name!r}: {_short(module)} became {_short(new)}\n")
        if isinstance(new, PrivateBatchNorm):
            new.statistic = _statistic_name(name)
        if not name:
            model = new
            break
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, new)
    if not replacements:
        sys.stdout.write("dpfy.fix: nothing to change\n")
    if public is not None and batchnorm != "group":
        fit_statistics(model, *_arguments(public))
    return model


def batchnorm_statistics(
    model: nn.Module,
    *,
    bound: float = 2.0,
    share: float = 0.05,
    every: int = 1,
) -> list[Statistic]:
    """Declare what the private BatchNorm layers of a model release, for ``dpsgd(…, statistics=…)``.

    A layer's statistic is a vector of 2·channels numbers: the means of s and of s² − 1 over a
    record's positions, with s in standard deviations. It is clipped to bound·√channels; without
    positions its norm is about √3·√channels. All layers share the noise budget in proportion to
    their channels, so that each channel has the same noise.

    A layer learns the name of its statistic here, if :func:`fix` did not make it: call it again
    where the model is built again, as for a resume.

    Args:
        model: A module with :class:`dpfy.models.PrivateBatchNorm` layers.
        bound: The clip bound per √channel, positive.
        share: The share of the noise budget of all layers together, in (0, 1).
        every: The number of steps between releases.

    Returns:
        A statistic for each layer.

    Raises:
        InvalidArgument: An argument is out of range, or the model has no such layer.

    >>> model = nn.Sequential(
    ...     nn.Linear(3, 16), PrivateBatchNorm(16), nn.Linear(16, 48), PrivateBatchNorm(48)
    ... )
    >>> found = batchnorm_statistics(model, share=0.08)
    >>> [(each.name, each.bound, each.shape, each.share) for each in found]
    [('batchnorm 1', 8.0, (2, 16), 0.02), ('batchnorm 3', 13.85..., (2, 48), 0.06)]
    """
    _validate.positive("bound", bound)
    _validate.real("share", share, 0, 1, open_low=True, open_high=True)
    layers = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, PrivateBatchNorm)
    }
    if not layers:
        raise InvalidArgument(
            "The model has no private BatchNorm layer. Call dpfy.fix(model, batchnorm='private') "
            "first, and pass what it returns."
        )
    channels = sum(layer.num_features for layer in layers.values())
    statistics = []
    for name, layer in layers.items():
        layer.statistic = _statistic_name(name)
        statistics.append(
            Statistic(
                layer.statistic,
                bound * math.sqrt(layer.num_features),
                (2, layer.num_features),
                every,
                share * layer.num_features / channels,
            )
        )
    return statistics


def _statistic_name(path: str) -> str:
    return f"batchnorm {path}".rstrip()


def _replacement(module: nn.Module, batchnorm: str, pretrained: bool) -> nn.Module | None:
    if isinstance(module, nn.modules.instancenorm._InstanceNorm):
        if not module.track_running_stats:
            return None
        new: nn.Module = type(module)(module.num_features, eps=module.eps, affine=module.affine)
        new.load_state_dict(_parameters(module))
    elif isinstance(module, nn.modules.batchnorm._BatchNorm):
        new = (
            _group_norm(module)
            if batchnorm == "group"
            else _fixed_norm(module, batchnorm, pretrained)
        )
    else:
        return None
    new.train(module.training)
    like = next(chain(module.parameters(), module.buffers()), None)
    return new if like is None else new.to(like)


def _group_norm(module: Any) -> nn.Module:
    channels = module.num_features
    # Groups of at least two channels: one channel alone would forget the bias of the layer before
    # it.
    most = min(_MOST_GROUPS, max(1, channels // 2))
    groups = next(number for number in range(most, 0, -1) if channels % number == 0)
    new = nn.GroupNorm(groups, channels, eps=module.eps, affine=module.affine)
    new.load_state_dict(_parameters(module))
    return new


def _fixed_norm(module: Any, batchnorm: str, pretrained: bool) -> nn.Module:
    if pretrained and module.running_mean is None:
        raise InvalidArgument(
            f"pretrained=True, but {_short(module)} has no running statistics "
            "(track_running_stats=False). Give public rows as public= instead."
        )
    if batchnorm == "public":
        new = FrozenBatchNorm(module.num_features, module.eps, module.affine)
    else:
        new = PrivateBatchNorm(
            module.num_features, module.eps, module.momentum or _MOMENTUM, module.affine
        )
    kept = (
        {name: module.state_dict()[name] for name in ("running_mean", "running_var")}
        if pretrained
        else {}
    )
    new.load_state_dict({**new.state_dict(), **_parameters(module), **kept})
    return new


def _parameters(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach() for name, p in module.named_parameters()}


def _arguments(public: Any) -> tuple[Any, ...]:
    """Return public rows as the arguments of the model."""
    if isinstance(public, torch.Tensor):
        return (public,)
    if isinstance(public, tuple):
        return public
    if not isinstance(public, Iterable):
        raise InvalidArgument(
            "Expected public= a tensor of inputs, a tuple of the model's arguments or a loader, "
            f"got {type(public).__name__}."
        )
    batches = [batch[0] if isinstance(batch, list | tuple) else batch for batch in public]
    if not batches or not all(isinstance(batch, torch.Tensor) for batch in batches):
        raise InvalidArgument(
            "Expected the loader given as public= to yield tensors of inputs, or lists that begin "
            "with them. Give a tuple of the model's arguments instead."
        )
    return (torch.cat(batches),)


def _short(module: nn.Module) -> str:
    if isinstance(module, nn.GroupNorm):
        return f"GroupNorm({module.num_groups}, {module.num_channels})"
    return f"{type(module).__name__}({module.num_features})"
