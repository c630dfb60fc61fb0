"""Parse the settings of clipping, noise, sampling and optimizers, without torch."""

from collections.abc import Callable
from typing import Any

from dpfy.mechanisms.controllers import (
    SCHEDULES,
    AdaClip,
    Controller,
    GradientNormNoise,
    MeanNormClipping,
    QuantileClipping,
    RecipeControlled,
    Timed,
    ValidationDecay,
    named_schedule,
)
from dpfy.mechanisms.controllers.names import named

_GAMMA = 0.01


def _fixed() -> None:
    return None


def _automatic(gamma: float = _GAMMA) -> float:
    return gamma


def _quantile(
    quantile: float = QuantileClipping.quantile, share: float = QuantileClipping.share
) -> Controller:
    return QuantileClipping(quantile, share=share)


def _norm(factor: float = MeanNormClipping.factor) -> Controller:
    return MeanNormClipping(factor)


def _adaclip() -> Controller:
    return AdaClip()


def _validation(
    factor: float = ValidationDecay.factor, threshold: float = ValidationDecay.threshold
) -> Controller:
    return ValidationDecay(factor, threshold)


def _norm_noise(ratio: float | None = GradientNormNoise.ratio) -> Controller:
    return GradientNormNoise(ratio)


def _adam_bc(floor: float | None = None) -> dict[str, float]:
    return {} if floor is None else {"floor": floor}


def _adadp(tolerance: float | None = None) -> dict[str, float]:
    return {} if tolerance is None else {"tolerance": tolerance}


def _searched(share: float | None = None) -> dict[str, float]:
    return {} if share is None else {"share": share}


def _released(
    noise: float | None = None,
    cautious: float | None = None,
    clip_factor: float | None = None,
    size_noise: float | None = None,
) -> dict[str, float | None]:
    return {
        "norm_noise": noise,
        "cautious": cautious,
        "clip_factor": clip_factor,
        "size_noise": size_noise,
    }


_NORM_SUMS: dict[str, Callable[..., dict[str, float | None]]] = {
    "scheduled": lambda: {},
    "released": _released,
}
_ALGORITHMS: dict[str, Callable[..., dict[str, float]]] = {
    "dpsgd": lambda: {},
    "noisy_max": _searched,
    "line_search": _searched,
}
_OPTIMIZERS: dict[str, Callable[..., dict[str, float]]] = {
    "sgd": lambda: {},
    "adam": lambda: {},
    "adam_bc": _adam_bc,
    "adadp": _adadp,
}
_CLIPPING: dict[str, Callable[..., Controller | float | None]] = {
    "fixed": _fixed,
    "quantile": _quantile,
    "norm": _norm,
    "automatic": _automatic,
    "adaclip": _adaclip,
}
_NOISE: dict[str, Callable[..., Controller | Timed]] = {
    **SCHEDULES,
    "validation": _validation,
    "norm": _norm_noise,
}


def named_clipping(text: str) -> Controller | float | None:
    """Return the controller that a text names, the gamma of ``automatic``, or None for ``fixed``.

    >>> named_clipping("quantile:0.7").quantile
    0.7
    """
    return named("clipping", text, _CLIPPING)


def named_noise(text: str) -> Controller | Timed:
    """Return the schedule that a text names, or the controller of ``validation`` and ``norm``.

    >>> named_noise("time:1")(1)
    0.5
    """
    return named("a noise schedule", text, _NOISE)


def named_optimizer(text: str) -> tuple[str, dict[str, Any]]:
    """Return the name of an optimizer and the options that follow it.

    >>> named_optimizer("adadp:0.5")
    ('adadp', {'tolerance': 0.5})
    """
    return text.partition(":")[0], named("optimizer", text, _OPTIMIZERS)


def named_algorithm(text: str) -> tuple[str, dict[str, Any]]:
    """Return the name of a recipe and the options that follow it."""
    return text.partition(":")[0], named("algorithm", text, _ALGORITHMS)


def plan_options(
    clipping: str, noise_schedule: str | None, clip_schedule: str | None, algorithm: str = "dpsgd"
) -> dict[str, Any]:
    """Return the arguments of :func:`dpfy.dpsgd` that the settings mean, apart from ``clip``."""
    chosen = [
        named_clipping(clipping),
        named_noise(noise_schedule) if noise_schedule else None,
        RecipeControlled() if named_algorithm(algorithm)[0] != "dpsgd" else None,
    ]
    return {
        "controllers": [each for each in chosen if isinstance(each, Controller)],
        "noise_schedule": next((each for each in chosen if isinstance(each, Timed)), None),
        "clip_schedule": clip_schedule,
    }


def importance_options(
    ratio: float | None,
    ratio_schedule: str | None,
    slack: float | None,
    floor: float | None,
    norm_sum: str = "scheduled",
) -> dict[str, Any]:
    """Return the arguments of :func:`dpfy.dpis` that the settings mean, without those of None.

    >>> importance_options(0.5, "time:1", None, None)["ratio"](1)
    0.25
    >>> importance_options(None, None, None, None, "released:0.05:0.5")
    {'norm_sum': 'released', 'norm_noise': 0.05, 'cautious': 0.5}
    """
    given: dict[str, Any] = {
        "ratio": ratio,
        "slack": slack,
        "floor": floor,
        "norm_sum": norm_sum.partition(":")[0],
        **named("norm_sum", norm_sum, _NORM_SUMS),
    }
    if ratio is not None and ratio_schedule:
        first, shape = ratio, named_schedule(ratio_schedule)
        given["ratio"] = Timed(
            f"{first:g} {shape.name}", lambda time: first * shape(time), shape.per_step
        )
    return {name: value for name, value in given.items() if value is not None}
