"""The layer of MiniLM that an experiment adapts privately."""

import pytest
import torch

from experiments import minilm


@pytest.fixture(scope="module")
def adapted() -> minilm.AdaptedLayer:
    torch.manual_seed(0)
    return minilm.AdaptedLayer()


@pytest.fixture
def hidden() -> torch.Tensor:
    """What lower layers would make of two reviews, the second with zeros behind it."""
    hidden = torch.randn(2, 6, 384, generator=torch.Generator().manual_seed(1))
    hidden[1, 3:] = 0
    return hidden.half()


def test_lora_starts_as_the_layer_that_it_adapts(adapted, hidden) -> None:
    from transformers import AutoModel

    layer = AutoModel.from_pretrained(minilm._place()).eval().encoder.layer[minilm.FROZEN - 1]
    torch.testing.assert_close(adapted.eval()(hidden)[:1], layer(hidden[:1].float()))


def test_padding_stays_zero_and_changes_nothing(adapted, hidden) -> None:
    found = adapted(hidden)
    assert found[1, 3:].eq(0).all()
    torch.testing.assert_close(found[1:, :3], adapted(hidden[1:, :3]))


def test_only_queries_and_values_are_adapted(adapted) -> None:
    trained = {name for name, p in adapted.named_parameters() if p.requires_grad}
    assert len(trained) == 4
    assert all("lora_" in name and ("query" in name or "value" in name) for name in trained)


def test_a_classifier_starts_without_an_opinion(hidden) -> None:
    assert minilm.lora_classifier()(hidden).eq(0).all()
