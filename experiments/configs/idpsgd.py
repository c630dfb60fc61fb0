"""A review of adaptive DP-SGD (2024), §6.2: groups of records with an ε of their own, by sampling
rates or by clip bounds per group (IDP-SGD), in the cases of its Table 9.

Beside each case stand two honest runs of DP-SGD: everybody at the strictest ε, which is what one
does without IDP-SGD, and everybody at the mean ε, which breaks the promise to the strict. The ε of
a row with groups is that of the weakest group."""

from typing import Any

from experiments.cell import Cell
from experiments.individual import groups, mean_epsilon

_REFERENCE = "review of adaptive DP-SGD 2024, §6.2, Tables 9 and 10"
_TARGETS = {
    ("mnist", "1"): (96.79, 97.63),
    ("cifar-10", "1"): (59.03, 58.26),
    ("cifar-10", "2"): (59.49, 67.64),
    ("cifar-10", "3"): (59.70, 63.07),
}
_DATA: dict[str, dict[str, Any]] = {
    "mnist": {"network": "stroke-linear", "features": "upright-scattering"},
    "cifar-10": {"network": "photo-linear", "features": "photo-patches"},
}
_FEW, _SOME, _MORE = (
    {"rate": 0.1, "steps": 150},
    {"rate": 0.1, "steps": 200},
    {"rate": 0.1, "steps": 250},
)
_SETTINGS: dict[tuple[str, str], dict[str, Any]] = {
    ("mnist", "strictest"): _FEW | {"learning_rate": 160.0},
    ("mnist", "1"): _SOME | {"learning_rate": 300.0},
    ("cifar-10", "strictest"): _SOME | {"learning_rate": 60.0},
    ("cifar-10", "1"): _MORE | {"learning_rate": 100.0},
    ("cifar-10", "2"): _MORE | {"learning_rate": 160.0},
    ("cifar-10", "3"): _MORE | {"learning_rate": 160.0},
}
_FOUND = (
    "Those of `dpis-{data}-dpsgd` at the ε nearest to the mean, without a try; for all at the "
    "strictest ε, those of it there."
)


def _cell(data: str, case: str, name: str, epsilon: float, method: str, **more: Any) -> Cell:
    return Cell(
        f"idpsgd-{data}-{name}",
        data,
        epsilon=epsilon,
        method=method,
        clip=0.3,
        momentum=0.0,
        schedule="linear",
        reference=_REFERENCE,
        found=_FOUND.format(data=data),
        **_DATA[data],
        **_SETTINGS[data, case],
        **more,
    )


def _case(data: str, case: str) -> tuple[Cell, ...]:
    """Return both methods in a case, and everybody at the mean."""
    weakest = max(epsilon for epsilon, _ in groups(case).values())
    sample, scale = _TARGETS[data, case]
    return (
        _cell(data, case, f"{case}-sample", weakest, f"idp-sample:{case}", target=sample),
        _cell(data, case, f"{case}-scale", weakest, f"idp-scale:{case}", target=scale),
        _cell(data, case, f"{case}-mean", round(mean_epsilon(case), 2), "dp-sgd"),
    )


CELLS = (
    _cell("mnist", "strictest", "strictest", 1.0, "dp-sgd"),
    *_case("mnist", "1"),
    _cell("cifar-10", "strictest", "strictest", 1.0, "dp-sgd"),
    *(cell for case in ("1", "2", "3") for cell in _case("cifar-10", case)),
)
