"""Build what a configuration names: data, model, optimizer, schedule and average.

Tests: tests/trainer/test_trainer.py.
"""

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils._pytree import tree_map_only
from torch.utils.data import DataLoader

from dpfy import _validate, data as reference_data
from dpfy._objects import load_object, make_object
from dpfy.checks.fix import fix
from dpfy.errors import DataError, InvalidArgument
from dpfy.models import default_model, recommended
from dpfy.optim import ADADP, AdamBC, TailAverage
from dpfy.planning.defaults import default_delta, first_run
from dpfy.trainer.config import TrainConfig
from dpfy.trainer.group_budgets import named_budgets
from dpfy.trainer.label_settings import label_defaults
from dpfy.trainer.objectives import TASKS, PerRecord
from dpfy.trainer.options import named_optimizer

_EVALUATION_BATCH = 1000
_OWN_DATA = "Your own data is named as module:loader, by a function that returns the records."


@dataclass(frozen=True)
class TrainingData:
    """The private records, the public ones, and the declared facts about them."""

    train: Any
    test: Any | None
    records: int
    description: str
    unit: str
    source: reference_data.DataSource | None = None
    owners: Any = None  # of the rows, where users are protected
    groups: Any = None  # of the records, where they have budgets of their own
    example: Any = None  # synthetic examples, collated, where the data set itself declares none


