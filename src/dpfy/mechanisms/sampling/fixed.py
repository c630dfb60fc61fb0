"""Samples whose law contains the number of records: of a fixed size, or of one that is not
exceeded.
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

    >>> sampler = FixedSizeSampler(FixedSize(size=3, records=20), SecureStream(insecure_test_key=1, purpose="sampling"))
    >>> len(sampler.draw(20))
    3

    Reference: docs/proofs/sampling.md.
    """

    def __init__(self, policy: FixedSize, stream: SecureStream) -> None:
        self.policy = policy
        self.steps_per_event = policy.steps_per_event
        self._stream = require_purpose(stream, "sampling")

    def draw(self, n: int) -> npt.NDArray[np.int64]:
        """Return the sorted indices, of ``range(n)``, of a fresh sample; ``n`` must be what the
        policy declares.
        """
        require_declared(n, self.policy.records)
        return subset(self._stream, self.policy.size, n)


class TruncatedPoissonSampler:
    """Includes each record independently with probability ``policy.rate``, but never more than
    ``policy.capacity``.

    *Formal guarantee.* The sample is an exact Poisson sample, of which a uniformly random set of
    ``capacity`` is kept if it is larger. Whether that happened is never told.

    *Assumes* that the stream is uniform and made for sampling, and that the number of records is
    public.

    >>> policy = TruncatedPoisson(rate=0.5, capacity=4, records=20)
    >>> len(TruncatedPoissonSampler(policy, SecureStream(insecure_test_key=1, purpose="sampling")).draw(20))
    4

    Reference: Chua et al. 2024 (Scalable DP-SGD); docs/proofs/sampling.md.
    """

    def __init__(self, policy: TruncatedPoisson, stream: SecureStream) -> None:
        self.policy = policy
        self.steps_per_event = policy.steps_per_event
        self._stream = require_purpose(stream, "sampling")
        self._poisson = PoissonSampler(policy.rate, stream)

    def draw(self, n: int) -> npt.NDArray[np.int64]:
        """Return the sorted indices, of ``range(n)``, of a fresh sample; ``n`` must be what the
        policy declares.
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
