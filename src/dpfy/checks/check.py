"""Check a model, its optimizers, loss and tokenizer before there is any record."""

from dataclasses import asdict, dataclass
from typing import Any, Self

import torch
from torch import nn

from dpfy.checks.compare_engines import Parity, parity, sharded_parity
from dpfy.checks.compatibility import Finding, examine, is_tokenizer
from dpfy.checks.explain import Explanation, explain, weighted_sum
from dpfy.checks.fields import Fields, loss_of_fields, made_up, outputs_of_fields
from dpfy.checks.parameters import trainable
from dpfy.errors import InvalidArgument
from dpfy.gradients import ENGINES
from dpfy.gradients.base import LossFn
from dpfy.gradients.sharded.rows import is_divided, shard_by_layers

_OWN_EXAMPLE = (
    "Here records are synthesized from types and shapes alone; dpfy.explain(model, batch, loss_fn) "
    "judges the same on a batch of your own."
)


@dataclass(frozen=True)
class Probed:
    """The verdict of the probe on synthetic records.

    Args:
        passed: Whether the model keeps records apart.
        reason: How that is known, or why it does not hold.
        explanation: The cost of a step, if the probe passed.
        parity: How far each engine is from one record at a time.
        buffers: The tensors that the model has besides parameters; no step writes to them.
    """

    passed: bool
    reason: str
    explanation: Explanation | None = None
    parity: tuple[Parity, ...] = ()
    buffers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Checked:
    """The components that were found in a model, and the verdict of the probe.

    Args:
        findings: The components of the compatibility table that were found, and where.
        probed: The verdict of the probe; None if it was not asked for, or something has to be
            changed
            first.
    """

    findings: tuple[Finding, ...]
    probed: Probed | None

    @property
    def trainable(self) -> bool:
        """Whether nothing has to be changed before training."""
        return all(finding.component.verdict.allows_training for finding in self.findings) and (
            self.probed is None or self.probed.passed
        )

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain values."""
        rows = [
            {
                "component": row.name,
                "places": list(finding.places),
                "verdict": str(row.verdict),
                "why": row.why,
                "remedy": row.remedy,
            }
            for finding in self.findings
            for row in (finding.component,)
        ]
        return {
            "trainable": self.trainable,
            "components": rows,
            "probe": self.probed and asdict(self.probed),
        }


def check(made: Any, fields: Fields | None = None) -> Checked:
    """Look up every part of a model in the table of components, and probe the model.

    With ``fields`` the probe runs on synthetic records. The loss is a function of the fields, as
    for :meth:`dpfy.Run.backward`; a loss module of torch is given the model's output and the last
    field. Without a loss a weighted sum of the outputs takes its place, and a last field that the
    model does not accept is left out, as labels are. Of a model of transformers, whose output is a
    mapping, the logits are taken.

    Args:
        made: A model, or a tuple of a model and its optimizers, loss and tokenizer.
        fields: The dtype and the shape of each field of a record, in their order or by name, or
            None for no probe. Fields with names are arguments of the model by name, and one mapping
            for a loss.

    Returns:
        What was found.

    >>> found = check(nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3)), [("float32", (4,))])
    >>> found.trainable, found.probed.explanation.engine
    (True, 'bookkeeping')
    """
    parts = Parts.of(made)
    found = Checked(tuple(examine(parts.model, *parts.others)), None)
    return (
        found
        if fields is None or not found.trainable
        else Checked(found.findings, _probed(parts, fields))
    )


def check_sharded(made: Any, fields: Fields) -> Parity:
    """Shard a model layer by layer, and compare its engine with its own autograd.

    Every process of the group calls it.

    Args:
        made: A model, sharded or not, or a tuple of a model and its loss.
        fields: As for :func:`check`.

    Returns:
        The comparison.
    """
    parts = Parts.of(made)
    if not any(map(is_divided, parts.model.parameters())):
        shard_by_layers(parts.model)
    return sharded_parity(parts.model, made_up(fields), parts.loss(fields))


@dataclass(frozen=True)
class Parts:
    """A model with its optimizers, losses and tokenizers."""

    model: nn.Module
    others: tuple[Any, ...]

    @classmethod
    def of(cls, made: Any) -> Self:
        """Return the parts of a model, or of a tuple that begins with one."""
        model, *rest = made if isinstance(made, tuple) and made else (made,)
        if not isinstance(model, nn.Module):
            raise InvalidArgument(
                "Expected a torch.nn.Module, or a tuple that begins with one; got a "
                f"{type(model).__name__}."
            )
        return cls(
            model,
            tuple(
                part
                for each in rest
                for part in (each if isinstance(each, list | tuple) else [each])
            ),
        )

    @property
    def optimizers(self) -> tuple[torch.optim.Optimizer, ...]:
        """The optimizers among them."""
        return tuple(part for part in self.others if isinstance(part, torch.optim.Optimizer))

    def loss(self, fields: Fields) -> LossFn:
        """Return the loss as a function of the fields, or a stand-in for one."""
        given = next(
            (
                part
                for part in self.others
                if callable(part) and part not in self.optimizers and not is_tokenizer(part)
            ),
            None,
        )
        if given is not None:
            return loss_of_fields(self.model, given, fields)
        outputs = outputs_of_fields(self.model, fields)
        return lambda *values: weighted_sum(outputs(*values))


def _probed(parts: Parts, fields: Fields) -> Probed:
    """Probe the model on synthetic records."""
    model, batch, loss = parts.model, made_up(fields), parts.loss(fields)
    try:
        if parts.optimizers:
            trainable(model, parts.optimizers)
        found = explain(model, batch, loss)
        compared = parity(model, batch, loss)
    except Exception as error:  # on synthetic input: the text quotes no record
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return Probed(False, f"{reason} {_OWN_EXAMPLE}" if "example_input" in reason else reason)
    return Probed(
        True, ENGINES[found.engine].isolation, found, compared, tuple(dict(model.named_buffers()))
    )
