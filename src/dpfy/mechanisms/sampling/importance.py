"""Importance sampling: records are proposed by what their norms were, and accepted by what they
are.

Norms, guesses and coins are sensitive: they never leave the sampler but as weights of gradients
that are noised.
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
    """Accepts each record with probability rate·min(norm, guess, clip)/clip, at a fixed norm of its
    contribution.

    The guess is ``slack`` times the norm that was learned last. A record is proposed by its guess,
    its gradient is computed, and it is accepted by its norm: in the product of both probabilities
    the guess cancels. A norm counts as at least ``floor`` clip bounds. Whoever is accepted
    contributes its gradient at the norm ``bound``, or less if its norm is below the floor.

    *Formal guarantee.* Given the guesses, coins are independent; the probability that a record
    contributes is at most the rate of ``policy.at(step)``, or of what it was told to follow,
    whatever its gradients are and were; and a contribution has at most the norm ``bound``. Coins
    have 64 bits and are rounded down. Norms that are not finite contribute nothing.

    *Assumes* that the stream is uniform and made for sampling, and that one record more moves
    gradients of at most ``MAX_BLOCK_RECORDS`` others, by 2⁻¹⁹ of their norms or of the floor.

    >>> schedule = ImportanceSchedule(2, 10, (0.5,), 5, slack=2.0, floor=0.1, jitter=2.0**-10)
    >>> sampler = ImportanceSampler(schedule, 1.0, SecureStream(insecure_test_key=1, purpose="sampling"))
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
        self._epoch = math.ceil(
            policy.population / policy.batch_size
        )  # not one pass more for the last few steps
        self._learned_at: int | None = None
        self._guesses = np.empty(0)
        self._coins = np.empty(0, dtype=np.uint64)

    def follow(self, draw: Draw) -> None:
        """Draw by another rate and clip bound from now on; with another clip bound, norms are
        learned after it.
        """
        self._rate, self._clip = draw.rate, draw.clip

    def due(self, step: int) -> bool:
        """Return whether norms have to be learned before a step: at the beginning, and once in an
        epoch.
        """
        return self._learned_at is None or step >= self._learned_at + self._epoch

    def learn(self, step: int, norms: Array) -> None:
        """Take in the present norms of all records, zero of those that have none."""
        shares = np.nan_to_num(norms / self._clip, nan=0.0, posinf=1.0)
        self._guesses = self.policy.slack * np.clip(shares, self.policy.floor, 1.0)
        self._learned_at = step

    def draw(self, step: int, n: int) -> npt.NDArray[np.int64]:
        """Return the sorted indices, of ``range(n)``, of the records that are proposed for a
        step.
        """
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
        """Return what the gradients of proposed records are multiplied by: bound/norm if accepted,
        and otherwise 0.
        """
        finite = np.isfinite(norms)
        shares = np.maximum(np.where(finite, norms / self._clip, 0.0), self.policy.floor)
        accepted = finite & (
            self._coins[indices] < _threshold(self._accepted(step, self._guesses[indices], shares))
        )
        return np.where(accepted, bound / (shares * self._clip), 0.0)

    def _proposed(self, step: int, guesses: Array) -> Array:
        """The probability of a proposal; a guess above the clip bound counts as that, as norms do
        for acceptance.
        """
        return np.minimum(
            self._largest(step) * np.minimum(guesses, 1.0) / (1 - MARGIN), LIKELIEST_PROPOSAL
        )

    def _accepted(self, step: int, guesses: Array, shares: Array) -> Array:
        """The probability of acceptance once proposed: never above 1 − MARGIN, whatever
        saturates.
        """
        counted = np.minimum(np.minimum(shares, guesses), 1.0)
        return _BELOW * self._largest(step) * counted / self._proposed(step, guesses)

    def _largest(self, step: int) -> float:
        """The probability of a record whose norm is at least the clip bound."""
        return self.policy.at(step).rate if self._rate is None else self._rate


def _threshold(probabilities: Array) -> npt.NDArray[np.uint64]:
    """⌊p·2⁶⁴⌋: a uniform word is below it with probability p, rounded down. Every p is below 1."""
    return np.floor(probabilities * 2.0**64).astype(np.uint64)
