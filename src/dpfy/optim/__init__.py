"""Optimizers that take the noise of their gradients into account.

They see only released gradients, so whatever they compute is post-processing and costs no privacy.
"""

from dpfy.optim.adadp import ADADP
from dpfy.optim.adam_bc import AdamBC
from dpfy.optim.averaging import TailAverage

__all__ = ["ADADP", "AdamBC", "TailAverage"]
