"""Make the plan that the settings of a training mean.

Tests: tests/trainer/test_trainer.py, tests/trainer/test_importance.py.
"""

from typing import Any

from torch import nn

from dpfy.checks.fix import batchnorm_statistics
from dpfy.errors import InvalidArgument
from dpfy.mechanisms.controllers import ValidationDecay
from dpfy.mechanisms.groups import clip_automatically, clip_groups
from dpfy.mechanisms.query import Contributing, Statistic
from dpfy.mechanisms.workloads import MOST_RATES
from dpfy.models.batchnorm import PrivateBatchNorm
from dpfy.plans import Plan, dpftrl, dpsgd
from dpfy.plans.dpis import dpis
from dpfy.plans.idpsgd import idpsgd
from dpfy.trainer.builders import TrainingData, rate_factor
from dpfy.trainer.config import TrainConfig
from dpfy.trainer.correlation import correlation_options
from dpfy.trainer.group_budgets import named_budgets
from dpfy.trainer.options import named_clipping, named_optimizer, plan_options
from dpfy.types import Unit

_METRICS = (
    Statistic("accuracy", bound=1.0),
    Statistic("loss", bound=4.0),
)  # a loss above 4 counts as 4


def make_plan(config: TrainConfig, data: TrainingData, model: nn.Module) -> Plan:
    """Return the calibrated plan that the settings mean."""
    if config.budgets is not None:
        return _in_groups(config, data, model, named_budgets(config.budgets))
    plan = uncalibrated_plan(config, data, model)
    return plan.calibrate(epsilon=config.epsilon, delta=config.delta)  # type: ignore[arg-type]


def uncalibrated_plan(config: TrainConfig, data: TrainingData, model: nn.Module) -> Plan:
    """Return the plan that the settings mean, without its noise."""
    plan_by = _by_norm if config.sampling == "importance" else _by_chance
    return plan_by(config, data, model)


def _by_chance(config: TrainConfig, data: TrainingData, model: nn.Module) -> Plan:
    """Return a plan that draws all records with the same probability."""
    shared: dict[str, Any] = {
        "records": data.records,
        "batch_size": config.batch_size,
        "epochs": config.epochs,
        "clip": _clip(config, model),
        "statistics": released_statistics(config, model),
        "sampling": config.sampling,
        "relation": config.relation,
        "unit": Unit.RECORD if data.owners is None else Unit.USER,
    }
    if correlation := correlation_options(config.noise_correlation):
        return dpftrl(**shared, **correlation, **_workload(config, shared))
    plan = dpsgd(
        **shared,
        capacity=config.capacity,
        **plan_options(
            config.clipping, config.noise_schedule, config.clip_schedule, config.algorithm
        ),
    )
    if data.test is None and any(isinstance(each, ValidationDecay) for each in plan.controllers):
        raise InvalidArgument(
            "Noise that follows the accuracy on public data needs public data, and there is "
            "none. Give test=, or use a schedule that is fixed in advance."
        )
    return plan


def _workload(config: TrainConfig, shared: dict[str, Any]) -> dict[str, Any]:
    """Return what descent does with the sums of all steps; other optimizers are as plain."""
    if named_optimizer(config.optimizer)[0] != "sgd":
        return {}
    steps = dpftrl(**shared, strategy="independent").steps
    factor = rate_factor(config, steps)
    rates = tuple(factor(step) for step in range(steps))
    changes = steps <= MOST_RATES and len(set(rates)) > 1
    return {"momentum": config.momentum or 0.0, "learning_rates": rates if changes else ()}


def _in_groups(
    config: TrainConfig,
    data: TrainingData,
    model: nn.Module,
    groups: dict[str, tuple[float, float]],
) -> Plan:
    """Return a calibrated plan in which every group of records has an ε of its own."""
    assert config.batch_size is not None and config.delta is not None  # as completed
    options = plan_options(config.clipping, None, config.clip_schedule)
    del options["noise_schedule"]
    return idpsgd(
        records=data.records,
        batch_size=config.batch_size,
        epochs=config.epochs,
        groups=groups,
        delta=config.delta,  # type: ignore[arg-type] # a number, or "auto"
        clip=_clip(config, model),
        method=config.individual,
        statistics=released_statistics(config, model),
        relation=config.relation,
        unit=Unit.RECORD if data.owners is None else Unit.USER,
        **options,
    )


def _clip(config: TrainConfig, model: nn.Module) -> Any:
    """Return the clip bound, or the clipped sums that the configuration names."""
    clip: Any = config.clip or 1.0
    if config.groups != "flat":
        clip = clip_groups(model, config.groups, clip=clip)  # type: ignore[arg-type] # one of the three words
    if isinstance(gamma := named_clipping(config.clipping), float):
        clip = clip_automatically(clip, gamma=gamma)
    return clip


def _by_norm(config: TrainConfig, data: TrainingData, model: nn.Module) -> Plan:
    """Return a plan that draws records by the norms of their gradients."""
    if released_statistics(config, model) or data.owners is not None:
        raise InvalidArgument(
            "Importance sampling protects records and releases nothing beside gradients. Leave "
            "unit_of out, and use a model without PrivateBatchNorm, or sampling='poisson'."
        )
    assert config.batch_size is not None  # as completed
    return dpis(
        records=data.records,
        batch_size=config.batch_size,
        epochs=config.epochs,
        clip=config.clip or 1.0,
        noise_schedule=config.noise_schedule,
        relation=config.relation,
        **config.importance.options(),
    )


def released_statistics(config: TrainConfig, model: nn.Module) -> list[Statistic]:
    """Return the statistics that are released beside the gradient.

    These are the metrics, if they are wanted, and those that private BatchNorm layers need. The
    share of records that contributed is released too, unless records are drawn by their norms,
    where records that are proposed and not accepted would not be counted, or groups have clip
    bounds of their own, which no statistic follows.
    """
    metrics = _METRICS if config.private_metrics else ()
    needed = any(isinstance(module, PrivateBatchNorm) for module in model.modules())
    scaled = config.budgets is not None and config.individual == "scale"
    counted = config.contributing and config.sampling != "importance" and not scaled
    return [
        *metrics,
        *(batchnorm_statistics(model) if needed else ()),
        *([Contributing()] if counted else ()),
    ]
