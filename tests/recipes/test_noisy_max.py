"""DP-AGD: the published walk through the budget, with choices made by hand, and a run that
learns.
"""

import math

import pytest
import torch
import torch.nn.functional as F

import dpfy
from dpfy.data import digits
from dpfy.ledger.events import SumQuery
from dpfy.ledger.one_shot import ExponentialChoice
from dpfy.models import digits_mlp
from dpfy.recipes import RecipeControlled, noisy_max
from dpfy.run.loss_queries import PrivateArgmin
from recipes import Descent


@pytest.fixture
def chosen(monkeypatch):
    """Choose by a list in the place of the mechanism, pay as it would, and keep the models."""
    script, seen = [], []

    def choose(search, loss_fn, models):
        seen.append([model["weight"] for model in models])
        search._run.ledger.reserve(search.event)
        return script.pop(0)

    monkeypatch.setattr(PrivateArgmin, "of", choose)
    return script, seen


def costs(ledger):
    """ρ of every event: 1/2z² of sums, ε²/8 of choices."""
    found = []
    for run in ledger.uses:
        (query,) = run.event.queries
        assert run.event.adaptive and run.event.policy.rate == 1
        assert isinstance(query, SumQuery | ExponentialChoice)
        rho = (
            (query.l2_bound / query.stddev) ** 2 / 2
            if isinstance(query, SumQuery)
            else query.largest_loss**2 / 8
        )
        found += [(type(query), rho)] * run.times
    return found


def test_the_events_are_those_of_the_published_walk(chosen):
    """A gradient is charged in full after a step, and by what was added to it after a stay."""
    chosen[0].extend([3, 0, 0, 2, 1])
    descent = Descent()
    walk = noisy_max(descent.run, descent.loss, share=0.3, growth=0.5)
    taken = [next(walk) for _ in range(5)]
    assert [each.step_size for each in taken] == pytest.approx([0.15, 0.0, 0.0, 0.1, 0.05])
    planned = 1 / (2 * 2.0**2)
    gradients = [1.0, 1.0, 0.5, 0.75, 2.25]  # 1.5 − 1, 2.25 − 1.5, then 2.25 anew
    by_hand = [
        cost
        for gradient in gradients
        for cost in ((SumQuery, planned * gradient), (ExponentialChoice, planned * 0.3))
    ]
    found = costs(descent.ledger)
    assert [kind for kind, _ in found] == [kind for kind, _ in by_hand]
    assert [rho for _, rho in found] == pytest.approx([rho for _, rho in by_hand], rel=1e-9)
    descent.run.close()


def test_draws_at_the_same_weights_are_averaged_by_precision(chosen):
    chosen[0].extend([0, 0, 20])
    descent = Descent()
    walk = noisy_max(descent.run, descent.loss, growth=0.5, largest=2.0)
    draws = [next(walk).released.gradients["weight"] for _ in range(3)]
    mean = (1.0 * draws[0] + 0.5 * draws[1] + 0.75 * draws[2]) / 2.25
    expected = [-2.0 * place / 20 * mean / mean.norm() for place in range(21)]
    assert torch.allclose(torch.stack(chosen[1][2]), torch.stack(expected), atol=1e-6)
    assert torch.allclose(descent.model.weight, expected[20], atol=1e-6)
    descent.run.close()


def test_the_largest_step_follows_those_that_were_taken(chosen):
    chosen[0].extend([10, 4, 20, 20])
    descent = Descent()
    walk = noisy_max(descent.run, descent.loss, window=2, widening=0.5)
    sizes = [next(walk).step_size for _ in range(4)]
    assert sizes == pytest.approx([0.5, 0.2, 0.75, 0.75])  # 1.5 · 0.5 from the third on
    descent.run.close()


def test_a_gradient_whose_choice_cannot_be_paid_for_is_followed_as_far_as_the_last(chosen):
    chosen[0].extend([4])
    descent = Descent(rho=0.125 * 2 + 0.025 * 1.5)  # two gradients and a choice
    taken = list(noisy_max(descent.run, descent.loss))
    assert [each.step_size for each in taken] == pytest.approx([0.2, 0.2])
    assert math.fsum(rho for _, rho in costs(descent.ledger)) == pytest.approx(0.275)
    descent.run.close()


def test_samples_and_plans_without_a_filter_are_refused():
    descent = Descent(rate=0.5)
    with pytest.raises(dpfy.InvalidArgument, match="one and the same sum"):
        next(noisy_max(descent.run, descent.loss))
    descent.run.close()
    descent = Descent(controllers=())
    with pytest.raises(dpfy.InvalidArgument, match="RecipeControlled"):
        next(noisy_max(descent.run, descent.loss))
    assert descent.ledger.count == 0
    descent.run.close()


def test_the_digits_are_learnt_without_a_learning_rate():
    torch.manual_seed(0)
    source, model = digits(), digits_mlp()
    plan = dpfy.dpsgd(records=1437, sampling="full", steps=25, controllers=[RecipeControlled()])
    plan = plan.calibrate(epsilon=8.0, delta=1e-5)
    opt = torch.optim.SGD(model.parameters(), lr=1.0)
    with dpfy.privatize(
        model, opt, source.train, plan, dpfy.Ledger.in_memory(), insecure_test_key=1
    ) as run:
        taken = list(
            noisy_max(
                run, lambda x, y: F.cross_entropy(model(x), y, reduction="none"), candidates=8
            )
        )
        assert run.spent(1e-5).upper <= 8.0
    x, y = source.test.tensors
    assert 10 <= len(taken) <= 25
    assert float((model(x).argmax(1) == y).float().mean()) > 0.6
