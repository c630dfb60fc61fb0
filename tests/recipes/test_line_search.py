"""NoisyBTLS: what is asked, what is paid, and what failures change, with answers by hand; and a run
that learns.
"""

import math
from importlib import import_module

import pytest
import torch
import torch.nn.functional as F

import dpfy
from dpfy.data import digits
from dpfy.ledger.events import SumQuery
from dpfy.ledger.one_shot import AboveThreshold
from dpfy.models import digits_mlp
from dpfy.recipes import Backtracking, RecipeControlled, line_search
from dpfy.recipes.steps import angle
from dpfy.run.loss_queries import FirstBelow
from recipes import Descent


@pytest.fixture
def answered(monkeypatch):
    """Answer by a list in the place of the mechanism, pay as it would, and keep what was asked."""
    script, seen = [], []

    def answer(search, loss_fn, start, models):
        seen.append((search, [(model["weight"], decrease) for model, decrease in models]))
        search._run.ledger.reserve(search.event)
        return script.pop(0)

    monkeypatch.setattr(FirstBelow, "of", answer)
    return script, seen


@pytest.fixture
def angles(monkeypatch):
    """Angles by a list: of gradients in a row, and of two at the same weights after a failure."""
    script = []
    # the package has the function by the name of its module
    module = import_module("dpfy.recipes.line_search")
    monkeypatch.setattr(module, "angle", lambda a, b: script.pop(0))
    return script


def test_angles():
    up, right = {"a": torch.tensor([0.0, 2.0])}, {"a": torch.tensor([3.0, 0.0])}
    assert angle(up, right) == pytest.approx(math.pi / 2) == angle(up, {"a": torch.zeros(2)})
    assert angle(up, up) == pytest.approx(0.0, abs=1e-7)


def test_the_decrease_is_asked_of_the_released_gradient(answered):
    """The gradient of the records has no bound; and a sum is compared, so B belongs to it."""
    answered[0].extend([2])
    descent = Descent()
    settings = Backtracking(first=0.5, shrink=0.5, most=4, decrease=0.1)
    taken = next(line_search(descent.run, descent.loss, backtracking=settings))
    gradient = taken.released.gradients["weight"]
    ((_, asked),) = answered[1]
    assert len(asked) == 4 and taken.step_size == 0.125
    for (model, decrease), size in zip(asked, (0.5, 0.25, 0.125, 0.0625), strict=True):
        assert torch.allclose(model, -size * gradient)
        assert decrease == pytest.approx(0.1 * size * 40 * float(gradient.square().sum()))
    assert torch.allclose(descent.model.weight, -0.125 * gradient)
    descent.run.close()


def test_failures_raise_the_budget_of_what_was_too_noisy(answered, angles):
    """A failure costs two gradients and a search; bounds fall once between two steps; narrow angles
    favour searches.
    """
    answered[0].extend([0, None, None, None, 1, None])
    #              in a row, then second: wide       wide        narrow     in a row   neither
    angles.extend([1.0, 1.2, 1.0, 1.2, 1.0, 0.5, 1.0, 1.0, 1.0])
    descent = Descent()
    walk = line_search(
        descent.run,
        descent.loss,
        share=0.5,
        backtracking=Backtracking(growth=0.5, tightening=0.2, smoothing=0.5, wide=1.1, narrow=0.9),
        loss_bound=2.0,
    )
    sizes = [next(walk).step_size for _ in range(10)]
    assert sizes == pytest.approx([1.0, 0, 0, 0, 0, 0, 0, 0.6, 0, 0])
    planned = 1 / (2 * 2.0**2)
    by_hand = [
        (SumQuery, 1.0),
        (AboveThreshold, 0.5),
        (SumQuery, 1.0),
        (AboveThreshold, 0.5),
        (SumQuery, 1.0),
        (SumQuery, 1.5),
        (AboveThreshold, 0.5),
        (SumQuery, 1.5),
        (SumQuery, 2.25),
        (AboveThreshold, 0.5),
        (SumQuery, 2.25),
        (SumQuery, 2.25),
        (AboveThreshold, 0.75),
        (SumQuery, 2.25),
        (AboveThreshold, 0.75),
        (SumQuery, 2.25),
    ]
    found = []
    for run in descent.ledger.uses:
        (query,) = run.event.queries
        rho = (
            (query.l2_bound / query.stddev) ** 2 / 2
            if isinstance(query, SumQuery)
            else query.largest_loss**2 / 2
        )
        found += [(type(query), rho / planned)] * run.times
    assert [kind for kind, _ in found] == [kind for kind, _ in by_hand]
    assert [rho for _, rho in found] == pytest.approx([rho for _, rho in by_hand], rel=1e-9)
    assert [search._bound for search, _ in answered[1]] == pytest.approx(
        [2.0, 2.0, 1.6, 1.6, 1.6, 1.6]
    )
    assert descent.run.context.controllers.config(1).query.bound == pytest.approx(0.8)
    descent.run.close()


def test_a_gradient_whose_search_cannot_be_paid_for_is_followed_as_far_as_the_last(answered):
    answered[0].extend([1])
    descent = Descent(rho=0.125 * 2 + 0.0625 * 1.5)
    taken = list(line_search(descent.run, descent.loss))
    assert [each.step_size for each in taken] == pytest.approx([0.6, 0.6])
    descent.run.close()


@pytest.mark.parametrize(
    "settings", [{"shrink": 1.0}, {"most": 0}, {"wide": 1.0}, {"narrow": 1.0}, {"first": 0.0}]
)
def test_settings_outside_their_domain_are_refused(settings):
    with pytest.raises(dpfy.InvalidArgument):
        Backtracking(**settings)


def test_a_plan_without_a_filter_is_refused():
    descent = Descent(controllers=())
    with pytest.raises(dpfy.InvalidArgument, match="RecipeControlled"):
        next(line_search(descent.run, descent.loss))
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
            line_search(
                run,
                lambda x, y: F.cross_entropy(model(x), y, reduction="none"),
                backtracking=Backtracking(first=4.0),
            )
        )
        assert run.spent(1e-5).upper <= 8.0
    x, y = source.test.tensors
    assert len(taken) >= 8
    assert float((model(x).argmax(1) == y).float().mean()) > 0.5
