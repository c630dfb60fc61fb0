"""The book-keeping engine: one forward pass, one backward pass, and no gradient per record that need not be written."""

from dpfy.training.engines.bookkeeping.engine import BookkeepingEngine

__all__ = ["BookkeepingEngine"]
