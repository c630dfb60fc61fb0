"""One schema for a training run: from Python, from TOML or YAML, and from flags.

:class:`TrainConfig` holds all settings, and each field carries its own description, which the
template, ``--help`` and the reference page print. :func:`all_settings` lists them, those of the
table ``[importance]`` included. Names of version 0.1 stay valid: see :data:`OLD_NAMES`.
"""

import difflib
import functools
import textwrap
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Self, TypeVar

from dpfy import _validate
from dpfy._extras import require
from dpfy._renamed import warn_renamed
from dpfy.errors import InvalidArgument
from dpfy.mechanisms.controllers import Controller, named_schedule
from dpfy.run.strict import strict_engine
from dpfy.trainer.correlation import check_correlation
from dpfy.trainer.group_budgets import check_group_settings
from dpfy.trainer.label_settings import PROTECT, check_label_settings, named_label_method
from dpfy.trainer.options import (
    importance_options,
    named_algorithm,
    named_noise,
    named_optimizer,
    plan_options,
)
from dpfy.trainer.settings import Setting, check_type, documented, option, setting_of
from dpfy.types import Relation

SCHEDULES = ("constant", "cosine", "linear")
GROUPS = ("flat", "layer", "tensor", "kind")
TASKS = ("classification", "regression", "language_model")
BATCHNORM = ("refuse", "group", "private", "public")
SAMPLINGS = (
    "poisson",
    "full",
    "fixed_size",
    "truncated_poisson",
    "shuffled",
    "cyclic",
    "balls_in_bins",
    "cyclic_poisson",
    "one_epoch",
    "importance",
)
SECTIONS = {
    "data": "Data and model",
    "epsilon": "Budget",
    "epochs": "Clipping, noise and sampling",
    "private_metrics": "Released beside the gradients",
    "optimizer": "Optimizer",
    "evaluate_every": "Evaluation and checkpoints",
    "engine": "Speed and memory",
    "seed": "Folder and files",
    "importance.ratio": "Importance sampling",
}
"""The first setting of each section of a file, and the title of the section."""
_CHOSEN = "chosen for the data set"
_NOT_BY_NORM = {
    "clipping": "contributions have one norm, which follows ratio and ratio_schedule",
    "clip_schedule": "contributions have one norm, which follows ratio and ratio_schedule",
    "groups": "a record is accepted by one norm, and groups would have several",
    "capacity": "it cuts a truncated_poisson sample",
    "users": "it protects records, one by one",
    "rows_per_user": "it protects records, one by one",
    "private_metrics": "records that are proposed and not accepted would be counted in them",
    "algorithm": "there is no rule for comparing losses on such a sample",
}
"""Settings that importance sampling leaves at their defaults, and why."""


@documented
@dataclass(frozen=True)
class ImportanceConfig:
    """Settings of importance sampling (DPIS): the table ``[importance]`` of a file.

    They have a meaning with ``sampling="importance"`` only; see :func:`dpfy.dpis`.

    >>> TrainConfig(sampling="importance", importance=ImportanceConfig(ratio=0.6)).importance.ratio
    0.6
    """

    ratio: float | None = option(
        None,
        "Norm of every contribution to an importance sample, in clip bounds; best near the mean "
        "of min(norm, clip)/clip.",
        example=0.5,
        otherwise="0.5",
        needs='sampling = "importance"',
    )
    ratio_schedule: str | None = option(
        None,
        "Schedule of the ratio of importance sampling, fixed in advance; syntax as for "
        "noise_schedule, and a ratio is needed.",
        example="step:0.8:5",
        needs='sampling = "importance" and importance.ratio = 0.5',
    )
    slack: float | None = option(
        None,
        "Factor by which the norm of a record may grow within an epoch before importance "
        "sampling clips the record for it.",
        example=3.0,
        otherwise="3",
        needs='sampling = "importance"',
    )
    floor: float | None = option(
        None,
        "Least norm of a record in importance sampling, in clip bounds; smaller norms count as "
        "this one.",
        example=0.0625,
        otherwise="1/16",
        needs='sampling = "importance"',
    )
    norm_sum: str = option(
        "scheduled",
        "Source of the ratios of importance sampling: scheduled, or released (they follow noisy "
        "sums of norms, under a filter), with numbers as "
        "released:NOISE:CAUTIOUS:CLIP_FACTOR:SIZE_NOISE.",
        needs='sampling = "importance"',
    )

    def __post_init__(self) -> None:
        for item in fields(self):
            check_type(f"importance.{item.name}", getattr(self, item.name), item.type)
        for name in ("ratio", "slack", "floor"):
            if getattr(self, name) is not None:
                _validate.positive(name, getattr(self, name))
        if self.ratio_schedule and self.ratio is None:
            raise InvalidArgument(
                f"Expected a ratio= that ratio_schedule={self.ratio_schedule!r} begins with."
            )
        self.options()

    def options(self) -> dict[str, Any]:
        """Return the arguments of :func:`dpfy.dpis` that the settings mean."""
        return importance_options(
            self.ratio, self.ratio_schedule, self.slack, self.floor, self.norm_sum
        )

    def changed(self, values: Mapping[str, Any]) -> Self:
        """Return these settings with other values; an unknown name is an error."""
        _check_names(values, [item.name for item in fields(self)], "importance.")
        return replace(self, **values)


