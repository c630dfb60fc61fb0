"""dpfy: train with differential privacy, and know exactly what was spent.

Names are imported on first use, so that reading a ledger or computing an ε never loads torch.
"""

from importlib import import_module
from typing import Any

from dpfy._version import __version__ as __version__

_HOMES = {
    "dpfy.accounting": ("Guarantee", "account", "calibrate_noise"),
    "dpfy.errors": (
        "BatchAlreadyReleased", "BudgetExhausted", "CheckpointError", "DataError", "DivergenceError", "DpfyError",
        "InvalidArgument", "IsolationError", "LedgerDamaged", "LedgerError", "LedgerLocked", "LedgerMismatch",
        "LedgerWriteFailed", "LossError", "UnreleasedGradient", "UnsupportedEvent",
    ),
    "dpfy.ledger": ("Ledger",),
    "dpfy.plan": ("Plan", "dpsgd"),
    "dpfy.training.checkpoint": ("resume",),
    "dpfy.training.fix": ("fix",),
    "dpfy.training.losses": ("Losses",),
    "dpfy.training.run": ("Released", "Run", "privatize"),
    "dpfy.types": ("Budget", "Interval", "Relation", "Unit"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        return getattr(import_module(_HOME_OF[name]), name)
    raise AttributeError(f"module 'dpfy' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
