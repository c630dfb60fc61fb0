"""What leaves a step."""

from dataclasses import dataclass, field

import torch


@dataclass(frozen=True)
class Released:
    """What left the mechanism: noisy sums divided by the plan's public divisor.

    ``gradients`` are by parameter name, ``statistics`` by the names that the plan gives them; those
    that are not due at this step are not there. What they were released with is public: the
    ``noise_multiplier`` of the step, the ``bounds`` of its clipped sums, and the standard deviation
    of the noise in every gradient, a number or a tensor.
    """

    gradients: dict[str, torch.Tensor]
    step: int
    statistics: dict[str, torch.Tensor]
    noise_multiplier: float = 0.0
    bounds: dict[str, float] = field(default_factory=dict)
    stddevs: dict[str, float | torch.Tensor] = field(default_factory=dict)
