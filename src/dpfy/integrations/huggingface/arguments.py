"""Read TrainingArguments beside a plan: what contradicts it, or would show records, is refused."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from dpfy._extras import require
from dpfy.errors import InvalidArgument
from dpfy.integrations.huggingface.collation import Collator
from dpfy.plans import Plan

require("transformers", "huggingface")
from transformers import (  # noqa: E402
    DataCollatorForLanguageModeling,
    DataCollatorWithFlattening,
    EarlyStoppingCallback,
    PreTrainedTokenizerBase,
)

_SAMPLE = (
    "The plan says what a sample is: set batch_size where you make it, and max_physical_batch= of "
    "DPTrainer to what fits into memory"
)
_SHARDED = "The run divides the work itself: start the same script with torchrun"
_COLLATE = "Pad each record by itself: data_collator=collate_to(tokenizer, max_length=...)"


@dataclass(frozen=True)
class _Rule:
    """What a setting may be, why nothing else, and what to do instead."""

    allowed: tuple[Any, ...]
    why: str
    remedy: str


_RULES = {
    "gradient_accumulation_steps": _Rule((1,), "adds up samples by count", _SAMPLE),
    "auto_find_batch_size": _Rule((False,), "trains again with other samples", _SAMPLE),
    "train_sampling_strategy": _Rule(("random",), "draws by another law than the plan", _SAMPLE),
    "dataloader_drop_last": _Rule((False,), "leaves records out", _SAMPLE),
    "packing": _Rule((False,), "puts several records into one row", _COLLATE),
    "padding_free": _Rule((False,), "puts several records into one row", _COLLATE),
    "fp16": _Rule((False,), "scales gradients by what overflows", "Use bf16=True"),
    "mixed_precision": _Rule(("no", "bf16"), "scales gradients by what overflows", "Use bf16=True"),
    "label_smoothing_factor": _Rule(
        (0, 0.0), "is no part of private_loss", "Give DPTrainer a loss_fn= that smooths labels"
    ),
    "include_num_input_tokens_seen": _Rule(
        ("no",), "counts tokens of private records", "Leave it at 'no'"
    ),
    "skip_memory_metrics": _Rule((True,), "measures private batches", "Leave it at True"),
    "debug": _Rule(([], ""), "prints activations of private records", "Debug on public data"),
    "torch_compile": _Rule(
        (False,), "drops the substitution of parameters", "Leave it out; dpfy picks an engine"
    ),
    "use_liger_kernel": _Rule((False,), "replaces layers by fused kernels", "Leave it out"),
    "fsdp": _Rule((None, False, "", []), "shards the model", _SHARDED),
    "deepspeed": _Rule((None,), "shards the model", _SHARDED),
    "parallelism_config": _Rule((None,), "divides records or layers among ranks", _SHARDED),
}
_CHECKPOINTING = ("activation_checkpointing", "gradient_checkpointing")
_IN_BACKWARD = ("lomo", "adalomo")  # optimizers that step while gradients are computed


def for_plan(args: Any, plan: Plan) -> Any:
    """Return a copy of TrainingArguments that takes the steps of a plan.

    Args:
        args: The arguments, which stay as they are.
        plan: The plan.

    Raises:
        InvalidArgument: A setting contradicts the plan or would show records; the text names what
            to set instead.
    """
    for name, rule in _RULES.items():
        if (given := getattr(args, name, rule.allowed[0])) not in rule.allowed:
            raise InvalidArgument(f"{name}={_plain(given)!r} {rule.why}. {rule.remedy}.")
    optimizer = str(getattr(args.optim, "value", args.optim))
    if optimizer in _IN_BACKWARD or optimizer.endswith("_layerwise"):
        raise InvalidArgument(
            f"optim={optimizer!r} steps while gradients are computed, before they are released. "
            "Use another, such as 'adamw_torch'."
        )
    for name in _CHECKPOINTING:
        if (getattr(args, f"{name}_kwargs", None) or {}).get("use_reentrant"):
            raise InvalidArgument(
                "Checkpoints with use_reentrant=True start a backward of their own, in which no "
                f"record has a gradient. Use {name}_kwargs={{'use_reentrant': False}}."
            )
    if args.n_gpu > 1:
        raise InvalidArgument(f"{args.n_gpu} GPUs in one process average raw gradients. {_SHARDED}")
    _check_lengths(args, plan)
    copied = copy.copy(args)
    copied.max_steps = plan.steps
    copied.per_device_train_batch_size = _per_device(args, plan)
    return copied


def checkpoints_activations(args: Any) -> bool:
    """Whether activations are to be computed again in backward, by either name of the setting."""
    return any(getattr(args, name, None) for name in _CHECKPOINTING)


def _plain(value: Any) -> Any:
    return getattr(value, "value", value)


def _per_device(args: Any, plan: Plan) -> int:
    """Return the expected number of records of one process in a step."""
    return max(1, round(plan.expected_batch / args.world_size))


def _check_lengths(args: Any, plan: Plan) -> None:
    """Refuse a number of steps, epochs or records that is neither the default nor the plan's."""
    defaults = {item.name: item.default for item in fields(type(args))}
    epochs = args.num_train_epochs
    if args.max_steps not in (defaults["max_steps"], plan.steps):
        raise InvalidArgument(
            f"max_steps={args.max_steps}, but the plan has {plan.steps} steps. Leave it out: "
            "training takes the steps of the plan."
        )
    if epochs != defaults["num_train_epochs"] and abs(epochs / plan.rate - plan.steps) >= 1:
        raise InvalidArgument(
            f"num_train_epochs={epochs}, but the plan has {plan.steps * plan.rate:.4g}. Leave it "
            "out, and set epochs where you make the plan."
        )
    batch = args.per_device_train_batch_size
    if batch not in (defaults["per_device_train_batch_size"], _per_device(args, plan)):
        raise InvalidArgument(
            f"per_device_train_batch_size={batch}, but a sample of the plan has "
            f"{plan.expected_batch:.4g} records on average. {_SAMPLE}."
        )


