"""Small networks that suit DP-SGD: few parameters, bounded activations, every example treated alone.

All of them run under ``torch.func.vmap``; none has BatchNorm or another state that examples share. Bounded activations
keep gradients near the clip bound, where clipping loses least (Papernot et al. 2021, "Tempered Sigmoid Activations for
Deep Learning with Differential Privacy", §3).
"""

import torch
import torch.nn.functional as F
from torch import nn

from dpfy.errors import InvalidArgument


class Normalize(nn.Module):
    """Subtract a constant and scale each example to a fixed L2 norm, by itself: nothing is learnt from other examples.

    Equal input norms let one learning rate and one clip bound suit every example.

    >>> Normalize(norm=4.0)(torch.tensor([[3.0, 0.0], [0.0, 0.5]]))
    tensor([[4., 0.],
            [0., 4.]])
    """

    def __init__(self, norm: float, center: float = 0.0) -> None:
        super().__init__()
        self.norm, self.center = norm, center

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return inputs of the same shape."""
        return F.normalize((x - self.center).flatten(1), dim=1).view_as(x) * self.norm


def mlp(features: int, classes: int, hidden: int = 64) -> nn.Sequential:
    """One hidden layer with tanh, for flat inputs.

    >>> mlp(features=112, classes=2)(torch.zeros(5, 112)).shape
    torch.Size([5, 2])
    """
    return nn.Sequential(nn.Linear(features, hidden), nn.Tanh(), nn.Linear(hidden, classes))


def digits_mlp(classes: int = 10) -> nn.Sequential:
    """The network for 8×8 digits: normalised pixels and one hidden layer.

    >>> digits_mlp()(torch.rand(5, 1, 8, 8)).shape
    torch.Size([5, 10])
    """
    return nn.Sequential(Normalize(norm=8.0, center=0.3), nn.Flatten(), *mlp(64, classes))


def mnist_cnn(classes: int = 10) -> nn.Sequential:
    """The tanh network for 28×28 grey images (Papernot et al. 2021, Table 1; Tramèr and Boneh 2021, Table 8).

    >>> mnist_cnn()(torch.rand(5, 1, 28, 28)).shape
    torch.Size([5, 10])
    """
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, stride=2, padding=2), nn.Tanh(), nn.MaxPool2d(2, stride=1),
        nn.Conv2d(16, 32, 4, stride=2), nn.Tanh(), nn.MaxPool2d(2, stride=1), nn.Flatten(),
        nn.Linear(32 * 4 * 4, 32), nn.Tanh(), nn.Linear(32, classes))


def cifar_cnn(classes: int = 10) -> nn.Sequential:
    """The tanh network for 32×32 RGB images (Papernot et al. 2021, Table 2; Tramèr and Boneh 2021, Table 9).

    >>> cifar_cnn()(torch.rand(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """
    layers: list[nn.Module] = []
    channels = 3
    for width in (32, 64, 128):
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.Tanh(),
                   nn.Conv2d(width, width, 3, padding=1), nn.Tanh(), nn.AvgPool2d(2)]
        channels = width
    return nn.Sequential(*layers, nn.Conv2d(128, 256, 3, padding=1), nn.Tanh(),
                         nn.Conv2d(256, classes, 3, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten())


class MeanEmbedding(nn.Module):
    """The mean of the frozen vectors of an example's tokens, without its padding (token 0).

    The table is a buffer and not a parameter: it is saved with the model, and no gradient or noise reaches it.

    >>> MeanEmbedding(torch.eye(4))(torch.tensor([[0, 0, 1, 3], [0, 0, 0, 0]]))
    tensor([[0.0000, 0.5000, 0.0000, 0.5000],
            [0.0000, 0.0000, 0.0000, 0.0000]])
    """

    table: torch.Tensor

    def __init__(self, table: torch.Tensor) -> None:
        super().__init__()
        if table.ndim != 2 or not table.is_floating_point():
            raise InvalidArgument(f"Expected a table of shape (vocabulary, dimension) with floating-point numbers, got "
                                  f"shape {tuple(table.shape)} and {table.dtype}.")
        table = table.clone()
        table[0] = 0  # padding then adds nothing, which saves masking every vector of every token
        self.register_buffer("table", table)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return one vector per row of tokens."""
        words = (tokens != 0).sum(dim=-1, keepdim=True)
        return F.embedding(tokens, self.table).sum(dim=-2) / words.clamp(min=1)


def review_classifier(table: torch.Tensor, classes: int = 2, hidden: int = 64) -> nn.Sequential:
    """The mean of frozen word vectors, normalised, and one hidden layer on top.

    The vectors are standardised over the table, which is public: they share a large common part, which would otherwise
    fill most of each example's norm and say nothing.

    >>> review_classifier(torch.randn(1000, 100))(torch.ones(5, 256, dtype=torch.int64)).shape
    torch.Size([5, 2])
    """
    return nn.Sequential(MeanEmbedding(_standardized(table)), Normalize(norm=8.0),
                         *mlp(table.shape[1], classes, hidden))


def _standardized(table: torch.Tensor) -> torch.Tensor:
    """Mean zero and variance one in every dimension, over the words that have a vector; the others stay zero."""
    known = table.any(dim=1)
    vectors = table[known]
    scaled = torch.zeros_like(table)
    scaled[known] = (vectors - vectors.mean(0)) / vectors.std(0).clamp(min=1e-6)
    return scaled
