"""Engines: how per-record gradients are computed, weighed and summed.

All are judged against :class:`~dpfy.training.engines.loop.LoopEngine`, which differentiates one record at a time.
"""

from dpfy.training.engines.base import BoundedSums, Engine, Examples, Summed, Unsupported
from dpfy.training.engines.bookkeeping import BookkeepingEngine, GhostEngine
from dpfy.training.engines.loop import LoopEngine
from dpfy.training.engines.vmap import VmapEngine

ENGINES: dict[str, type[Engine]] = {
    engine.name: engine for engine in (BookkeepingEngine, GhostEngine, VmapEngine, LoopEngine)}
"""Every engine by its name."""

PREFERENCE = tuple(ENGINES)
"""What ``engine="auto"`` tries, fastest first; the oracle works for every model."""

__all__ = ["ENGINES", "PREFERENCE", "BookkeepingEngine", "BoundedSums", "Engine", "Examples", "GhostEngine",
           "LoopEngine", "Summed", "Unsupported", "VmapEngine"]
