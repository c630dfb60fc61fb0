"""Checks of what every private run promises, on real runs whose correct result is known.

A check sees what an outsider with chosen data would see: released values and the ledger. It
compares measurements with what was *recorded*, so it does not depend on who wrote the mechanism.
The checks do not know which mistakes exist.

*Formal guarantee*: a correct pipeline exceeds one threshold with probability at most
``FALSE_ALARM``, and any of them with at most the sum over all readings.

Tests: tests/auditing/test_self_test.py.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from scipy.stats import binom, chi2, norm
from torch import nn

from dpfy.accounting.to_pairs import noise_multiplier
from dpfy.ledger import Ledger
from dpfy.ledger.events import Sampled
from dpfy.mechanisms.groups import clip_groups
from dpfy.plans import Plan, dpsgd
from dpfy.run.privatize import privatize

FALSE_ALARM = 1e-10
"""The probability with which a correct pipeline exceeds one threshold."""

_CLIP = 3.0  # not 1, so that a forgotten factor shows
_SIZE, _TENSORS = 300, 3
_FAINT = 0.01  # noise multiplier at which the effect of one record stands out


@dataclass(frozen=True)
class Reading:
    """A measured number and its limit."""

    promise: str
    value: float
    threshold: float
    broken: bool

    @property
    def excess(self) -> float:
        """The factor by which the limit was crossed, whether it is an upper or a lower limit."""
        ratio = self.value / self.threshold if self.threshold else math.inf
        return math.inf if not ratio > 0 else max(ratio, 1 / ratio)

    def __str__(self) -> str:
        return f"{self.promise}: {self.value:.3g}, limit {self.threshold:.3g}"


class _Outcomes:
    """The outputs of a run on chosen records: released sums per step, and the ledger."""

    def __init__(self, rows: torch.Tensor, plan: Plan, key: int | None) -> None:
        model = _Tensors()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        self.ledger = Ledger.in_memory()
        with privatize(
            model,
            optimizer,
            [(row,) for row in rows],
            plan,
            self.ledger,
            announce=False,
            insecure_test_key=key,
            example_input=(torch.zeros(2, rows.shape[1]),),
        ) as run:
            self.sums = [
                torch.cat(
                    [g.flatten() for g in run.release(model, batch).gradients.values()]
                ).double()
                * plan.divisor
                for batch in run
            ]

    @property
    def recorded(self) -> Sampled:
        """The first recorded event."""
        event = self.ledger.uses[0].event
        assert isinstance(event, Sampled)
        return event


class _Tensors(nn.Module):
    """Weight vectors side by side; the gradient of a record's loss is the record."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.zeros(_SIZE) for _ in range(_TENSORS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return sum(
            part @ weight for part, weight in zip(x.split(_SIZE, 1), self.weights, strict=True)
        )


Keys = Iterator[int | None]
"""A key for each run: None draws a fresh one; numbers, all different, make a test repeatable."""


def readings(keys: Keys) -> list[Reading]:
    """Check all promises with runs under these keys."""
    return [reading for check in _CHECKS for reading in check(keys)]


def _noise(keys: Keys) -> Iterator[Reading]:
    """Check that noise is fresh and of the recorded scale on every tensor, even without records."""
    seen = []
    for what, rate in (("on records without a gradient", 0.5), ("on empty samples", 1e-12)):
        plan = dpsgd(rate=rate, divisor=10, steps=4, clip=_CLIP, noise_multiplier=1.0)
        found = _Outcomes(torch.zeros(20, _TENSORS * _SIZE), plan, next(keys))
        seen += found.sums
        for number, part in enumerate(torch.stack(found.sums).split(_SIZE, 1), 1):
            scale = noise_multiplier(found.recorded.queries) * _CLIP
            measured = float(part.square().mean()) / scale**2
            least = chi2.ppf(FALSE_ALARM, part.numel()) / part.numel()
            yield Reading(
                f"variance of the noise of tensor {number} {what}, over the recorded",
                measured,
                least,
                not measured >= least,
            )
    yield _most_alike(seen)


def _most_alike(noises: list[torch.Tensor]) -> Reading:
    """Return the largest correlation between the noise of any two steps."""
    rows = torch.stack([noise / noise.norm().clamp(min=1e-300) for noise in noises])
    pairs = (rows @ rows.T).abs().triu(1)
    count = len(noises) * (len(noises) - 1) / 2
    most = norm.isf(FALSE_ALARM / count / 2) / math.sqrt(rows.shape[1])
    value = float(pairs.max())
    return Reading("correlation between the noise of two steps", value, most, not value <= most)


