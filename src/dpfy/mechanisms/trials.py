"""Draw the number of runs of a private selection exactly, after the selection was reserved."""

from decimal import Context, Decimal, localcontext

from dpfy.errors import InvalidArgument
from dpfy.ledger.selection import NegativeBinomialTrials, PoissonTrials, Trials
from dpfy.noise.exact_comparison import Expansion
from dpfy.noise.random_stream import SecureStream, require_purpose


def draw_trials(trials: Trials, stream: SecureStream) -> int:
    """Draw a number of runs from its distribution.

    *Formal guarantee*: exact, given uniform bits: a uniform number is compared with sums of
    probabilities in as many digits as it takes, and nothing is rounded on the way to the verdict.

    *Assumes* that the number stays secret; hand it to :class:`~dpfy.ledger.scopes.Selection` and to
    nobody else.

    Args:
        trials: The distribution of the number of runs.
        stream: The source of randomness, made for the purpose ``"sampling"``.

    Returns:
        The number of runs.

    Raises:
        InvalidArgument: If the distribution cannot be drawn from, or the stream has another
            purpose.

    >>> stream = SecureStream(insecure_test_key=1, purpose="sampling")
    >>> draw_trials(NegativeBinomialTrials.with_mean(10.0), stream)
    1
    """
    require_purpose(stream, "sampling")
    uniform = Expansion(0, 0)
    while True:
        uniform.extend(stream)
        found = _try_inverting(trials, uniform)
        if found is not None:
            return found


def _try_inverting(trials: Trials, uniform: Expansion) -> int | None:
    """Return the least k with uniform < Pr[K ≤ k] if the bits at hand decide it."""
    with localcontext(Context(prec=uniform.bits // 3 + 40, Emin=-(10**12), Emax=10**12)) as context:
        low, high = (
            Decimal(uniform.numerator) / 2**uniform.bits,
            Decimal(uniform.numerator + 1) / 2**uniform.bits,
        )
        number, chance = _first(trials)
        total = chance
        while True:
            # Of as many roundings, and of what cancels.
            error = Decimal(10) ** (12 - context.prec) * (number + 10)
            if high <= total - error:
                return number
            if low < total + error:
                return None
            chance *= _ratio(trials, number)
            number += 1
            total += chance


def _first(trials: Trials) -> tuple[int, Decimal]:
    """Return the smallest number of runs and its probability."""
    if isinstance(trials, PoissonTrials):
        return 0, (-Decimal(trials.rate)).exp()
    if isinstance(trials, NegativeBinomialTrials):
        with localcontext() as context:
            context.prec += 30  # of which 22 can cancel: |shape| ≥ 1e-6, success ≤ 1 - 2^-53
            shape, log = Decimal(trials.shape), Decimal(trials.success).ln()
            failure = 1 - Decimal(trials.success)
            return 1, failure * (shape / ((-shape * log).exp() - 1) if shape else -1 / log)
    raise InvalidArgument(
        f"Expected a law of the number of runs that can be drawn from, got {trials.tag!r}."
    )


def _ratio(trials: Trials, number: int) -> Decimal:
    """Return the probability of ``number + 1`` runs over that of ``number`` runs."""
    if isinstance(trials, PoissonTrials):
        return Decimal(trials.rate) / (number + 1)
    assert isinstance(trials, NegativeBinomialTrials)
    return (1 - Decimal(trials.success)) * (number + Decimal(trials.shape)) / (number + 1)
