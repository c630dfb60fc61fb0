"""Draw the records that take part in a step, and name the event that the draw licenses.

Tests: tests/mechanisms/sampling/test_policies.py.
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dpfy.errors import UnsupportedEvent
from dpfy.ledger.events import (
    Cyclic,
    CyclicPoisson,
    FixedSize,
    Poisson,
    Policy,
    TruncatedPoisson,
)
from dpfy.mechanisms.sampling.cyclic import CyclicPoissonSampler, FixedOrderSampler
from dpfy.mechanisms.sampling.epochs import EPOCHS, EpochSampler
from dpfy.mechanisms.sampling.fixed import FixedSizeSampler, TruncatedPoissonSampler
from dpfy.mechanisms.sampling.poisson import PoissonSampler
from dpfy.noise.random_stream import SecureStream

__all__ = [
    "SAMPLERS",
    "CyclicPoissonSampler",
    "EpochSampler",
    "FixedOrderSampler",
    "FixedSizeSampler",
    "PoissonSampler",
    "Sampler",
    "TruncatedPoissonSampler",
    "sampler_for",
]


class Sampler(Protocol):
    """Draws records *and* names its policy, so that run and ledger cannot disagree."""

    @property
    def policy(self) -> Policy:
        """The policy that a draw may be accounted as."""

    @property
    def steps_per_event(self) -> int:
        """The number of consecutive draws that one event of the policy pays for."""

    def draw(self, n: int) -> npt.NDArray[np.int64]:
        """Return the sorted indices, of ``range(n)``, of the next sample, which may be empty."""


def _poisson(policy: Poisson, stream: SecureStream) -> Sampler:
    """Return the sampler of a Poisson policy."""
    return PoissonSampler(policy.rate, stream)


SAMPLERS: dict[type[Policy], Callable[..., Sampler]] = {
    Poisson: _poisson,
    FixedSize: FixedSizeSampler,
    TruncatedPoisson: TruncatedPoissonSampler,
    Cyclic: FixedOrderSampler,
    CyclicPoisson: CyclicPoissonSampler,
    **dict.fromkeys(EPOCHS, EpochSampler),
}
"""The sampler of every policy that can be drawn."""


def sampler_for(policy: Policy, stream: SecureStream) -> Sampler:
    """Return the sampler that draws by ``policy``.

    Args:
        policy: The sampling policy of a plan.
        stream: The source of randomness, made for the purpose ``"sampling"``.

    Returns:
        A sampler whose draws may be accounted as ``policy``.

    Raises:
        UnsupportedEvent: If no sampler draws such a policy.

    >>> sampler_for(Poisson(rate=0.5), SecureStream(purpose="sampling")).policy
    Poisson(rate=0.5)
    """
    make = SAMPLERS.get(type(policy))
    if make is None:
        known = ", ".join(sorted(each.tag for each in SAMPLERS))
        raise UnsupportedEvent(
            f"No sampler draws the policy {type(policy).__name__}. Expected one of: {known}."
        )
    return make(policy, stream)
