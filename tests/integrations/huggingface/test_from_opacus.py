"""The script that fine-tunes BERT with Opacus trains privately after what the page says is done."""

import sys

import pytest
from tests.from_opacus.test_scripts import require_private, trained

PAIRS = """
_WORDS = ["rain", "sun", "wind", "snow"]
_TRIPLES = [(_WORDS[n % 4], _WORDS[(n + n % 3) % 4], n % 3) for n in range(80)]
TRAIN, TEST = _TRIPLES[:60], _TRIPLES[60:]
"""


@pytest.fixture
def tiny_bert(tmp_path):
    """A folder with a random BERT of two small layers and a tokenizer of four words."""
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "rain", "sun", "wind", "snow"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    BertTokenizer(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path / "bert")
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
        num_labels=3,
    )
    BertForSequenceClassification(config).save_pretrained(tmp_path / "bert")
    return tmp_path / "bert"


def test_bert_on_pairs_of_sentences_trains(tiny_bert, monkeypatch, tmp_path, capsys) -> None:
    (tmp_path / "pairs.py").write_text(PAIRS)
    monkeypatch.delitem(sys.modules, "pairs", raising=False)
    smaller = {
        '"bert-base-cased"': repr(str(tiny_bert)),
        "550_000": "60",
        "= 3, 32, 128, 1e-6": "= 2, 20, 8, 1e-2",
    }
    names = trained("bert", smaller, monkeypatch, tmp_path)
    require_private(names, "bert.dpl", 1e-2, 7.5)
    assert names["run"].engine == "bookkeeping" and "accuracy" in capsys.readouterr().out
    embeddings = names["model"].bert.embeddings.word_embeddings
    assert not embeddings.weight.requires_grad  # what was frozen stayed so
