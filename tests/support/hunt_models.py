"""Small models for the hunt, each for one kind of input; all give a record three scores."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

VOCABULARY = 7
CLASSES = 3


@dataclass(frozen=True)
class Kind:
    """What the first field of a record is: numbers of a shape, or token ids."""

    shape: tuple[int, ...]
    tokens: bool = False

    def drawn(self, generator: torch.Generator) -> torch.Tensor:
        """Return one made-up record; all lean in one direction, as gradients of real records do."""
        if self.tokens:
            return torch.randint(VOCABULARY, self.shape, generator=generator)
        return 0.5 + torch.randn(self.shape, generator=generator, dtype=torch.float32)


VECTOR, IMAGE, SEQUENCE, TOKENS = Kind((6,)), Kind((2, 6, 6)), Kind((5, 4)), Kind((5,), tokens=True)


class Pooled(nn.Module):
    """A layer over time, normalised, and the mean over time."""

    def __init__(self, layer: nn.Module, width: int, embedded: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 4) if embedded else nn.Identity()
        self.layer, self.norm, self.head = layer, nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embedding(x)
        found = (
            self.layer(x, x, x, need_weights=False)
            if isinstance(self.layer, nn.MultiheadAttention)
            else self.layer(x)
        )
        return self.head(self.norm(found[0] if isinstance(found, tuple) else found).mean(1))


class TiedEmbedding(nn.Module):
    """One weight in two places, and one module used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, CLASSES)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.second(torch.tanh(self.first(torch.tanh(self.first(x)))))))


class TiedTokens(nn.Module):
    """An embedding whose weight is the head's too."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = (
            nn.Embedding(VOCABULARY, 4),
            nn.Linear(4, VOCABULARY, bias=False),
        )
        self.head.weight = self.embedding.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.embedding(x))).mean(1)[:, :CLASSES]


class Bare(nn.Module):
    """Parameters outside of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.shift, self.mixing = (
            nn.Parameter(torch.randn(6) / 4),
            nn.Parameter(torch.randn(6, CLASSES) / 4),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x + self.shift) @ self.mixing


class LowRank(nn.Module):
    """A frozen layer with a trained product of two thin matrices beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(6, CLASSES).requires_grad_(False)
        self.down, self.up = nn.Linear(6, 2, bias=False), nn.Linear(2, CLASSES, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.frozen(x) + self.up(self.down(x))


def _mlp(activation: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(6, 8), activation(), nn.Linear(8, CLASSES))


MODELS: dict[str, tuple[Kind, Callable[[], nn.Module]]] = {
    "mlp": (VECTOR, _mlp(nn.Tanh)),
    "relu mlp": (VECTOR, _mlp(nn.ReLU)),
    "linear": (VECTOR, lambda: nn.Linear(6, CLASSES)),
    "dropout mlp": (
        VECTOR,
        lambda: nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(0.5), nn.Linear(16, CLASSES)),
    ),
    "layer norm": (
        VECTOR,
        lambda: nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 8), nn.GELU(), nn.Linear(8, CLASSES)),
    ),
    "tied": (VECTOR, TiedEmbedding),
    "bare": (VECTOR, Bare),
    "low rank": (VECTOR, LowRank),
    "weight norm": (
        VECTOR,
        lambda: nn.Sequential(weight_norm(nn.Linear(6, 8)), nn.PReLU(), nn.Linear(8, CLASSES)),
    ),
    "cnn": (
        IMAGE,
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1),
            nn.Softplus(),
            nn.AvgPool2d(2),
            nn.Conv2d(4, 4, 2, groups=2),
            nn.Flatten(),
            nn.Linear(16, CLASSES),
        ),
    ),
    "group norm": (
        IMAGE,
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3),
            nn.GroupNorm(2, 4),
            nn.SiLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(16, CLASSES),
        ),
    ),
    "conv1d": (
        SEQUENCE,
        lambda: nn.Sequential(
            nn.Conv1d(5, 4, 2, stride=2), nn.Tanh(), nn.Flatten(), nn.Linear(8, CLASSES)
        ),
    ),
    "lstm": (TOKENS, lambda: Pooled(nn.LSTM(4, 3, batch_first=True), 3, embedded=True)),
    "gru": (SEQUENCE, lambda: Pooled(nn.GRU(4, 3, batch_first=True, bidirectional=True), 6)),
    "attention": (SEQUENCE, lambda: Pooled(nn.MultiheadAttention(4, 2, batch_first=True), 4)),
    "transformer": (
        TOKENS,
        lambda: Pooled(
            nn.TransformerEncoderLayer(4, 2, 6, 0.0, batch_first=True), 4, embedded=True
        ),
    ),
    "tied tokens": (TOKENS, TiedTokens),
}
"""By name: the kind of input and how to make it; the simplest first, which is where shrinking ends.
"""


def logits_loss(name: str, scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the loss of every record, by the name of a loss."""
    targets = (labels.unsqueeze(-1) == torch.arange(CLASSES)).to(scores.dtype)
    match name:
        case "cross entropy":
            return F.cross_entropy(scores, labels, reduction="none")
        case "mse":
            return (scores - targets).square().mean(1)
        case "hinge":
            return F.softplus(1 - scores * (2 * targets - 1)).sum(1)
        case "huber":
            return F.huber_loss(scores, targets, reduction="none").sum(1)
        case "own scale":  # of every record another one
            return F.cross_entropy(scores, labels, reduction="none") * (
                10.0 ** (3 * labels - 3)
            ).to(scores.dtype)
        case "smoothed":
            return F.cross_entropy(scores, labels, reduction="none", label_smoothing=0.1)
    raise ValueError(name)


LOSSES = ("cross entropy", "mse", "hinge", "huber", "own scale", "smoothed")
