"""Clip each record's gradient: weights from its norms, and sums of weighted gradients.

Tests: tests/mechanisms/test_clipping_forms.py, tests/mechanisms/test_clipping_limits.py.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import compress

import torch

from dpfy import _validate
from dpfy.mechanisms.controllers import Coordinates
from dpfy.mechanisms.query import LEAST, MOST

Weigh = Callable[[torch.Tensor], torch.Tensor]
"""From squared norms [records, groups] to weights [records, groups], one record at a time."""

_BLOCK = 2**16  # numbers scaled in float64 at once: half a megabyte stays in the cache
_DEVICE_BLOCK = 2**24  # on a device: memory for 128 MB, and few calls


@dataclass(frozen=True)
class Clipping:
    """The way each record is bounded: by weights from the norms of its groups, on a lattice.

    Args:
        weigh: The function from squared norms [records, groups] to weights.
        grid: The step of the lattice on which the sums are.
        groups: The group of each parameter.
        scales: What the gradient of each parameter is divided by before norms are taken; none stand
            for ones.
        sum_scales: What the gradient of each parameter is divided by before it is summed; none
            stand for ones.
        coordinates: For each parameter, the coordinates in which its gradients are bounded and
            summed; by default their own.
        factors: For each record of the chunk, in its order, what its bounds are multiplied by; none
            stand for ones. Whoever takes records out of a chunk takes theirs (:meth:`chosen`).
    """

    weigh: Weigh
    grid: float
    groups: tuple[int, ...]
    scales: tuple[float, ...] = ()
    sum_scales: tuple[float, ...] = ()
    coordinates: tuple[Coordinates, ...] = ()
    factors: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for scale in self.scales:
            _validate.real("scale", scale, LEAST, MOST)
        # Each is scale·bound over the root of a share: nearly LEAST² or more, and shares are tiny.
        for scale in self.sum_scales:
            _validate.real("unit", scale, 1e-61, 1e300)

    def transformed(self, gradients: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Return the gradients [records, …] of every parameter in the coordinates of clipping.

        Rounding here is harmless: norms are taken of the very vectors that are summed.
        """
        if not self.coordinates:
            return gradients
        return [
            (gradient.double() - place.offset) / place.scale
            for gradient, place in zip(gradients, self.coordinates, strict=True)
        ]

    def norms(self, squared: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the squared norms [records, groups], given those [records] of every parameter."""
        count = len(self.weigh.bounds) if isinstance(self.weigh, ClipEach) else max(self.groups) + 1
        totals: dict[int, torch.Tensor] = {}
        for position, (group, norms) in enumerate(zip(self.groups, squared, strict=True)):
            own = self.scaled(position, norms)
            totals[group] = totals[group] + own if group in totals else own.double()
        if len(totals) < count:  # a group may have no trained parameter
            nothing = torch.zeros_like(squared[0], dtype=torch.float64)
            totals = {group: totals.get(group, nothing) for group in range(count)}
        return torch.stack([totals[group] for group in range(count)], 1)

    def scaled(self, position: int, squared: torch.Tensor) -> torch.Tensor:
        """Return the squared norms of one parameter's gradient after it is divided by its scale."""
        return squared / self.scales[position] ** 2 if self.scales else squared

    def weights(self, norms: torch.Tensor) -> list[torch.Tensor]:
        """Return the weights [records] of every parameter, from squared norms [records, groups].

        Parameters whose weights are equal have the very same tensor.

        >>> flat = Clipping(clip_to(1.0), 2.0**-20, groups=(0, 0))
        >>> norms = flat.norms([torch.tensor([9.0]), torch.tensor([16.0])])
        >>> [weights.tolist() for weights in flat.weights(norms)]
        [[0.2], [0.2]]
        """
        found, units = self.weigh(self._own(norms)), self.sum_scales or (1.0,) * len(self.groups)
        kinds = [*zip(self.groups, units, strict=True)]
        places = {kind: place for place, kind in enumerate(kinds)}
        weights = {kind: self.in_units(place, found[:, kind[0]]) for kind, place in places.items()}
        return [weights[kind] for kind in kinds]

    def _own(self, norms: torch.Tensor) -> torch.Tensor:
        """Return squared norms over each record's own factor of the bounds.

        A gradient is clipped to s·C by the weight by which its s-th part is clipped to C.
        """
        if not self.factors:
            return norms
        return norms / norms.new_tensor(self.factors).square().view(len(norms), 1)

    def chosen(self, mask: torch.Tensor) -> "Clipping":
        """Return the clipping of the records of a chunk for which ``mask`` is true."""
        if not self.factors:
            return self
        return replace(self, factors=tuple(compress(self.factors, mask.tolist())))

    def of_record(self, position: int) -> "Clipping":
        """Return the clipping of one record of a chunk."""
        return replace(self, factors=(self.factors[position],)) if self.factors else self

    def in_units(self, position: int, weights: torch.Tensor) -> torch.Tensor:
        """Return the weights of a parameter with which its gradient is summed."""
        return weights / self.sum_scales[position] if self.sum_scales else weights


@dataclass(frozen=True)
class ClipEach:
    """Scales each group of a record down to its own bound, whatever the other groups are.

    A group whose gamma is above zero is normalised instead, up as well as down: its weight is
    bound/(norm + gamma), and its norm stays below the bound. All weights are finite: a gradient of
    zero stays zero.

    Args:
        bounds: The bound of each group.
        gammas: The gamma of each group, or zero for a group that is clipped; none stand for zeros.

    >>> ClipEach((2.0,), gammas=(1.0,))(torch.tensor([[9.0], [0.0]])).flatten().tolist()
    [0.5, 2.0]
    """

    bounds: tuple[float, ...]
    gammas: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for bound in self.bounds:
            _validate.real("bound", bound, LEAST, MOST)
        for gamma in filter(None, self.gammas):
            _validate.real("gamma", gamma, LEAST, MOST)

    def __call__(self, squared_norms: torch.Tensor) -> torch.Tensor:
        """Return the weights min(1, bound/norm) or bound/(norm + gamma); 0 for infinite or NaN."""
        bounds, norms = _row(self.bounds, squared_norms), squared_norms.sqrt()
        weights = (bounds / norms).clamp(max=1.0)
        if self.gammas:
            gammas = _row(self.gammas, squared_norms)
            weights = torch.where(gammas > 0, bounds / (norms + gammas), weights)
        return torch.where(squared_norms.isfinite(), weights, 0.0)

    def only(self, group: int) -> "ClipEach":
        """Return the same for one of the groups."""
        return ClipEach((self.bounds[group],), self.gammas[group : group + 1])


def clip_to(bound: float) -> ClipEach:
    """Return the weights min(1, bound/norm) for a single group, and 0 where the norm is not finite.

    A NaN or infinite gradient contributes nothing; a zero gradient keeps weight 1 and contributes
    nothing either.

    >>> clip_to(1.0)(torch.tensor([[4.0], [0.0], [float("nan")]])).flatten().tolist()
    [0.5, 1.0, 0.0]
    """
    return ClipEach((bound,))


def squared_norms(per_record: torch.Tensor) -> torch.Tensor:
    """Return each record's exact squared ℓ2 norm, in float64 so that no float32 gradient overflows.

    An upper bound of a norm is a matter of the engines that compute one.
    """
    rows = per_record.reshape(len(per_record), -1)
    return torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64).square()


