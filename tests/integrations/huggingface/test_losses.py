"""One loss per record: what it is, and that no neighbour has a part in it."""

from dataclasses import FrozenInstanceError

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from hf_models import ARCHITECTURES, Records
from hypothesis import given, strategies as st

from dpfy.errors import InvalidArgument
from dpfy.gradients import ENGINES
from dpfy.integrations.huggingface import private_loss

TOKENS = [name for name in ARCHITECTURES if name not in ("bert", "vit")]
EVALUATED = {name: each.make().eval() for name, each in ARCHITECTURES.items()}


def only(batch, row):
    return {name: field[row : row + 1] for name, field in batch.items()}


@torch.no_grad()
def losses_of_transformers(model, batch):
    """The loss that transformers itself gives each record alone."""
    return torch.stack([model(**only(batch, row)).loss for row in range(len(batch["labels"]))])


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_loss_of_one_record_is_that_of_transformers(name):
    model, architecture = EVALUATED[name], ARCHITECTURES[name]
    batch = architecture.batch()
    found = private_loss(model, architecture.task)(batch)
    expected = losses_of_transformers(model, batch)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ARCHITECTURES)
@given(seeds=st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), row=st.integers(0, 3))
def test_no_neighbour_changes_the_loss_of_a_record(name, seeds, row):
    """Other lengths, other labels and other numbers of labels of all the others."""
    architecture = ARCHITECTURES[name]
    loss = private_loss(EVALUATED[name], architecture.task)
    one, other = (architecture.batch(4, seed) for seed in seeds)
    for field, values in other.items():
        values[row] = one[field][row]
    torch.testing.assert_close(loss(one)[row], loss(other)[row], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_record_without_labels_has_neither_loss_nor_gradient(name):
    """Also where it is nothing but padding: 0/0 and a softmax over no token are not numbers."""
    model, architecture = EVALUATED[name], ARCHITECTURES[name]
    batch = architecture.batch(3)
    batch["labels"][1:] = -100
    if "attention_mask" in batch:
        batch["attention_mask"][2] = 0
    losses = private_loss(model, architecture.task)(batch)
    assert losses[0] > 0 and losses[1:].tolist() == [0.0, 0.0]
    gradients = torch.autograd.grad(losses[1:].sum(), list(model.parameters()), allow_unused=True)
    assert not any(bool(each.any()) for each in gradients if each is not None)


@pytest.mark.parametrize("name", TOKENS)
def test_ignored_labels_are_ignored_record_by_record(name):
    """And what is left is divided by the record's own number of labels, or a public length."""
    model, architecture = EVALUATED[name], ARCHITECTURES[name]
    batch = architecture.batch(3)
    kept = 1 + (batch["labels"][:, 1:] != -100).long().argmax(1)
    batch["labels"][0] = batch["labels"][0].masked_fill(
        torch.arange(batch["labels"].shape[1]) != kept[0], -100
    )
    by_tokens = private_loss(model, architecture.task)(batch)
    by_length = private_loss(model, architecture.task, normalise="length")(batch)
    causal = architecture.task == "causal_lm"
    labels = batch["labels"][:, 1:] if causal else batch["labels"]
    counts = (labels != -100).sum(1)
    assert counts[0] == 1 and counts[1:].min() > 1
    torch.testing.assert_close(by_tokens * counts, by_length * batch["labels"].shape[1])


def test_a_prediction_from_padding_has_no_loss():
    architecture = ARCHITECTURES["gpt2"]
    batch = architecture.batch(1)
    batch["attention_mask"][:, :4] = 0
    loss = private_loss(EVALUATED["gpt2"], "causal_lm", normalise="length")
    before = loss(batch)
    batch["labels"][:, :5] = -100  # the first token that is none of padding has no past
    torch.testing.assert_close(loss(batch), before)


PROBLEMS = {
    "single_label_classification": (3, torch.tensor([0, 2]), F.cross_entropy),
    "multi_label_classification": (
        3,
        torch.tensor([[0.0, 1.0, 1.0], [1.0, 0.0, 0.0]]),
        F.binary_cross_entropy_with_logits,
    ),
    "regression": (1, torch.tensor([0.5, -2.0]), F.mse_loss),
}


@pytest.mark.parametrize("said", [True, False], ids=["said", "by shape"])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_problem_is_the_one_that_the_model_is_for(problem, said):
    outputs, labels, expected = PROBLEMS[problem]
    architecture = ARCHITECTURES["bert"]
    model = architecture.make(num_labels=outputs, problem_type=problem if said else None).eval()
    batch = architecture.batch(2) | {"labels": labels}
    losses = private_loss(model, "classification")(batch)
    for row, loss in enumerate(losses):
        logits = model(**only(batch, row) | {"labels": None}).logits
        alone = expected(
            logits,
            labels[row : row + 1]
            .reshape(-1, *labels.shape[1:])
            .reshape(logits.shape if problem != "single_label_classification" else (1,)),
        )
        torch.testing.assert_close(loss, alone, rtol=1e-4, atol=1e-5)
    assert model.config.problem_type == (problem if said else None)  # nothing was written


def test_tokens_are_classified():
    architecture = ARCHITECTURES["bert"]
    model = hf.BertForTokenClassification(hf.BertConfig(**architecture.settings)).eval()
    batch = architecture.batch(3)
    batch["labels"] = (batch["input_ids"] % 3).masked_fill(batch["attention_mask"] == 0, -100)
    losses = private_loss(model, "token_classification")(batch)
    expected = losses_of_transformers(model, batch)
    torch.testing.assert_close(losses, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("causal", [True, False], ids=["past", "both sides"])
def test_a_decoder_classifies_by_its_last_token(causal):
    """Its tokens may see both sides, where the configuration says so."""
    architecture = ARCHITECTURES["llama"]
    config = hf.LlamaConfig(**architecture.settings, num_labels=3, pad_token_id=0, is_causal=causal)
    model = hf.LlamaForSequenceClassification(config).eval()
    batch = architecture.batch(4) | {"labels": torch.tensor([0, 1, 2, 0])}
    losses = private_loss(model, "classification")(batch)
    for row, attended in enumerate(batch["attention_mask"].bool()):
        alone = model(
            input_ids=batch["input_ids"][row : row + 1, attended],
            labels=batch["labels"][row : row + 1],
        )
        torch.testing.assert_close(losses[row], alone.loss, rtol=1e-4, atol=1e-5)


def test_roberta_counts_positions_in_its_own_way():
    settings = ARCHITECTURES["bert"].settings | {"pad_token_id": 0}
    model = hf.RobertaForSequenceClassification(hf.RobertaConfig(**settings)).eval()
    batch = ARCHITECTURES["bert"].batch(3)
    losses = private_loss(model, "classification")(batch)
    expected = losses_of_transformers(model, batch)
    torch.testing.assert_close(losses, expected, rtol=1e-4, atol=1e-5)


def test_what_cannot_be_computed_is_refused_with_a_reason():
    import peft

    model, batch = ARCHITECTURES["gpt2"].make(), ARCHITECTURES["gpt2"].batch(2)
    with pytest.raises(InvalidArgument, match="task"):
        private_loss(model, "summarise")
    with pytest.raises(InvalidArgument, match="normalise"):
        private_loss(model, "causal_lm", normalise="batch")
    with pytest.raises(InvalidArgument, match="labels"):
        private_loss(model, "causal_lm")({"input_ids": batch["input_ids"]})
    with pytest.raises(InvalidArgument, match="GPT2LMHeadModel does not take: words"):
        private_loss(model, "causal_lm")(batch | {"words": batch["input_ids"]})
    with pytest.raises(InvalidArgument, match="no config"):
        private_loss(torch.nn.Linear(1, 1), "causal_lm")
    prompts = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    with pytest.raises(InvalidArgument, match="tokens before the record's"):
        private_loss(peft.get_peft_model(model, prompts), "causal_lm")


def test_masks_made_for_a_whole_batch_would_cost_the_fast_engine(started):
    """What the loss is for: transformers' own masks look at all records at once."""
    architecture = ARCHITECTURES["bert"]
    model, batch = architecture.make(), architecture.batch(4)

    def naive(batch):
        inputs = {name: field for name, field in batch.items() if name != "labels"}
        return F.cross_entropy(model(**inputs).logits, batch["labels"], reduction="none")

    found = []
    for loss in (naive, private_loss(model, "classification")):
        s = started(Records(batch), model=model)
        s.release(loss)
        found.append(s.run.engine)
    assert found == ["loop", "bookkeeping"]


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_every_engine_takes_records_that_are_dicts(started, name):
    architecture, released = ARCHITECTURES[name], {}
    for engine in ENGINES:
        model = architecture.make().eval()
        s = started(Records(architecture.batch()), model=model, engine=engine, clip=0.1)
        released[engine] = s.release(private_loss(model, architecture.task))
    for engine, found in released.items():
        assert (found - released["loop"]).norm() <= 1e-4 * released["loop"].norm(), engine


@pytest.mark.parametrize(
    "name, kind",
    [("gpt2", "CAUSAL_LM"), ("bert", "SEQ_CLS"), ("t5", "SEQ_2_SEQ_LM"), ("distilbert", None)],
)
def test_adapters_of_every_kind_are_looked_into(name, kind):
    """An adapter at its first values changes no loss."""
    import peft

    architecture = ARCHITECTURES[name]
    batch, model = architecture.batch(), architecture.make().eval()
    before = private_loss(model, architecture.task)(batch)
    lora = peft.LoraConfig(
        r=2,
        target_modules=list(architecture.adapted),
        task_type=kind,
        fan_in_fan_out=name == "gpt2",
    )
    found = private_loss(peft.get_peft_model(model, lora).eval(), architecture.task)(batch)
    torch.testing.assert_close(found, before)


def test_a_loss_is_judged_once_and_cannot_become_another():
    loss = private_loss(ARCHITECTURES["gpt2"].make(), "causal_lm")
    with pytest.raises(FrozenInstanceError):
        loss.normalise = "length"
