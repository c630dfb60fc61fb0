"""Check a model, its optimizers, loss and tokenizer before there is any record."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import torch
from torch import nn

from dpfy.checks.compare_engines import Parity, parity
from dpfy.checks.compatibility import Finding, examine, is_tokenizer
from dpfy.checks.explain import Explanation, explain, weighted_outputs
from dpfy.checks.parameters import trainable
from dpfy.errors import InvalidArgument
from dpfy.gradients import ENGINES
from dpfy.gradients.base import LossFn
from dpfy.gradients.chunk import Chunk
from dpfy.gradients.synthetic import synthetic

_RECORDS = 4
_OWN_EXAMPLE = (
    "Here records are synthesized from types and shapes alone; dpfy.explain(model, batch, loss_fn) "
    "judges the same on a batch of your own."
)

Fields = Sequence[tuple[str, tuple[int, ...]]]
"""The type and shape of each field of one record."""


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
    model does not accept is left out, as labels are.

    Args:
        made: A model, or a tuple of a model and its optimizers, loss and tokenizer.
        fields: The dtype and the shape of each field of a record, or None for no probe.

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

    def loss(self, fields: int) -> LossFn:
        """Return the loss as a function of this number of fields, or a stand-in for one."""
        given = next(
            (
                part
                for part in self.others
                if callable(part) and part not in self.optimizers and not is_tokenizer(part)
            ),
            None,
        )
        if given is not None:
            return of_fields(self.model, given)
        outputs = weighted_outputs(self.model)
        return (
            outputs
            if fields == 1 or _takes(self.model, fields)
            else lambda *values: outputs(*values[:-1])
        )


def _probed(parts: Parts, fields: Fields) -> Probed:
    """Probe the model on synthetic records."""
    model, batch, loss = parts.model, made_up(fields), parts.loss(len(fields))
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


def _takes(model: nn.Module, count: int) -> bool:
    """Whether a model can be called with this number of values."""
    try:
        inspect.signature(model.forward).bind(*range(count))
    except TypeError:
        return False
    return True


def made_up(fields: Fields) -> tuple[Any, ...]:
    """Return a small collated batch of synthetic records of these types and shapes."""
    shaped = Chunk(
        tuple(torch.zeros(1, *shape, dtype=getattr(torch, kind)) for kind, shape in fields), 1
    )
    return synthetic(shaped, _RECORDS, seed=0, scale=1.0, declared=False).arguments


def of_fields(model: nn.Module, loss: Any) -> Callable[..., Any]:
    """Return a loss as a function of the fields.

    A criterion of torch compares the model's output with the last field.
    """
    # the last fields are targets, input lengths and target lengths
    if isinstance(loss, nn.CTCLoss):
        return lambda *fields: loss(model(*fields[:-3]), *fields[-3:])
    if isinstance(loss, nn.Module):
        return lambda *fields: loss(model(*fields[:-1]), fields[-1])
    if "reduction" in inspect.signature(loss).parameters:
        return lambda *fields: loss(model(*fields[:-1]), fields[-1], reduction="none")
    return loss  # type: ignore[no-any-return]
