"""Bound what one client sends, on a lattice, from its answer alone.

Tests: tests/federated/test_cohort.py.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal

import torch

from dpfy.mechanisms.clipping import squared_norms, weighed_sum
from dpfy.mechanisms.gaussian_sum import GaussianSum
from dpfy.mechanisms.statistics import bounded_sum
from dpfy.noise.lattice import round_to_lattice
from dpfy.run.release_layout import ReleaseLayout

Local = Literal["fedavg", "fedsgd"]


@dataclass(frozen=True)
class Terms:
    """How the answers of one round are bounded and summed.

    Args:
        layout: Where each sum is in the vector of the round, and in which units.
        mechanism: The Gaussian mechanism that the sums go through.
        noise_multiplier: The noise multiplier of the round, as the plan counts it.
        local: ``"fedavg"`` if updates are changes of the model, ``"fedsgd"`` if gradients.
        largest_weight: The weight at which an update counts in full; None if all count the same.
    """

    layout: ReleaseLayout
    mechanism: GaussianSum
    noise_multiplier: float
    local: Local
    largest_weight: float | None

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(iter(self.layout.parameters.values())).device


def contribution_of(
    terms: Terms,
    update: Mapping[str, Any],
    weight: float,
    statistics: Mapping[str, Any] | None,
) -> torch.Tensor | None:
    """Return what an answer adds to the sums of a round, or None if it is malformed.

    *Formal guarantee*: the result is on the lattice of the mechanism, its ℓ2 norm is at most
    ``sensitivity`` of the mechanism, and it depends on this answer and public values alone. Nothing
    that an answer consists of raises an error. Proof: docs/proofs/federated.md.
    """
    try:
        return _bounded(terms, update, weight, statistics or {})
    except Exception:  # of whatever an answer is made of: an error would tell of it
        return None


def _bounded(
    terms: Terms, update: Mapping[str, Any], weight: float, statistics: Mapping[str, Any]
) -> torch.Tensor | None:
    layout, factor = terms.layout, _factor(weight, terms.largest_weight)
    gradients = [_row(update[name], p.shape, terms.device) for name, p in layout.parameters.items()]
    if terms.local == "fedavg":  # optimizers go against a gradient
        gradients = [gradient.neg() for gradient in gradients]
    clipping = layout.clipping(terms.mechanism.grid)
    gradients = [*clipping.transformed(gradients)]
    norms = clipping.norms([squared_norms(each) for each in gradients])
    if factor is None or not bool(norms.isfinite().all()):
        return None
    vector = torch.zeros(layout.size, dtype=torch.float64, device=terms.device)
    sums, totals = layout.split(vector)
    for total, gradient, own in zip(sums, gradients, clipping.weights(norms), strict=True):
        total += weighed_sum(gradient, own * factor)
    names, query = [leaf.name for leaf in layout.query.leaves], layout.query
    for statistic, total in zip(layout.statistics, totals, strict=True):
        rows = _rows(statistics, statistic.name, statistic.shape, terms.device)
        total += bounded_sum(statistic, rows, norms, names, query.sum_scale(statistic))
    return round_to_lattice(vector, terms.mechanism.grid)


def _factor(weight: object, largest: float | None) -> float | None:
    """Return the part of an update that counts, in [0, 1]; None for a weight that is none."""
    if largest is None:
        return 1.0
    if isinstance(weight, bool) or not isinstance(weight, Real):  # NumPy's numbers are real, too
        return None
    value = float(weight)
    return min(value, largest) / largest if value >= 0 else None  # NaN is not at least zero


def _row(value: Any, shape: torch.Size, device: torch.device) -> torch.Tensor:
    """Return a tensor of real numbers as a float64 row [1, …].

    Raises:
        ValueError: If it is something else, or has another shape.
    """
    # Of an array that cannot be written to, as_tensor would warn.
    tensor = value.detach() if isinstance(value, torch.Tensor) else torch.tensor(value)
    if tensor.shape != shape or tensor.is_complex() or tensor.layout != torch.strided:
        raise ValueError
    return tensor.to(device, torch.float64).unsqueeze(0)


def _rows(
    statistics: Mapping[str, Any], name: str, shape: tuple[int, ...], device: torch.device
) -> dict[str, torch.Tensor]:
    """Return the row of a statistic that a client sent, or nothing if it sent none that fits."""
    try:
        row = _row(statistics[name], torch.Size(shape), device)
    except Exception:
        return {}
    return {name: row} if math.isfinite(float(torch.linalg.vector_norm(row))) else {}
