"""Draw the noise of a step ahead, and add it to its sums.

Tests: tests/run/test_ranks.py, tests/run/test_sharding.py.
"""

import torch

from dpfy.mechanisms.gaussian_sum import GaussianSum
from dpfy.run.context import StepContext
from dpfy.run.lock_step import add_noise_to_rows
from dpfy.run.release_layout import ReleaseLayout
from dpfy.run.sum_accumulator import SumAccumulator


def begin_noise(context: StepContext, mechanism: GaussianSum, layout: ReleaseLayout) -> None:
    """Begin to draw the noise of a mechanism, in the place of any other: for this step or never.

    It follows from public numbers and no record, so that it is drawn while the ledger waits for
    the disk, too, and while the engine works.
    """
    with context.ranks.together():
        if context.division is not None:
            context.division.begin_noise(context, mechanism, layout)
        elif context.ranks.first:
            context.noise.prefetch(layout.size, mechanism.stddev, mechanism.grid)


def add_noise(
    context: StepContext,
    layout: ReleaseLayout,
    sums: SumAccumulator,
    mechanism: GaussianSum,
    records: int,
) -> tuple[list[torch.Tensor], float]:
    """Return the sums of all ranks with rank 0's noise, and its spread, on every rank."""
    if context.division is not None:
        return add_noise_to_rows(context, layout, sums, mechanism, records)
    divisor, ranks = context.plan.divisor, context.ranks
    if ranks.size > 1:
        ranks.sum_to_first(sums.vector)
    outputs = layout.outputs(sums.tensors)
    with ranks.together():
        if ranks.first:
            if layout.completes:
                layout.complete(sums.vector, records, divisor)
            factors = layout.factors(divisor)
            mechanism.release_pieces(sums.tensors, factors, outputs, context.noise)
        else:
            sums.zero()
    ranks.share([*outputs, spread := torch.tensor(context.noise.spread, dtype=torch.double)])
    return outputs, float(spread)
