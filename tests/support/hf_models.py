"""Small models of transformers with random weights, and batches for them."""

from dataclasses import dataclass

import torch
import transformers as hf

VOCABULARY, LENGTH, WIDTH = 37, 12, 16
_DECODER = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 2 * LENGTH,
}


@dataclass(frozen=True)
class Architecture:
    """A kind of model, the task it is for, and the layers that adapters go to."""

    kind: type
    config: type
    settings: dict
    task: str
    adapted: tuple[str, ...]

    def make(self, **others):
        """Return a model with random weights, in training mode, with its dropout."""
        with torch.random.fork_rng():
            torch.manual_seed(2)
            return self.kind(self.config(**self.settings | others)).train()

    def batch(self, records=6, seed=0):
        """Return synthetic records of different lengths, one with padding only at its end."""
        generator = torch.Generator().manual_seed(seed)

        def tokens(least=3):
            return torch.randint(least, VOCABULARY, (records, LENGTH), generator=generator)

        if self.config is hf.ViTConfig:
            labels = torch.randint(3, (records,), generator=generator)
            return {
                "pixel_values": torch.randn(records, 3, 8, 8, generator=generator),
                "labels": labels,
            }
        lengths = torch.randint(3, LENGTH + 1, (records,), generator=generator)
        attended = torch.arange(LENGTH) < lengths[:, None]
        ids = tokens().masked_fill(~attended, 0)
        batch = {"input_ids": ids, "attention_mask": attended.long()}
        if self.task == "classification":
            return batch | {"labels": torch.randint(3, (records,), generator=generator)}
        if self.task == "seq2seq":
            ends = torch.randint(1, LENGTH, (records,), generator=generator)
            told = torch.arange(LENGTH - 2) < ends[:, None]
            return batch | {"labels": tokens()[:, : LENGTH - 2].masked_fill(~told, -100)}
        return batch | {"labels": ids.masked_fill(~attended, -100)}


class Records(torch.utils.data.Dataset):
    """Rows of a collated batch, each a dict, which declares their shape as well."""

    def __init__(self, batch):
        self.example_input = batch

    def __len__(self):
        return len(self.example_input["labels"])

    def __getitem__(self, index):
        return {name: field[index] for name, field in self.example_input.items()}


ARCHITECTURES = {
    "gpt2": Architecture(
        hf.GPT2LMHeadModel,
        hf.GPT2Config,
        {
            "vocab_size": VOCABULARY,
            "n_embd": WIDTH,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": 2 * LENGTH,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        "causal_lm",
        ("c_attn", "c_proj"),
    ),
    "llama": Architecture(
        hf.LlamaForCausalLM, hf.LlamaConfig, _DECODER, "causal_lm", ("q_proj", "v_proj")
    ),
    "llama tied": Architecture(
        hf.LlamaForCausalLM,
        hf.LlamaConfig,
        _DECODER | {"tie_word_embeddings": True, "num_key_value_heads": 2},
        "causal_lm",
        ("q_proj", "v_proj"),
    ),
    "qwen2": Architecture(
        hf.Qwen2ForCausalLM,
        hf.Qwen2Config,
        _DECODER | {"num_key_value_heads": 2},
        "causal_lm",
        ("q_proj", "v_proj"),
    ),
    "mistral": Architecture(
        hf.MistralForCausalLM,
        hf.MistralConfig,
        _DECODER | {"num_key_value_heads": 2, "sliding_window": 4},
        "causal_lm",
        ("q_proj", "v_proj"),
    ),
    "bert": Architecture(
        hf.BertForSequenceClassification,
        hf.BertConfig,
        _DECODER | {"num_labels": 3},
        "classification",
        ("query", "value"),
    ),
    "distilbert": Architecture(
        hf.DistilBertForMaskedLM,
        hf.DistilBertConfig,
        {
            "vocab_size": VOCABULARY,
            "dim": WIDTH,
            "hidden_dim": 24,
            "n_layers": 2,
            "n_heads": 4,
            "max_position_embeddings": 2 * LENGTH,
        },
        "masked_lm",
        ("q_lin", "v_lin"),
    ),
    "vit": Architecture(
        hf.ViTForImageClassification,
        hf.ViTConfig,
        {
            "hidden_size": WIDTH,
            "intermediate_size": 24,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "image_size": 8,
            "patch_size": 4,
            "num_labels": 3,
        },
        "classification",
        ("q_proj", "v_proj"),
    ),
    "t5": Architecture(
        hf.T5ForConditionalGeneration,
        hf.T5Config,
        {
            "vocab_size": VOCABULARY,
            "d_model": WIDTH,
            "d_kv": 4,
            "d_ff": 24,
            "num_layers": 2,
            "num_heads": 4,
            "decoder_start_token_id": 0,
        },
        "seq2seq",
        ("q", "v"),
    ),
}


def with_lora(architecture, model, dropout=0.0):
    """Return a model whose adapters alone are trained, moved away from zero."""
    import peft

    adapted = peft.get_peft_model(
        model,
        peft.LoraConfig(
            r=2,
            target_modules=list(architecture.adapted),
            lora_dropout=dropout,
            fan_in_fan_out=architecture.config is hf.GPT2Config,
        ),
    )
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return adapted.train()
