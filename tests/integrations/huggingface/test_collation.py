"""Records become tensors of one public length, each by itself."""

import pickle

import pytest
import torch
from hf_models import ARCHITECTURES
from hypothesis import given, strategies as st

from dpfy.errors import InvalidArgument
from dpfy.integrations.huggingface import collate_to, private_loss

TEXTS = st.text(st.sampled_from("ab cd, ef."), max_size=60)


@pytest.fixture
def on_the_left(tokenizer):
    tokenizer = pickle.loads(pickle.dumps(tokenizer))
    tokenizer.padding_side = "left"
    return tokenizer


@given(texts=st.lists(TEXTS, min_size=1, max_size=4), length=st.integers(3, 20))
def test_every_record_has_the_public_length_and_no_neighbour(tokenizer, texts, length):
    collate = collate_to(tokenizer, length)
    records = [{"text": text, "label": i % 2} for i, text in enumerate(texts)]
    together = collate(records)
    assert together["labels"].tolist() == [i % 2 for i in range(len(texts))]
    for name, field in together.items():
        assert field.shape[1:] == ((length,) if name != "labels" else ())
        for row, record in enumerate(records):
            assert torch.equal(field[row : row + 1], collate(record)[name])


def test_tokens_are_those_of_the_tokenizer(tokenizer, on_the_left):
    for chosen in (tokenizer, on_the_left):
        found = collate_to(chosen, 8)({"text": "a fine film", "label": 1})
        expected = chosen(["a fine film"], padding="max_length", max_length=8, return_tensors="pt")
        for name, field in expected.items():
            assert torch.equal(found[name], field), name


def test_pairs_are_told_apart(tokenizer):
    found = collate_to(tokenizer, 12, pair="more")({"text": "one", "more": "two", "label": 0})
    assert found["token_type_ids"][0].tolist()[:6] == [0, 0, 0, 1, 1, 0]


def test_records_that_were_tokenised_before_are_cut_and_padded(tokenizer):
    collate = collate_to(tokenizer, 4)
    long = collate({"input_ids": [5, 6, 7, 8, 9], "label": 1})
    assert long["input_ids"].tolist() == [[5, 6, 7, 8]] and long["attention_mask"].all()
    short = collate({"input_ids": [5, 6], "attention_mask": [1, 1], "label": 1})
    assert short["input_ids"].tolist() == [[5, 6, 0, 0]]
    assert short["attention_mask"].tolist() == [[1, 1, 0, 0]]


@pytest.mark.parametrize(
    "label, expected",
    [(2, torch.tensor([2])), (0.5, torch.tensor([0.5])), ([1, 0], torch.tensor([[1.0, 0.0]]))],
    ids=["class", "number", "several"],
)
def test_labels_keep_their_kind(tokenizer, label, expected):
    found = collate_to(tokenizer, 4, label="stars")({"text": "a", "stars": label})["labels"]
    assert torch.equal(found, expected) and found.dtype == expected.dtype


def test_labels_have_the_declared_type_whatever_one_record_has(tokenizer):
    """A record of another type than declared would contribute nothing."""
    collate = collate_to(tokenizer, 4, label_dtype=torch.float32)
    found = collate([{"text": "a", "label": 3}, {"text": "b", "label": 2.5}])["labels"]
    assert found.tolist() == [3.0, 2.5] and found.dtype == torch.float32
    assert collate.example(labels=(0, 1))["labels"].dtype == torch.float32


def test_a_language_model_predicts_the_tokens_and_no_padding(tokenizer, on_the_left):
    for chosen in (tokenizer, on_the_left):
        found = collate_to(chosen, 6, task="causal_lm")({"text": "a film"})
        tokens, attended = found["input_ids"], found["attention_mask"].bool()
        assert torch.equal(found["labels"], tokens.masked_fill(~attended, -100))
        assert attended.sum() == 4
    collate = collate_to(tokenizer, 4, task="causal_lm")
    told = collate({"input_ids": [7, 8], "labels": [-100, 8]})
    assert told["labels"].tolist() == [[-100, 8, -100, -100]]
    padded = {"input_ids": torch.tensor([7, 8, 0]), "attention_mask": torch.tensor([1, 1, 0])}
    assert collate(padded)["labels"].tolist() == [[7, 8, -100, -100]]


def test_the_text_to_predict_has_a_length_of_its_own(tokenizer, on_the_left):
    for chosen in (tokenizer, on_the_left):
        collate = collate_to(chosen, 6, task="seq2seq", label="summary", label_length=5)
        found = collate({"text": "a film", "summary": "fine"})["labels"]
        assert found.tolist() == [[*chosen("fine")["input_ids"], -100, -100]]


