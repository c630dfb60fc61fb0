"""Public conformance suites for controllers, engines, layers, samplers, noise and accounting.

Each suite raises ``AssertionError`` with what it found. Run them over your own values; dpfy's
tests run them over every registered one.

Tests: tests/gradients/test_engines.py.
"""

from importlib import import_module
from typing import Any

_HOME_OF = {
    "ENGINE_CASES": "dpfy.testing.engines",
    "EngineCase": "dpfy.testing.engines",
    "check_controller": "dpfy.testing.controllers",
    "check_engine": "dpfy.testing.engines",
    "check_layer_rule": "dpfy.testing.layer_rules",
    "check_noise": "dpfy.testing.noise",
    "check_rule": "dpfy.testing.rules",
    "check_sampler": "dpfy.testing.sampling",
}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    """Import a suite when it is first used, since some need torch."""
    if name in _HOME_OF:
        return getattr(import_module(_HOME_OF[name]), name)
    raise AttributeError(f"module 'dpfy.testing' has no attribute {name!r}")
