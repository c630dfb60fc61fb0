"""Masks that are built record by record say what transformers' own masks say."""

import pytest
import torch
import transformers as hf
from hf_models import ARCHITECTURES, LENGTH, VOCABULARY

from dpfy.errors import InvalidArgument
from dpfy.integrations.huggingface import masks
from dpfy.integrations.huggingface.losses import private_loss

ATTENDED = torch.tensor([[1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 0, 0]]).bool()


def test_a_token_sees_what_is_no_padding():
    seen = masks.bidirectional(ATTENDED)[:, 0, 0]
    assert torch.equal(seen[:2], ATTENDED[:2])
    assert seen[2].all()  # nothing but padding: a softmax over no token is not a number


def test_a_token_of_a_decoder_sees_itself_and_the_past_within_its_window():
    seen, near = masks.causal(ATTENDED)[:, 0], masks.causal(ATTENDED, 2)[:, 0]
    for record, row in enumerate(ATTENDED.tolist()):
        for query in range(4):
            for key in range(4):
                past = row[key] and key <= query
                assert seen[record, query, key] == (past or key == query)
                assert near[record, query, key] == ((past and query - key < 2) or key == query)


def test_a_token_of_an_encoder_may_have_a_window_to_both_sides():
    near = masks.bidirectional(ATTENDED, 1)[:, 0]
    for record, row in enumerate(ATTENDED.tolist()):
        for query in range(4):
            for key in range(4):
                seen = row[key] and abs(query - key) <= 1
                assert near[record, query, key] == (seen or key == query)


def test_positions_count_the_tokens_of_a_record_on_either_side():
    assert masks.positions(ATTENDED).tolist() == [[0, 1, 2, 2], [0, 0, 1, 2], [0, 0, 0, 0]]


VARIANTS = {
    **{name: {} for name in ARCHITECTURES if name not in ("vit", "t5")},
    "qwen2 sliding": {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1},
    "qwen2 all sliding": {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 0},
    "mistral full": {"sliding_window": None},
}


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("name", VARIANTS)
def test_outputs_are_those_that_transformers_gives_one_record(name, implementation):
    """A wrong triangle, window, position or form of the mask would change them."""
    architecture = ARCHITECTURES.get(name) or ARCHITECTURES[name.split()[0]]
    model = architecture.make(attn_implementation=implementation, **VARIANTS[name]).eval()
    batch = architecture.batch()
    loss = private_loss(model, architecture.task)
    found = model(**loss._inputs(batch)).logits
    for row, attended in enumerate(batch["attention_mask"].bool()):
        alone = model(input_ids=batch["input_ids"][row : row + 1, attended]).logits[0]
        ours = found[row] if architecture.task == "classification" else found[row, attended]
        torch.testing.assert_close(ours, alone.reshape(ours.shape), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_layers_of_an_encoder_may_differ(implementation):
    config = hf.ModernBertConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=3,
        num_attention_heads=4,
        local_attention=4,
        pad_token_id=0,
        attn_implementation=implementation,
    )
    assert set(config.layer_types) == {"full_attention", "sliding_attention"}
    model, batch = hf.ModernBertForMaskedLM(config).eval(), ARCHITECTURES["distilbert"].batch()
    found = model(**private_loss(model, "masked_lm")._inputs(batch)).logits
    for row, attended in enumerate(batch["attention_mask"].bool()):
        alone = model(input_ids=batch["input_ids"][row : row + 1, attended]).logits[0]
        torch.testing.assert_close(found[row, attended], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_an_encoder_and_its_decoder_see_what_is_no_padding(implementation):
    architecture = ARCHITECTURES["t5"]
    model = architecture.make(attn_implementation=implementation).eval()
    batch = architecture.batch()
    found = model(**private_loss(model, "seq2seq")._inputs(batch)).logits
    for row, (attended, labels) in enumerate(
        zip(batch["attention_mask"].bool(), batch["labels"], strict=True)
    ):
        told = labels != -100
        alone = model(
            input_ids=batch["input_ids"][row : row + 1, attended], labels=labels[None, told]
        ).logits[0]
        torch.testing.assert_close(found[row, told], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral", "distilbert"])
def test_padding_on_the_left_changes_nothing(name):
    architecture = ARCHITECTURES[name]
    model = architecture.make().eval()
    loss = private_loss(model, architecture.task)
    tokens = torch.randint(3, VOCABULARY, (1, 5), generator=torch.Generator().manual_seed(1))
    padding = torch.zeros(1, LENGTH - 5, dtype=torch.long)

    def padded(values, filler):
        left, right = [padding + filler, values], [values, padding + filler]
        return torch.cat([torch.cat(left, 1), torch.cat(right, 1)])

    batch = {
        "input_ids": padded(tokens, 0),
        "attention_mask": padded(torch.ones_like(tokens), 0),
        "labels": padded(tokens, -100),
    }
    left, right = loss(batch)
    torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-6)


def test_layers_and_implementations_without_a_mask_are_refused_by_name():
    config = ARCHITECTURES["llama"].make().config
    config.layer_types = ["full_attention", "linear_attention"]
    with pytest.raises(InvalidArgument, match="linear_attention"):
        masks.by_layer(config, ATTENDED, decoder=True)
    config.layer_types = None
    config._attn_implementation = "flex_attention"
    with pytest.raises(InvalidArgument, match="got 'flex_attention'"):
        masks.by_layer(config, ATTENDED, decoder=True)
