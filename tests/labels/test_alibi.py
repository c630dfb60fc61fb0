"""Laplace noise on labels has its scale and no other, and a label moves two numbers by one."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from scipy.stats import chi2

from dpfy import Ledger, account
from dpfy.errors import InvalidArgument
from dpfy.labels import Alibi, NoisyOneHot
from dpfy.labels.alibi import _STEPS
from dpfy.noise import SecureStream

LABELS = st.one_of(st.integers(-2, 5), st.floats(), st.none(), st.text(max_size=1))


def noisy(y, classes=4, epsilon=1.0, key=7):
    return Alibi(classes, epsilon).noisy(y, SecureStream(insecure_test_key=key))


@given(st.lists(LABELS, min_size=1, max_size=6), LABELS, st.data())
@settings(deadline=None, max_examples=40)
def test_another_label_moves_two_numbers_of_its_record_by_one(y, other, data):
    place = data.draw(st.integers(0, len(y) - 1))
    changed = [*y[:place], other, *y[place + 1 :]]
    moved = (noisy(y) - noisy(changed)).abs()  # the same key: the same noise
    assert moved.sum() in (0.0, 2.0) and moved.max() <= 1
    assert moved[[i for i in range(len(y)) if i != place]].sum() == 0


@pytest.mark.parametrize("factor", [1.0, 2 / 3, 1.5])
@pytest.mark.parametrize("epsilon", [0.5, 4.0])
def test_noise_has_its_scale_and_no_other(factor, epsilon):
    """A χ² test at 1e-7 of 16 equally likely cells of a real Laplace number of scale 2/ε."""
    values = noisy([1] * 4000, epsilon=epsilon, key=3).numpy()
    noise = values - np.eye(4)[1]
    scale = factor * 2 / epsilon
    tail = np.exp(-np.abs(noise) / scale) / 2
    seen = np.histogram(np.where(noise < 0, tail, 1 - tail), np.linspace(0, 1, 17))[0]
    statistic = ((seen - noise.size / 16) ** 2 / (noise.size / 16)).sum()
    assert (chi2.sf(statistic, 15) > 1e-7) == (factor == 1.0)


@pytest.mark.parametrize("epsilon", [0.01, 0.3, 1.0, 3.7, 50.0])
def test_the_law_of_a_vector_changes_by_at_most_its_epsilon(epsilon):
    """All cells near 0 and 1 of both numbers that change, by the masses of a rounded Laplace."""
    scale, reach = Alibi(2, epsilon).steps, 2 * _STEPS
    cells = np.arange(-reach, reach + 1)

    def log_mass(k):
        return np.where(
            k == 0,
            math.log(-math.expm1(-0.5 / scale)),
            -np.abs(k) / scale + math.log(math.sinh(0.5 / scale)),
        )

    moved = np.abs(log_mass(cells - _STEPS) - log_mass(cells)).max()
    assert 2 * moved <= epsilon * (1 + 1e-12)
    claim = account(Alibi(2, epsilon).event, relation="replace_one").claim(1e-12)
    assert 2 * moved <= claim * (1 + 1e-6) + 1e-9 and claim <= epsilon * (1 + 1e-9)


def test_the_posterior_is_that_of_bayes():
    """Against densities of Laplace numbers, multiplied out for every class."""
    values, scale, prior = torch.tensor([[0.3, -0.4, 1.7], [2.0, 0.9, 0.1]]), 1.3, [0.5, 0.2, 0.3]
    found = NoisyOneHot(values, scale).posterior(torch.tensor(prior))
    for row, posterior in zip(values.tolist(), found.tolist(), strict=True):
        density = [
            p * math.exp(-sum(abs(v - (j == c)) for j, v in enumerate(row)) / scale)
            for c, p in enumerate(prior)
        ]
        assert posterior == pytest.approx([each / sum(density) for each in density], rel=1e-5)


def test_a_prior_may_differ_from_record_to_record():
    noise_only = NoisyOneHot(torch.zeros(2, 2, dtype=torch.float64), 1.0)
    prior = torch.tensor([[0.25, 0.75], [1.0, 0.0]])
    assert torch.allclose(noise_only.posterior(prior), prior)
    with pytest.raises(InvalidArgument, match="Expected priors"):
        noise_only.posterior(torch.tensor([0.5, -0.5]))


def test_no_labels_one_label_and_labels_that_are_none():
    with Ledger.in_memory() as ledger:
        assert Alibi(3, 1.0).release([], ledger).posterior().shape == (0, 3)
    with Ledger.in_memory() as ledger:
        found = Alibi(3, 400.0).release([float("nan"), 5, "x", 2], ledger)
    assert found.posterior().argmax(1).tolist() == [0, 0, 0, 2]
    with pytest.raises(InvalidArgument, match="classes=1"):
        Alibi(1, 1.0)
