"""State the public terms of a step: its event, its noise, and how its records are divided.

Tests: tests/run/test_step.py.
"""

from dpfy.errors import LedgerMismatch
from dpfy.gradients import Engine
from dpfy.ledger.events import Event, Policy, Sampled
from dpfy.mechanisms.controllers import StepConfig
from dpfy.mechanisms.gaussian_sum import GaussianSum
from dpfy.mechanisms.statistics import shared_rounding
from dpfy.plans import Plan
from dpfy.plans.correlation import row_of
from dpfy.run.context import StepContext
from dpfy.run.partition import BatchPartition
from dpfy.run.release_layout import ReleaseLayout


def event_of(context: StepContext, step: int, config: StepConfig) -> Event:
    """Return the event that the sampler and the query at hand license; it must be the planned one.

    Args:
        context: the context of the run.
        step: the step, counted from 1.
        config: what the step is run with.

    Returns:
        The event to reserve.

    Raises:
        LedgerMismatch: if what is about to run is not the event of the plan.
    """
    plan, sampling = context.plan, context.sampling
    if plan.correlation is not None:
        return licensed_event(plan, sampling.policy, step, config)
    return licensed_event(plan, sampling.policy_at(step, config), step, config)


def licensed_event(plan: Plan, policy: Policy, step: int, config: StepConfig) -> Event:
    """Return the event of a sample drawn by a policy and of a query; it must be the planned one.

    Args:
        plan: what was planned.
        policy: the policy of the step, as the sampler itself names it.
        step: the step, counted from 1.
        config: what the step is run with.

    Returns:
        The event to reserve.

    Raises:
        LedgerMismatch: if what is about to run is not the event of the plan.
    """
    rate = None if config.draw is None else config.draw.rate
    noise_multiplier = plan.noise_at(step) * config.noise
    event: Event
    if plan.correlation is not None:
        event = row_of(policy, plan.correlation, plan.steps, noise_multiplier)
    else:
        due = step if plan.steps_per_event == 1 else 1
        queries = config.query.sum_queries(noise_multiplier, due)
        event = Sampled(policy, queries, adaptive=plan.adaptive)
    if event != plan.event_at(step, config.noise, rate):
        raise LedgerMismatch(
            "The query that is about to run is not the event of the plan; nothing was read."
        )
    return event


def note_of(config: StepConfig) -> dict[str, float]:
    """Return what the ledger notes beside the event of a step: the bound that is in force."""
    return {"clip": config.query.bound}


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
    trained = sum(p.numel() for p in context.trained().values())
    norm_rounding = layout.norm_rounding(context.plan.divisor, trained)
    mechanism = GaussianSum(
        query.joint_sensitivity(step) + norm_rounding,
        relative_noise(context, step, config),
        dimension,
        co_batched,
        rounding,
        roundings=context.noise.roundings
        + (1 if query.least_sample is None and not norm_rounding else 2),
    )
    return context.sampling.widen(context.record_bounds.widen(mechanism))


def partition_for(
    context: StepContext, engine: Engine, step: int, config: StepConfig, ranks: int = 1
) -> BatchPartition:
    """Return how the records that a step differentiates are divided into blocks."""
    return context.sampling.partition(
        context, engine, step, relative_noise(context, step, config), ranks
    )


def noise_multiplier_of(context: StepContext, step: int, config: StepConfig) -> float:
    """Return the noise multiplier of a step: the planned one, times what controllers chose."""
    return context.plan.noise_at(step) * config.noise


def relative_noise(context: StepContext, step: int, config: StepConfig) -> float:
    """Return the noise of a step over the norm of what one record adds to all of its sums."""
    return noise_multiplier_of(context, step, config) / config.query.joint_sensitivity(step)
