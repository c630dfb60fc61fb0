"""Train a ``LightningModule`` privately, by a callback; needs the extra ``dpfy[lightning]``."""

from dpfy._extras import require
from dpfy._lazy import exports

require("lightning", "lightning")

__getattr__, __all__ = exports(__name__, {"callback": ("PrivateTraining", "Step", "Steps")})
