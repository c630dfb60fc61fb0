"""Dropout on processors where torch draws masks from a generator of 31 bits: covered, or
refused.
"""

import pytest
import torch
import torch.nn.functional as F
from runs import Dot
from torch import nn

import dpfy
from dpfy.checks import probe
from dpfy.sandbox import dropout

ROWS = torch.randn(24, 3, generator=torch.Generator().manual_seed(3))


@pytest.fixture
def short_generator(monkeypatch):
    """A processor on which torch's masks are not covered: drawing one fails, so that no test passes
    by it.
    """
    for home in (dropout, probe):
        monkeypatch.setattr(home, "are_covered", lambda: False)


def turned(draw):
    """Whether the Mersenne twister has turned."""
    before = torch.get_rng_state().view(torch.int64)[3:627].clone()
    draw()
    return bool((torch.get_rng_state().view(torch.int64)[3:627] != before).any())


@pytest.mark.parametrize(
    ("name", "shape", "seen"),
    [
        ("dropout", (64, 8), (64, 8)),
        ("dropout1d", (64, 8, 4), (64, 8)),
        ("dropout2d", (64, 8, 2, 2), (64, 8)),
        ("dropout3d", (64, 8, 2, 2, 1), (64, 8)),
    ],
)
def test_masks_come_from_the_twister_and_have_the_right_law(short_generator, name, shape, seen):
    """Of 512 masks with p = ¼, 384 are kept on average with deviation 9.8: ± 5.5 of them fails once
    in 10⁷.
    """
    torch.manual_seed(5)
    with dropout.covered_masks():
        function = getattr(F, name)
        assert turned(lambda: function(torch.ones(4096, *shape[1:]), 0.25))
        found = function(torch.ones(shape), 0.25)
    kept = found.flatten(2)[:, :, 0] if len(shape) > 2 else found
    assert kept.shape == seen and found.unique().tolist() == pytest.approx([0, 4 / 3])
    assert (found.flatten(2) == kept.unsqueeze(2)).all() if len(shape) > 2 else True
    assert abs(int((kept > 0).sum()) - 384) <= 5.5 * 9.8
    assert getattr(F, name) is not function


@pytest.mark.parametrize("engine", ["auto", "vmap", "loop"])
def test_dropout_layers_train_there(started, short_generator, engine, monkeypatch):
    def forbidden(*_):
        raise AssertionError("a mask from the short generator")

    monkeypatch.setattr(torch.Tensor, "bernoulli_", forbidden)
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 1), nn.Flatten(0))
    assert started(ROWS, model=model, engine=engine).release(model).any()


@pytest.mark.parametrize("kind", ["attention", "recurrent", "bernoulli"])
def test_masks_inside_of_other_operations_are_refused_there(started, short_generator, kind):
    model = Dot()
    layer = nn.LSTM(3, 3, 2, dropout=0.5, batch_first=True)

    def loss(x):
        if kind == "attention":
            x = F.scaled_dot_product_attention(*[x[:, None, None]] * 3, dropout_p=0.5)[:, 0, 0]
        elif kind == "recurrent":
            x = layer(x.unsqueeze(1))[0].squeeze(1)
        else:
            x = x * torch.bernoulli(torch.full_like(x, 0.5))
        return model(x)

    with pytest.raises(dpfy.IsolationError, match="31 bits"):
        started(ROWS, model=model).release(loss)
