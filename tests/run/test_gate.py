"""No way past the gate: every entry point of an optimizer step."""

import pytest
import torch
from runs import Dot
from torch import nn
from torch.utils.data import TensorDataset

import dpfy
from dpfy.run.gate import Gate, are_finite

ROWS = torch.tensor([[3.0, 4.0, 0.0], [0.0, 0.3, 0.4]])


def raw_gradient(s):
    s.loss(ROWS).sum().backward()


def private_gradient(s):
    s.run.backward(s.loss, next(iter(s.run)))


def test_a_released_gradient_passes(started):
    s = started(ROWS)
    private_gradient(s)
    s.opt.step()
    assert s.model.weight.any()


def test_a_raw_gradient_is_refused(started):
    s = started(ROWS)
    raw_gradient(s)
    with pytest.raises(dpfy.UnreleasedGradient, match="weight"):
        s.opt.step()
    assert not s.model.weight.any()


def test_a_raw_gradient_mixed_into_a_released_one_is_refused(started):
    s = started(ROWS)
    private_gradient(s)
    raw_gradient(s)
    with pytest.raises(dpfy.UnreleasedGradient):
        s.opt.step()


@pytest.mark.parametrize(
    "change",
    [
        lambda s: nn.utils.clip_grad_norm_(s.model.parameters(), 1e-3),
        raw_gradient,
        lambda s: s.model.weight.grad.data.mul_(2),  # which no version counts
    ],
    ids=["clip_grad_norm_", "backward", "data"],
)
def test_a_gradient_that_was_changed_is_told_from_one_that_was_never_released(started, change):
    s = started(ROWS)
    private_gradient(s)
    change(s)
    with pytest.raises(dpfy.UnreleasedGradient, match="'weight' was changed after its release"):
        s.opt.step()
    s.opt.zero_grad()
    raw_gradient(s)
    with pytest.raises(dpfy.UnreleasedGradient, match="'weight' was not released"):
        s.opt.step()


class _Wrapper(torch.optim.Optimizer):
    """An optimizer as Accelerate wraps it."""

    __module__ = "accelerate.optimizer"

    def __init__(self, optimizer):
        self.optimizer = optimizer

    @property
    def param_groups(self):
        return self.optimizer.param_groups

    def step(self):
        self.optimizer.step()


def test_a_wrapper_of_accelerate_is_taken_for_the_optimizer_inside():
    model = Dot()
    inside = torch.optim.SGD(model.parameters(), lr=1.0)
    wrapper = _Wrapper(inside)
    plan = dpfy.dpsgd(rate=1.0, divisor=1, steps=2, noise_multiplier=0.0)
    with dpfy.privatize(
        model, wrapper, TensorDataset(ROWS), plan, dpfy.Ledger.in_memory(), insecure_test_key=1
    ) as run:
        assert run.optimizers == (inside,)
        model(ROWS).sum().backward()
        with pytest.raises(dpfy.UnreleasedGradient):
            wrapper.step()
        inside.zero_grad()
        run.backward(model, next(iter(run)))
        wrapper.step()
        assert model.weight.any()


def test_a_release_does_not_launder_a_raw_gradient(started):
    s = started(ROWS)
    raw_gradient(s)
    with pytest.raises(dpfy.UnreleasedGradient):
        private_gradient(s)
    assert s.ledger.count == 0


@pytest.mark.parametrize(
    "call",
    [
        lambda opt, closure: opt.step(closure),
        lambda opt, closure: opt.step(closure=closure),
    ],
    ids=["positional", "keyword"],
)
def test_a_closure_that_computes_a_raw_gradient_is_refused(started, call):
    s = started(ROWS)

    def closure():
        s.opt.zero_grad()
        loss = s.loss(ROWS).sum()
        loss.backward()
        return loss

    with pytest.raises(dpfy.UnreleasedGradient):
        call(s.opt, closure)
    assert not s.model.weight.any()


def test_a_closure_that_releases_passes_and_keeps_its_noise(started):
    s = started(ROWS, noise_multiplier=1.0)

    def closure():
        s.opt.zero_grad()
        private_gradient(s)

    s.opt.step(closure)
    torch.testing.assert_close(s.model.weight.detach(), -s.model.weight.grad)
    assert s.ledger.count == 1


