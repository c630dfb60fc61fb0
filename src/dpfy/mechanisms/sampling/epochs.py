"""Samplers with a memory: every record takes part once in an epoch.

Tests: tests/mechanisms/sampling/test_policies.py.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from dpfy.ledger.events import BallsInBins, Policy, Shuffled
from dpfy.mechanisms.sampling.draws import Indices, integers, order
from dpfy.mechanisms.sampling.fixed import require_declared
from dpfy.noise.random_stream import SecureStream, require_purpose

EpochPolicy = Shuffled | BallsInBins


class EpochSampler:
    """Draws the batches of one epoch after the other by ``policy``.

    *Formal guarantee.* In the ``steps_per_event`` draws of an epoch every record occurs exactly
    once. Shuffled epochs are uniformly random orders, balls in bins are independent uniform
    choices, both without rounding; epochs are independent, and no batch depends on the records.

    *Assumes* that the stream is uniform and made for sampling, and that the number of records is
    public. A new sampler starts a new epoch: a resumed run pays for it anew.

    Args:
        policy: How the records of an epoch are divided into batches.
        stream: The source of randomness, made for the purpose ``"sampling"``.

    Raises:
        InvalidArgument: If the stream was made for another purpose.

    >>> sampler = EpochSampler(Shuffled(batch_size=2, records=5), SecureStream(purpose="sampling"))
    >>> sorted(index for _ in range(sampler.steps_per_event) for index in sampler.draw(5).tolist())
    [0, 1, 2, 3, 4]

    Reference: docs/proofs/sampling.md.
    """

    def __init__(self, policy: EpochPolicy, stream: SecureStream) -> None:
        self.policy = policy
        self.steps_per_event = policy.steps_per_event
        self._stream = require_purpose(stream, "sampling")
        self._batches: list[Indices] = []

    def draw(self, n: int) -> npt.NDArray[np.int64]:
        """Return the sorted indices, of ``range(n)``, of the next batch.

        Raises:
            InvalidArgument: If ``n`` is not the number of records that the policy declares.
        """
        require_declared(n, self.policy.records)
        if not self._batches:
            self._batches = EPOCHS[type(self.policy)](self.policy, self._stream)[::-1]
        return np.sort(self._batches.pop())


def _shuffled(policy: Shuffled, stream: SecureStream) -> list[Indices]:
    """Return the batches of a random order; the last one may be smaller."""
    records, size = order(stream, policy.records), policy.batch_size
    return [records[first : first + size] for first in range(0, len(records), size)]


def _thrown(policy: BallsInBins, stream: SecureStream) -> list[Indices]:
    """Return the batches of an independent uniform choice for each record."""
    chosen = integers(stream, policy.bins, policy.records)
    sizes = np.bincount(chosen, minlength=policy.bins)
    return np.split(np.argsort(chosen, kind="stable"), np.cumsum(sizes)[:-1])


EPOCHS: dict[type[Policy], Callable[..., list[Indices]]] = {
    Shuffled: _shuffled,
    BallsInBins: _thrown,
}
"""The function that draws the batches of an epoch, for each policy."""
