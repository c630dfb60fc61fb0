"""AdamBC: the noise that a run tells it is what is in its second moments, step by step."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import dpfy
from dpfy.data import digits
from dpfy.models import digits_mlp
from dpfy.optim import AdamBC


def test_steps_are_the_formula_while_the_noise_changes():
    """With the present variance in the place of the mean of past ones, every step after the first
    differs.
    """
    generator = torch.Generator().manual_seed(0)
    weight, expected = (
        nn.Parameter(torch.zeros(4, dtype=torch.float64)),
        torch.zeros(4, dtype=torch.float64),
    )
    opt = AdamBC([weight], lr=0.1, betas=(0.8, 0.9), floor=1e-3)
    m = v = phi = 0.0
    for t, stddev in enumerate((0.5, 0.1, 2.0, 0.0), start=1):
        gradient = torch.randn(4, dtype=torch.float64, generator=generator)
        m, v, phi = (
            0.8 * m + 0.2 * gradient,
            0.9 * v + 0.1 * gradient**2,
            0.9 * phi + 0.1 * stddev**2,
        )
        signal = (v / (1 - 0.9**t) - phi / (1 - 0.9**t)).clamp(min=1e-3)
        expected = expected - 0.1 * m / (1 - 0.8**t) / signal.sqrt()
        weight.grad = None
        opt.expect_noise({weight: stddev})
        weight.grad = gradient
        opt.step()
        assert torch.allclose(weight, expected, rtol=1e-12)


def test_without_noise_it_is_adam():
    one, other = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    adam, corrected = torch.optim.Adam([one], lr=0.1, eps=0.0), AdamBC([other], lr=0.1, floor=1e-30)
    for gradient in ([1.0, -2.0, 0.5], [0.5, 1.0, 1.0], [3.0, 0.1, -1.0]):
        corrected.expect_noise({other: 0.0})
        one.grad, other.grad = torch.tensor(gradient), torch.tensor(gradient)
        adam.step()
        corrected.step()
    assert torch.allclose(one, other, rtol=1e-5)


def test_what_is_left_of_the_second_moments_is_the_signal():
    """The mean of 10 000 coordinates after 30 steps is right to 5 standard errors (6e-7); with
    other noise not.
    """
    size, steps, signal, stddev = 10_000, 30, 0.3, 1.0
    generator = torch.Generator().manual_seed(1)
    seen = []
    for told in (stddev, stddev * 2 / 3, stddev * 3 / 2):
        weight = nn.Parameter(torch.zeros(size))
        opt = AdamBC([weight], betas=(0.9, 0.99))
        for _ in range(steps):
            weight.grad = None
            opt.expect_noise({weight: told})
            weight.grad = signal + stddev * torch.randn(size, generator=generator)
            opt.step()
        state = opt.state[weight]
        seen.append(float((state["square"] - state["noise"]).double().mean() / (1 - 0.99**steps)))
    # A square has variance 2σ⁴ + 4σ²g² = 2.36, the mean of 30 of them, with weights that are alike,
    # below 1.6/30 of it.
    error = 5 * (2.36 * 1.6 / 30 / size) ** 0.5
    assert abs(seen[0] - signal**2) < error
    assert all(abs(other - signal**2) > 20 * error for other in seen[1:])


def test_gradients_that_add_up_have_noise_that_adds_up():
    weight = nn.Parameter(torch.zeros(1))
    opt = AdamBC([weight], betas=(0.0, 0.0))
    for clear in (lambda: setattr(weight, "grad", None), lambda: weight.grad.zero_()):
        clear()
        for _ in range(3):
            opt.expect_noise({weight: 2.0})
            weight.grad = torch.ones(1) if weight.grad is None else weight.grad + 1
        opt.step()
        assert opt.state[weight]["noise"].item() == 12.0
        weight.grad = torch.zeros(1)


def test_a_gradient_whose_noise_nobody_told_is_refused():
    weight = nn.Parameter(torch.zeros(1))
    opt = AdamBC([weight])
    weight.grad = torch.ones(1)
    with pytest.raises(dpfy.InvalidArgument, match="privatize"):
        opt.step()


def test_a_run_tells_the_noise_of_every_tensor_at_every_step():
    """Told the planned bound, or one number for all groups, the sum would differ from what the
    releases say.
    """
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    opt = AdamBC(model.parameters(), betas=(0.9, 0.5))
    plan = dpfy.dpsgd(
        rate=1.0,
        divisor=6,
        steps=4,
        noise_multiplier=1.5,
        clip=dpfy.clip_groups(model, "tensor"),
        controllers=[dpfy.QuantileClipping(0.5, learning_rate=1.0)],
    )
    expected = dict.fromkeys(("weight", "bias"), 0.0)
    seen = set()
    with dpfy.privatize(
        model,
        opt,
        TensorDataset(torch.randn(6, 3), torch.zeros(6, dtype=torch.long)),
        plan,
        dpfy.Ledger.in_memory(),
        insecure_test_key=1,
    ) as run:
        for batch in run:
            opt.zero_grad()
            released = run.backward(
                lambda x, y: F.cross_entropy(model(x), y, reduction="none"), batch
            )
            opt.step()
            expected = {
                name: 0.5 * past + 0.5 * released.stddevs[name] ** 2
                for name, past in expected.items()
            }
            seen |= set(released.stddevs.values())
    assert len(seen) == 7  # both groups begin with the same
    for name, parameter in model.named_parameters():
        assert opt.state[parameter]["noise"].item() == pytest.approx(expected[name], rel=1e-5)


def test_coordinates_with_noise_of_their_own_are_corrected_one_by_one():
    model = nn.Linear(2, 1, bias=False)
    opt = AdamBC(model.parameters())
    plan = dpfy.dpsgd(
        rate=1.0, divisor=4, steps=3, noise_multiplier=1.0, controllers=[dpfy.AdaClip()]
    )
    with dpfy.privatize(
        model,
        opt,
        TensorDataset(torch.tensor([[1.0, 0.1]] * 4)),
        plan,
        dpfy.Ledger.in_memory(),
        insecure_test_key=1,
    ) as run:
        for batch in run:
            opt.zero_grad()
            run.backward(lambda x: model(x).squeeze(1), batch)
            opt.step()
    assert opt.state[model.weight]["noise"].shape == model.weight.shape


def test_the_digits_are_learnt():
    torch.manual_seed(0)
    source, model = digits(), digits_mlp()
    opt = AdamBC(model.parameters(), lr=3e-3)
    plan = dpfy.dpsgd(records=1437, batch_size=512, steps=40, noise_multiplier=2.0)
    with dpfy.privatize(
        model, opt, source.train, plan, dpfy.Ledger.in_memory(), insecure_test_key=1
    ) as run:
        for batch in run:
            opt.zero_grad()
            run.backward(lambda x, y: F.cross_entropy(model(x), y, reduction="none"), batch)
            opt.step()
    x, y = source.test.tensors
    assert float((model(x).argmax(1) == y).float().mean()) > 0.6
