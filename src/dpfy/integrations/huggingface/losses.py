"""One loss per record for the tasks of Hugging Face models, whatever the other records are."""

import inspect
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import nn

from dpfy import _validate
from dpfy.errors import InvalidArgument
from dpfy.integrations.huggingface import masks

Task = Literal["causal_lm", "masked_lm", "seq2seq", "classification", "token_classification"]
Normalise = Literal["tokens", "length"]
Batch = Mapping[str, torch.Tensor]

IGNORED = -100
"""The label of a token, or of a record, that has no loss."""


def private_loss(
    model: nn.Module,
    task: Task,
    *,
    normalise: Normalise = "tokens",
    autocast: torch.dtype | None = None,
) -> "PrivateLoss":
    """Return the loss of each record by a model of Hugging Face, for ``run.backward``.

    Args:
        model: A model of transformers with a head for the task, or a ``PeftModel`` around one.
        task: What the model does. ``classification`` is single-label, multi-label or a regression,
            as ``config.problem_type`` says; where that is unset, one output is a regression, and
            labels of floating point are multi-label.
        normalise: What the sum over the tokens of a record is divided by: its own number of
            labelled ``tokens``, or the public ``length`` of the labels. Default: ``tokens``.
        autocast: A short type of floats to compute the model in, such as ``torch.bfloat16``.
            Default: None, as the parameters are.

    Returns:
        A function of a batch as :func:`collate_to` makes it: a mapping with ``labels``, and the
        inputs of the model by name. It returns one loss per record.

    Raises:
        InvalidArgument: The task is unknown, or the model has no masks of its own per record, as
            with prompt learning, packed attention or layers of another kind.

    *Formal guarantee*: the loss of a record is the same among all neighbours, up to rounding, for a
    model that keeps records apart: masks have four dimensions and positions are explicit, both
    from this record, and no sum is divided by a number that belongs to the batch. A record without
    labels has loss 0 and gradient 0.
    """
    return PrivateLoss(model, task, normalise, autocast)


