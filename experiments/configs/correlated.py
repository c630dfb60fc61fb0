"""Correlated noise (DP-FTRL) for those who cannot sample, beside DP-SGD in the same order; and with
cyclic Poisson samples for those who can.

Networks, features, rates and steps are those of configs.dpis and configs.large_rates, whose Poisson
samples are the measure. Relation: zero out."""

from typing import Any

from experiments.cell import Cell

_CIFAR: dict[str, Any] = {
    "network": "photo-linear",
    "features": "photo-patches",
    "rate": 0.1,
    "steps": 250,
    "clip": 0.3,
    "momentum": 0.0,
    "found": "Those of `dpis-cifar-10-dpsgd` at ε 4, without a try.",
}
_MNIST: dict[str, Any] = {
    "network": "wave-cnn",
    "rate": 0.06,
    "steps": 200,
    "clip": 0.1,
    "momentum": 0.9,
    "seeds": (0,),
    "found": "Those of `large-rates-mnist` at ε 2.93, without a try.",
}


def _cell(
    data: str,
    name: str,
    method: str,
    epsilon: float,
    learning_rate: float,
    shared: dict[str, Any],
    target: float | None = None,
) -> Cell:
    return Cell(
        f"correlated-{data}-{name}",
        data,
        epsilon=epsilon,
        learning_rate=learning_rate,
        schedule="linear",
        method=method,
        target=target,
        reference="what Poisson samples reach, less half a point",
        **shared,
    )


CELLS = (
    _cell("cifar-10", "cyclic", "cyclic", 4.0, 60.0, _CIFAR),
    _cell("cifar-10", "blt", "ftrl:blt", 4.0, 160.0, _CIFAR, target=72.0),
    _cell("cifar-10", "banded", "ftrl:banded", 4.0, 160.0, _CIFAR, target=72.0),
    _cell("mnist", "cyclic-poisson", "ftrl:poisson", 2.9, 12.0, _MNIST, target=98.1),
)
