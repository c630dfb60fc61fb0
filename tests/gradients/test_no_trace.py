"""Nothing of an engine stays on the model, however a pass ends."""

import contextlib
import random

import numpy as np
import pytest
import torch
from torch import nn

from dpfy.gradients import BookkeepingEngine, GhostEngine
from dpfy.gradients.chunk import Chunk
from dpfy.mechanisms.clipping import Clipping, clip_to

ENGINES = pytest.mark.parametrize(
    "engine", [BookkeepingEngine, GhostEngine], ids=lambda engine: engine.name
)


class Scaled(nn.Module):
    """A module without a rule."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x):
        return x * self.scale


class Everything(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.encoder = (
            nn.Embedding(9, 8),
            nn.TransformerEncoderLayer(8, 2, 8, 0.0, batch_first=True),
        )
        self.scaled, self.lstm = Scaled(), nn.LSTM(8, 8, batch_first=True)
        self.conv, self.norm = nn.Conv1d(8, 4, 2), nn.GroupNorm(2, 4)
        self.frozen, self.head = nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 2)
        self.head.bias.grad = torch.ones(2)

    def forward(self, tokens):
        hidden, _ = self.lstm(self.scaled(self.encoder(self.table(tokens))))
        return self.head(self.frozen(self.norm(self.conv(hidden.transpose(1, 2))).mean(2)))


class FailsBackwards(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise ArithmeticError


def raising(error):
    def end(losses):
        raise error

    return end


ENDS = {
    "well": lambda losses: losses,
    "an error": raising(ValueError()),
    "an interrupt": raising(KeyboardInterrupt()),
    "an exit": raising(SystemExit()),
    "an error on the way back": FailsBackwards.apply,
}


def traces(model):
    """All that an engine might have changed, in a form that can be compared."""
    found = {
        "fast path": torch.backends.mha.get_fastpath_enabled(),
        "gradients on": torch.is_grad_enabled(),
        "torch": torch.get_rng_state().tolist(),
        "numpy": repr(np.random.get_state()),
        "random": random.getstate(),
    }
    for name, module in model.named_modules():
        found[name, "attributes"] = sorted(vars(module))
        found[name, "hooks"] = {
            key: dict(value) for key, value in vars(module).items() if "hooks" in key
        }
        found[name, "mode"] = module.training
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        gradient = None if tensor.grad is None else tensor.grad.tolist()
        found[name, "tensor"] = (
            id(tensor),
            tensor.data_ptr(),
            tensor._version,
            tensor.requires_grad,
            gradient,
            tensor.is_leaf,
            tensor.grad_fn,
            sorted(vars(tensor)),
            tensor.tolist(),
        )
    return found


@ENGINES
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("when", ["while it prepares", "in a pass"])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_nothing_stays_on_the_model(engine, end, when, training):
    model = Everything().train(training)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    subject = engine(model, trained)
    finish = {"now": ENDS["well"]}

    def loss(tokens):
        return finish["now"](model(tokens).square().sum(1))

    def examples(size, seed):
        return Chunk(
            (torch.randint(9, (size, 5), generator=torch.Generator().manual_seed(seed)),), size
        )

    if when == "in a pass":
        subject.prepare(loss, examples)
    before = traces(model)
    finish["now"] = ENDS[end]
    with contextlib.suppress(ValueError, KeyboardInterrupt, SystemExit, ArithmeticError):
        if when == "in a pass":
            clipping = Clipping(clip_to(1.0), 2.0**-40, (0,) * len(trained))
            totals = [torch.zeros_like(p, dtype=torch.float64) for p in trained.values()]
            subject.bounded_sums(loss, examples(4, 3), clipping).add_to(totals)
        else:
            subject.prepare(loss, examples)
    after = traces(model)
    assert [
        key for key in after if after[key] != before.get(key)
    ] == [] and after.keys() == before.keys()


@ENGINES
def test_the_users_own_hooks_and_patches_are_kept_and_obeyed(engine):
    # A hook that changes the output and a forward that was replaced are part of what the model
    # computes.
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    model[0].register_forward_hook(lambda module, inputs, output: output * 2)
    patched = model[1].forward = lambda x: (
        nn.functional.linear(x, model[1].weight, model[1].bias) * 3
    )
    hooks = dict(model[0]._forward_hooks)
    trained = dict(model.named_parameters())
    subject, x = engine(model, trained), torch.randn(5, 3)
    subject.prepare(
        lambda x: model(x).square().sum(1),
        lambda size, seed: Chunk(
            (torch.randn(size, 3, generator=torch.Generator().manual_seed(seed)),), size
        ),
    )
    clipping = Clipping(clip_to(1e9), 2.0**-40, (0,) * 4)
    totals = [torch.zeros_like(p, dtype=torch.float64) for p in trained.values()]
    subject.bounded_sums(lambda x: model(x).square().sum(1), Chunk((x,), 5), clipping).add_to(
        totals
    )
    expected = torch.autograd.grad(model(x).square().sum(), list(trained.values()))
    for found, gradient in zip(totals, expected, strict=True):
        torch.testing.assert_close(found.float(), gradient, rtol=1e-4, atol=1e-4)
    assert vars(model[1])["forward"] is patched
    assert dict(model[0]._forward_hooks) == hooks
