"""Known mistakes of implementations of private training, for planting in the real pipeline.

Each is a change of a line or two of the running code, undone when its block ends. They show that
the checks of :mod:`dpfy.auditing.invariants` notice such mistakes; nothing that is trained under
one is private.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch

from dpfy.ledger import Ledger
from dpfy.mechanisms.clipping import ClipEach
from dpfy.mechanisms.gaussian_sum import GaussianSum
from dpfy.mechanisms.query import Query
from dpfy.mechanisms.sampling import PoissonSampler
from dpfy.run.release_layout import ReleaseLayout

Mutant = Callable[[], AbstractContextManager[None]]

_release, _factors = GaussianSum.release, ReleaseLayout.factors
_weigh, _draw, _reserve = ClipEach.__call__, PoissonSampler.draw, Ledger.reserve


@contextmanager
def _replaced(*changes: tuple[type, str, Any]) -> Iterator[None]:
    """Replace attributes of classes for the duration of a block."""
    kept = [(owner, name, owner.__dict__[name]) for owner, name, _ in changes]
    try:
        for owner, name, value in changes:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in kept:
            setattr(owner, name, value)


def releasing(release: Callable[[GaussianSum, torch.Tensor, Any], object]) -> tuple[type, str, Any]:
    """Return a change that releases the sums of a step as one vector by another function.

    The function works in place.
    """

    def release_pieces(
        self: GaussianSum,
        sums: Sequence[torch.Tensor],
        factors: Sequence[float],
        outs: Sequence[torch.Tensor],
        noise: Any,
    ) -> None:
        total = torch.cat([each.double().flatten() for each in sums])
        release(self, total, noise)
        for part, factor, out in zip(
            total.split([each.numel() for each in outs]), factors, outs, strict=True
        ):
            out.copy_((part * factor).view_as(out))

    return GaussianSum, "release_pieces", release_pieces


def _counting(counted: list[int]) -> tuple[tuple[type, str, Any], ...]:
    """Return the changes that make the size of every sample known."""

    def complete(self: ReleaseLayout, vector: torch.Tensor, records: int, divisor: float) -> None:
        counted.append(records)

    return (ReleaseLayout, "completes", property(lambda self: True)), (
        ReleaseLayout,
        "complete",
        complete,
    )


def _half_noise() -> AbstractContextManager[None]:
    return _replaced(
        (GaussianSum, "stddev", property(lambda self: self.noise_multiplier * self.sensitivity / 2))
    )


def _noise_without_the_clip() -> AbstractContextManager[None]:
    """Add noise for records of norm 1, whatever the bound is."""

    def factors(self: ReleaseLayout, divisor: float) -> list[float]:
        found, gradients = _factors(self, divisor), len(self.parameters)
        return [factor / clip for factor in found[:gradients]] + found[gradients:]

    def unclipped(self: ClipEach, squared_norms: torch.Tensor) -> torch.Tensor:
        return _weigh(self, squared_norms) * clip

    clip = 2.0
    return _replaced((ReleaseLayout, "factors", factors), (ClipEach, "__call__", unclipped))


def _clip_after_average() -> AbstractContextManager[None]:
    def release(self: GaussianSum, total: torch.Tensor, noise: Any) -> torch.Tensor:
        total *= (self.bound / total.norm().clamp(min=1e-300)).clamp(max=1.0)
        return _release(self, total.div_(self.grid).round_().mul_(self.grid), noise)

    def unclipped(self: ClipEach, squared_norms: torch.Tensor) -> torch.Tensor:
        return squared_norms.isfinite().to(squared_norms.dtype)

    return _replaced(releasing(release), (ClipEach, "__call__", unclipped))


def _silent_when_empty() -> AbstractContextManager[None]:
    counted: list[int] = []

    def release(self: GaussianSum, total: torch.Tensor, noise: Any) -> torch.Tensor:
        return _release(self, total, noise) if counted[-1] else total

    return _replaced(releasing(release), *_counting(counted))


def _realised_batch_size() -> AbstractContextManager[None]:
    counted: list[int] = []
    return _replaced(
        *_counting(counted),
        (ReleaseLayout, "factors", lambda self, divisor: _factors(self, max(1, counted[-1]))),
    )


def _replayed_noise() -> AbstractContextManager[None]:
    drawn: dict[tuple[int, float], torch.Tensor] = {}

    def release(self: GaussianSum, total: torch.Tensor, noise: Any) -> torch.Tensor:
        key = (total.numel(), self.stddev)
        if key not in drawn:
            drawn[key] = _release(self, torch.zeros_like(total), noise).clone()
        return total.add_(drawn[key])

    return _replaced(releasing(release))


def _noise_missing_on_one_tensor() -> AbstractContextManager[None]:
    def release(self: GaussianSum, total: torch.Tensor, noise: Any) -> torch.Tensor:
        last = total[len(total) // 2 :].clone()
        _release(self, total, noise)[len(total) // 2 :] = last
        return total

    return _replaced(releasing(release))


def _every_group_gets_the_whole_bound() -> AbstractContextManager[None]:
    def weigh(self: ClipEach, squared_norms: torch.Tensor) -> torch.Tensor:
        return _weigh(ClipEach((math.hypot(*self.bounds),) * len(self.bounds)), squared_norms)

    return _replaced((ClipEach, "__call__", weigh))


def _nan_escapes() -> AbstractContextManager[None]:
    def weigh(self: ClipEach, squared_norms: torch.Tensor) -> torch.Tensor:
        return torch.where(squared_norms.isfinite(), _weigh(self, squared_norms), 1.0)

    return _replaced((ClipEach, "__call__", weigh))


def _wrong_rate() -> AbstractContextManager[None]:
    def draw(self: PoissonSampler, n: int) -> Any:
        return np.union1d(_draw(self, n), _draw(self, n))

    return _replaced((PoissonSampler, "draw", draw))


def _shuffled_as_poisson() -> AbstractContextManager[None]:
    waiting: list[int] = []

    def draw(self: PoissonSampler, n: int) -> Any:
        size = round(self.policy.rate * n)
        if len(waiting) < size:
            waiting[:] = np.random.default_rng(n).permutation(n).tolist()
        return np.sort(np.array([waiting.pop() for _ in range(size)], dtype=np.int64))

    return _replaced((PoissonSampler, "draw", draw))


def _half_of_the_steps_recorded() -> AbstractContextManager[None]:
    calls: list[int] = []

    def reserve(self: Ledger, event: Any, note: Any = None) -> None:
        calls.append(1)
        if len(calls) % 2:
            _reserve(self, event, note)

    return _replaced((Ledger, "reserve", reserve))


def _microbatch_counted_once() -> AbstractContextManager[None]:
    return _replaced((Query, "sensitivity_factor", property(lambda self: 1)))


MUTANTS: dict[str, Mutant] = {
    "none": nullcontext,
    "half noise": _half_noise,
    "noise without the clip bound": _noise_without_the_clip,
    "clip after average": _clip_after_average,
    "no noise on empty batches": _silent_when_empty,
    "realised batch size": _realised_batch_size,
    "replayed noise": _replayed_noise,
    "per-layer bounds ignored": _every_group_gets_the_whole_bound,
    "wrong rate": _wrong_rate,
    "NaN escape": _nan_escapes,
    "shuffled as Poisson": _shuffled_as_poisson,
    "noise missing on one tensor": _noise_missing_on_one_tensor,
    "accountant half-stepped": _half_of_the_steps_recorded,
    "microbatch C for 2C": _microbatch_counted_once,
}
"""The correct pipeline and its mutants, by name."""