T = TypeVar("T")

OLD_NAMES = {
    "schedule": "lr_schedule",
    "tail": "average_tail",
    **{item.name: f"importance.{item.name}" for item in fields(ImportanceConfig)},
}
"""Settings before version 0.2, and what they are called now."""


def current_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings under the names of today, as files of version 0.1 need it.

    Args:
        values: Settings, some of them perhaps under old names.

    Returns:
        The settings, with the table ``importance`` as a mapping.

    >>> current_names({"tail": 0.25, "ratio": 0.5})
    {'average_tail': 0.25, 'importance': {'ratio': 0.5}}
    """
    found = {name: value for name, value in values.items() if name not in OLD_NAMES}
    for old in (name for name in values if name in OLD_NAMES):
        table, _, name = OLD_NAMES[old].rpartition(".")
        if table:
            found[table] = {**_as_mapping(found.get(table, {})), name: values[old]}
        else:
            found[name] = values[old]
    return found


def _as_mapping(table: Any) -> dict[str, Any]:
    """The values of a table that was given as one or as :class:`ImportanceConfig`."""
    if isinstance(table, ImportanceConfig):
        return {item.name: getattr(table, item.name) for item in fields(table)}
    if not isinstance(table, Mapping):
        raise InvalidArgument(
            f"Expected importance={table!r} to be a table, such as [importance] with a line "
            "ratio = 0.5."
        )
    return dict(table)


def _warn_of_old_names(values: Mapping[str, Any], stacklevel: int) -> None:
    """Say what each old name is called now."""
    for old in (name for name in values if name in OLD_NAMES):
        warn_renamed(f"the setting {old}", OLD_NAMES[old], stacklevel + 1)


def _with_old_names(cls: type[T]) -> type[T]:
    """Let a configuration be made, and read, by the names of version 0.1."""
    make: Any = cls.__init__

    @functools.wraps(make)
    def init(self: T, *values: Any, **named: Any) -> None:
        _warn_of_old_names(named, 3)
        make(self, *values, **current_names(named))

    cls.__init__ = init  # type: ignore[assignment]
    for old, new in OLD_NAMES.items():
        doc = f"Old name of ``{new}``."
        setattr(cls, old, property(functools.partial(_read_old, old), doc=doc))
    return cls


def _read_old(old: str, config: Any) -> Any:
    """Read a setting by its old name."""
    warn_renamed(f"the setting {old}", OLD_NAMES[old])
    return functools.reduce(getattr, OLD_NAMES[old].split("."), config)


@documented
@_with_old_names
@dataclass(frozen=True)
class TrainConfig:
    """Hold all settings of ``dpfy train`` and :class:`dpfy.Trainer`; public constants only.

    A setting that is None is chosen for the data set. Unknown names, wrong types and values outside
    their domain are errors. Names of version 0.1, such as ``schedule`` and ``ratio``, still work,
    with a warning.

    >>> TrainConfig.from_mapping({"epsilon": 1.0, "epochs": 5}).epsilon
    1.0
    >>> TrainConfig(sampling="importance", importance={"ratio": 0.6}).importance.ratio
    0.6
    """

    data: str = option(
        "digits",
        "Data set: digits, mnist, fashion-mnist, cifar-10, imdb, adult, or your own as "
        "module:loader.",
    )
    data_dir: str | None = option(
        None,
        "Folder that holds the data sets.",
        example="data",
        otherwise="the environment variable DPFY_DATA",
    )
    records: int | None = option(
        None,
        "Declared public number of records; your own data needs it.",
        example=60000,
        otherwise="that of the data set",
    )
    model: str | None = option(
        None,
        "Your own model as module:factory.",
        example="mymodel:make",
        otherwise="a network for the data set",
    )
    task: str = option(
        "classification",
        "Task, which decides loss and metric: classification (cross-entropy, accuracy), regression "
        "(squared error) or language_model (next tokens).",
    )
    loss: str | None = option(
        None,
        "Your own loss as module:function. It is given the model and the fields of collated "
        "records, and returns one loss for each record.",
        example="mymodel:loss",
        otherwise="that of the task",
    )
    metric: str | None = option(
        None,
        "Your own metric on public data as module:function. It is given what the loss is given, "
        "and returns one number for each record, whose mean is the metric.",
        example="mymodel:f1",
        otherwise="that of the task, or your own loss",
    )
    metric_goal: str = option(
        "max", "Whether a metric of your own is better the larger (max) or smaller (min) it is."
    )
    batchnorm: str = option(
        "refuse",
        "Replacement of BatchNorm layers: group (GroupNorm), private (their statistics are "
        "released with noise at every step), public (statistics of the public records), or refuse.",
    )
    users: str | None = option(
        None,
        "User of each row, as module:name of a sequence or of a function that returns one; users "
        "are then protected, and records and batch_size count users.",
        example="mydata:users",
    )
    example: str | None = option(
        None,
        "Collated batch of synthetic examples, as module:name, of the largest shape that a record "
        "may have; needed where records differ in shape.",
        example="mydata:example",
    )
    protect: str = option(
        "records",
        "What is protected: records (features and labels; all rows of a user, with users), or "
        "labels alone, where features are public and training on noisy labels is ordinary.",
    )
    label_method: str = option(
        "lp-mst:2",
        "How labels are protected: rr (randomized response), lp-mst:STAGES (randomized response "
        "whose answers tell most beyond a model of earlier stages), lp-mst-truth:STAGES (the same, "
        "with answers that are likeliest to be true), alibi (Laplace noise) or "
        "cluster:CLUSTERS (noisy counts in clusters of features).",
        needs='protect = "labels"',
    )
    classes: int | None = option(
        None,
        "Declared number of classes; your own data needs it where labels are protected.",
        example=10,
        otherwise="that of the data set",
        needs='protect = "labels"',
    )
    rows_per_user: int | None = option(
        None, "Largest number of rows of one user in a step.", example=16, otherwise="16"
    )
    epsilon: float = option(3.0, "Privacy budget ε of the run.")
    budgets: str | None = option(
        None,
        "Privacy budget ε of each group of records, instead of one for all, with the public share "
        "of the records that are in it: name=epsilon:share, separated by commas.",
        example="strict=1:0.34,usual=2:0.43,open=3:0.23",
    )
    groups_of: str | None = option(
        None,
        "Group of each record, as module:name of a sequence of names or of a function that returns "
        "one; with users, of a mapping from ids to names. Records of other groups never take part.",
        example="mydata:levels",
        needs='budgets = "strict=1:0.4,open=3:0.6"',
    )
    individual: str = option(
        "sample",
        "How groups of records get budgets of their own: sample (cautious groups are drawn less "
        "often) or scale (they are clipped to smaller bounds).",
        needs='budgets = "strict=1:0.4,open=3:0.6"',
    )
    delta: float | str | None = option(
        None,
        "Failure probability δ of the guarantee, in (0, 1), or auto for 1/records^1.1.",
        example=1e-5,
        otherwise="1e-5, and 1/records^1.1 from 100,000 records on",
    )
    epochs: float | None = option(
        None, "Expected number of passes over the data.", example=10.0, otherwise=_CHOSEN
    )
    batch_size: int | None = option(
        None, "Expected number of records in a step.", example=256, otherwise=_CHOSEN
    )
    clip: float | None = option(
        None,
        "Clip bound: the largest Euclidean norm of one record's gradient.",
        example=1.0,
        otherwise=_CHOSEN,
    )
    clipping: str = option(
        "fixed",
        "Choice of the clip bound: fixed, quantile (or quantile:0.7), norm, automatic or adaclip.",
    )
    clip_schedule: str | None = option(
        None,
        "Schedule of the clip bound, fixed in advance; syntax as for noise_schedule.",
        example="time:0.1",
    )
    noise_schedule: str | None = option(
        None,
        "Schedule of the noise multiplier. Fixed in advance: time:K, exponential:K, step:K:EPOCHS, "
        "polynomial:K:EPOCHS:END, dynamic:G, strongly_convex:G or convex. Chosen while training: "
        "validation:K or norm.",
        example="time:0.1",
    )
    groups: str = option(
        "flat",
        "Parameters that are clipped together: flat (all of them), layer, tensor, or kind (weights "
        "and biases apart).",
    )
    sampling: str = option(
        "poisson",
        "Sampling of the records of a step: poisson, full, fixed_size, truncated_poisson, "
        "shuffled, cyclic, balls_in_bins, one_epoch (no record comes twice) or cyclic_poisson "
        "(parts of the records in turn), both with noise_correlation, or importance (by the norms "
        "of gradients, DPIS).",
    )
    noise_correlation: str = option(
        "none",
        "Correlation of the noise of steps (DP-FTRL), with sampling cyclic, one_epoch or "
        "cyclic_poisson: none, blt (or blt:BUFFERS), banded (or banded:BANDS), square_root (or "
        "square_root:BANDS) or tree (or tree:RESTART).",
    )
    capacity: int | None = option(
        None,
        "Largest number of records in a truncated_poisson sample.",
        example=300,
        needs='sampling = "truncated_poisson"',
    )
    importance: ImportanceConfig = option(  # noqa: RUF009 (it is frozen)
        ImportanceConfig(),
        "Table of the settings of importance sampling.",
        otherwise="the defaults of ImportanceConfig",
    )
    relation: str = option(
        "add_or_remove_one",
        "Relation of neighbouring data sets: add_or_remove_one, zero_out or replace_one.",
    )
    algorithm: str = option(
        "dpsgd",
        "Training algorithm: dpsgd, or one that chooses the length of steps by private comparisons "
        "of losses, under a filter: noisy_max (noisy_max:SHARE, with sampling full) or line_search "
        "(line_search:SHARE).",
    )
    private_metrics: bool = option(
        False,
        "Whether to release accuracy and loss on the private sample, with noise, at every step.",
    )
    contributing: bool = option(
        True,
        "Whether to release the noisy number of records that contributed (loaded, with a finite "
        "gradient) and to warn if hardly any do; costs half a percent more noise in the gradient, "
        "and is off with importance sampling and in searches.",
    )
    optimizer: str = option(
        "sgd",
        "Optimizer: sgd, adam, adam_bc (Adam corrected for the bias of noise; adam_bc:FLOOR) or "
        "adadp (finds its learning rate; adadp:TOLERANCE).",
    )
    learning_rate: float | None = option(
        None, "Learning rate of the optimizer.", example=0.5, otherwise=_CHOSEN
    )
    momentum: float | None = option(
        None, "Momentum of sgd, in [0, 1).", example=0.9, otherwise=_CHOSEN
    )
    lr_schedule: str = option(
        "constant", "Schedule of the learning rate: constant, cosine or linear."
    )
    warmup_steps: int = option(0, "Number of steps over which the learning rate rises from zero.")
    ema: float | None = option(
        None,
        "Decay per step, in [0, 1), of the average of the weights that is evaluated and saved; 0 "
        "is off.",
        example=0.99,
        otherwise=_CHOSEN,
    )
    average_tail: float | None = option(
        None,
        "Share of the steps, in (0, 1], at the end of the run, whose weights are averaged instead "
        "of by ema.",
        example=0.25,
    )
    evaluate_every: int = option(1, "Number of epochs between evaluations on public data.")
    early_stop: int = option(
        0,
        "Number of evaluations on public data without improvement after which to stop; 0 is off.",
    )
    checkpoint_every: int = option(1, "Number of epochs between checkpoints.")
    engine: str = option(
        "auto", "Engine for per-record gradients: auto, bookkeeping, ghost, vmap or loop."
    )
    shard: str = option(
        "none",
        "auto to divide the parameters among the processes that torchrun starts, each child of the "
        "longest list of layers apart; none for the whole model in every process.",
        example="auto",
    )
    device: str | None = option(
        None,
        "Device to train on, by its name in torch.",
        example="cpu",
        otherwise="where the model is",
    )
    strict: bool = option(
        False,
        "Whether to refuse everything that rests on an allowance instead of a proof; records are "
        "then computed one by one (loop), and an anchor is needed.",
    )
    max_physical_batch: int | None = option(
        None,
        "Largest number of records in memory at once; results change by rounding error only.",
        example=64,
        otherwise="chosen by the engine",
    )
    num_workers: int = option(0, "Number of processes that load records.")
    prefetch: int = option(
        0,
        "Number of steps, 0 or 1, that are paid for, drawn and loaded ahead; 1 needs num_workers.",
    )
    seed: int = option(0, "Seed of the initial weights; never of noise, sampling or dropout.")
    name: str | None = option(
        None,
        "Name of the run, and of its folder.",
        example="my-run",
        otherwise="the data set and the time",
    )
    out: str = option("runs", "Folder of all runs.")
    anchor: str | None = option(
        None,
        "File in another place that also keeps the head of the ledger.",
        example="/backup/run.head",
    )
    csv: bool = option(True, "Whether to write the evaluations to evaluations.csv.")
    tensorboard: bool = option(
        False,
        "Whether to write the evaluations for TensorBoard too; needs the extra tensorboard.",
    )

    def __post_init__(self) -> None:
        table: Any = self.importance
        if not isinstance(table, ImportanceConfig):
            object.__setattr__(self, "importance", ImportanceConfig().changed(_as_mapping(table)))
        for item in fields(self):
            check_type(item.name, getattr(self, item.name), item.type)
        _validate.epsilon(self.epsilon)
        if isinstance(self.delta, str) and self.delta != "auto":
            raise InvalidArgument(
                f"Expected delta={self.delta!r} to be a number in (0, 1), or 'auto'."
            )
        if self.delta is not None and self.delta != "auto":
            _validate.delta(self.delta)
        for name in ("epochs", "batch_size", "clip", "learning_rate"):
            if getattr(self, name) is not None:
                _validate.positive(name, getattr(self, name))
        if self.momentum is not None:
            _validate.real("momentum", self.momentum, 0, 1, open_high=True)
        if self.ema is not None:
            _validate.real("ema", self.ema, 0, 1, open_high=True)
        if self.average_tail is not None:
            _validate.real("average_tail", self.average_tail, 0, 1, open_low=True)
            if self.ema:
                raise InvalidArgument(
                    f"Expected ema={self.ema!r} or average_tail={self.average_tail!r}: one average "
                    "is evaluated and saved."
                )
        if self.records is not None:
            _validate.count("records", self.records)
        if self.name is not None and (not self.name or Path(self.name).name != self.name):
            raise InvalidArgument(
                f"Expected name={self.name!r} to be the name of a folder, without separators."
            )
        for name in ("evaluate_every", "checkpoint_every"):
            _validate.count(name, getattr(self, name))
        for name in ("warmup_steps", "early_stop", "num_workers", "prefetch", "seed"):
            _validate.count(name, getattr(self, name), minimum=0)
        if named_optimizer(self.optimizer)[0] == "adadp" and self.momentum:
            raise InvalidArgument(
                f"Expected no momentum={self.momentum!r} with adadp: it would be taken for an "
                "error of the learning rate."
            )
        if named_algorithm(self.algorithm)[0] == "noisy_max" and self.sampling != "full":
            raise InvalidArgument(
                f"Expected sampling='full' with noisy_max, got {self.sampling!r}: it averages "
                "draws of one and the same sum."
            )
        if _validate.choice("shard", self.shard, ("none", "auto")) == "auto":
            self._check_shard()
        _validate.choice("lr_schedule", self.lr_schedule, SCHEDULES)
        _validate.choice("groups", self.groups, GROUPS)
        _validate.choice("task", self.task, TASKS)
        _validate.choice("metric_goal", self.metric_goal, ("max", "min"))
        _validate.choice("sampling", self.sampling, SAMPLINGS)
        _validate.choice("batchnorm", self.batchnorm, BATCHNORM)
        if self.rows_per_user is not None:
            _validate.count("rows_per_user", self.rows_per_user)
        _validate.choice("relation", self.relation, tuple(Relation))
        plan_options(self.clipping, self.noise_schedule, self.clip_schedule, self.algorithm)
        if self.clip_schedule:
            named_schedule(self.clip_schedule)
        _validate.choice("protect", self.protect, PROTECT)
        named_label_method(self.label_method)
        if self.classes is not None:
            _validate.count("classes", self.classes, minimum=2)
        check_label_settings(_changed(self), self.protect, named_optimizer(self.optimizer)[0])
        self._check_importance()
        check_correlation(self)
        check_group_settings(self, _changed(self))
        if self.strict:
            self._check_strict()

    def _check_shard(self) -> None:
        """Refuse settings that need the whole model in every process."""
        for name in ("algorithm", "ema", "average_tail"):
            if (value := getattr(self, name)) and value != "dpsgd":
                raise InvalidArgument(
                    f"Expected no {name}={value!r} with shard='auto': it needs the whole model in "
                    "every process. Leave one of them out."
                )

    def _check_strict(self) -> None:
        """Refuse settings that rest on an allowance; data and model are checked when they bind."""
        strict_engine(self.engine, sampling=self.sampling, anchored=self.anchor is not None)
        if named_algorithm(self.algorithm)[0] != "dpsgd":
            raise InvalidArgument(
                f"Expected algorithm='dpsgd' with strict, got {self.algorithm!r}: it compares "
                "losses, whose rounding error is covered by an allowance."
            )

    def _check_importance(self) -> None:
        """Refuse settings without a meaning, or a proof, with or without importance sampling."""
        if self.sampling != "importance":
            if given := _changed(self.importance):
                name, value = next(iter(given.items()))
                raise InvalidArgument(
                    f"Expected sampling='importance' with importance.{name}={value!r}, got "
                    f"{self.sampling!r}."
                )
            return
        given = _changed(self)
        if name := next((name for name in _NOT_BY_NORM if name in given), ""):
            raise InvalidArgument(
                f"Expected no {name}={given[name]!r} with importance sampling: "
                f"{_NOT_BY_NORM[name]}. Leave it out, or use sampling='poisson'."
            )
        if self.noise_schedule and isinstance(named_noise(self.noise_schedule), Controller):
            raise InvalidArgument(
                "Expected a noise_schedule that is fixed in advance with importance sampling, got "
                f"{self.noise_schedule!r}: what chooses from outputs there is norm_sum='released'."
            )
        if self.batchnorm == "private":
            raise InvalidArgument(
                "Expected batchnorm='group' or 'public' with importance sampling, got 'private': "
                "records that are proposed and not accepted would be counted in its statistics."
            )
        if self.engine == "ghost":
            raise InvalidArgument(
                "Expected engine='auto', 'bookkeeping', 'vmap' or 'loop' with importance sampling, "
                "got 'ghost': records are accepted by the norm of the very gradient that is summed."
            )

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """Return the configuration with these values.

        Args:
            values: Settings by name; ``importance`` is a mapping itself. Old names still work.

        Returns:
            The configuration.

        Raises:
            InvalidArgument: A name is unknown (the nearest one is suggested) or given under its old
                and its new name, or a value is outside its domain.
        """
        return cls._from_mapping(values, 4)

    @classmethod
    def _from_mapping(cls, values: Mapping[str, Any], stacklevel: int) -> Self:
        """Check the names; warn ``stacklevel`` frames up if some of them are old."""
        known = [item.name for item in fields(cls)]
        _check_names(values, [*known, *OLD_NAMES], suggested=known)
        for old in (name for name in values if name in OLD_NAMES):
            table, _, name = OLD_NAMES[old].rpartition(".")
            if name in (_as_mapping(values.get(table, {})) if table else values):
                raise InvalidArgument(
                    f"Expected {OLD_NAMES[old]} or its old name {old}, not both. Leave {old} out."
                )
        _warn_of_old_names(values, stacklevel)
        return cls(**current_names(values))

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Return the configuration in a TOML file, or in a YAML file if PyYAML is installed.

        Args:
            path: The file; ``.yaml`` and ``.yml`` are YAML, everything else is TOML.

        Returns:
            The configuration.

        Raises:
            InvalidArgument: The file is missing or malformed, or as for :meth:`from_mapping`.
            MissingExtra: The file is YAML and PyYAML is not installed.
        """
        return cls._from_mapping(_read(Path(path)), 4)

    def with_flags(self, flags: Mapping[str, Any]) -> Self:
        """Return the configuration with every flag that was given instead of its value.

        Args:
            flags: Settings by name, old names included; None means that a flag was not given. Those
                in a mapping ``importance`` replace single settings of that table.

        Returns:
            The changed configuration.
        """
        given = current_names({name: value for name, value in flags.items() if value is not None})
        if "importance" in given:
            given["importance"] = self.importance.changed(_as_mapping(given["importance"]))
        return replace(self, **given)

    def to_mapping(self) -> dict[str, Any]:
        """Return all settings that are not None, with the table ``importance`` as a mapping."""
        return {
            item.name: _set_values(value) if item.name == "importance" else value
            for item in fields(self)
            if (value := getattr(self, item.name)) is not None
        }

    def hyperparameters(self) -> dict[str, Any]:
        """Return all settings that are not None as one flat mapping, for reports.

        The folder of the data sets is left out: it says nothing about the run.
        """
        values = self.to_mapping()
        table = values.pop("importance")
        values.pop("data_dir", None)
        if self.budgets is not None:
            values.pop("epsilon")  # each group has its own
        return values | {f"importance.{name}": value for name, value in table.items()}


