"""Engines that derive per-record gradients from the inputs and output gradients of layers.

A gradient is written out for each record only where that is cheaper than its factors.
"""

from dpfy.gradients.bookkeeping.engine import BookkeepingEngine, GhostEngine
from dpfy.gradients.bookkeeping.exact import ExactBookkeepingEngine

__all__ = ["BookkeepingEngine", "ExactBookkeepingEngine", "GhostEngine"]