def completed(config: TrainConfig) -> TrainConfig:
    """Fill in the settings that were left open.

    For a reference data set they are those that suit it, for other data those of a first run.
    """
    adapts = named_optimizer(config.optimizer)[0]
    descends = adapts in ("sgd", "adadp")
    if config.protect == "labels":
        defaults: dict[str, Any] = label_defaults(adapts)
    elif config.data in reference_data.NAMES:
        known = recommended(config.data)
        defaults = {
            "epochs": known["epochs"],
            "batch_size": int(known["batch_size"]),
            "clip": known["clip"],
            "learning_rate": known["lr"] if descends else 1e-3,
            "momentum": known["momentum"],
            "ema": 0.0,
        }
    elif config.records is None:
        return config  # such data cannot be loaded, and load_data says so
    else:
        delta = config.delta
        if isinstance(delta, str):  # "auto"
            delta = min(0.5, config.records**-1.1)
        defaults = vars(
            first_run(
                config.records,
                epsilon=_typical_epsilon(config),
                delta=delta,
                epochs=config.epochs,
                batch_size=config.batch_size,
                clip=config.clip,
                learning_rate=config.learning_rate,
                optimizer="sgd" if descends else "adam",
            )
        )
    defaults["delta"] = default_delta(config.records)  # reference data sets have fewer than 100,000
    if adapts == "adadp":
        defaults["momentum"] = 0.0
    if config.sampling == "importance":
        # For each record in a sample, gradients of about three more are computed.
        defaults["batch_size"] = max(1, defaults["batch_size"] // 4)
    if config.average_tail is not None:
        defaults["ema"] = 0.0
    return replace(
        config, **{name: value for name, value in defaults.items() if getattr(config, name) is None}
    )


def _typical_epsilon(config: TrainConfig) -> float:
    """Return the ε that defaults are chosen for: of groups, that of a record drawn at random."""
    if config.budgets is None:
        return config.epsilon
    return math.fsum(epsilon * share for epsilon, share in named_budgets(config.budgets).values())


def load_data(
    config: TrainConfig,
    train: Any,
    test: Any,
    unit_of: Any = None,
    example_input: Any = None,
    group_of: Any = None,
) -> TrainingData:
    """Return the data that was given as objects or that the configuration names."""
    found = _load_units(config, train, test, unit_of, example_input)
    if group_of is None and config.groups_of is not None:
        group_of = make_object(config.groups_of)
    if (group_of is None) != (config.budgets is None):
        raise InvalidArgument(
            "Budgets of groups need the group of each record: give groups_of=, such as "
            "mydata:levels, or group_of= to the trainer."
            if group_of is None
            else "Groups of records need budgets=, such as strict=1:0.4,open=3:0.6."
        )
    return replace(found, groups=group_of)


def _load_units(
    config: TrainConfig, train: Any, test: Any, unit_of: Any, example_input: Any
) -> TrainingData:
    """Load the records, and whose they are."""
    owners = make_object(config.users) if unit_of is None and config.users is not None else unit_of
    if example_input is None and config.example is not None:
        example_input = make_object(config.example)
    if owners is None:
        return replace(_load_records(config, train, test), example=example_input)
    if config.records is None:
        raise InvalidArgument(
            "Data that is protected by user needs records=, the declared public number of users: "
            "it is never read off the data."
        )
    found = _load_records(config, train, test)
    return replace(
        found,
        owners=owners,
        unit=_unit_of(found.train, "all rows of one user"),
        example=example_input,
    )


def _load_records(config: TrainConfig, train: Any, test: Any) -> TrainingData:
    """Load the records, without users."""
    if train is None and ":" not in config.data:
        _validate.choice("data", config.data, reference_data.NAMES, _OWN_DATA)
        source = reference_data.load(config.data, config.data_dir)
        records = config.records or source.records
        return TrainingData(
            source.train, source.test, records, source.description, source.unit, source
        )
    if train is None:
        train, test = _own_data(config.data)
    if config.records is None:
        raise InvalidArgument(
            "Your own data needs records=, the declared public number of records: it is never read "
            "off the data."
        )
    unit = _unit_of(train, "one record")
    return TrainingData(train, test, config.records, f"own data ({config.data})", unit)


def _unit_of(data: Any, otherwise: str) -> str:
    """Return what one unit of privacy is, if the data set says so in its attribute ``unit``."""
    unit = getattr(data, "unit", None)
    return unit if isinstance(unit, str) else otherwise


def _own_data(reference: str) -> tuple[Any, Any]:
    """Call the user's loader, which returns a private data set or a private and a public one."""
    loaded = make_object(reference)
    if isinstance(loaded, tuple) and len(loaded) == 2:
        return loaded
    if isinstance(loaded, tuple) or not hasattr(loaded, "__len__"):
        raise DataError(
            f"Expected {reference} to return a data set, or a pair of a private and a public one."
        )
    return loaded, None


def make_model(config: TrainConfig, data: TrainingData | None) -> nn.Module:
    """Return the user's own model, or the network for the data set."""
    if config.model is not None:
        return named_model(config.model)
    if data is None or data.source is None:
        raise InvalidArgument("Your own data needs model=, your own network as module:factory.")
    return default_model(data.source, config.data_dir)


def named_model(reference: str) -> nn.Module:
    """Return the model that ``package.module:name`` names, or that the named function makes."""
    found = load_object(reference)
    # a copy: the next run of this process begins with the same weights
    model = deepcopy(found) if isinstance(found, nn.Module) else make_object(reference)
    if not isinstance(model, nn.Module):
        raise InvalidArgument(
            f"Expected {reference} to return a torch.nn.Module, got {type(model).__name__}."
        )
    return model


def without_batchnorm(config: TrainConfig, model: nn.Module, data: TrainingData) -> nn.Module:
    """Return the model with its BatchNorm layers replaced, if the configuration says by what."""
    if config.batchnorm == "refuse":
        return model
    if config.batchnorm != "public":
        return fix(model, config.batchnorm)
    if data.test is None:
        raise InvalidArgument(
            "batchnorm='public' takes the statistics of public records, and there are none. Give "
            "test=, or choose group or private."
        )
    batch = next(iter(DataLoader(data.test, batch_size=_EVALUATION_BATCH)))
    if not isinstance(batch, list | tuple):
        raise InvalidArgument(
            "batchnorm='public' calls the model with the first field of public records, and here "
            "these are dicts. Choose group or private, or call dpfy.fix yourself."
        )
    return fix(model, "public", public=batch[0])


def make_optimizer(config: TrainConfig, model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer of all parameters that are not frozen."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    assert config.learning_rate is not None
    name, options = named_optimizer(config.optimizer)
    match name:
        case "adam":
            return torch.optim.Adam(parameters, lr=config.learning_rate)
        case "adam_bc":
            return AdamBC(parameters, config.learning_rate, **options)
        case "adadp":
            return ADADP(parameters, config.learning_rate, **options)
    return torch.optim.SGD(parameters, lr=config.learning_rate, momentum=config.momentum or 0.0)


def make_average(config: TrainConfig, model: nn.Module, steps: int) -> AveragedModel | None:
    """Return the average of the weights, exponential or over the last steps, or None."""
    if config.average_tail is not None:
        return TailAverage(model, steps, config.average_tail)
    return (
        AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(config.ema)) if config.ema else None
    )


def make_scheduler(
    config: TrainConfig, optimizer: torch.optim.Optimizer, steps: int
) -> torch.optim.lr_scheduler.LRScheduler:
    """Return the schedule of the learning rate over ``steps``."""
    return torch.optim.lr_scheduler.LambdaLR(optimizer, rate_factor(config, steps))


def rate_factor(config: TrainConfig, steps: int) -> Callable[[int], float]:
    """Return the factor of the learning rate in a step, counted from 0, as a function."""
    shapes: dict[str, Callable[[float], float]] = {
        "constant": lambda done: 1.0,
        "linear": lambda done: 1.0 - done,
        "cosine": lambda done: 0.5 + 0.5 * math.cos(math.pi * done),
    }

    def factor(step: int) -> float:
        warm = min(1.0, (step + 1) / config.warmup_steps) if config.warmup_steps else 1.0
        return warm * shapes[config.lr_schedule](min(1.0, step / steps))

    return factor


def on_device_of(model: nn.Module, *fields: Any) -> list[Any]:
    """Return the fields of collated records on the device of a model's first parameter."""
    device = next(model.parameters()).device
    if device.type == "cpu":
        return [*fields]
    return tree_map_only(torch.Tensor, lambda tensor: tensor.to(device), [*fields])  # type: ignore[no-any-return]


def move_to_device(model: nn.Module, device: str) -> None:
    """Move a model to the device that a setting names.

    Raises:
        InvalidArgument: There is no such device here.
    """
    try:
        model.to(torch.device(device))
    except (RuntimeError, AssertionError) as error:  # torch raises either
        here = next(iter(str(error).splitlines()), "").rstrip(".")
        raise InvalidArgument(
            f"Expected device={device!r} to be a device of torch on this machine, such as 'cpu', "
            f"'cuda' or 'cuda:0'. torch says: {here}."
        ) from None


def on_cpu(model: nn.Module) -> nn.Module:
    """Return the model if the CPU has it, and otherwise a copy there."""
    return model if all(p.is_cpu for p in model.parameters()) else deepcopy(model).cpu()


def mean_on(
    public: Any,
    model: nn.Module,
    measure: PerRecord,
    collate_fn: Callable[[list[Any]], Any] | None = None,
) -> float:
    """Return the mean of a number that is measured for each public record."""
    was_training = model.training
    model.eval()
    found: list[torch.Tensor] = []
    with torch.no_grad():
        for batch in DataLoader(public, batch_size=_EVALUATION_BATCH, collate_fn=collate_fn):
            fields = batch if isinstance(batch, list | tuple) else (batch,)
            values = torch.as_tensor(measure(model, *on_device_of(model, *fields)))
            found.append(values.detach().double().cpu().reshape(-1))
    model.train(was_training)
    return float(torch.cat(found).mean()) if found else 0.0


def accuracy_of(model: nn.Module, public: Any) -> float:
    """Return the share of public records that the model classifies correctly."""
    return mean_on(public, model, TASKS["classification"].measure)