def all_settings() -> Iterator[Setting]:
    """Yield every setting in the order of a file: those of the table ``[importance]`` come last."""
    for item in fields(TrainConfig):
        if item.name != "importance":
            yield setting_of(item)
    for item in fields(ImportanceConfig):
        yield setting_of(item, "importance.")


def sections() -> dict[str, tuple[Setting, ...]]:
    """Return the settings by the title of their section, in the order of a file."""
    found: dict[str, tuple[Setting, ...]] = {}
    title = ""
    for setting in all_settings():
        title = SECTIONS.get(setting.name, title)
        found[title] = (*found.get(title, ()), setting)
    return found


def template() -> str:
    """Return a commented TOML file with every setting at its default or with an example.

    Returns:
        The text that ``dpfy init`` writes.
    """
    lines = [
        "# Settings of `dpfy train`. Every line shows the default, or an example where there is",
        "# none; remove the leading # to change it.",
        "",
    ]
    for title, settings in sections().items():
        lines += [f"# {title}", f"# {'-' * len(title)}", ""]
        if table := settings[0].name.rpartition(".")[0]:
            lines += [f"[{table}]", ""]
        for setting in settings:
            lines += textwrap.wrap(setting.help, 98, initial_indent="# ", subsequent_indent="# ")
            lines += [f"#{setting.to_toml()}", ""]
    return "\n".join(lines)


