"""The benchmark of fine-tuning compares steps that train the same tensors."""

import pytest
import torch
from benchmarks import finetune

from dpfy.integrations.huggingface import collate_to


@pytest.mark.parametrize("form", finetune.FORMS)
def test_plain_and_private_steps_train_the_same_tensors(tokenizer, form, tmp_path, monkeypatch):
    example = collate_to(tokenizer, 8).example()
    data, models = finetune.Reviews(example, example), []
    make = finetune.pretrained

    def noted(form):
        models.append(make(form))
        return models[-1]

    monkeypatch.setattr(finetune, "pretrained", noted)
    engines = [finetune.stepper(kind, form, data, tmp_path)() for kind in finetune.KINDS]
    assert engines == ["", "bookkeeping"]
    before = dict(make(form).named_parameters())
    for model in models:
        moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
        assert moved == {name for name, p in before.items() if p.requires_grad}
