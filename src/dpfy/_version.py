"""The version, in the one place that the build, the ledger header and ``dpfy --version`` read."""

__version__ = "0.2.0"