def _set_values(config: Any) -> dict[str, Any]:
    """The values of a table that are not None."""
    return {name: value for name, value in _as_mapping(config).items() if value is not None}


def _changed(config: Any) -> dict[str, Any]:
    """The settings that differ from their defaults."""
    return {
        item.name: value
        for item in fields(config)
        if (value := getattr(config, item.name)) != item.default
    }


def _check_names(
    values: Mapping[str, Any],
    known: list[str],
    table: str = "",
    suggested: list[str] | None = None,
) -> None:
    """Refuse an unknown name with the nearest one of those that are suggested."""
    for name in values:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1)
            raise InvalidArgument(
                f"Unknown setting {f'{table}{name}'!r}."
                + (
                    f" Did you mean {OLD_NAMES.get(near[0], near[0])!r}?"
                    if near
                    else f" Known: {', '.join(suggested or known)}."
                )
            )


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InvalidArgument(f"There is no file {path}. `dpfy init` writes a template.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{path} cannot be read as text: {error}.") from None
    if path.suffix in (".yaml", ".yml"):
        return _read_yaml(path, text)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidArgument(f"{path} is not valid TOML: {error}.") from None


def _read_yaml(path: Path, text: str) -> dict[str, Any]:
    require("yaml", "yaml")
    import yaml  # type: ignore[import-untyped]

    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InvalidArgument(
            f"{path} is not valid YAML: {' '.join(str(error).split())}."
        ) from None
    if not isinstance(values, dict | None):
        raise InvalidArgument(f"Expected {path} to map names to values.")
    return values or {}
