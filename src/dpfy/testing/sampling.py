"""Conformance of samplers: samples have the distribution of the policy that the sampler names.

Tests: tests/mechanisms/sampling/test_policies.py.
"""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy import stats

from dpfy.errors import InvalidArgument
from dpfy.ledger.events import (
    BallsInBins,
    Cyclic,
    CyclicPoisson,
    FixedSize,
    Poisson,
    Policy,
    Shuffled,
    TruncatedPoisson,
)
from dpfy.ledger.individual import Individual
from dpfy.mechanisms.sampling import Sampler
from dpfy.noise.random_stream import SecureStream

_RECORDS, _EVENTS = 1000, 2000
_LEVEL = 2e-8  # of one statistical check; there are fewer than fifty of them
_EXPECTED = 25  # in each cell of a goodness-of-fit test, at least

Array = npt.NDArray[np.float64]
MakeSampler = Callable[[SecureStream], Sampler]


def check_sampler(make_sampler: MakeSampler, numbers: npt.NDArray[np.int64] | None = None) -> None:
    """Raise ``AssertionError`` unless a sampler draws what its own policy says.

    The streams have fixed test keys, so the outcome is the same on every run; over the choice of
    keys a correct sampler fails with probability below 1e-6. Rates between 0.02 and 0.9 that are
    wrong by 5 % are always noticed. Policies that declare the number of records are best judged
    with a few hundred.

    Args:
        make_sampler: A function from a secret stream to a sampler.
        numbers: For a policy that has groups of records, the number of each record's group, or -1.
            Best are a few hundred records, with two of different groups next to each other.

    >>> from dpfy.mechanisms.sampling import PoissonSampler
    >>> check_sampler(lambda stream: PoissonSampler(0.05, stream))
    """
    sampler, fresh = (
        make_sampler(SecureStream(insecure_test_key=1, purpose="sampling")) for _ in range(2)
    )
    policy = sampler.policy
    assert Policy.from_json(policy.to_json()) == policy, (
        f"the policy {policy} does not survive its JSON round trip"
    )
    known = numbers is not None if isinstance(policy, Individual) else type(policy) in _LAWS
    assert known, f"dpfy.testing knows no law for {type(policy).__name__} without its groups"
    assert sampler.steps_per_event == policy.steps_per_event, (
        "the sampler and its policy differ in steps per event"
    )
    declared = getattr(policy, "records", None) if numbers is None else len(numbers)
    for n in (0, 1, 7, 100_000) if declared is None else (declared,):
        _check_indices(sampler.draw(n), n)
    if declared is not None:
        _check_declared(sampler, declared)
    _check_generator(sampler, 100 if declared is None else declared)
    history = _history(fresh, _RECORDS if declared is None else declared)
    if isinstance(policy, Individual) and numbers is not None:
        _check_individual(history, policy, numbers)
    else:
        _LAWS[type(policy)](history, policy)


def _check_indices(drawn: npt.NDArray[np.int64], n: int) -> None:
    assert drawn.dtype == np.int64 and drawn.ndim == 1, (
        f"expected a vector of int64 indices, got {drawn.dtype}"
    )
    assert bool((np.diff(drawn) > 0).all()), "expected sorted indices without repetition"
    assert len(drawn) == 0 or (drawn[0] >= 0 and drawn[-1] < n), f"expected indices below n={n}"


def _check_declared(sampler: Sampler, records: int) -> None:
    """Check that another number of records than declared is refused, and not told."""
    actual = 10 * records + 1
    try:
        sampler.draw(actual)
    except InvalidArgument as error:
        assert str(actual) not in str(error), "the refusal tells the number of records"
    else:
        raise AssertionError(
            f"the sampler draws from {actual} records where its policy declares {records}"
        )


def _check_generator(sampler: Sampler, n: int) -> None:
    before = str(np.random.get_state(legacy=False))
    sampler.draw(n)
    assert before == str(np.random.get_state(legacy=False)), (
        "the sampler draws from numpy's generator"
    )


def _history(sampler: Sampler, n: int) -> Array:
    """Return which record took part in which step, for this number of events."""
    taken = np.zeros((_EVENTS * sampler.steps_per_event, n))
    for row in taken:
        drawn = sampler.draw(n)
        _check_indices(drawn, n)
        row[drawn] = 1
    return taken


