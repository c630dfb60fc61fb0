"""Draw the records that take part in a step, and name the event that the draw licenses.

Tests: tests/mechanisms/sampling/test_policies.py.
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dpfy.errors import InvalidArgument, UnsupportedEvent
from dpfy.ledger.events import (
    Cyclic,
    CyclicPoisson,
    FixedSize,
    Poisson,
    Policy,
    TruncatedPoisson,
)
from dpfy.ledger.individual import Individual
from dpfy.mechanisms.sampling.cyclic import CyclicPoissonSampler, FixedOrderSampler
from dpfy.mechanisms.sampling.epochs import EPOCHS, EpochSampler
from dpfy.mechanisms.sampling.fixed import FixedSizeSampler, TruncatedPoissonSampler
from dpfy.mechanisms.sampling.individual import IndividualSampler
from dpfy.mechanisms.sampling.poisson import PoissonSampler
from dpfy.noise.random_stream import SecureStream

__all__ = [
    "SAMPLERS",
    "CyclicPoissonSampler",
    "EpochSampler",
    "FixedOrderSampler",
    "FixedSizeSampler",
    "IndividualSampler",
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
"""The sampler of every policy that can be drawn without knowing more of a record."""


def sampler_for(
    policy: Policy, stream: SecureStream, numbers: npt.NDArray[np.int64] | None = None
) -> Sampler:
    """Return the sampler that draws by ``policy``.

    Args:
        policy: The sampling policy of a plan.
        stream: The source of randomness, made for the purpose ``"sampling"``.
        numbers: The number of each record's group, for a policy that has groups.

    Returns:
        A sampler whose draws may be accounted as ``policy``.

    Raises:
        InvalidArgument: If the policy has groups and nothing says who is in them.
        UnsupportedEvent: If no sampler draws such a policy.

    >>> sampler_for(Poisson(rate=0.5), SecureStream(purpose="sampling")).policy
    Poisson(rate=0.5)
    """
    if isinstance(policy, Individual):
        if numbers is None:
            raise InvalidArgument(
                "The policy has groups of records, and nothing says who is in them. Give the "
                "number of each record's group."
            )
        return IndividualSampler(policy, numbers, stream)
    make = SAMPLERS.get(type(policy))
    if make is None:
        known = ", ".join(sorted(each.tag for each in SAMPLERS))
        raise UnsupportedEvent(
            f"No sampler draws the policy {type(policy).__name__}. Expected one of: {known}."
        )
    return make(policy, stream)
