"""Walk through a model as a step does several times: torch's walk names every module.

Tests: tests/gradients/test_modules.py.
"""

from torch import nn


def modules_of(model: nn.Module) -> list[nn.Module]:
    """Return the modules of a model as they are now, each once, in the order of ``modules()``.

    Args:
        model: The model.

    Returns:
        The model itself, then the modules inside of it.
    """
    found: dict[int, nn.Module] = {}
    waiting = [model]
    while waiting:
        module = waiting.pop()
        if id(module) in found:
            continue
        found[id(module)] = module
        if module._modules:
            inside = [child for child in module._modules.values() if child is not None]
            waiting.extend(reversed(inside))
    return [*found.values()]
