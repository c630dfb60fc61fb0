"""Samples of a fixed size, or of a bounded one; their law contains the number of records.

Tests: tests/mechanisms/sampling/test_policies.py.
"""

import numpy as np
import numpy.typing as npt

from dpfy import _validate
from dpfy.errors import InvalidArgument
from dpfy.ledger.events import FixedSize, TruncatedPoisson
from dpfy.mechanisms.sampling.draws import subset
from dpfy.mechanisms.sampling.poisson import PoissonSampler
from dpfy.noise.random_stream import SecureStream, require_purpose


class FixedSizeSampler:
    """Draws a uniformly random set of exactly ``policy.size`` records for every step.

    *Formal guarantee.* All sets of that size are equally likely, without any rounding, and draws
    are independent.

    *Assumes* that the stream is uniform and made for sampling, and that the number of records is
    public.

    Args:
        policy: The size of a sample and the number of records.
        stream: The source of randomness, made for the purpose ``"sampling"``.

    Raises:
        InvalidArgument: If the stream was made for another purpose.

    >>> stream = SecureStream(insecure_test_key=1, purpose="sampling")
    >>> sampler = FixedSizeSampler(FixedSize(size=3, records=20), stream)
    >>> len(sampler.draw(20))
    3

    Reference: docs/proofs/sampling.md.
    """

    def __init__(self, policy: FixedSize, stream: SecureStream) -> None:
        self.policy = policy
        self.steps_per_event = policy.steps_per_event
        self._stream = require_purpose(stream, "sampling")

    def draw(self, n: int) -> npt.NDArray[np.int64]:
        """Return the sorted indices, of ``range(n)``, of a fresh sample.

        Raises:
            InvalidArgument: If ``n`` is not the number of records that the policy declares.
        """
        require_declared(n, self.policy.records)
        return subset(self._stream, self.policy.size, n)


class TruncatedPoissonSampler:
    """Includes each record with probability ``policy.rate``, up to ``policy.capacity`` records.

    *Formal guarantee.* The sample is an exact Poisson sample, of which a uniformly random set of
    ``capacity`` is kept if it is larger. Whether that happened is never told.

    *Assumes* that the stream is uniform and made for sampling, and that the number of records is
    public.

    Args:
        policy: The rate, the largest size of a sample and the number of records.
        stream: The source of randomness, made for the purpose ``"sampling"``.

    Raises:
        InvalidArgument: If the stream was made for another purpose.

    >>> policy = TruncatedPoisson(rate=0.5, capacity=4, records=20)
    >>> stream = SecureStream(insecure_test_key=1, purpose="sampling")
    >>> len(TruncatedPoissonSampler(policy, stream).draw(20))
    4

    Reference: Chua et al. 2024 (Scalable DP-SGD); docs/proofs/sampling.md.
    """

    def __init__(self, policy: TruncatedPoisson, stream: SecureStream) -> None:
        self.policy = policy
        self.steps_per_event = policy.steps_per_event
        self._stream = require_purpose(stream, "sampling")
        self._poisson = PoissonSampler(policy.rate, stream)

    def draw(self, n: int) -> npt.NDArray[np.int64]:
        """Return the sorted indices, of ``range(n)``, of a fresh sample.

        Raises:
            InvalidArgument: If ``n`` is not the number of records that the policy declares.
        """
        require_declared(n, self.policy.records)
        drawn = self._poisson.draw(n)
        if len(drawn) <= self.policy.capacity:
            return drawn
        return drawn[subset(self._stream, self.policy.capacity, len(drawn))]


def require_declared(n: int, records: int) -> None:
    """Refuse any other number of records than the declared one, without telling which it is."""
    _validate.count("n", n, minimum=0)
    if n != records:
        raise InvalidArgument(
            f"The policy declares records={records}, and its law holds for that number only; there "
            "are not as many. Declare the true number, which is then public, or sample by "
            "Poisson, whose law does not contain it."
        )
