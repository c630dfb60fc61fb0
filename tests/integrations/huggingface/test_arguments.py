"""Settings that change what a sample is, or that show records, are refused with what to do."""

import pytest
import torch
import transformers as hf
from hf_trainers import Sentences, arguments, small_plan, trainer, word_tokenizer
from transformers import EarlyStoppingCallback, TrainingArguments

from dpfy.errors import DataError, InvalidArgument
from dpfy.integrations.huggingface import collate_to
from dpfy.integrations.huggingface.arguments import for_plan

SAMPLE = r"batch_size where you make it, and max_physical_batch="
REFUSED = {
    "gradient_accumulation_steps": (4, SAMPLE),
    "per_device_train_batch_size": (16, SAMPLE),
    "auto_find_batch_size": (True, SAMPLE),
    "train_sampling_strategy": ("group_by_length", SAMPLE),
    "dataloader_drop_last": (True, SAMPLE),
    "num_train_epochs": (7, "set epochs where you make the plan"),
    "max_steps": (5, "the plan has 6 steps"),
    "label_smoothing_factor": (0.1, "loss_fn="),
    "include_num_input_tokens_seen": ("all", "counts tokens of private records"),
    "skip_memory_metrics": (False, "measures private batches"),
    "debug": ("underflow_overflow", "prints activations"),
    "use_liger_kernel": (True, "fused kernels"),
    "optim": ("adalomo", "before they are released"),
    "activation_checkpointing_kwargs": ({"use_reentrant": True}, "'use_reentrant': False"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses_what_contradicts_the_plan_or_shows_records(name, tmp_path):
    value, remedy = REFUSED[name]
    with pytest.raises(InvalidArgument, match=remedy):
        trainer(tmp_path, args={name: value})
    assert not (tmp_path / "ledger.dpl").exists()


def test_refuses_samples_that_are_added_up_by_the_accelerator(tmp_path):
    settings = {"gradient_accumulation_kwargs": {"num_steps": 4}}
    with pytest.raises(InvalidArgument, match=SAMPLE):
        trainer(tmp_path, args={"accelerator_config": settings})


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("fp16", True, "bf16=True"),
        ("mixed_precision", "fp16", "bf16=True"),
        ("mixed_precision", "fp8", "bf16=True"),
        ("packing", True, "collate_to"),
        ("padding_free", True, "collate_to"),
        ("torch_compile", True, "engine"),
        ("fsdp", "full_shard", "torchrun"),
        ("deepspeed", {}, "torchrun"),
        ("_n_gpu", 2, "torchrun"),
    ],
)
def test_refuses_what_this_machine_cannot_even_ask_for(name, value, remedy, tmp_path):
    args = arguments(tmp_path)
    setattr(args, name, value)
    with pytest.raises(InvalidArgument, match=remedy):
        for_plan(args, small_plan())


def test_takes_arguments_of_the_plan_itself(tmp_path):
    plan = small_plan(10)
    args = TrainingArguments(
        str(tmp_path), max_steps=10, num_train_epochs=2, per_device_train_batch_size=8
    )
    found = for_plan(args, plan)
    assert (found.max_steps, found.per_device_train_batch_size) == (10, 8)
    assert for_plan(found, plan).to_dict() == found.to_dict()  # as those in a checkpoint are


@pytest.mark.parametrize(
    "settings",
    [
        {"eval_strategy": "steps", "eval_steps": 1},
        {"eval_on_start": True},
        {"load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 500},
        {"save_strategy": "best", "metric_for_best_model": "loss"},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_refuses_to_choose_by_data_that_nobody_said_is_public(settings, tmp_path):
    with pytest.raises(InvalidArgument, match="eval_is_public=True"):
        trainer(tmp_path, args=settings, eval_dataset=Sentences())


@pytest.mark.parametrize("callback", [EarlyStoppingCallback, EarlyStoppingCallback(2)])
def test_refuses_to_stop_early_by_data_that_nobody_said_is_public(callback, tmp_path):
    with pytest.raises(InvalidArgument, match="EarlyStoppingCallback"):
        trainer(tmp_path, callbacks=[callback])


def test_refuses_data_without_random_access(tmp_path):
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            raise AssertionError("nothing is read")

    with pytest.raises(DataError, match="random access"):
        trainer(tmp_path, data=Stream())


def test_refuses_streams_of_datasets(tmp_path):
    import datasets

    stream = datasets.Dataset.from_dict({"text": ["the cat"]}).to_iterable_dataset()
    with pytest.raises(DataError, match="map-style"):
        trainer(tmp_path, data=stream)


@pytest.mark.parametrize(
    "collator",
    [
        lambda tokenizer: hf.DataCollatorWithFlattening(),
        lambda tokenizer: hf.DataCollatorWithPadding(tokenizer),
        lambda tokenizer: hf.DataCollatorForSeq2Seq(tokenizer),
        lambda tokenizer: hf.DataCollatorForTokenClassification(tokenizer),
        lambda tokenizer: hf.DataCollatorForLanguageModeling(tokenizer, mlm=False),
    ],
)
def test_refuses_collators_that_join_records_or_pad_to_neighbours(collator, tmp_path):
    with pytest.raises(InvalidArgument, match="collate_to"):
        trainer(tmp_path, data_collator=collator(word_tokenizer()))


def test_refuses_the_collator_that_transformers_takes_by_default(tmp_path):
    with pytest.raises(InvalidArgument, match="collate_to"):
        trainer(tmp_path, data_collator=None, processing_class=word_tokenizer())


def test_refuses_labels_of_another_task(tmp_path):
    """Each record would fail to be collated, and training would go on with noise alone."""
    collator = collate_to(word_tokenizer(), 8)
    with pytest.raises(InvalidArgument, match="task='causal_lm'"):
        trainer(tmp_path, data_collator=collator)