def test_an_optimizer_that_evaluates_its_closure_twice_is_refused(started):
    class Twice(torch.optim.SGD):
        def step(self, closure=None):
            closure()
            return closure()

    model = Dot()
    opt = Twice(model.parameters(), lr=1.0)
    plan = dpfy.dpsgd(rate=1.0, divisor=1, steps=5, noise_multiplier=1.0)
    run = dpfy.privatize(
        model, opt, TensorDataset(ROWS), plan, dpfy.Ledger.in_memory(), insecure_test_key=1
    )
    with pytest.raises(dpfy.UnreleasedGradient, match="more than once"):
        opt.step(lambda: (opt.zero_grad(), run.backward(model, next(iter(run)))))


@pytest.mark.parametrize(
    "edit",
    [
        lambda g: g.mul_(2),
        lambda g: g.clamp_(-1, 1),
        lambda g: g.detach().add_(1),
        lambda g: g.view(-1)[0].fill_(3),
    ],
)
def test_an_edited_gradient_is_refused_outside_of_postprocessing(started, edit):
    s = started(ROWS)
    private_gradient(s)
    edit(s.model.weight.grad)
    with pytest.raises(dpfy.UnreleasedGradient):
        s.opt.step()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "edit",
    [
        lambda data: data[3:4].neg_(),
        lambda data: data[3:5].neg_(),
        lambda data: data[5:8].mul_(2),
        lambda data: data[-1:].add_(1),
        lambda data: data.neg_(),
        lambda data: data[1:9:2].neg_(),
        lambda data: data.mul_(0).add_(3),
        lambda data: data[:1].fill_(float("nan")),
    ],
    ids=["sign", "two signs", "scale", "last", "all signs", "four signs", "constant", "nan"],
)
def test_edits_through_data_are_seen_in_the_bits(dtype, edit):
    parameter = nn.Parameter(torch.zeros(11, dtype=dtype))
    gate = Gate([torch.optim.SGD([parameter], lr=1.0)], {"weight": parameter})
    parameter.grad = torch.arange(1, 12, dtype=dtype)
    gate.mark_released()
    gate.check("opt.step()")
    edit(parameter.grad.data)
    with pytest.raises(dpfy.UnreleasedGradient):
        gate.check("opt.step()")
    gate.close()


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (2, 3)])
@pytest.mark.parametrize(
    "left, passes", [(0.0, True), (-0.0, True), (1e-45, False), (float("nan"), False)]
)
def test_only_zeros_pass_for_a_zeroed_gradient(shape, left, passes):
    parameter = nn.Parameter(torch.zeros(shape))
    gate = Gate([torch.optim.SGD([parameter], lr=1.0)], {"weight": parameter})
    parameter.grad = torch.ones(shape)
    gate.mark_released()
    parameter.grad.fill_(1)  # another version
    parameter.grad.fill_(0).view(-1)[-1:].fill_(left)
    if passes or not parameter.numel():
        gate.check("opt.step()")
    else:
        with pytest.raises(dpfy.UnreleasedGradient):
            gate.check("opt.step()")
    gate.close()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_one_value_that_is_not_finite_is_found(dtype):
    for value, expected in (
        (1.0, True),
        (float("inf"), False),
        (float("-inf"), False),
        (float("nan"), False),
    ):
        for place in (0, 7, 14):
            values = torch.arange(-7, 8, dtype=dtype)
            values[place] = value
            assert are_finite([values]) is expected
    assert are_finite([torch.empty(0, dtype=dtype)])


def test_a_replaced_gradient_is_refused(started):
    s = started(ROWS)
    private_gradient(s)
    s.model.weight.grad = s.model.weight.grad.clone()
    with pytest.raises(dpfy.UnreleasedGradient):
        s.opt.step()


