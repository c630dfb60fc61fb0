"""Scale the noise of a step: how far one record can move its sums, arithmetic included.

Tests: tests/run/test_step.py.
"""

from dpfy.gradients import Engine
from dpfy.mechanisms.controllers import StepConfig
from dpfy.mechanisms.gaussian_sum import GaussianSum
from dpfy.mechanisms.statistics import shared_rounding
from dpfy.run.context import StepContext
from dpfy.run.partition import BatchPartition
from dpfy.run.release_layout import ReleaseLayout


def mechanism_for(
    context: StepContext, engine: Engine, step: int, config: StepConfig, layout: ReleaseLayout
) -> GaussianSum:
    """Return the Gaussian mechanism of a step.

    Its noise depends on the plan, on released values, on the model and on the engine; never on a
    record.
    """
    query = config.query
    dimension = sum(p.numel() for p in context.parameters.values())
    dimension += sum(each.size for each in query.due(step))
    if query.slots is not None:  # a slot shares its arithmetic with no other
        co_batched, rounding = 0, 0.0
    else:
        # With more ranks there are more blocks, and none is expected to be larger: the noise is
        # that of one process.
        partition = partition_for(context, engine, step, config)
        additions = partition.count**2 * 2.0**-50  # float64 sums of blocks
        co_batched = partition.largest
        rounding = shared_rounding(query, step, engine.rounding + additions)
    norm_rounding = layout.norm_rounding(context.plan.divisor)
    mechanism = GaussianSum(
        query.joint_sensitivity(step) + norm_rounding,
        noise_multiplier_of(context, step, config),
        dimension,
        co_batched,
        rounding,
        roundings=1 if query.least_sample is None and not norm_rounding else 2,
    )
    return context.sampling.widen(mechanism)


def partition_for(
    context: StepContext, engine: Engine, step: int, config: StepConfig, ranks: int = 1
) -> BatchPartition:
    """Return how the records that a step differentiates are divided into blocks."""
    return context.sampling.partition(
        context, engine, step, noise_multiplier_of(context, step, config), ranks
    )


def noise_multiplier_of(context: StepContext, step: int, config: StepConfig) -> float:
    """Return the noise of a step over the norm of what one record adds to all of its sums."""
    return context.plan.noise_at(step) * config.noise / config.query.joint_sensitivity(step)