def test_words_are_labelled_at_their_first_token(tokenizer):
    words = ["unbelievableness", "film"]
    collate = collate_to(tokenizer, 12, task="token_classification")
    labels = collate({"text": words, "label": [4, 7]})["labels"][0].tolist()
    of_words = tokenizer(words, is_split_into_words=True).word_ids()
    assert len(of_words) > 4  # the first word has several tokens
    expected = [-100] * 12
    expected[of_words.index(0)], expected[of_words.index(1)] = 4, 7
    assert labels == expected


def test_masked_tokens_are_predicted_and_others_are_not(tokenizer):
    collate = collate_to(tokenizer, 512, task="masked_lm", masked=0.2)
    text = "film " * 600
    plain = collate_to(tokenizer, 512, task="causal_lm")({"text": text})["input_ids"][0]
    torch.manual_seed(0)
    rows = [collate({"text": text}) for _ in range(20)]
    tokens = torch.cat([row["input_ids"] for row in rows])
    labels = torch.cat([row["labels"] for row in rows])
    chosen = labels != -100
    assert torch.equal(labels[chosen], plain.expand_as(labels)[chosen])
    assert torch.equal(tokens[~chosen], plain.expand_as(tokens)[~chosen])
    assert not chosen[:, [0, -1]].any()  # [CLS] and [SEP]
    # 10,200 coins each: six standard deviations are 0.024 of 0.2, and 0.053 of 0.8
    assert abs(chosen[:, 1:-1].double().mean() - 0.2) < 0.024
    of_chosen = tokens[chosen]
    assert abs((of_chosen == tokenizer.mask_token_id).double().mean() - 0.8) < 0.055
    assert abs((of_chosen == plain[1]).double().mean() - 0.1) < 0.042
    assert len({tuple(row) for row in chosen.tolist()}) == 20  # drawn anew every time


def test_at_least_one_token_of_a_record_is_predicted(tokenizer):
    collate = collate_to(tokenizer, 8, task="masked_lm", masked=1e-9)
    assert (collate({"text": "a film"})["labels"] != -100).sum() == 1
    assert (collate({"text": ""})["labels"] != -100).sum() == 0


TASKS = ("classification", "causal_lm", "masked_lm", "seq2seq", "token_classification")


@pytest.mark.parametrize("task", TASKS)
def test_synthetic_records_have_the_form_of_records(tokenizer, task):
    collate = collate_to(tokenizer, 10, task=task, label_length=6)
    words = {"text": ["a", "b"], "label": [0, 1]}
    record = {
        "classification": {"text": "a", "label": 0},
        "seq2seq": {"text": "a", "label": "b"},
        "token_classification": words,
    }.get(task, {"text": "a"})
    found, expected = collate.example(), collate(record)
    assert {name: field.dtype for name, field in found.items()} == {
        name: field.dtype for name, field in expected.items()
    }
    for name, field in found.items():
        assert field.shape[1:] == expected[name].shape[1:]
        assert name == "token_type_ids" or (field != field[:1]).any()
    assert not set(found["input_ids"][found["attention_mask"].bool()].tolist()) & (
        set(tokenizer.all_special_ids) - {tokenizer.mask_token_id}
    )


def test_what_cannot_be_collated_is_refused_with_a_remedy(tokenizer):
    bare = pickle.loads(pickle.dumps(tokenizer))
    bare.mask_token = None
    with pytest.raises(InvalidArgument, match="mask token"):
        collate_to(bare, 4, task="masked_lm")
    bare.pad_token = None
    with pytest.raises(InvalidArgument, match=r"tokenizer\.pad_token = tokenizer\.eos_token"):
        collate_to(bare, 4)

    class Slow:
        is_fast, pad_token_id = False, 0

    with pytest.raises(InvalidArgument, match="use_fast=True"):
        collate_to(Slow(), 4, task="token_classification")
    with pytest.raises(InvalidArgument, match="max_length"):
        collate_to(tokenizer, 0)
    with pytest.raises(InvalidArgument, match="masked=0"):
        collate_to(tokenizer, 4, task="masked_lm", masked=0)


def test_a_data_set_of_texts_is_trained_on(started, tokenizer):
    """Rows of `datasets` come together, and each is collated by itself."""
    import datasets

    texts = ["a fine film", "rain", "two hours of rain", ""] * 3
    rows = datasets.Dataset.from_dict({"text": texts, "label": [1, 0, 0, 1] * 3})
    collate = collate_to(tokenizer, 6)
    model = ARCHITECTURES["bert"].make(vocab_size=len(tokenizer)).eval()
    loss, example = private_loss(model, "classification"), collate.example()
    released = [
        started(data, model=model, collate_fn=collate, example_input=example).release(loss)
        for data in (rows, [*rows])
    ]
    torch.testing.assert_close(*released)
    assert released[0].norm() > 0
