"""Make the noise that a plan asks for: independent, or correlated by its strategy.

Tests: tests/run/test_correlation.py.
"""

from collections.abc import Sequence

import torch

from dpfy.errors import InvalidArgument
from dpfy.ledger.streams import Buffered, Toeplitz, Tree
from dpfy.noise import CorrelatedGaussian, LatticeGaussian, NoiseStrategy, SecureStream
from dpfy.noise.histories import Bands, DecayingSums, History, TreeNodes
from dpfy.optim import ADADP
from dpfy.plans import Plan


def check_optimizers(plan: Plan, optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Refuse an optimizer that would take correlated noise for something else."""
    if plan.correlation is not None and any(isinstance(each, ADADP) for each in optimizers):
        raise InvalidArgument(
            "ADADP finds its learning rate from how far two gradients differ, and with correlated "
            "noise the second takes back noise of the first. Use another optimizer, or dpfy.dpsgd."
        )


def history_for(plan: Plan) -> History | None:
    """Return what the noise of a plan has to remember, or None if its steps are independent.

    Raises:
        InvalidArgument: If the noise of the plan's strategy would grow from row to row.
    """
    match plan.correlation:
        case None:
            return None
        case Buffered(decays, scales):
            return DecayingSums(decays, scales, plan.steps)
        case Tree(restart):
            return TreeNodes(restart)
    assert isinstance(plan.correlation, Toeplitz)
    return Bands(plan.correlation.column(plan.steps), plan.steps)


def noise_for(history: History | None, stream: SecureStream, first: int) -> NoiseStrategy:
    """Return noise with a history, whose first row is that of step ``first``, counted from 1.

    No row before it is remembered: nothing of the noise is ever saved.
    """
    if history is None:
        return LatticeGaussian(stream)
    return CorrelatedGaussian(stream, history, first)
