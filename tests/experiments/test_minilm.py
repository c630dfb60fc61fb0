"""What follows the frozen layers of a language model sees a review's word pieces and no padding."""

import pytest
import torch
from torch import nn

from experiments import minilm


def reviews(lengths: list[int]) -> torch.Tensor:
    """What frozen layers would make of reviews of these lengths: halves, with zeros behind."""
    hidden = torch.randn(len(lengths), 6, 384, generator=torch.Generator().manual_seed(0))
    for row, length in zip(hidden, lengths, strict=True):
        row[length:] = 0
    return hidden.half()


@pytest.mark.parametrize("pooling", [minilm.Mean(), minilm.Attention()])
def test_padding_changes_nothing(pooling: nn.Module) -> None:
    hidden = reviews([6, 3])
    torch.testing.assert_close(pooling(hidden)[1:], pooling(hidden[1:, :3]))


def test_attention_with_equal_scores_is_the_mean() -> None:
    attention, hidden = minilm.Attention(), reviews([6, 3])
    nn.init.zeros_(attention.queries.weight)
    mean = attention.norm(minilm.Mean()(hidden))
    torch.testing.assert_close(attention(hidden), mean.repeat(1, 4))


def test_attention_follows_its_query() -> None:
    attention, hidden = minilm.Attention(), reviews([6])
    with torch.no_grad():
        attention.queries.weight[0] = 100 * hidden[0, 2].float()
    torch.testing.assert_close(attention(hidden)[:, :384], attention.norm(hidden[:, 2].float()))


def test_a_classifier_starts_without_an_opinion() -> None:
    assert minilm.attention_classifier()(reviews([6, 3])).eq(0).all()


def test_all_records_have_the_same_norm() -> None:
    norms = minilm.pooled(minilm.Mean())(reviews([6, 3, 1])).norm(dim=1)
    torch.testing.assert_close(norms, torch.full((3,), 3.0))
