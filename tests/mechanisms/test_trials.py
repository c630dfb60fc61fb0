"""The number of runs of a selection has the law that its event says."""

import numpy as np
import pytest
from scipy.special import gammaln
from scipy.stats import chi2

from dpfy.errors import InvalidArgument
from dpfy.ledger.selection import NegativeBinomialTrials, PoissonTrials
from dpfy.mechanisms.trials import draw_trials
from dpfy.noise.random_stream import SecureStream

DRAWS = 6000
_THRESHOLD = 1e-7  # false alarms


def probabilities(trials, count=8000):
    k = np.arange(count)
    if isinstance(trials, PoissonTrials):
        log = k * np.log(trials.rate) - trials.rate - gammaln(k + 1)
        return np.exp(log)
    log = k[1:] * np.log1p(-trials.success) + gammaln(k[1:] + trials.shape) - gammaln(k[1:] + 1)
    mass = np.concatenate(([0.0], np.exp(log)))
    return mass / mass.sum()


def p_value(draws, trials):
    """Pearson's test over cells of at least 20 expected draws."""
    expected = probabilities(trials) * len(draws)
    cell = np.floor(np.cumsum(expected) / 20).astype(int)
    wanted = np.bincount(cell, weights=expected)
    seen = np.bincount(cell[np.minimum(draws, len(cell) - 1)], minlength=len(wanted))
    wanted, seen = wanted[wanted > 0], seen[wanted > 0]
    return chi2.sf(((seen - wanted) ** 2 / wanted).sum(), len(wanted) - 1)


@pytest.mark.parametrize(
    "trials",
    [
        NegativeBinomialTrials.with_mean(8.0, 0.0),
        NegativeBinomialTrials.with_mean(8.0, 1.0),
        NegativeBinomialTrials.with_mean(2.0, -0.5),
        PoissonTrials(8.0),
    ],
    ids=str,
)
def test_law_of_the_number_of_runs(trials):
    """Accepts the law, and rejects those with two thirds and three halves of its mean."""
    stream = SecureStream(insecure_test_key=3, purpose="sampling")
    draws = np.array([draw_trials(trials, stream) for _ in range(DRAWS)])
    assert p_value(draws, trials) > _THRESHOLD
    for factor in (2 / 3, 3 / 2):
        other = (
            PoissonTrials(trials.rate * factor)
            if isinstance(trials, PoissonTrials)
            else NegativeBinomialTrials.with_mean(trials.mean * factor, trials.shape)
        )
        assert p_value(draws, other) < _THRESHOLD


def test_large_means_and_rare_numbers_are_drawn():
    stream = SecureStream(insecure_test_key=4, purpose="sampling")
    assert 700 < draw_trials(PoissonTrials(1000.0), stream) < 1300
    assert draw_trials(PoissonTrials(1e-9), stream) == 0


def test_noise_words_are_not_taken():
    with pytest.raises(InvalidArgument, match="purpose"):
        draw_trials(PoissonTrials(1.0), SecureStream(insecure_test_key=3))
