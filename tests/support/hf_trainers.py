"""A small language model, records in words, and trainers over them that need no network."""

import transformers as hf
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, TrainingArguments

import dpfy
from dpfy.integrations.huggingface import DPTrainer, collate_to

WORDS = tuple(
    [
        "the",
        "a",
        "cat",
        "dog",
        "bird",
        "sat",
        "ran",
        "flew",
        "on",
        "under",
        "over",
        "mat",
        "hill",
        "tree",
        "and",
        "then",
    ]
)
LENGTH, RECORDS = 8, 40


def word_tokenizer():
    """Return a tokenizer of a fixed, public list of words."""
    vocabulary = {word: place for place, word in enumerate(["[PAD]", "[UNK]", *WORDS])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]")


class Sentences:
    """Sentences of different lengths; ``read`` has the indices that were asked for."""

    def __init__(self, number=RECORDS):
        self.number, self.read = number, []

    def __len__(self):
        return self.number

    def __getitem__(self, index):
        if not 0 <= index < self.number:
            raise IndexError(index)
        self.read.append(index)
        words = [WORDS[(index * 7 + 3 * place) % len(WORDS)] for place in range(3 + index % 6)]
        return {"text": " ".join(words), "label": index % 2}


def small_model(seed=0, **settings):
    """Return a GPT-2 of two layers with random weights, tied embeddings and no dropout."""
    hf.set_seed(seed)
    config = hf.GPT2Config(
        vocab_size=len(WORDS) + 2,
        n_embd=8,
        n_layer=1,
        n_head=2,
        n_positions=LENGTH,
        bos_token_id=1,
        eos_token_id=1,
        **{"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0} | settings,
    )
    return hf.GPT2LMHeadModel(config)


def small_plan(steps=6, **settings):
    """Return a plan of a few steps over the sentences."""
    settings = {"records": RECORDS, "batch_size": 8, "steps": steps, "clip": 1.0} | settings
    return dpfy.dpsgd(**settings).calibrate(4.0, 1e-3)


def arguments(folder, **settings):
    """Return arguments that print nothing and log every step."""
    quiet = {"disable_tqdm": True, "report_to": "none", "logging_steps": 1, "use_cpu": True}
    return TrainingArguments(
        **{"output_dir": str(folder), "learning_rate": 1e-2, **quiet} | settings
    )


def trainer(folder, *, model=None, plan=None, data=None, args=None, **options):
    """Return a trainer of a small model on sentences, under a test key."""
    collator = collate_to(word_tokenizer(), LENGTH, task="causal_lm")
    return DPTrainer(
        model=small_model() if model is None else model,
        args=arguments(folder, **(args or {})),
        train_dataset=Sentences() if data is None else data,
        plan=small_plan() if plan is None else plan,
        **{"task": "causal_lm", "data_collator": collator, "insecure_test_key": 1} | options,
    )
