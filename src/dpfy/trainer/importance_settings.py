"""Settings of importance sampling, and which others have no meaning beside it.

Tests: tests/trainer/test_config.py, tests/trainer/test_importance.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Self

from dpfy import _validate
from dpfy.errors import InvalidArgument
from dpfy.mechanisms.controllers import Controller
from dpfy.trainer.old_names import check_names
from dpfy.trainer.options import importance_options, named_noise
from dpfy.trainer.settings import changed_settings, check_type, documented, option

if TYPE_CHECKING:
    from dpfy.trainer.config import TrainConfig

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

    >>> from dpfy.trainer.config import TrainConfig
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
        check_names(values, [item.name for item in fields(self)], "importance.")
        return replace(self, **values)


def check_importance(config: "TrainConfig", given: dict[str, Any]) -> None:
    """Refuse settings without a meaning, or a proof, with or without importance sampling.

    Args:
        config: all settings.
        given: those that differ from their defaults.

    Raises:
        InvalidArgument: if one does not go with the others.
    """
    if config.sampling != "importance":
        if changed := changed_settings(config.importance):
            name, value = next(iter(changed.items()))
            raise InvalidArgument(
                f"Expected sampling='importance' with importance.{name}={value!r}, got "
                f"{config.sampling!r}."
            )
        return
    if name := next((name for name in _NOT_BY_NORM if name in given), ""):
        raise InvalidArgument(
            f"Expected no {name}={given[name]!r} with importance sampling: "
            f"{_NOT_BY_NORM[name]}. Leave it out, or use sampling='poisson'."
        )
    if config.noise_schedule and isinstance(named_noise(config.noise_schedule), Controller):
        raise InvalidArgument(
            "Expected a noise_schedule that is fixed in advance with importance sampling, got "
            f"{config.noise_schedule!r}: what chooses from outputs there is norm_sum='released'."
        )
    if config.batchnorm == "private":
        raise InvalidArgument(
            "Expected batchnorm='group' or 'public' with importance sampling, got 'private': "
            "records that are proposed and not accepted would be counted in its statistics."
        )
    if config.engine == "ghost":
        raise InvalidArgument(
            "Expected engine='auto', 'bookkeeping', 'vmap' or 'loop' with importance sampling, "
            "got 'ghost': records are accepted by the norm of the very gradient that is summed."
        )
