"""Dropout is off wherever engines are compared, however it is called."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.functional import (
    dropout as imported_dropout,
    scaled_dot_product_attention as imported_attention,
)

import dpfy
from dpfy.checks.undisturbed import without_dropout

X = torch.linspace(-1, 1, 120).view(2, 3, 4, 5)
ATEN = torch.ops.aten
CALLS = {
    "module": lambda x: nn.Dropout(0.5)(x),
    "F.dropout": lambda x: F.dropout(x, 0.5),
    "F.dropout2d": lambda x: F.dropout2d(x, 0.5),
    "F.alpha_dropout": lambda x: F.alpha_dropout(x, 0.5, training=True),
    "imported by name": lambda x: imported_dropout(x, 0.5),
    "torch.dropout": lambda x: torch.dropout(x, 0.5, True),
    "torch.dropout_": lambda x: torch.dropout_(x.clone(), 0.5, True),
    "torch.feature_dropout": lambda x: torch.feature_dropout(x, 0.5, train=True),
    "torch.native_dropout": lambda x: torch.native_dropout(x, 0.5, True)[0],
    "aten": lambda x: ATEN.dropout(x, 0.5, True),
    "aten, an overload": lambda x: ATEN.dropout.default(x, 0.5, True),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5),
    "attention, by place": lambda x: F.scaled_dot_product_attention(x, x, x, None, 0.5),
    "attention, imported by name": lambda x: imported_attention(x, x, x, None, 0.5, True),
    "aten attention": lambda x: ATEN.scaled_dot_product_attention(x, x, x, None, 0.5),
    "inside of a function of torch": lambda x: F.multi_head_attention_forward(
        *[x[0, 0].unsqueeze(1)] * 3,
        5,
        1,
        torch.ones(15, 5),
        None,
        None,
        None,
        False,
        0.5,
        torch.eye(5),
        None,
    )[0],
}


@pytest.mark.parametrize("call", CALLS)
def test_calls_that_draw_masks_draw_none(call):
    function = CALLS[call]

    def twice():
        return function(X), function(X)

    before = dict(vars(F)), dict(vars(torch))
    torch.manual_seed(0)
    assert not torch.equal(*twice())
    with without_dropout(nn.Identity()):
        assert torch.equal(*twice())
        if "attention" not in call and "inside" not in call:
            assert torch.equal(function(X), X)
    assert not torch.equal(*twice())
    assert (dict(vars(F)), dict(vars(torch))) == before


def test_attention_without_masks_is_attention():
    with without_dropout(nn.Identity()):
        found = imported_attention(X, X, X, None, 0.5, True)
    assert torch.equal(found, F.scaled_dot_product_attention(X, X, X, is_causal=True))


class Attention(nn.Module):
    """Attention as libraries write it: projections, and torch's function with dropout."""

    def __init__(self, attend):
        super().__init__()
        self.project, self.out, self.attend = nn.Linear(8, 24), nn.Linear(8, 2), attend

    def forward(self, x):
        q, k, v = (t.unflatten(2, (2, 4)).transpose(1, 2) for t in self.project(x).chunk(3, 2))
        return self.out(self.attend(q, k, v).transpose(1, 2).flatten(2).mean(1))


@pytest.mark.parametrize(
    "attend",
    [
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=0.1),
        partial(imported_attention, dropout_p=0.1),
        lambda q, k, v: torch.dropout((q @ k.mT).softmax(-1), 0.1, True) @ v,
    ],
    ids=["by module", "by name", "torch.dropout"],
)
def test_attention_with_dropout_is_served_by_book_keeping(attend):
    """The loss stayed random, so that no engine could be compared and records went one by one."""
    found = dpfy.explain(Attention(attend), torch.randn(4, 3, 8))
    assert found.engine == "bookkeeping" and not found.advice
