"""Train privately with Flower, by a strategy; needs the extra ``dpfy[flower]``."""

from dpfy._extras import require
from dpfy._lazy import exports

require("flwr", "flower")

__getattr__, __all__ = exports(__name__, {"strategy": ("PrivateFedAvg",)})