def weighed_sum(per_record: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return Σ weight·gradient in float64, not yet rounded to the lattice.

    The sum of all records is rounded once. If each gradient were rounded before it is added, its
    rounding error could move the sum by a step of the lattice in every coordinate. Proof:
    docs/proofs/gaussian-sum.md.

    >>> weighed_sum(torch.tensor([[1.0, 2.0], [4.0, torch.inf]]), torch.tensor([0.5, 0.0])).tolist()
    [0.5, 1.0]
    """
    rows, factors = _kept(per_record, weights)
    total = torch.zeros(rows.shape[1], dtype=torch.float64, device=rows.device)
    at_once = max(1, (_BLOCK if rows.is_cpu else _DEVICE_BLOCK) // max(1, rows.shape[1]))
    for block, factor in zip(rows.split(at_once), factors.split(at_once), strict=True):
        total += factor @ block.double()
    return total.reshape(per_record.shape[1:])


def lattice_sum(per_record: torch.Tensor, weights: torch.Tensor, grid: float) -> torch.Tensor:
    """Return Σ round(weight·vector) in multiples of ``grid``, for vectors that are independent.

    Whole multiples add exactly in float64, so the sum depends neither on order nor on chunking, and
    another vector changes it by its own rounded contribution only. Vectors whose rounding error
    depends on others are for :func:`weighed_sum`.
    """
    rows, factors = _kept(per_record, weights)
    # All but the product is exact, because the grid is a power of two.
    steps = (rows * (factors / grid).unsqueeze(1)).round_()
    return (steps.sum(0) * grid).reshape(per_record.shape[1:])


def _kept(per_record: torch.Tensor, weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return flat rows and float64 weights, nothing of rows of weight zero: 0·inf would be NaN."""
    rows, kept = per_record.reshape(len(per_record), -1), weights > 0
    if not rows.is_cpu:  # which would have to be waited for: zeros take the places of such rows
        return torch.where(kept.unsqueeze(1), rows, 0.0), torch.where(kept, weights.double(), 0.0)
    if not bool(kept.all()):
        rows, weights = rows[kept], weights[kept]
    return rows, weights.double()


def _row(numbers: tuple[float, ...], like: torch.Tensor) -> torch.Tensor:
    """Return numbers as a tensor; a single one is written on its device, without a copy to it."""
    return like.new_full((1,), numbers[0]) if len(numbers) == 1 else like.new_tensor(numbers)
