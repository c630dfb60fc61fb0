"""What it cost: from the facts of a ledger to a guarantee, without torch."""

from dpfy.accounting.calibrate import calibrate_envelope, calibrate_noise
from dpfy.accounting.guarantee import Guarantee, account
from dpfy.accounting.guards import EnvelopeGuard
from dpfy.accounting.rules import RULES, Rule, supported

__all__ = ["RULES", "EnvelopeGuard", "Guarantee", "Rule", "account", "calibrate_envelope", "calibrate_noise",
           "supported"]
