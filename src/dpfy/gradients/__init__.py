"""Engines, which compute, weigh and sum per-record gradients.

All are tested against :class:`~dpfy.gradients.loop.LoopEngine`, which differentiates one record at
a time.

Tests: tests/gradients/test_engines.py.
"""

from dpfy.gradients.base import BoundedSums, Engine, Examples, Summed, Unsupported
from dpfy.gradients.bookkeeping import BookkeepingEngine, ExactBookkeepingEngine, GhostEngine
from dpfy.gradients.bookkeeping.contributions import Materialized, OuterProduct
from dpfy.gradients.bookkeeping.layers import register_layer_rule
from dpfy.gradients.bookkeeping.layout import Layout
from dpfy.gradients.bookkeeping.recorder import Recorder
from dpfy.gradients.loop import LoopEngine
from dpfy.gradients.vmap import VmapEngine

ENGINES: dict[str, type[Engine]] = {
    engine.name: engine for engine in (BookkeepingEngine, GhostEngine, VmapEngine, LoopEngine)
}
"""All engines by name, in the order in which ``engine="auto"`` tries them; ``loop`` serves all."""

EXACT_NORMS: dict[str, type[Engine]] = {
    engine.name: engine for engine in (ExactBookkeepingEngine, VmapEngine, LoopEngine)
}
"""Engines whose norms are those of the very vectors that they add, for importance sampling."""

PER_RECORD_GRADIENTS: dict[str, type[Engine]] = {
    name: engine for name, engine in ENGINES.items() if engine.provides_gradients
}
"""Engines that write out every record's gradient, for queries on its coordinates."""

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
    "Layout",
    "LoopEngine",
    "Materialized",
    "OuterProduct",
    "Recorder",
    "Summed",
    "Unsupported",
    "VmapEngine",
    "register_layer_rule",
]
