"""Optimizers that know of noise. They see released gradients alone, so whatever they do costs no
privacy.
"""

from dpfy.optim.adadp import ADADP
from dpfy.optim.adam_bc import AdamBC
from dpfy.optim.averaging import TailAverage

__all__ = ["ADADP", "AdamBC", "TailAverage"]
