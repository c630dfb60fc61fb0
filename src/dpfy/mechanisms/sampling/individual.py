"""Poisson sampling in which each group of records has a rate of its own."""

import numpy as np
import numpy.typing as npt

from dpfy.errors import InvalidArgument
from dpfy.ledger.individual import Individual
from dpfy.mechanisms.sampling.poisson import PoissonSampler
from dpfy.noise.random_stream import SecureStream


class IndividualSampler:
    """Includes each record independently with probability exactly the rate of its group.

    *Formal guarantee.* Each record has a coin of its own, as in
    :class:`~dpfy.mechanisms.sampling.PoissonSampler`, whose probability is the float64 rate of the
    record's group; a record of no group is never drawn. For a record of group g, given all others,
    a draw is a Poisson sample of ``policy.rates[g]``.

    *Assumes* what :class:`~dpfy.mechanisms.sampling.PoissonSampler` does, and that the group of a
    record depends on no other record.

    Args:
        policy: The groups and their rates.
        numbers: The position in ``policy.names`` of the group of each record, or -1 for a record of
            no group.
        stream: The source of randomness, made for the purpose ``"sampling"``.

    Raises:
        InvalidArgument: If a number is no group's, or the stream has another purpose.

    >>> policy = Individual(("few", "all"), (0.1, 1.0), (1.0, 1.0), (0.5, 0.5))
    >>> stream = SecureStream(insecure_test_key=1, purpose="sampling")
    >>> IndividualSampler(policy, np.array([0, 1, -1, 1, 0]), stream).draw(5)
    array([1, 3])

    Reference: Boenisch, Mühl, Dziedzic, Rinberg & Papernot 2023, Algorithm 2;
    docs/proofs/individual.md.
    """

    def __init__(
        self, policy: Individual, numbers: npt.NDArray[np.int64], stream: SecureStream
    ) -> None:
        groups = len(policy.names)
        if numbers.ndim != 1 or bool(((numbers < -1) | (numbers >= groups)).any()):
            raise InvalidArgument(
                f"Expected one number from -1 to {groups - 1} for each record: the position of its "
                "group in the policy, or -1 for none."
            )
        self._policy, self._records = policy, len(numbers)
        self._members = [np.flatnonzero(numbers == group) for group in range(groups)]
        self._samplers = [PoissonSampler(rate, stream) for rate in policy.rates]

    @property
    def policy(self) -> Individual:
        """The policy that the draws may be accounted as."""
        return self._policy

    @property
    def steps_per_event(self) -> int:
        """One: the sampler has no memory."""
        return self._policy.steps_per_event

    def draw(self, n: int) -> npt.NDArray[np.int64]:
        """Return the sorted indices, of ``range(n)``, of a fresh sample."""
        if n != self._records:
            raise InvalidArgument(
                "Expected as many records as have a group. Make the sampler of this data set."
            )
        drawn = [
            members[sampler.draw(len(members))]
            for members, sampler in zip(self._members, self._samplers, strict=True)
        ]
        return np.sort(np.concatenate(drawn))
