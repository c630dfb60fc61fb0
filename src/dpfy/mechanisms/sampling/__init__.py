"""Sampling: which records take part in a step, and the event that this licenses."""

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dpfy.errors import UnsupportedEvent
from dpfy.ledger.events import FixedSize, Poisson, Policy, TruncatedPoisson
from dpfy.mechanisms.sampling.epochs import EPOCHS, EpochSampler
from dpfy.mechanisms.sampling.fixed import FixedSizeSampler, TruncatedPoissonSampler
from dpfy.mechanisms.sampling.poisson import PoissonSampler
from dpfy.noise.random_stream import SecureStream

__all__ = [
    "SAMPLERS",
    "EpochSampler",
    "FixedSizeSampler",
    "PoissonSampler",
    "Sampler",
    "TruncatedPoissonSampler",
    "sampler_for",
]


class Sampler(Protocol):
    """Draws records *and* names the policy it implements, so that run and ledger cannot
    disagree.
    """

    @property
    def policy(self) -> Policy:
        """The policy that a draw may be accounted as."""

    @property
    def steps_per_event(self) -> int:
        """How many draws, from the first one on, one event of the policy pays for."""

    def draw(self, n: int) -> npt.NDArray[np.int64]:
        """Return the sorted indices, of ``range(n)``, of the next sample; empty is ordinary."""


def _poisson(policy: Poisson, stream: SecureStream) -> Sampler:
    return PoissonSampler(policy.rate, stream)


SAMPLERS: dict[type[Policy], Callable[..., Sampler]] = {
    Poisson: _poisson,
    FixedSize: FixedSizeSampler,
    TruncatedPoisson: TruncatedPoissonSampler,
    **dict.fromkeys(EPOCHS, EpochSampler),
}
"""How to make the sampler of a policy, for every policy that can be drawn."""


def sampler_for(policy: Policy, stream: SecureStream) -> Sampler:
    """Return the sampler that draws what ``policy`` says.

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