@dataclass(frozen=True, eq=False)
class PrivateLoss:
    """Compute the loss of each record by a model; see :func:`private_loss`.

    Args:
        model: The model.
        task: What it does.
        normalise: What the sum over the tokens of a record is divided by.
        autocast: The short type of floats to compute in, or None.
    """

    model: nn.Module
    task: Task
    normalise: Normalise
    autocast: torch.dtype | None

    def __post_init__(self) -> None:
        _validate.choice("task", self.task, get_args(Task))
        _validate.choice("normalise", self.normalise, get_args(Normalise))
        _require_masks_of_records(self.model)

    @cached_property
    def _inner(self) -> Any:
        """The model of transformers, inside of adapters if there are any."""
        return _inner(self.model)

    @cached_property
    def _takes(self) -> frozenset[str]:
        """The names of the model's arguments."""
        return frozenset(inspect.signature(self._inner.forward).parameters)

    @cached_property
    def _decoder(self) -> bool:
        """Whether a token sees only the past."""
        return self.task == "causal_lm" or _is_decoder(self._inner)

    @cached_property
    def _counts_itself(self) -> bool:
        """Whether the model counts positions from the padding token, as RoBERTa does."""
        return any(
            hasattr(module, "create_position_ids_from_input_ids")
            for module in self._inner.modules()
        )

    def __call__(self, batch: Batch) -> torch.Tensor:
        """Return one loss per record of a batch."""
        if "labels" not in batch:
            raise InvalidArgument("Expected a batch with labels; got no field of that name.")
        labels = batch["labels"]
        with self._precision(labels.device):
            logits = self.model(**self._inputs(batch)).logits
        wide = torch.promote_types(logits.dtype, torch.float32)
        return self._losses(logits.to(wide), labels, batch)

    def _precision(self, device: torch.device) -> AbstractContextManager[None]:
        if self.autocast is None:
            return nullcontext()
        return torch.autocast(device.type, self.autocast)

    def _inputs(self, batch: Batch) -> dict[str, Any]:
        """Return the arguments of the model, with masks and positions of each record."""
        inputs: dict[str, Any] = {name: field for name, field in batch.items() if name != "labels"}
        if unknown := inputs.keys() - self._takes:
            raise InvalidArgument(
                f"The batch has fields that {type(self._inner).__name__} does not take: "
                f"{', '.join(sorted(unknown))}. Leave them out where records are collated."
            )
        if "input_ids" in inputs:
            inputs |= self._masks(_attended(batch))
        if self.task == "seq2seq":
            inputs |= self._decoder_inputs(batch["labels"])
        if "use_cache" in self._takes:
            inputs["use_cache"] = False
        return inputs

    def _masks(self, attended: torch.Tensor) -> dict[str, Any]:
        """Return masks of the kinds that the layers attend by, and the tokens' positions."""
        mask = masks.by_layer(self._inner.config, attended, decoder=self._decoder)
        if "position_ids" not in self._takes or self._counts_itself:
            return {"attention_mask": mask}
        return {"attention_mask": mask, "position_ids": masks.positions(attended)}

    def _decoder_inputs(self, labels: torch.Tensor) -> dict[str, Any]:
        """Return what the decoder reads: the labels, one place later, of which it sees the past."""
        tokens = self._inner.prepare_decoder_input_ids_from_labels(labels)  # type: ignore[operator]
        everything = torch.ones_like(labels, dtype=torch.bool)  # what has no label comes last
        return {
            "decoder_input_ids": tokens,
            "decoder_attention_mask": masks.by_layer(self._inner.config, everything, decoder=True),
        }

    def _losses(self, logits: torch.Tensor, labels: torch.Tensor, batch: Batch) -> torch.Tensor:
        if self.task == "classification":
            return _classification(logits, labels, self._inner.config)
        if self.task == "causal_lm":
            # to where they are predicted; padding on the left predicts nothing
            labels = F.pad(labels[:, 1:], (0, 1), value=IGNORED)
            labels = labels.masked_fill(~_attended(batch), IGNORED)
        losses = F.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="none"
        ).unflatten(0, labels.shape)
        if self.normalise == "length":
            return losses.mean(1)
        return losses.sum(1) / (labels != IGNORED).sum(1).clamp(min=1)


def _require_masks_of_records(model: nn.Module) -> None:
    """Refuse what is no model of transformers, and adapters that add tokens."""
    for name, config in getattr(model, "peft_config", {}).items():
        if getattr(config, "is_prompt_learning", False):
            raise InvalidArgument(
                f"The adapter {name!r} ({config.peft_type}) puts tokens before the record's, whose "
                "masks are made for a whole batch. Use LoRA or another adapter of layers."
            )
    if not hasattr(_inner(model), "config"):
        raise InvalidArgument(
            "Expected a model of transformers, or a PeftModel around one; got "
            f"{type(model).__name__}, which has no config."
        )


def _inner(model: Any) -> Any:
    """Return the model of transformers inside of adapters."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _is_decoder(model: Any) -> bool:
    """Whether the tokens that the model is given see only the past, as its layers say."""
    config = model.config
    if getattr(config, "is_encoder_decoder", False) or not getattr(config, "is_causal", True):
        return False
    return any(getattr(module, "is_causal", False) is True for module in model.modules())


def _attended(batch: Batch) -> torch.Tensor:
    """Return which tokens are none of padding."""
    tokens = batch["input_ids"]
    mask = batch.get("attention_mask")
    return torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask.bool()


def _classification(logits: torch.Tensor, labels: torch.Tensor, config: Any) -> torch.Tensor:
    """Return the losses of whole records, by the kind of problem that the model is for."""
    kind = getattr(config, "problem_type", None) or (
        "regression"
        if logits.shape[-1] == 1
        else "multi_label_classification"
        if labels.is_floating_point()
        else "single_label_classification"
    )
    if kind == "single_label_classification":
        return F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="none")
    loss = F.mse_loss if kind == "regression" else F.binary_cross_entropy_with_logits
    return loss(logits, labels.to(logits).reshape(logits.shape), reduction="none").mean(1)
