"""A loss that knows the noise is that of the noisy labels, and is smallest for the true classes."""

import math

import pytest
import torch
import torch.nn.functional as F

from dpfy import Ledger
from dpfy.labels import Alibi, NoisyLabels, likelihood_loss, randomized_response


def test_likelihoods_of_randomized_response_are_its_probabilities():
    found = NoisyLabels.of_response(torch.tensor([2, 0]), classes=3, epsilon=1.0)
    kept, other = math.e / (math.e + 2), 1 / (math.e + 2)
    expected = torch.tensor([[other, other, kept], [kept, other, other]])
    assert torch.allclose(found.likelihood, expected)
    assert torch.equal(found[torch.tensor([1])].labels, torch.tensor([0])) and len(found) == 2


def test_the_loss_is_the_probability_of_the_noisy_label_under_the_model():
    """Against the sum over classes, written out; and its gradient against that of Bayes."""
    scores = torch.tensor([[0.3, -1.0, 0.8], [2.0, 0.1, 0.0]], requires_grad=True)
    likelihood = torch.tensor([[0.2, 0.7, 0.1], [0.5, 0.25, 0.25]])
    likelihood_loss(scores, likelihood).backward()
    chances = scores.detach().softmax(1)
    expected = -(chances * likelihood).sum(1).log().mean()
    assert likelihood_loss(scores, likelihood).item() == pytest.approx(expected.item(), rel=1e-6)
    posterior = chances * likelihood / (chances * likelihood).sum(1, keepdim=True)
    assert torch.allclose(scores.grad, (chances - posterior) / 2, atol=1e-6)


def test_without_noise_it_is_cross_entropy():
    scores, labels = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)), torch.arange(5)
    exact = F.one_hot(labels % 4, 4).float()
    assert torch.allclose(likelihood_loss(scores, exact), F.cross_entropy(scores, labels % 4))


@pytest.mark.parametrize("method", ["rr", "alibi"])
def test_the_loss_finds_the_shares_of_the_true_labels(method):
    """Cross entropy would find those of the noisy labels, such as 0.47 in place of 0.7."""
    y = torch.tensor([0] * 14_000 + [1] * 4000 + [2] * 2000)
    with Ledger.in_memory() as ledger:
        if method == "rr":
            labels = randomized_response(y, 3, 1.0, ledger, insecure_test_key=3)
            likelihood = NoisyLabels.of_response(labels, 3, 1.0).likelihood
        else:
            likelihood = Alibi(3, 1.0).release(y, ledger, insecure_test_key=3).posterior()
    scores = torch.zeros(3, requires_grad=True)
    opt = torch.optim.LBFGS([scores], max_iter=50, line_search_fn="strong_wolfe")

    def loss():
        opt.zero_grad()
        value = likelihood_loss(scores.expand(len(y), 3), likelihood)
        value.backward()
        return value

    opt.step(loss)
    # the mean of 20,000 noisy vectors has a standard deviation of 0.02, and this is no worse
    assert scores.detach().softmax(0).tolist() == pytest.approx([0.7, 0.2, 0.1], abs=0.12)