def check_loss(task: object, loss_fn: object, options: Mapping[str, Any]) -> None:
    """Refuse to train without one loss, or with one of a whole batch."""
    if options.get("compute_loss_func") is not None:
        raise InvalidArgument(
            "compute_loss_func returns one loss for a whole batch. Give loss_fn=, which returns "
            "one for each record."
        )
    if (task is None) == (loss_fn is None):
        raise InvalidArgument(
            "Expected either task=, such as 'causal_lm' or 'classification', or loss_fn=, which "
            "returns one loss per record."
        )


def check_collator(collator: Any, tokenizer: Any, task: str | None) -> None:
    """Refuse collators that join records, whose padding depends on neighbours, or of other tasks.

    Args:
        collator: The collator, or None for that of transformers.
        tokenizer: The processing class, by which transformers would choose one.
        task: What the model is trained for, if it is known.

    Raises:
        InvalidArgument: The collator does not keep records apart, or makes other labels.
    """
    if isinstance(collator, Collator) and task not in (None, collator.task):
        raise InvalidArgument(
            f"The collator makes labels for {collator.task!r}, and the task is {task!r}: no record "
            f"would contribute. Use collate_to(tokenizer, max_length, task={task!r})."
        )
    if collator is None and isinstance(tokenizer, PreTrainedTokenizerBase):
        raise InvalidArgument(
            f"Without a data_collator, transformers pads to the longest record. {_COLLATE}."
        )
    if isinstance(collator, DataCollatorWithFlattening):
        raise InvalidArgument(
            f"DataCollatorWithFlattening joins records to one row, so that none has a gradient of "
            f"its own. {_COLLATE}."
        )
    pads = getattr(collator, "padding", False) in (True, "longest")
    if pads or isinstance(collator, DataCollatorForLanguageModeling):
        raise InvalidArgument(
            f"{type(collator).__name__} pads to the longest record of a batch, which no other "
            f"record may see. {_COLLATE}."
        )


def check_public(args: Any, callbacks: Sequence[Any], eval_is_public: bool) -> None:
    """Refuse to choose by an evaluation unless its data was said to be public.

    Args:
        args: The TrainingArguments.
        callbacks: The callbacks, or their classes.
        eval_is_public: Whether the data of evaluations is said to be public.

    Raises:
        InvalidArgument: A setting evaluates, and nobody said on what.
    """
    asked = {
        f"eval_strategy={_plain(args.eval_strategy)!r}": _plain(args.eval_strategy) != "no",
        "eval_on_start=True": args.eval_on_start,
        "load_best_model_at_end=True": args.load_best_model_at_end,
        "save_strategy='best'": _plain(args.save_strategy) == "best",
        "EarlyStoppingCallback": any(
            isinstance(each, EarlyStoppingCallback) or each is EarlyStoppingCallback
            for each in callbacks
        ),
    }
    if not eval_is_public and (found := [name for name, wanted in asked.items() if wanted]):
        raise InvalidArgument(
            f"{' and '.join(found)} would show what the model does on eval_dataset. Say "
            "eval_is_public=True if no private record is in it; private records are for training."
        )
