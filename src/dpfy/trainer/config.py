"""One schema for a training run: from Python, from TOML or YAML, and from flags.

:class:`TrainConfig` holds all settings, and each field carries its own description, which the
template, ``--help`` and the reference page print. :func:`all_settings` lists them, those of the
table ``[importance]`` included. Names of version 0.1 stay valid: see :data:`OLD_NAMES`.
"""

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

from dpfy import _validate
from dpfy.budgets.runs import split_address
from dpfy.errors import InvalidArgument
from dpfy.mechanisms.controllers import named_schedule
from dpfy.run.strict import strict_engine
from dpfy.trainer.config_files import read_settings
from dpfy.trainer.correlation import check_correlation
from dpfy.trainer.group_budgets import check_group_settings
from dpfy.trainer.importance_settings import (
    ImportanceConfig,
    check_importance,
)
from dpfy.trainer.label_settings import PROTECT, check_label_settings, named_label_method
from dpfy.trainer.log_settings import named_loggers
from dpfy.trainer.old_names import (
    OLD_NAMES,
    as_mapping,
    check_names,
    current_names,
    warn_of_old_names,
    with_old_names,
)
from dpfy.trainer.options import (
    named_algorithm,
    named_optimizer,
    plan_options,
)
from dpfy.trainer.settings import (
    Setting,
    changed_settings,
    check_type,
    documented,
    option,
    setting_of,
)
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


@documented
@with_old_names
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
        "Way to divide parameters among the processes of torchrun: auto (each child of the longest "
        "list of layers apart) or none (the whole model in every process).",
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
    budget: str | None = option(
        None,
        "Budget book and data set, as URL#dataset, whose budget pays for the run.",
        example="sqlite:///team.db#admissions-2026",
        otherwise="no book: what other runs spent on the same records is not known",
    )
    csv: bool = option(True, "Whether to write the evaluations to evaluations.csv.")
    tensorboard: bool = option(
        False,
        "Whether to write the evaluations for TensorBoard too; needs the extra tensorboard.",
    )
    log: str | tuple | None = option(  # type: ignore[type-arg]
        None,
        "Trackers that are told what callbacks hear, with the report: mlflow:ADDRESS, "
        "wandb:offline or tensorboard:FOLDER, in a list or separated by commas; each needs the "
        "extra of its name.",
        example=["mlflow:sqlite:///mlflow.db", "wandb:offline"],
    )

    def __post_init__(self) -> None:
        table: Any = self.importance
        if not isinstance(table, ImportanceConfig):
            object.__setattr__(self, "importance", ImportanceConfig().changed(as_mapping(table)))
        if self.log is not None and isinstance(self.log, str | list | tuple):
            listed = tuple(f"{kind}:{where}" for kind, where in named_loggers(self.log))
            object.__setattr__(self, "log", listed or None)
        for item in fields(self):
            check_type(item.name, getattr(self, item.name), item.type)
        if self.budget is not None:
            split_address(self.budget)
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
        given = changed_settings(self)
        check_label_settings(given, self.protect, named_optimizer(self.optimizer)[0])
        check_importance(self, given)
        check_correlation(self)
        check_group_settings(self, given)
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
        check_names(values, [*known, *OLD_NAMES], suggested=known)
        for old in (name for name in values if name in OLD_NAMES):
            table, _, name = OLD_NAMES[old].rpartition(".")
            if name in (as_mapping(values.get(table, {})) if table else values):
                raise InvalidArgument(
                    f"Expected {OLD_NAMES[old]} or its old name {old}, not both. Leave {old} out."
                )
        warn_of_old_names(values, stacklevel)
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
        return cls._from_mapping(read_settings(Path(path)), 4)

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
            given["importance"] = self.importance.changed(as_mapping(given["importance"]))
        return replace(self, **given)

    def to_mapping(self) -> dict[str, Any]:
        """Return all settings that are not None, with the table ``importance`` as a mapping."""
        return {
            item.name: _as_plain(value)
            for item in fields(self)
            if (value := getattr(self, item.name)) is not None
        }

    def hyperparameters(self) -> dict[str, Any]:
        """Return all settings that are not None as one flat mapping, for reports.

        The folder of the data sets, the trackers and the address of the budget book are left out:
        they say nothing about the run.
        """
        values = self.to_mapping()
        table = values.pop("importance")
        for name in ("data_dir", "log", "budget"):
            values.pop(name, None)
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


def _as_plain(value: Any) -> Any:
    """Return a value as files hold it: a list, or of a table the values that are not None."""
    if isinstance(value, ImportanceConfig):
        return {name: each for name, each in as_mapping(value).items() if each is not None}
    return list(value) if isinstance(value, tuple) else value