def _check_poisson(taken: Array, policy: Poisson) -> None:
    rate, (steps, records) = policy.rate, taken.shape
    if rate in (0, 1):
        assert bool((taken == rate).all()), (
            f"rate={rate} must include {'every' if rate else 'no'} record"
        )
        return
    total = stats.binomtest(int(taken.sum()), taken.size, rate)
    assert total.pvalue > _LEVEL, (
        f"records are included at rate {taken.mean():.5f} instead of {rate}"
    )
    _check_dispersion(taken.sum(axis=1), records, rate, "sizes of the samples")
    _check_dispersion(taken.sum(axis=0), steps, rate, "numbers of times that records took part")
    centred = (taken - rate) / math.sqrt(rate * (1 - rate))
    for lag in (1, 2, steps // 2):
        _check_uncorrelated(centred[:-lag], centred[lag:], f"steps {lag} apart")
    for lag in (1, 2, records // 2):
        _check_uncorrelated(centred[:, :-lag], centred[:, lag:], f"records {lag} apart")


def _check_cyclic_poisson(taken: Array, policy: CyclicPoisson) -> None:
    """Check each part by itself in the steps in which it has its turn; else it is in none."""
    for part in range(policy.parts):
        turns = taken[part :: policy.parts, part :: policy.parts]
        assert taken[:, part :: policy.parts].sum() == turns.sum(), (
            f"records of part {part} of {policy.parts} are in a step of another part"
        )
        _check_poisson(turns, Poisson(policy.chance))


def _check_individual(taken: Array, policy: Individual, numbers: npt.NDArray[np.int64]) -> None:
    """Check that every group has Poisson samples of its own rate, independent of the others'."""
    assert not taken[:, numbers < 0].any(), "records of no group take part"
    for group, (name, rate) in enumerate(zip(policy.names, policy.rates, strict=True)):
        try:
            _check_poisson(taken[:, numbers == group], Poisson(rate))
        except AssertionError as error:
            raise AssertionError(f"in group {name!r}: {error}") from None
    rates = np.array([*policy.rates, 0.0])[numbers]
    tossed = (rates > 0) & (rates < 1)
    centred = (taken - rates)[:, tossed] / np.sqrt(rates * (1 - rates))[tossed]
    for lag in (1, 2, centred.shape[1] // 2):
        _check_uncorrelated(centred[:, :-lag], centred[:, lag:], f"records {lag} apart")


def _check_fixed_size(taken: Array, policy: FixedSize) -> None:
    assert bool((taken.sum(axis=1) == policy.size).all()), (
        f"not all samples have {policy.size} records"
    )
    _check_uniform_subsets(taken)


def _check_truncated(taken: Array, policy: TruncatedPoisson) -> None:
    """Check sizes of truncated Poisson samples; given these, all sets are equally likely."""
    sizes = taken.sum(axis=1).astype(int)
    assert sizes.max() <= policy.capacity, f"a sample has more than {policy.capacity} records"
    chance = stats.binom.pmf(np.arange(policy.capacity + 1), policy.records, policy.rate)
    chance[-1] = stats.binom.sf(policy.capacity - 1, policy.records, policy.rate)
    _check_frequencies(np.bincount(sizes, minlength=len(chance)), chance, "sizes of the samples")
    _check_uniform_subsets(taken)


def _check_shuffled(taken: Array, policy: Shuffled) -> None:
    """Check that first, middle and last batches of many epochs are fresh samples of fixed size."""
    epochs = _check_epochs(taken, policy)
    ends = np.minimum(np.arange(1, policy.steps_per_event + 1) * policy.batch_size, policy.records)
    assert bool((epochs.sum(axis=2) == np.diff(ends, prepend=0)).all()), (
        "batches have other sizes than declared"
    )
    for batch in {0, policy.steps_per_event // 2, policy.steps_per_event - 1}:
        _check_uniform_subsets(epochs[:, batch])


def _check_cyclic(taken: Array, policy: Cyclic) -> None:
    epochs = _check_epochs(taken, policy)
    batch = epochs.argmax(axis=1)
    assert bool((batch == np.arange(policy.records) // policy.batch_size).all()), (
        "batches are not cut in order"
    )


def _check_balls_in_bins(taken: Array, policy: BallsInBins) -> None:
    epochs = _check_epochs(taken, policy)
    chosen = epochs.argmax(axis=1)
    if policy.bins == 1:
        return
    rate = policy.rate
    _check_frequencies(
        np.bincount(chosen.ravel(), minlength=policy.bins), np.full(policy.bins, rate), "batches"
    )
    for batch in {0, policy.bins - 1}:
        _check_dispersion(
            epochs[:, batch].sum(axis=1), policy.records, rate, f"sizes of batch {batch}"
        )
        _check_dispersion(
            epochs[:, batch].sum(axis=0), len(epochs), rate, f"numbers of times in batch {batch}"
        )
    half = policy.records // 2
    for first, second, what in (
        (chosen[:-1], chosen[1:], "epochs 1 apart"),
        (chosen[:, : 2 * half : 2], chosen[:, 1 : 2 * half : 2], "records 1 apart"),
        (chosen[:, :half], chosen[:, half : 2 * half], f"records {half} apart"),
    ):
        same = stats.binomtest(int((first == second).sum()), first.size, rate)
        assert same.pvalue > _LEVEL, f"the batches of {what} are correlated"


def _check_epochs(taken: Array, policy: Shuffled | Cyclic | BallsInBins) -> Array:
    """Return the history by epoch, batch and record; each record must be once in each epoch."""
    epochs = taken.reshape(-1, policy.steps_per_event, policy.records)
    assert bool((epochs.sum(axis=1) == 1).all()), (
        "not every record takes part exactly once in every epoch"
    )
    return epochs


def _check_uniform_subsets(taken: Array) -> None:
    """Check that samples are independent and, given their sizes, uniform.

    The number of records that a sample shares with a fixed set, or with another sample, is then
    hypergeometric.
    """
    taken = taken[(taken.sum(axis=1) > 0) & (taken.sum(axis=1) < taken.shape[1])]
    if not len(taken):
        return
    sizes, n = taken.sum(axis=1), taken.shape[1]
    variance = float((sizes / n * (1 - sizes / n)).sum())
    square = float(((taken.sum(axis=0) - sizes.sum() / n) ** 2).sum() / variance * (n - 1) / n)
    _check_square(square, n - 1, "numbers of times that records took part")
    place = np.arange(n)
    for what, marked in (
        ("the first half", place < n // 2),
        ("every other record", place % 2 == 0),
        ("two of every four records", place % 4 < 2),
    ):
        _check_hypergeometric(
            taken[:, marked].sum(axis=1), n, np.full(len(taken), marked.sum()), sizes, what
        )
    for lag in (1, 2):
        _check_hypergeometric(
            (taken[:-lag] * taken[lag:]).sum(axis=1),
            n,
            sizes[:-lag],
            sizes[lag:],
            f"the sample {lag} earlier",
        )


def _check_hypergeometric(found: Array, n: int, marked: Array, sizes: Array, what: str) -> None:
    """Compare mean and spread of the number of marked records in samples, on both sides."""
    mean, variance, peak = stats.hypergeom.stats(
        n, marked.astype(int), sizes.astype(int), moments="mvk"
    )
    usable = variance > 0
    scores = ((found - mean)[usable]) / np.sqrt(variance[usable])
    drift = float(scores.sum() / math.sqrt(len(scores)))
    assert 2 * stats.norm.sf(abs(drift)) > _LEVEL, (
        f"samples and {what} share too many or few (score {drift:.1f})"
    )
    room = float((2 + peak[usable]).sum())
    # a fair coin has but one distance
    spread = float((scores**2 - 1).sum() / math.sqrt(room)) if room > 1e-6 else 0.0
    assert 2 * stats.norm.sf(abs(spread)) > _LEVEL, (
        f"what samples share with {what} spreads wrongly ({spread:.1f})"
    )


def _check_frequencies(counts: npt.NDArray[np.int64], chance: Array, what: str) -> None:
    """Compare counts with their chances, rare cells merged."""
    total, cells, pooled = counts.sum(), [], np.zeros(2)
    for count, expected in sorted(
        zip(counts.tolist(), (total * chance).tolist(), strict=True), key=lambda x: -x[1]
    ):
        if expected >= _EXPECTED:
            cells.append((count, expected))
        else:
            pooled += count, expected
    if pooled[1] >= 1:
        cells.append((pooled[0], pooled[1]))
    seen, due = np.array(cells).T
    square = float(((seen - due) ** 2 / due).sum())
    assert stats.chi2.sf(square, max(len(cells) - 1, 1)) > _LEVEL, (
        f"the {what} have other frequencies than declared"
    )


def _check_dispersion(counts: Array, trials: int, rate: float, what: str) -> None:
    """Compare the spread of counts with that of Binomial(trials, rate), on both sides."""
    _check_square(
        float(((counts - trials * rate) ** 2).sum() / (trials * rate * (1 - rate))),
        len(counts),
        what,
    )


def _check_square(square: float, freedom: int, what: str) -> None:
    tail = 2 * min(stats.chi2.cdf(square, freedom), stats.chi2.sf(square, freedom))
    assert tail > _LEVEL, (
        f"the {what} spread {square / freedom:.3f} times as much as independent coins"
    )


def _check_uncorrelated(a: Array, b: Array, what: str) -> None:
    score = float((a * b).sum() / math.sqrt(a.size))
    assert 2 * stats.norm.sf(abs(score)) > _LEVEL, (
        f"inclusion at {what} is correlated (score {score:.1f})"
    )


_LAWS: dict[type[Policy], Callable[..., None]] = {
    Poisson: _check_poisson,
    FixedSize: _check_fixed_size,
    TruncatedPoisson: _check_truncated,
    Shuffled: _check_shuffled,
    Cyclic: _check_cyclic,
    CyclicPoisson: _check_cyclic_poisson,
    BallsInBins: _check_balls_in_bins,
}
