"""Models that hold no Python modules with weights, and what to pass instead."""

import torch
from torch import nn

from dpfy.errors import InvalidArgument


def require_python_modules(model: nn.Module) -> None:
    """Refuse TorchScript and lazy layers, whose own errors come late and do not say what to do."""
    for name, module in model.named_modules():
        called = (
            f"The module {name!r} ({type(module).__name__})"
            if name
            else f"The model ({type(module).__name__})"
        )
        if isinstance(module, torch.jit.ScriptModule):
            raise InvalidArgument(
                f"{called} is TorchScript, which neither hooks nor the parameters of single "
                "examples reach into. Pass the Python module that was scripted or traced. "
                "Scripting the trained model afterwards costs no privacy."
            )
        if any(
            map(
                nn.parameter.is_lazy,
                (*module.parameters(recurse=False), *module.buffers(recurse=False)),
            )
        ):
            raise InvalidArgument(
                f"{called} is lazy and not initialised yet: its first call decides its shapes. Run "
                "one synthetic batch through the model before this: model(example)."
            )
