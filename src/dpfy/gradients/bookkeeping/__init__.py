"""Engines that take per-record gradients from what layers saw: no gradient is written that need not
be.
"""

from dpfy.gradients.bookkeeping.engine import BookkeepingEngine, GhostEngine
from dpfy.gradients.bookkeeping.exact import ExactBookkeepingEngine

__all__ = ["BookkeepingEngine", "ExactBookkeepingEngine", "GhostEngine"]
