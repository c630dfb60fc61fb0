"""Samplers that follow a schedule: which records may be in a step is known from its number.

Tests: tests/mechanisms/sampling/test_cyclic.py.
"""

import numpy as np
import numpy.typing as npt

from dpfy import _validate
from dpfy.ledger.events import Cyclic, CyclicPoisson
from dpfy.mechanisms.sampling.fixed import require_declared
from dpfy.mechanisms.sampling.poisson import PoissonSampler
from dpfy.noise.random_stream import SecureStream, require_purpose


class FixedOrderSampler:
    """Draws batches in the order in which the records are given, again and again.

    *Formal guarantee.* Step i, counted from 1, has batch i − 1 modulo the batches of an epoch: each
    record is in one step of any ``steps_per_event`` in a row, whichever step a run begins with, so
    that two of its steps are that far apart and n steps have it at most ⌈n/steps_per_event⌉ times.

    *Assumes* that the number of records is public, and that their order does not change.

    Args:
        policy: The size of a batch and the number of records.
        stream: A stream for the purpose ``"sampling"``; nothing is drawn from it.

    Raises:
        InvalidArgument: If the stream was made for another purpose.

    >>> sampler = FixedOrderSampler(Cyclic(2, records=5), SecureStream(purpose="sampling"))
    >>> [sampler.draw(5).tolist() for _ in range(4)]
    [[0, 1], [2, 3], [4], [0, 1]]
    """

    def __init__(self, policy: Cyclic, stream: SecureStream) -> None:
        self.policy = policy
        self.steps_per_event = policy.steps_per_event
        require_purpose(stream, "sampling")
        self._step = 1

    def turn_to(self, step: int) -> None:
        """Let the next draw be that of a step, counted from 1."""
        self._step = _validate.count("step", step)

    def draw(self, n: int) -> npt.NDArray[np.int64]:
        """Return the sorted indices, of ``range(n)``, of the next batch.

        Raises:
            InvalidArgument: If ``n`` is not the number of records that the policy declares.
        """
        require_declared(n, self.policy.records)
        first = (self._step - 1) % self.steps_per_event * self.policy.batch_size
        self._step += 1
        return np.arange(first, min(first + self.policy.batch_size, n))


class CyclicPoissonSampler:
    """Lets each record of the part whose turn it is flip its own coin.

    *Formal guarantee.* Step i, counted from 1, has records whose place is i − 1 modulo ``parts``
    only, each independently with probability exactly ``chance``, as :class:`PoissonSampler` draws.

    *Assumes* what that sampler assumes; that the number of records is public, and that their order
    does not change.

    Args:
        policy: The number of parts, and the probability of a record when its part has its turn.
        stream: The source of randomness, made for the purpose ``"sampling"``.

    Raises:
        InvalidArgument: If the stream was made for another purpose.

    >>> sampler = CyclicPoissonSampler(
    ...     CyclicPoisson(chance=1.0, parts=3, records=7), SecureStream(purpose="sampling")
    ... )
    >>> [sampler.draw(7).tolist() for _ in range(4)]
    [[0, 3, 6], [1, 4], [2, 5], [0, 3, 6]]

    Reference: Choquette-Choo et al. 2023; docs/proofs/streams.md, lemma 5.
    """

    def __init__(self, policy: CyclicPoisson, stream: SecureStream) -> None:
        self.policy = policy
        self.steps_per_event = policy.steps_per_event
        self._coins = PoissonSampler(policy.chance, stream)
        self._step = 1

    def turn_to(self, step: int) -> None:
        """Let the next draw be that of a step, counted from 1."""
        self._step = _validate.count("step", step)

    def draw(self, n: int) -> npt.NDArray[np.int64]:
        """Return the sorted indices, of ``range(n)``, of the next sample.

        Raises:
            InvalidArgument: If ``n`` is not the number of records that the policy declares.
        """
        require_declared(n, self.policy.records)
        places = range((self._step - 1) % self.policy.parts, n, self.policy.parts)
        self._step += 1
        return places.start + self.policy.parts * self._coins.draw(len(places))
