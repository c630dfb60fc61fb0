"""Swap layers that mix examples for layers that do not."""

import sys

from torch import nn

_MOST_GROUPS = 32


def fix(model: nn.Module) -> nn.Module:
    """Put GroupNorm in the place of BatchNorm, in place, say so on standard output, and return the model.

    Call it before you make the optimizer: the new layers have new parameters. Scale and shift carry over.

    >>> _ = fix(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)))
    dpfy.fix: '1': BatchNorm2d(8) became GroupNorm(4, 8)
    """
    replacements = [(name, module, new) for name, module in model.named_modules() if (new := _replacement(module))]
    for name, module, new in replacements:
        sys.stdout.write(f"dpfy.fix: {name!r}: {_short(module)} became {_short(new)}\n")
        if not name:
            return new
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, new)
    if not replacements:
        sys.stdout.write("dpfy.fix: nothing to change\n")
    return model


def _replacement(module: nn.Module) -> nn.Module | None:
    if isinstance(module, nn.modules.instancenorm._InstanceNorm):
        if not module.track_running_stats:
            return None
        new: nn.Module = type(module)(module.num_features, eps=module.eps, affine=module.affine)
    elif isinstance(module, nn.modules.batchnorm._BatchNorm):
        channels = module.num_features
        # Groups of at least two channels: one channel alone would forget the bias of the layer before it.
        most = min(_MOST_GROUPS, max(1, channels // 2))
        groups = next(number for number in range(most, 0, -1) if channels % number == 0)
        new = nn.GroupNorm(groups, channels, eps=module.eps, affine=module.affine)
    else:
        return None
    new.load_state_dict({name: p.detach() for name, p in module.named_parameters()})
    new.train(module.training)
    return new.to(next((p.device for p in module.parameters()), None))


def _short(module: nn.Module) -> str:
    if isinstance(module, nn.GroupNorm):
        return f"GroupNorm({module.num_groups}, {module.num_channels})"
    return f"{type(module).__name__}({module.num_features})"
