"""One schema for a training run: from Python, from TOML or YAML, and from flags."""

import difflib
import math
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, Self, get_args, get_origin

from dpfy import _validate
from dpfy.errors import InvalidArgument
from dpfy.mechanisms.controllers import Controller, named_schedule
from dpfy.run.strict import strict_engine
from dpfy.trainer.options import (
    importance_options,
    named_algorithm,
    named_noise,
    named_optimizer,
    plan_options,
)
from dpfy.types import Relation

SCHEDULES = ("constant", "cosine", "linear")
GROUPS = ("flat", "layer", "tensor", "kind")
BATCHNORM = ("refuse", "group", "private", "public")
_BY_NORM = ("ratio", "ratio_schedule", "slack", "floor", "norm_sum")
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
"""What importance sampling leaves as it is by default, and why."""


def _option(default: Any, help: str) -> Any:
    """A field whose one description serves the documentation, the template and ``--help``."""
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class TrainConfig:
    """Everything that ``dpfy train`` and :class:`dpfy.Trainer` need; public constants only.

    What is None is chosen for the data set. Unknown names, wrong types and values outside their
    domain are errors.

    >>> TrainConfig.from_mapping({"epsilon": 1.0, "epochs": 5}).epsilon
    1.0
    """

    data: str = _option(
        "digits", "digits, mnist, fashion-mnist, cifar-10, imdb, adult, or your own module:loader"
    )
    data_dir: str | None = _option(
        None, "where the data sets are; default: the environment variable DPFY_DATA"
    )
    records: int | None = _option(
        None, "the declared public number of records; needed for your own data"
    )
    model: str | None = _option(
        None, "your own model as module:factory; default: a network for the data set"
    )
    batchnorm: str = _option(
        "refuse",
        "what BatchNorm becomes: group (GroupNorm), private (statistics are released beside the "
        "gradient), public (those of the public records), or refuse",
    )
    users: str | None = _option(
        None,
        "the user of each row as module:name, a sequence or a function that returns one; users are "
        "then what is protected and what records and batch_size count",
    )
    example: str | None = _option(
        None,
        "a collated batch of synthetic examples as module:name, of the largest shape that a record "
        "may have; needed where records may differ in shape",
    )
    rows_per_user: int | None = _option(
        None, "the most rows of a user in a step; 16 unless you say otherwise"
    )
    epsilon: float = _option(3.0, "the privacy budget")
    delta: float | str | None = _option(
        None,
        "the failure probability, or 'auto' for 1/records^1.1; 1e-5 unless you say otherwise, and "
        "1/records^1.1 from 100,000 records on",
    )
    epochs: float | None = _option(None, "passes over the data in expectation")
    batch_size: int | None = _option(None, "the expected number of records per step")
    clip: float | None = _option(None, "the bound of each record's gradient")
    clipping: str = _option(
        "fixed", "fixed, quantile (or quantile:0.7), norm, automatic or adaclip"
    )
    clip_schedule: str | None = _option(
        None, "of the clip bound: as of the noise, fixed in advance"
    )
    noise_schedule: str | None = _option(
        None,
        "of the noise: time:K, exponential:K, step:K:EPOCHS, polynomial:K:EPOCHS:END, dynamic:G, "
        "strongly_convex:G, convex; chosen while training: validation:K, norm",
    )
    groups: str = _option(
        "flat", "what is clipped together: flat (everything), layer, tensor, kind (weights, biases)"
    )
    sampling: str = _option(
        "poisson",
        "poisson, full, fixed_size, truncated_poisson, shuffled, cyclic, balls_in_bins, or "
        "importance: by the norms of gradients (DPIS)",
    )
    capacity: int | None = _option(None, "the most records of a truncated_poisson sample")
    ratio: float | None = _option(
        None,
        "of importance sampling: the norm of every contribution in clip bounds, about the mean of "
        "min(norm, clip)/clip; 0.5 unless you say otherwise",
    )
    ratio_schedule: str | None = _option(None, "of the ratio: as of the noise, fixed in advance")
    slack: float | None = _option(
        None,
        "of importance sampling: how many times as large norms may become within an epoch before "
        "they are clipped for it; 3 unless you say otherwise",
    )
    floor: float | None = _option(
        None,
        "of importance sampling: norms count as at least so many clip bounds; 1/16 unless you say "
        "otherwise",
    )
    norm_sum: str = _option(
        "scheduled",
        "of importance sampling: scheduled, or released (ratios follow noised sums of norms, under "
        "a filter; released:NOISE:CAUTIOUS:CLIP_FACTOR:SIZE_NOISE)",
    )
    relation: str = _option(
        "add_or_remove_one", "neighbours: add_or_remove_one, zero_out or replace_one"
    )
    algorithm: str = _option(
        "dpsgd",
        "dpsgd, or how long steps are by private comparisons of losses, under a filter: noisy_max "
        "(noisy_max:SHARE, with sampling full), line_search (line_search:SHARE)",
    )
    private_metrics: bool = _option(
        False, "release accuracy and loss on the private sample, with noise, at every step"
    )
    contributing: bool = _option(
        True,
        "release how many records contributed (loaded, with a finite gradient), with noise, for "
        "half a percent more noise in the gradient, and say so if hardly any do; left out with "
        "importance sampling and in searches",
    )
    optimizer: str = _option(
        "sgd",
        "sgd, adam, adam_bc (without the bias of noise; adam_bc:FLOOR) or adadp (finds its "
        "learning rate; adadp:TOLERANCE)",
    )
    learning_rate: float | None = _option(None, "the step size")
    momentum: float | None = _option(None, "momentum of sgd")
    schedule: str = _option("constant", "of the learning rate: constant, cosine or linear")
    warmup_steps: int = _option(0, "steps over which the learning rate rises from zero")
    ema: float | None = _option(
        None, "decay of the average of the weights that is evaluated and saved; 0 is off"
    )
    tail: float | None = _option(
        None, "share of the steps, the last ones, whose weights are averaged in the place of ema"
    )
    evaluate_every: int = _option(1, "epochs between evaluations on public data")
    early_stop: int = _option(
        0, "stop after so many evaluations on public data without improvement; 0 is off"
    )
    checkpoint_every: int = _option(1, "epochs between checkpoints")
    engine: str = _option(
        "auto", "how per-record gradients are computed: auto, bookkeeping, ghost, vmap or loop"
    )
    strict: bool = _option(
        False,
        "refuse whatever rests on an allowance instead of a proof: records are computed one by one "
        "(loop), and an anchor is needed",
    )
    max_physical_batch: int | None = _option(
        None, "most records in memory at once; changes last bits only"
    )
    num_workers: int = _option(0, "processes that load records")
    seed: int = _option(0, "of the initial weights; never of noise, sampling or dropout")
    name: str | None = _option(None, "of the run; default: the data set and the time")
    out: str = _option("runs", "the folder of all runs")
    anchor: str | None = _option(
        None, "a file in another place that also keeps the head of the ledger"
    )
    csv: bool = _option(True, "write the evaluations to evaluations.csv")
    tensorboard: bool = _option(
        False, "write them for TensorBoard too (needs the extra 'tensorboard')"
    )

    def __post_init__(self) -> None:
        for item in fields(self):
            _check_type(item.name, getattr(self, item.name), item.type)
        _validate.epsilon(self.epsilon)
        if self.delta is not None and self.delta != "auto":
            _validate.delta(self.delta)
        for name in ("epochs", "batch_size", "clip", "learning_rate", "ratio", "slack", "floor"):
            if getattr(self, name) is not None:
                _validate.positive(name, getattr(self, name))
        if self.momentum is not None:
            _validate.real("momentum", self.momentum, 0, 1, open_high=True)
        if self.ema is not None:
            _validate.real("ema", self.ema, 0, 1, open_high=True)
        if self.tail is not None:
            _validate.real("tail", self.tail, 0, 1, open_low=True)
            if self.ema:
                raise InvalidArgument(
                    f"Expected ema={self.ema!r} or tail={self.tail!r}: one average is evaluated "
                    "and saved."
                )
        if self.records is not None:
            _validate.count("records", self.records)
        if self.name is not None and (not self.name or Path(self.name).name != self.name):
            raise InvalidArgument(
                f"Expected name={self.name!r} to be the name of a folder, without separators."
            )
        for name in ("evaluate_every", "checkpoint_every"):
            _validate.count(name, getattr(self, name))
        for name in ("warmup_steps", "early_stop", "num_workers", "seed"):
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
        _validate.choice("schedule", self.schedule, SCHEDULES)
        _validate.choice("groups", self.groups, GROUPS)
        _validate.choice("batchnorm", self.batchnorm, BATCHNORM)
        if self.rows_per_user is not None:
            _validate.count("rows_per_user", self.rows_per_user)
        _validate.choice("relation", self.relation, tuple(Relation))
        plan_options(self.clipping, self.noise_schedule, self.clip_schedule, self.algorithm)
        if self.clip_schedule:
            named_schedule(self.clip_schedule)
        self._check_importance()
        if self.strict:
            self._check_strict()

    def _check_strict(self) -> None:
        """Refuse settings that rest on an allowance; what depends on the data and the model is told
        when they bind.
        """
        strict_engine(self.engine, sampling=self.sampling, anchored=self.anchor is not None)
        if named_algorithm(self.algorithm)[0] != "dpsgd":
            raise InvalidArgument(
                f"Expected algorithm='dpsgd' with strict, got {self.algorithm!r}: it compares "
                "losses, of which last bits are allowed for."
            )

    def _check_importance(self) -> None:
        """Refuse settings that have no meaning, or no proof, with or without importance
        sampling.
        """
        given = {
            item.name: value
            for item in fields(self)
            if (value := getattr(self, item.name)) != item.default
        }
        if self.sampling != "importance":
            if name := next((name for name in _BY_NORM if name in given), None):
                raise InvalidArgument(
                    f"Expected sampling='importance' with {name}={given[name]!r}, got "
                    f"{self.sampling!r}."
                )
            return
        if name := next((name for name in _NOT_BY_NORM if name in given), None):
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
        if self.ratio_schedule and self.ratio is None:
            raise InvalidArgument(
                f"Expected a ratio= that ratio_schedule={self.ratio_schedule!r} begins with."
            )
        importance_options(self.ratio, self.ratio_schedule, self.slack, self.floor, self.norm_sum)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """Return the configuration with these values; an unknown name is an error that suggests the
        nearest one.
        """
        known = [item.name for item in fields(cls)]
        for name in values:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                raise InvalidArgument(
                    f"Unknown setting {name!r}."
                    + (f" Did you mean {near[0]!r}?" if near else f" Known: {', '.join(known)}.")
                )
        return cls(**values)

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Return the configuration in a TOML file, or in a YAML file if PyYAML is installed."""
        return cls.from_mapping(_read(Path(path)))

    def with_flags(self, flags: Mapping[str, Any]) -> Self:
        """Return the configuration with every flag that was given in the place of its value."""
        return replace(self, **{name: value for name, value in flags.items() if value is not None})

    def to_mapping(self) -> dict[str, Any]:
        """Return all settings that are not None."""
        return {
            item.name: value
            for item in fields(self)
            if (value := getattr(self, item.name)) is not None
        }


def template() -> str:
    """Return a commented TOML file with every setting at its default."""
    lines = [
        "# Settings of `dpfy train`. Every line is a default; remove the leading # to change one.",
        "",
    ]
    for item in fields(TrainConfig):
        default = item.default if item.default is not MISSING else None
        lines += [f"# {item.metadata['help']}", f"#{item.name} = {_toml(default)}", ""]
    return "\n".join(lines)


def _toml(value: Any) -> str:
    if value is None:
        return '""  # chosen for you'
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else repr(value)


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
    try:
        import yaml  # type: ignore[import-untyped]
    except ModuleNotFoundError:
        raise InvalidArgument(
            f"Reading {path} needs PyYAML. Install the extra dpfy[yaml], or use TOML."
        ) from None
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InvalidArgument(
            f"{path} is not valid YAML: {' '.join(str(error).split())}."
        ) from None
    if not isinstance(values, dict | None):
        raise InvalidArgument(f"Expected {path} to map names to values.")
    return values or {}


def _check_type(name: str, value: Any, annotation: Any) -> None:
    """Refuse a value of another type than declared; whole numbers are numbers, and truth values are
    not.
    """
    allowed = (
        get_args(annotation) if get_origin(annotation) not in (None, Literal) else (annotation,)
    )
    plain = tuple(kind for kind in allowed if isinstance(kind, type))
    if float in plain and isinstance(value, int) and not isinstance(value, bool):
        return
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidArgument(f"Expected {name}={value!r} to be finite.")
    if not isinstance(value, plain) or (isinstance(value, bool) and bool not in plain):
        kinds = " or ".join(kind.__name__ for kind in plain if kind is not type(None))
        raise InvalidArgument(
            f"Expected {name}={value!r} to be of type {kinds}, got {type(value).__name__}."
        )
