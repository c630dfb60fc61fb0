"""ADADP: the published iteration, what it costs, and that it finds a learning rate."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings, strategies as st
from torch import nn
from torch.utils.data import TensorDataset

import dpfy
from dpfy.data import digits
from dpfy.ledger.events import Poisson, Repeated, Sampled, SumQuery
from dpfy.models import digits_mlp
from dpfy.optim import ADADP

numbers = st.lists(st.floats(-8, 8, width=32), min_size=3, max_size=3)


def iterate(opt, weight, *gradients):
    for gradient in gradients:
        weight.grad = torch.tensor(gradient, dtype=weight.dtype)
        opt.step()


@settings(max_examples=40)
@given(numbers, numbers, numbers, st.floats(0.01, 2.0), st.floats(0.05, 5.0))
def test_an_iteration_is_the_published_one(start, first, second, rate, tolerance):
    """Algorithm 1, written down once more: a wrong half, norm, limit or place to return to differs
    here.
    """
    theta, g1, g2 = (torch.tensor(each, dtype=torch.float64) for each in (start, first, second))
    whole, halfway = theta - rate * g1, theta - rate / 2 * g1
    arrived = halfway - rate / 2 * g2
    error = float(((whole - arrived) / whole.abs().clamp(min=1)).norm())
    weight = nn.Parameter(theta.clone())
    opt = ADADP([weight], rate, tolerance=tolerance, least=0.8, most=1.5)
    iterate(opt, weight, first)
    assert (
        torch.allclose(weight, halfway, rtol=1e-12, atol=1e-12)
        and opt.halfway
        and opt.learning_rate == rate
    )
    iterate(opt, weight, second)
    if error > tolerance * (1 + 1e-9):
        assert torch.equal(weight, theta)
    elif error < tolerance * (1 - 1e-9):
        assert torch.allclose(weight, arrived, rtol=1e-12, atol=1e-12)
    factor = min(max(tolerance / error, 0.8), 1.5) if error > 1e-9 else 1.5
    assert opt.learning_rate == pytest.approx(rate * factor, rel=1e-6)
    assert not opt.halfway and not opt.state


def test_no_error_lets_the_rate_grow_and_no_number_is_an_error():
    weight = nn.Parameter(torch.zeros(2))
    opt = ADADP([weight], 0.5)
    iterate(opt, weight, [1.0, 2.0], [1.0, 2.0])
    assert opt.learning_rate == pytest.approx(0.55)
    iterate(opt, weight, [1.0, 2.0], [math.nan, 2.0])
    assert opt.learning_rate == pytest.approx(0.55 * 0.9)
    assert torch.equal(weight, torch.tensor([-0.5, -1.0]))


def test_large_parameters_are_measured_by_their_own_size():
    weight = nn.Parameter(torch.tensor([1000.0]))
    opt = ADADP([weight], 1.0, tolerance=1.0)
    iterate(opt, weight, [0.0], [100.0])  # off by 50, of 1000
    assert weight.item() == 950.0


def test_groups_share_one_error_and_keep_their_own_rates():
    a, b = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    opt = ADADP([{"params": [a], "lr": 1.0}, {"params": [b], "lr": 0.1}], tolerance=1.0)
    for gradients in ((0.0, 0.0), (6.0, 0.0)):
        a.grad, b.grad = (torch.tensor([gradient]) for gradient in gradients)
        opt.step()
    assert a.item() == 0.0  # off by 3: back to the start
    assert [group["lr"] * group["found"] for group in opt.param_groups] == pytest.approx(
        [0.9, 0.09]
    )


def test_a_parameter_without_gradient_stays():
    a, b = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.ones(1))
    opt = ADADP([a, b], 0.5)
    iterate(opt, a, [1.0], [1.0])
    assert (a.item(), b.item()) == (-0.5, 1.0)


def test_a_checkpoint_halfway_forgets_nothing():
    weight = nn.Parameter(torch.tensor([4.0, 1.0]))
    opt = ADADP([weight], 0.5, tolerance=0.1)
    iterate(opt, weight, [1.0, 2.0])
    again = nn.Parameter(weight.detach().clone())
    resumed = ADADP([again], 0.5, tolerance=0.1)
    resumed.load_state_dict(copy.deepcopy(opt.state_dict()))
    for each, parameter in ((opt, weight), (resumed, again)):
        iterate(each, parameter, [9.0, 2.0])
    assert torch.equal(again, torch.tensor([4.0, 1.0])) and torch.equal(weight, again)
    assert resumed.learning_rate == opt.learning_rate == pytest.approx(0.45)


@pytest.mark.parametrize(
    "options", [{"lr": 0.0}, {"tolerance": 0.0}, {"least": 1.1}, {"most": 0.9}]
)
def test_settings_outside_their_domain_are_refused(options):
    with pytest.raises(dpfy.InvalidArgument):
        ADADP([nn.Parameter(torch.zeros(1))], **options)


def test_an_iteration_costs_two_steps_whether_it_is_kept_or_not():
    model = nn.Linear(3, 1, bias=False)
    opt = ADADP(model.parameters(), 1.0, tolerance=1e-9)  # which keeps nothing
    before = model.weight.detach().clone()
    plan = dpfy.dpsgd(rate=0.5, divisor=4, steps=6, noise_multiplier=1.5)
    with dpfy.privatize(
        model, opt, TensorDataset(torch.eye(3)), plan, dpfy.Ledger.in_memory(), insecure_test_key=1
    ) as run:
        for batch in run:
            opt.zero_grad()
            run.backward(lambda x: model(x).squeeze(1), batch)
            opt.step()
        assert torch.equal(model.weight, before)
        assert run.ledger.uses == (
            Repeated(Sampled(Poisson(0.5), (SumQuery(1.0, 1.5, "gradient"),)), 6),
        )


def test_a_rate_that_is_far_too_small_grows_until_the_digits_are_learnt():
    torch.manual_seed(0)
    source, model = digits(), digits_mlp()
    opt = ADADP(model.parameters(), 0.05)
    plan = dpfy.dpsgd(records=1437, batch_size=512, steps=60, noise_multiplier=2.0)
    with dpfy.privatize(
        model, opt, source.train, plan, dpfy.Ledger.in_memory(), insecure_test_key=1
    ) as run:
        for batch in run:
            opt.zero_grad()
            run.backward(lambda x, y: F.cross_entropy(model(x), y, reduction="none"), batch)
            opt.step()
    x, y = source.test.tensors
    assert opt.learning_rate > 0.5
    assert float((model(x).argmax(1) == y).float().mean()) > 0.6
