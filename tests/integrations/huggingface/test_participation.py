"""Tensors that would be trained on noise alone are named."""

import pytest
import torch
from hf_models import ARCHITECTURES, with_lora
from torch import nn

from dpfy.errors import InvalidArgument
from dpfy.integrations.huggingface import private_loss, require_gradients

BERT = ARCHITECTURES["bert"]


def test_an_adapter_at_its_first_values_passes():
    """Half of it has no gradient there, since the other half is zero."""
    import peft

    model = peft.get_peft_model(BERT.make(), peft.LoraConfig(r=2, target_modules=["query"]))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    state = torch.random.get_rng_state()
    require_gradients(model, private_loss(model, "classification"), BERT.batch())
    assert torch.equal(torch.random.get_rng_state(), state)
    for name, parameter in model.named_parameters():
        assert parameter.grad is None and torch.equal(parameter, before[name])


def test_an_adapter_that_is_switched_off_is_named():
    model = with_lora(BERT, BERT.make())
    layer = model.base_model.model.bert.encoder.layer[1].attention.self.query
    layer.forward = layer.base_layer.forward  # what a bug in a library looks like
    with pytest.raises(InvalidArgument) as refusal:
        require_gradients(model, private_loss(model, "classification"), BERT.batch())
    assert "layer.1.attention.self.query.lora_A" in str(refusal.value)
    assert "layer.0" not in str(refusal.value)


def test_a_tensor_without_a_part_in_the_loss_is_named():
    model = BERT.make()
    model.spare = nn.Linear(2, 1)
    with pytest.raises(InvalidArgument, match=r"record: spare\.bias, spare\.weight\. "):
        require_gradients(model, private_loss(model, "classification"), BERT.batch())
    model.spare.requires_grad_(False)
    require_gradients(model, private_loss(model, "classification"), BERT.batch())
