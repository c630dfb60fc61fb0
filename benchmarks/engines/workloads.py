"""Six networks, and small and large ones, with made-up data of their shapes."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

from dpfy.models import cifar_cnn, mnist_cnn, wide_resnet

_VOCABULARY = 20_000
_GPT2_VOCABULARY = 50_257


@dataclass(frozen=True)
class Workload:
    """A network, the batch it is trained with, and how many times plain torch's time a private step
    may take.
    """

    name: str
    batch: int
    build: Callable[[], nn.Module]
    inputs: Callable[[int], torch.Tensor]
    classes: int
    time_limit: float
    labels: tuple[int, ...] = ()  # the shape of a record's label

    def model(self) -> nn.Module:
        """Return the network with the same weights every time, in training mode."""
        torch.manual_seed(0)
        return self.build()

    def data(self) -> TensorDataset:
        """Return one batch of records; more would only change where the rows are copied from."""
        torch.manual_seed(1)
        labels = torch.randint(self.classes, (self.batch, *self.labels))
        return TensorDataset(self.inputs(self.batch), labels)


class TextTransformer(nn.Module):
    """A trained embedding with positions, pre-norm encoder layers, the mean over time, and a linear
    head.
    """

    def __init__(self, vocabulary: int, length: int, width: int, layers: int, classes: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        # Without dropout, so that every contender does the same arithmetic.
        layer = nn.TransformerEncoderLayer(
            width,
            nhead=4,
            dim_feedforward=4 * width,
            dropout=0.0,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        self.encoder = nn.TransformerEncoder(
            layer, layers, norm=nn.LayerNorm(width), enable_nested_tensor=False
        )
        self.head = nn.Linear(width, classes)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits for rows of token ids."""
        places = torch.arange(tokens.shape[1]).repeat(
            len(tokens), 1
        )  # contiguous: a peer's norms ask for it
        return self.head(self.encoder(self.tokens(tokens) + self.positions(places)).mean(dim=1))


class TextLstm(nn.Module):
    """Frozen word vectors, a bidirectional LSTM, and a linear head on its last states."""

    def __init__(self, vectors: torch.Tensor, hidden: int, classes: int) -> None:
        super().__init__()
        self.vectors = nn.Embedding.from_pretrained(vectors, freeze=True)
        self.lstm = nn.LSTM(vectors.shape[1], hidden, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * hidden, classes)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits for rows of token ids."""
        _, (last, _) = self.lstm(self.vectors(tokens))
        return self.head(torch.cat([last[0], last[1]], dim=1))


class Block(nn.Module):
    """A pre-norm layer of GPT-2: causal attention and a feed-forward network."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the hidden states after this layer."""
        parts = self.attend(self.before(x)).unflatten(2, (3, self.heads, -1))
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(attended.transpose(1, 2).flatten(2))
        return x + self.narrow(F.gelu(self.widen(self.between(x)), approximate="tanh"))


class LanguageModel(nn.Module):
    """The shape of GPT-2: the table of tokens is the weight of the head too."""

    def __init__(self, vocabulary: int, length: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits of the next tokens, [records, vocabulary, time]."""
        places = torch.arange(tokens.shape[1]).expand(len(tokens), -1)
        x = self.tokens(tokens) + self.positions(places)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)).transpose(1, 2)


def _mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
    )


def _small_mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(784, 640), nn.ReLU(), nn.Linear(640, 448), nn.ReLU(), nn.Linear(448, 10)
    )


def _large_mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(784, 9600), nn.ReLU(), nn.Linear(9600, 9600), nn.ReLU(), nn.Linear(9600, 10)
    )


def _numbers(*shape: int) -> Callable[[int], torch.Tensor]:
    return lambda records: torch.rand(records, *shape)


def _tokens(length: int) -> Callable[[int], torch.Tensor]:
    return lambda records: torch.randint(_VOCABULARY, (records, length))


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("mlp", 1024, _mlp, _numbers(784), classes=10, time_limit=1.25),
        Workload(
            "transformer",
            32,
            lambda: TextTransformer(_VOCABULARY, length=128, width=256, layers=4, classes=2),
            _tokens(128),
            classes=2,
            time_limit=1.25,
        ),
        Workload("cnn-mnist", 512, mnist_cnn, _numbers(1, 28, 28), classes=10, time_limit=1.25),
        Workload("cnn-cifar", 256, cifar_cnn, _numbers(3, 32, 32), classes=10, time_limit=1.25),
        Workload(
            "wrn16-4",
            64,
            lambda: wide_resnet(depth=16, width=4),
            _numbers(3, 32, 32),
            classes=10,
            time_limit=1.25,
        ),
        Workload(
            "lstm-imdb",
            256,
            lambda: TextLstm(torch.randn(_VOCABULARY, 100), hidden=32, classes=2),
            _tokens(80),
            classes=2,
            time_limit=1.25,
        ),
    )
}
"""The workloads that all contenders are compared on and means are taken over, by name."""

LARGE = {
    workload.name: workload
    for workload in (
        Workload("mlp-small", 64, _small_mlp, _numbers(784), classes=10, time_limit=2.0),
        Workload("mlp-100m", 128, _large_mlp, _numbers(784), classes=10, time_limit=1.25),
        Workload(
            "gpt2-small",
            4,
            lambda: LanguageModel(_GPT2_VOCABULARY, length=1024, width=768, layers=12, heads=12),
            lambda records: torch.randint(_GPT2_VOCABULARY, (records, 128)),
            classes=_GPT2_VOCABULARY,
            time_limit=1.35,
            labels=(128,),
        ),
    )
}
"""Workloads for plain torch and dpfy only, as others would keep a model for each record."""

ALL = {**WORKLOADS, **LARGE}
"""Every workload by its name."""
