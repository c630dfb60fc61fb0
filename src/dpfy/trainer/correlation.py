"""Parse the setting of correlated noise, and refuse what does not go with it, without torch."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dpfy import _validate
from dpfy.errors import InvalidArgument
from dpfy.mechanisms.controllers import Controller
from dpfy.mechanisms.controllers.names import named
from dpfy.trainer.options import named_clipping, named_optimizer

if TYPE_CHECKING:
    from dpfy.trainer.config import TrainConfig

_ORDERS = ("cyclic", "cyclic_poisson")
_CONSTANT = "later noise takes back earlier noise, and all of it has one scale"
_NOT_CORRELATED = {
    "clip_schedule": _CONSTANT,
    "noise_schedule": _CONSTANT,
    "algorithm": "what is chosen from outputs needs a filter, and the steps of a stream are fixed",
}


def _blt(buffers: float = 4) -> dict[str, Any]:
    return {"strategy": "blt", "buffers": _whole("buffers", buffers)}


def _banded(bands: float | None = None) -> dict[str, Any]:
    return {"strategy": "banded", "bands": None if bands is None else _whole("bands", bands)}


def _square_root(bands: float | None = None) -> dict[str, Any]:
    return {**_banded(bands), "strategy": "square_root"}


_KINDS: dict[str, Callable[..., dict[str, Any]]] = {
    "none": lambda: {},
    "blt": _blt,
    "banded": _banded,
    "square_root": _square_root,
    "tree": lambda: {"strategy": "tree"},
}


def correlation_options(text: str) -> dict[str, Any]:
    """Return the arguments of :func:`dpfy.dpftrl` that a setting means; none for ``none``.

    >>> correlation_options("blt:2")
    {'strategy': 'blt', 'buffers': 2}
    """
    return named("noise_correlation", text, _KINDS)


def check_correlation(config: "TrainConfig") -> None:
    """Refuse settings that do not go with correlated noise, or need it."""
    text = config.noise_correlation
    if not correlation_options(text):
        if config.sampling == "cyclic_poisson":
            raise InvalidArgument(
                "Expected noise_correlation='banded' with sampling='cyclic_poisson': parts that "
                "take turns are for noise that is correlated over them. Or use sampling='poisson'."
            )
        return
    if config.sampling not in _ORDERS:
        raise InvalidArgument(
            f"Expected sampling='cyclic' or 'cyclic_poisson' with noise_correlation={text!r}, got "
            f"{config.sampling!r}: it has to be known how far apart two steps of a record are."
        )
    for name, reason in _NOT_CORRELATED.items():
        if (value := getattr(config, name)) not in (None, "dpsgd"):
            raise InvalidArgument(
                f"Expected no {name}={value!r} with noise_correlation={text!r}: {reason}."
            )
    if isinstance(named_clipping(config.clipping), Controller):
        raise InvalidArgument(
            f"Expected clipping='fixed' or 'automatic' with noise_correlation={text!r}, got "
            f"{config.clipping!r}: {_CONSTANT}."
        )
    if named_optimizer(config.optimizer)[0] == "adadp":
        raise InvalidArgument(
            f"Expected another optimizer than adadp with noise_correlation={text!r}: it compares "
            "gradients, of which the second takes back noise of the first."
        )


def _whole(name: str, value: float) -> int:
    """Return a number that was read as a float."""
    return _validate.count(name, int(value) if value == int(value) else value)
