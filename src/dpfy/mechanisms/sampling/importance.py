"""Importance sampling: records are proposed by their last known norm, accepted by the present one.

Norms, guesses and coins are sensitive: they leave the sampler only as weights of gradients, whose
sum is noised.
"""

import math

import numpy as np
import numpy.typing as npt

from dpfy.errors import InvalidArgument
from dpfy.ledger.events import ImportanceSchedule
from dpfy.mechanisms.controllers import Draw
from dpfy.mechanisms.importance_bounds import LIKELIEST_PROPOSAL, MARGIN
from dpfy.noise.random_stream import SecureStream, require_purpose

_BELOW = 1 - 2.0**-40  # more than the roundings of a probability

Array = npt.NDArray[np.float64]


class ImportanceSampler:
    """Accepts each record with probability rate·min(norm, guess, clip)/clip.

    The guess is ``slack`` times the norm that was learned last. A record is proposed by its guess,
    its gradient is computed, and it is accepted by its norm: in the product of both probabilities
    the guess cancels. A norm counts as at least ``floor`` clip bounds. An accepted record
    contributes its gradient at the norm ``bound``, or less if its norm is below the floor.

    *Formal guarantee.* Given the guesses, coins are independent; the probability that a record
    contributes is at most the rate of ``policy.at(step)``, or of what it was told to follow,
    whatever its gradients are and were; and a contribution has at most the norm ``bound``. Coins
    have 64 bits and are rounded down. Norms that are not finite contribute nothing.

    *Assumes* that the stream is uniform and made for sampling, and that adding a record moves the
    gradients of at most ``MAX_BLOCK_RECORDS`` others, by 2⁻¹⁹ of their norms or of the floor.

    Args:
        policy: The batch size, the ratios, the slack and the floor.
        clip: The clip bound, above zero.
        stream: The source of randomness, made for the purpose ``"sampling"``.

    Raises:
        InvalidArgument: If the stream was made for another purpose.

    >>> schedule = ImportanceSchedule(2, 10, (0.5,), 5, slack=2.0, floor=0.1, jitter=2.0**-10)
    >>> stream = SecureStream(insecure_test_key=1, purpose="sampling")
    >>> sampler = ImportanceSampler(schedule, 1.0, stream)
    >>> sampler.learn(1, np.linspace(0, 1, 10))
    >>> proposed = sampler.draw(1, 10)
    >>> sampler.weights(1, proposed, np.ones(len(proposed)), bound=0.5)
    array([0.5, 0.5, 0.5])

    Reference: J. Wei et al., DPIS, 2022, with acceptance that does not saturate;
    docs/proofs/dpis.md.
    """

    def __init__(self, policy: ImportanceSchedule, clip: float, stream: SecureStream) -> None:
        self.policy = policy
        self.steps_per_event = policy.steps_per_event
        self._clip = clip
        self._rate: float | None = None
        self._stream = require_purpose(stream, "sampling")
        # Rounded up, so that the last few steps do not take another pass over the data.
        self._epoch = math.ceil(policy.population / policy.batch_size)
        self._learned_at: int | None = None
        self._guesses = np.empty(0)
        self._coins = np.empty(0, dtype=np.uint64)

    def follow(self, draw: Draw) -> None:
        """Draw by another rate and clip bound from now on.

        After another clip bound, the norms have to be learned again.
        """
        self._rate, self._clip = draw.rate, draw.clip

    def due(self, step: int) -> bool:
        """Return whether norms have to be learned before a step: first, and once an epoch."""
        return self._learned_at is None or step >= self._learned_at + self._epoch

    def learn(self, step: int, norms: Array) -> None:
        """Learn the present norms of all records; a record that has none counts as zero."""
        shares = np.nan_to_num(norms / self._clip, nan=0.0, posinf=1.0)
        self._guesses = self.policy.slack * np.clip(shares, self.policy.floor, 1.0)
        self._learned_at = step

    def draw(self, step: int, n: int) -> npt.NDArray[np.int64]:
        """Return the sorted indices, of ``range(n)``, of the records proposed for a step."""
        if len(self._guesses) != n:
            raise InvalidArgument(
                "Expected the norms of all records to be learned before a step is drawn."
            )
        proposed = np.flatnonzero(
            self._stream.words(n) < _threshold(self._proposed(step, self._guesses))
        )
        self._coins = np.zeros(n, dtype=np.uint64)
        self._coins[proposed] = self._stream.words(len(proposed))
        return proposed.astype(np.int64, copy=False)

    def weights(
        self, step: int, indices: npt.NDArray[np.int64], norms: Array, bound: float
    ) -> Array:
        """Return the weights of proposed records: bound/norm if accepted, otherwise 0."""
        finite = np.isfinite(norms)
        shares = np.maximum(np.where(finite, norms / self._clip, 0.0), self.policy.floor)
        accepted = finite & (
            self._coins[indices] < _threshold(self._accepted(step, self._guesses[indices], shares))
        )
        return np.where(accepted, bound / (shares * self._clip), 0.0)

    def _proposed(self, step: int, guesses: Array) -> Array:
        """Return the probabilities of proposals.

        A guess above the clip bound counts as the clip bound, as norms do for acceptance.
        """
        return np.minimum(
            self._largest(step) * np.minimum(guesses, 1.0) / (1 - MARGIN), LIKELIEST_PROPOSAL
        )

    def _accepted(self, step: int, guesses: Array, shares: Array) -> Array:
        """Return the probabilities of acceptance once proposed, which never exceed 1 − MARGIN."""
        counted = np.minimum(np.minimum(shares, guesses), 1.0)
        return _BELOW * self._largest(step) * counted / self._proposed(step, guesses)

    def _largest(self, step: int) -> float:
        """Return the probability of a record whose norm is at least the clip bound."""
        return self.policy.at(step).rate if self._rate is None else self._rate


def _threshold(probabilities: Array) -> npt.NDArray[np.uint64]:
    """Return ⌊p·2⁶⁴⌋ for p < 1: a uniform word is below it with probability p, rounded down."""
    return np.floor(probabilities * 2.0**64).astype(np.uint64)
