"""Conformance of samplers: what is drawn has the law of the policy that the sampler names."""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy import stats

from dpfy.ledger.events import Poisson, Policy
from dpfy.mechanisms.noise.randomness import SecureStream
from dpfy.mechanisms.sampling import Sampler

_RECORDS, _STEPS = 1000, 2000
_LEVEL = 5e-8  # of one statistical check; there are fewer than twenty of them

MakeSampler = Callable[[SecureStream], Sampler]


def check_sampler(make_sampler: MakeSampler) -> None:
    """Raise ``AssertionError`` unless ``make_sampler(stream)`` draws what its own policy says.

    The streams have fixed test keys, so the outcome is the same on every run; over the choice of keys a correct
    sampler fails with probability below 1e-6. Rates between 0.02 and 0.9 that are wrong by 5 % are always noticed.

    >>> from dpfy.mechanisms.sampling import PoissonSampler
    >>> check_sampler(lambda stream: PoissonSampler(0.05, stream))
    """
    sampler = make_sampler(SecureStream(insecure_test_key=1, purpose="sampling"))
    policy = sampler.policy
    assert Policy.from_json(policy.to_json()) == policy, f"the policy {policy} does not survive its JSON round trip"
    for n in (0, 1, 7, 100_000):
        _check_indices(sampler.draw(n), n)
    assert type(policy) in _LAWS, f"dpfy.testing knows no law for {type(policy).__name__}"
    _check_generator(sampler)
    _LAWS[type(policy)](_history(sampler), policy)


def _check_indices(drawn: npt.NDArray[np.int64], n: int) -> None:
    assert drawn.dtype == np.int64 and drawn.ndim == 1, f"expected a vector of int64 indices, got {drawn.dtype}"
    assert bool((np.diff(drawn) > 0).all()), "expected sorted indices without repetition"
    assert len(drawn) == 0 or (drawn[0] >= 0 and drawn[-1] < n), f"expected indices below n={n}"


def _check_generator(sampler: Sampler) -> None:
    before = str(np.random.get_state(legacy=False))
    sampler.draw(100)
    assert before == str(np.random.get_state(legacy=False)), "the sampler draws from numpy's generator"


def _history(sampler: Sampler) -> npt.NDArray[np.float64]:
    """Return which record took part in which step."""
    taken = np.zeros((_STEPS, _RECORDS))
    for row in taken:
        drawn = sampler.draw(_RECORDS)
        _check_indices(drawn, _RECORDS)
        row[drawn] = 1
    return taken


def _check_poisson(taken: npt.NDArray[np.float64], policy: Poisson) -> None:
    rate = policy.rate
    if rate in (0, 1):
        assert bool((taken == rate).all()), f"rate={rate} must include {'every' if rate else 'no'} record"
        return
    total = stats.binomtest(int(taken.sum()), taken.size, rate)
    assert total.pvalue > _LEVEL, f"records are included at rate {taken.mean():.5f} instead of {rate}"
    _check_dispersion(taken.sum(axis=1), _RECORDS, rate, "sizes of the samples")
    _check_dispersion(taken.sum(axis=0), _STEPS, rate, "numbers of times that records took part")
    centred = (taken - rate) / math.sqrt(rate * (1 - rate))
    for lag in (1, 2, _STEPS // 2):
        _check_uncorrelated(centred[:-lag], centred[lag:], f"steps {lag} apart")
    for lag in (1, 2, _RECORDS // 2):
        _check_uncorrelated(centred[:, :-lag], centred[:, lag:], f"records {lag} apart")


def _check_dispersion(counts: npt.NDArray[np.float64], trials: int, rate: float, what: str) -> None:
    """Compare the spread of counts with that of Binomial(trials, rate), on both sides."""
    square = float(((counts - trials * rate) ** 2).sum() / (trials * rate * (1 - rate)))
    tail = 2 * min(stats.chi2.cdf(square, len(counts)), stats.chi2.sf(square, len(counts)))
    assert tail > _LEVEL, f"the {what} spread {square / len(counts):.3f} times as much as independent coins"


def _check_uncorrelated(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64], what: str) -> None:
    score = float((a * b).sum() / math.sqrt(a.size))
    assert 2 * stats.norm.sf(abs(score)) > _LEVEL, f"inclusion at {what} is correlated (score {score:.1f})"


_LAWS: dict[type[Policy], Callable[..., None]] = {Poisson: _check_poisson}