def _effects(keys: Keys) -> Iterator[Reading]:
    """Check that one record moves releases by at most what was recorded, in units of the noise."""
    along = torch.zeros(_TENSORS * _SIZE)
    along[::_SIZE] = 1.0  # in all tensors
    flat = dpsgd(rate=1.0, divisor=50, steps=2, clip=_CLIP, noise_multiplier=_FAINT)
    grouped = replace(
        flat,
        query=dpsgd(
            rate=1.0, divisor=1, steps=1, clip=clip_groups(_Tensors(), "tensor", clip=_CLIP)
        ).query,
    )
    slots = dpsgd(rate=1.0, divisor=1, steps=2, clip=_CLIP, noise_multiplier=_FAINT, microbatches=1)
    cases = {
        "of a huge record against aligned ones": (flat, along.repeat(5, 1), -1e4 * along),
        "of an opposite record": (flat, along.unsqueeze(0), -along),
        "of a record that is large in every group": (grouped, along.repeat(2, 1), 1e4 * along),
        "of a record in a microbatch": (slots, 1e2 * along.unsqueeze(0), -1e4 * along),
        "of a record that is not finite": (flat, along.unsqueeze(0), along * torch.nan),
        "of a record that overflows": (flat, along.unsqueeze(0), along * 3e38),
    }
    for what, (plan, rows, record) in cases.items():
        without = _Outcomes(rows, plan, next(keys))
        including = _Outcomes(torch.cat([rows, record.unsqueeze(0)]), plan, next(keys))
        yield _effect(f"effect {what}, in units of the noise", without, including)


def _effect(name: str, without: _Outcomes, including: _Outcomes) -> Reading:
    """Measure the effect of a record.

    The first step shows the direction of the effect, and the second its length. The noise is
    measured where nothing moved.
    """
    moved = [after - before for before, after in zip(without.sums, including.sums, strict=True)]
    noise = torch.cat(
        [found.sums[0] - found.sums[1] for found in (without, including)]
    ) / math.sqrt(2)
    scale = float(noise.square().mean().sqrt())
    direction = moved[0] / moved[0].norm().clamp(min=1e-300)
    value = float(moved[1] @ direction) / max(scale, 1e-300)
    too_small = math.sqrt(noise.numel() / chi2.ppf(FALSE_ALARM / 2, noise.numel()))
    most = too_small / noise_multiplier(without.recorded.queries) + math.sqrt(2) * norm.isf(
        FALSE_ALARM / 2
    )
    return Reading(name, value, most, not value <= most)


def _samples(keys: Keys) -> Iterator[Reading]:
    """Check that records take part at the recorded rate, independently of each other."""
    rate, records, steps = 0.3, _TENSORS * _SIZE, 30
    plan = dpsgd(
        rate=rate, divisor=rate * records, steps=steps, clip=_CLIP, noise_multiplier=_FAINT
    )
    found = _Outcomes(10 * _CLIP * torch.eye(records), plan, next(keys))
    took_part = torch.stack(found.sums) > _CLIP / 2
    recorded = found.recorded.policy.rate
    share = float(took_part.double().mean())
    most = binom.isf(FALSE_ALARM, took_part.numel(), recorded) / took_part.numel()
    yield Reading("share of records that took part", share, most, not share <= most)
    variance = recorded * (1 - recorded)
    for what, counts, of in (
        ("sample sizes", took_part.sum(1), records),
        ("numbers of participations", took_part.sum(0), steps),
    ):
        # About χ² with one degree of freedom for each count.
        value = float(((counts - of * recorded) ** 2).sum()) / (of * variance)
        least = _law_of_dispersion(len(counts), of, recorded)
        yield Reading(
            f"dispersion of {what}, over that of independent draws",
            value / len(counts),
            least,
            not value / len(counts) >= least,
        )


def _law_of_dispersion(counts: int, of: int, rate: float) -> float:
    """Return a lower bound on the mean squared deviation of binomial counts over their variance.

    It is Chernoff's bound: log E exp(−t·X) of one squared deviation is computed from the binomial
    law.
    """
    values = torch.arange(of + 1, dtype=torch.float64)
    weights = torch.from_numpy(binom.pmf(values.numpy(), of, rate))
    squares = (values - of * rate) ** 2 / (of * rate * (1 - rate))
    tilts = torch.logspace(-2, 2, 200, dtype=torch.float64)
    logs = torch.stack([(weights * torch.exp(-tilt * squares)).sum().log() for tilt in tilts])
    return float(((-logs + math.log(FALSE_ALARM) / counts) / tilts).max().clamp(min=0.0))


def _ledger(keys: Keys) -> Iterator[Reading]:
    """Check that every release is in the ledger."""
    plan = dpsgd(rate=0.5, divisor=1, steps=6, noise_multiplier=1.0)
    found = _Outcomes(torch.zeros(2, _TENSORS * _SIZE), plan, next(keys))
    yield Reading(
        "recorded steps", found.ledger.count, len(found.sums), found.ledger.count < len(found.sums)
    )


_CHECKS: tuple[Callable[[Keys], Iterator[Reading]], ...] = (_noise, _effects, _samples, _ledger)
