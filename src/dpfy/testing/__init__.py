"""Public conformance suites: what every controller, engine, sampler, noise and accounting rule has
to satisfy.

Each suite raises ``AssertionError`` with what it found. Run them over your own values; dpfy's tests
run them over every registered one.
"""

from importlib import import_module
from typing import Any

_HOME_OF = {
    "ENGINE_CASES": "dpfy.testing.engines",
    "EngineCase": "dpfy.testing.engines",
    "check_controller": "dpfy.testing.controllers",
    "check_engine": "dpfy.testing.engines",
    "check_noise": "dpfy.testing.noise",
    "check_rule": "dpfy.testing.rules",
    "check_sampler": "dpfy.testing.sampling",
}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        return getattr(import_module(_HOME_OF[name]), name)
    raise AttributeError(f"module 'dpfy.testing' has no attribute {name!r}")
