"""Parameters outside of any layer: the rest of the model keeps its rules."""

import pytest
import torch
import torch.nn.functional as F
from against_oracle import assert_agrees
from torch import nn

from dpfy.gradients.bookkeeping.layers.fallback import Layouts

BOTH = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)


def floats(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def tokens(seed, high, *shape):
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(seed))


class Block(nn.Module):
    """Attention and two linear layers, each scaled by a bare parameter."""

    def __init__(self, width):
        super().__init__()
        self.norm, self.attention = (
            nn.LayerNorm(width),
            nn.MultiheadAttention(width, 2, batch_first=True),
        )
        self.up, self.down = nn.Linear(width, 5), nn.Linear(5, width)
        self.first, self.second = (
            nn.Parameter(torch.ones(width)),
            nn.Parameter(torch.full((width,), 0.5)),
        )

    def forward(self, x):
        normal = self.norm(x)
        x = x + self.first * self.attention(normal, normal, normal, need_weights=False)[0]
        return x + self.down(torch.tanh(self.up(x))) * self.second


class Vision(nn.Module):
    """Patches, a class token and position embeddings."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(2, 6, 2, stride=2)
        self.token, self.positions = (
            nn.Parameter(torch.zeros(1, 1, 6)),
            nn.Parameter(torch.zeros(1, 9, 6)),
        )
        self.block, self.head = Block(6), nn.Linear(6, 3)

    def forward(self, image):
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        return self.head(self.block(x + self.positions[:, : x.shape[1]])[:, 0])


class Text(nn.Module):
    """Token and position embeddings, and a head that is the table of tokens, by function."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.positions = nn.Parameter(torch.zeros(8, 6))
        self.block = Block(6)

    def forward(self, places):
        x = self.embed(places) + self.positions[: places.shape[1]].unsqueeze(0)
        return F.linear(self.block(x), self.embed.weight)


class Projected(nn.Module):
    """A bare matrix on the right of a product, and a temperature that divides."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 5)
        self.matrix, self.temperature = (
            nn.Parameter(torch.zeros(5, 3)),
            nn.Parameter(torch.tensor(2.0)),
        )

    def forward(self, x):
        return torch.tanh(self.inner(x)) @ self.matrix / self.temperature


class Numbered(nn.Module):
    """Positions are looked up in a table, once for all records."""

    def __init__(self):
        super().__init__()
        self.embed, self.positions, self.block = nn.Embedding(11, 6), nn.Embedding(8, 6), Block(6)

    def forward(self, places):
        return self.block(self.embed(places) + self.positions(torch.arange(places.shape[1])))


CASES = {
    "vision transformer": (Vision, (floats(1, 4, 2, 4, 4),), 6),
    "language model with a tied head": (Text, (tokens(1, 11, 4, 5),), 5),
    "language model with a table of positions": (Numbered, (tokens(1, 11, 4, 5),), 6),
    "matrix and temperature": (Projected, (floats(1, 4, 2, 4),), 1),
}


@BOTH
@pytest.mark.parametrize("grouped", [False, True], ids=["flat", "grouped"])
@pytest.mark.parametrize("case", CASES)
def test_layers_around_bare_parameters_keep_their_rules(case, grouped, dtype):
    make, fields, rules = CASES[case]
    layers = assert_agrees(make, fields, dtype=dtype, grouped=grouped)
    assert len(layers) == rules


class TimeFirst(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.shift = nn.Linear(4, 4), nn.Parameter(torch.zeros(3, 1, 4))

    def forward(self, x):
        return (self.inner(x.transpose(0, 1)) + self.shift).transpose(0, 1)


def test_records_on_the_second_axis():
    assert_agrees(TimeFirst, (floats(1, 4, 3, 4),))


class Unknown(nn.Module):
    """A use that is not known: the module around it is vectorised as a whole."""

    def __init__(self):
        super().__init__()
        self.inner, self.slopes = nn.Linear(3, 3), nn.Parameter(torch.ones(3))

    def forward(self, x):
        return torch.where(x > 0, self.inner(x), torch.sigmoid(self.slopes))


def test_unknown_uses_make_the_module_around_them_a_unit():
    layers = assert_agrees(
        lambda: nn.Sequential(nn.Linear(3, 3), Unknown()), (floats(1, 4, 3),), rules=1
    )
    assert [layer.name for layer in layers] == ["0", "1"]
    assert isinstance(layers[1].layouts, Layouts)
