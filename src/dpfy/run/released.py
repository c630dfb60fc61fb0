"""Name what a run hands out: a promise of a sample, and what leaves a step.

Tests: tests/run/test_run.py.
"""

from dataclasses import dataclass, field

import torch


class Batch:
    """Promise one sample; it is drawn, and records are read, only when it is released.

    Args:
        owner: the run that yielded it.
        step: the step of the plan, counted from 1.
    """

    __slots__ = ("owner", "released", "step")

    def __init__(self, owner: object, step: int) -> None:
        self.owner = owner
        self.released = False
        self.step = step

    def __repr__(self) -> str:
        return f"Batch(step={self.step})"


@dataclass(frozen=True)
class Released:
    """Hold what left the mechanism: noisy sums divided by the plan's public divisor.

    All of it is public.

    Args:
        gradients: noisy gradients, by parameter name.
        step: the step of the plan, counted from 1.
        statistics: noisy statistics, by the names that the plan gives them; those that are not due
            at this step are not there.
        noise_multiplier: the noise multiplier of the step.
        bounds: the bounds of the step's clipped sums, by name.
        stddevs: the standard deviation of the noise in every gradient, a number or a tensor.
    """

    gradients: dict[str, torch.Tensor]
    step: int
    statistics: dict[str, torch.Tensor]
    noise_multiplier: float = 0.0
    bounds: dict[str, float] = field(default_factory=dict)
    stddevs: dict[str, float | torch.Tensor] = field(default_factory=dict)
