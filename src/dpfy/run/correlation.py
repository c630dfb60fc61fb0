"""Make the noise that a plan asks for: independent, or correlated by its strategy.

Tests: tests/run/test_correlation.py.
"""

from collections.abc import Sequence

import torch

from dpfy.errors import InvalidArgument
from dpfy.ledger.streams import Buffered, Strategy, Toeplitz, Tree
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


def noise_for(plan: Plan, stream: SecureStream, first: int) -> NoiseStrategy:
    """Return the noise of a plan, whose first row is that of step ``first``, counted from 1.

    No row before it is remembered: nothing of the noise is ever saved.
    """
    if plan.correlation is None:
        return LatticeGaussian(stream)
    return CorrelatedGaussian(stream, _history(plan.correlation, plan.steps), first)


def _history(strategy: Strategy, steps: int) -> History:
    """Return what noise of a strategy has to remember."""
    match strategy:
        case Buffered(decays, scales):
            return DecayingSums(decays, scales, steps)
        case Tree(restart):
            return TreeNodes(restart)
    assert isinstance(strategy, Toeplitz)
    return Bands(strategy.column(steps), steps)