def test_postprocessing_allows_edits_of_released_gradients_only(started):
    s = started(ROWS)
    private_gradient(s)
    with s.run.postprocessing():
        nn.utils.clip_grad_norm_(s.model.parameters(), 0.1)
    s.opt.step()
    assert float(s.model.weight.detach().norm()) == pytest.approx(0.1)
    raw = started(ROWS)
    raw_gradient(raw)
    with pytest.raises(dpfy.UnreleasedGradient), raw.run.postprocessing():
        pass


def test_an_edit_that_fails_halfway_is_not_vouched_for(started):
    s = started(ROWS)
    private_gradient(s)
    with pytest.raises(ZeroDivisionError), s.run.postprocessing():
        s.model.weight.grad.mul_(2)
        1 / 0  # noqa: B018
    with pytest.raises(dpfy.UnreleasedGradient):
        s.opt.step()


@pytest.mark.cpu
def test_gradients_of_public_data_pass_and_add_up(started):
    s = started(ROWS)
    with s.run.public():
        raw_gradient(s)
    private_gradient(s)
    s.opt.step()
    assert s.ledger.count == 1
    torch.testing.assert_close(
        s.model.weight.detach(), -(ROWS.sum(0) + torch.tensor([0.6, 1.1, 0.4]))
    )


@pytest.mark.parametrize("set_to_none", [True, False])
def test_zeroed_gradients_say_nothing(started, set_to_none):
    s = started(ROWS)
    for _ in range(2):
        private_gradient(s)
        s.opt.step()
        s.opt.zero_grad(set_to_none=set_to_none)
    s.opt.step()
    assert s.ledger.count == 2


def test_parameters_unfrozen_later_are_refused():
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    model[0].requires_grad_(False)
    opt = torch.optim.SGD(model.parameters(), lr=1.0)
    plan = dpfy.dpsgd(rate=1.0, divisor=1, steps=5, noise_multiplier=1.0)
    run = dpfy.privatize(
        model, opt, TensorDataset(ROWS), plan, dpfy.Ledger.in_memory(), insecure_test_key=1
    )
    run.backward(lambda x: model(x).squeeze(1), next(iter(run)))
    opt.step()
    model[0].requires_grad_(True)
    with pytest.raises(dpfy.UnreleasedGradient, match="unfrozen or added"):
        opt.step()


def test_parameters_added_later_are_refused(started):
    s = started(ROWS)
    private_gradient(s)
    s.opt.add_param_group({"params": nn.Parameter(torch.ones(1))})
    with pytest.raises(dpfy.UnreleasedGradient, match="unfrozen or added"):
        s.opt.step()


def test_parameters_frozen_later_are_left_out(started):
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    s = started(ROWS, model=model, noise_multiplier=1.0)
    private = lambda: s.run.backward(lambda x: model(x).squeeze(1), next(iter(s.run)))  # noqa: E731
    private()
    s.opt.zero_grad()
    model[0].requires_grad_(False)
    private()
    assert model[0].weight.grad is None and model[1].weight.grad is not None


def test_gradients_from_before_the_run_are_refused():
    model = Dot()
    model(ROWS).sum().backward()
    plan = dpfy.dpsgd(rate=1.0, divisor=1, steps=5, noise_multiplier=1.0)
    with pytest.raises(dpfy.UnreleasedGradient, match="zero_grad"):
        dpfy.privatize(
            model,
            torch.optim.SGD(model.parameters(), lr=1.0),
            TensorDataset(ROWS),
            plan,
            dpfy.Ledger.in_memory(),
        )


def test_closing_the_run_removes_the_gate(started):
    s = started(ROWS)
    s.run.close()
    raw_gradient(s)
    s.opt.step()
    assert s.model.weight.any()


def test_the_gate_stands_at_every_optimizer():
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    first, second = (torch.optim.SGD(layer.parameters(), lr=1.0) for layer in model)
    plan = dpfy.dpsgd(rate=1.0, divisor=1, steps=5, noise_multiplier=1.0)
    dpfy.privatize(
        model,
        [first, second],
        TensorDataset(ROWS),
        plan,
        dpfy.Ledger.in_memory(),
        insecure_test_key=1,
    )
    model(ROWS).sum().backward()
    for opt in (first, second):
        with pytest.raises(dpfy.UnreleasedGradient):
            opt.step()
