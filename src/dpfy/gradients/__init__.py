"""Engines: how per-record gradients are computed, weighed and summed.

All are judged against :class:`~dpfy.gradients.loop.LoopEngine`, which differentiates one record at
a time.
"""

from dpfy.gradients.base import BoundedSums, Engine, Examples, Summed, Unsupported
from dpfy.gradients.bookkeeping import BookkeepingEngine, ExactBookkeepingEngine, GhostEngine
from dpfy.gradients.loop import LoopEngine
from dpfy.gradients.vmap import VmapEngine

ENGINES: dict[str, type[Engine]] = {
    engine.name: engine for engine in (BookkeepingEngine, GhostEngine, VmapEngine, LoopEngine)
}
"""Every engine by its name; ``engine="auto"`` tries them in this order, and the oracle works for
every model.
"""

EXACT_NORMS: dict[str, type[Engine]] = {
    engine.name: engine for engine in (ExactBookkeepingEngine, VmapEngine, LoopEngine)
}
"""Those that weigh by the norm of the very vector that they add, for importance sampling."""

PER_RECORD_GRADIENTS: dict[str, type[Engine]] = {
    name: engine for name, engine in ENGINES.items() if engine.provides_gradients
}
"""Those that write out every gradient, for coordinates of their own."""

__all__ = [
    "ENGINES",
    "EXACT_NORMS",
    "PER_RECORD_GRADIENTS",
    "BookkeepingEngine",
    "BoundedSums",
    "Engine",
    "ExactBookkeepingEngine",
    "Examples",
    "GhostEngine",
    "LoopEngine",
    "Summed",
    "Unsupported",
    "VmapEngine",
]
