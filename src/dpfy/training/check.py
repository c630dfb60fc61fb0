"""What private training means for a model and what goes with it, before there is any record."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from dpfy.errors import InvalidArgument
from dpfy.training.chunk import Chunk
from dpfy.training.components import Finding, examine
from dpfy.training.engines import ENGINES
from dpfy.training.explain import Explanation, explain
from dpfy.training.gate import trainable
from dpfy.training.synthetic import synthetic

_RECORDS = 4

Fields = Sequence[tuple[str, tuple[int, ...]]]
"""The type and shape of each field of one record."""


@dataclass(frozen=True)
class Probed:
    """Whether a model keeps made-up records apart, how that is known or why not, and what a step would cost."""

    passed: bool
    reason: str
    explanation: Explanation | None = None


@dataclass(frozen=True)
class Checked:
    """The components that were met, and what the probe says if it was asked and nothing has to be changed before."""

    findings: tuple[Finding, ...]
    probed: Probed | None

    @property
    def trainable(self) -> bool:
        """Whether nothing has to be changed."""
        return (all(finding.component.verdict.allows_training for finding in self.findings)
                and (self.probed is None or self.probed.passed))

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        rows = [{"component": row.name, "places": list(finding.places), "verdict": str(row.verdict), "why": row.why,
                 "remedy": row.remedy} for finding in self.findings for row in (finding.component,)]
        return {"trainable": self.trainable, "components": rows, "probe": self.probed and asdict(self.probed)}


def check(made: Any, fields: Fields | None = None) -> Checked:
    """Look up every part of a model, or of a tuple of a model and its optimizers, loss and tokenizer; probe it.

    With ``fields`` the probe runs on made-up records. The loss is a function of the fields, as for
    :meth:`dpfy.Run.backward`; one of torch's is given the model's output and the last field. Without a loss the sum of
    the outputs stands in for it.

    >>> found = check(nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3)), [("float32", (4,))])
    >>> found.trainable, found.probed.explanation.engine
    (True, 'bookkeeping')
    """
    model, *rest = made if isinstance(made, tuple) and made else (made,)
    if not isinstance(model, nn.Module):
        raise InvalidArgument(f"Expected a torch.nn.Module, or a tuple that begins with one; got a "
                              f"{type(model).__name__}.")
    others = [part for each in rest for part in (each if isinstance(each, list | tuple) else [each])]
    found = Checked(tuple(examine(model, *others)), None)
    return found if fields is None or not found.trainable else Checked(found.findings, _probed(model, others, fields))


def _probed(model: nn.Module, others: Sequence[Any], fields: Fields) -> Probed:
    batch = made_up(fields)
    optimizers = tuple(part for part in others if isinstance(part, torch.optim.Optimizer))
    loss = next((part for part in others if callable(part) and part not in optimizers), None)
    try:
        if optimizers:
            trainable(model, optimizers)
        found = explain(model, batch, None if loss is None else of_fields(model, loss))
    except Exception as error:  # of the user's own code, on made-up input: the text quotes no record
        return Probed(False, f"{type(error).__name__}: {' '.join(str(error).split())}")
    return Probed(True, ENGINES[found.engine].isolation, found)


def made_up(fields: Fields) -> tuple[Any, ...]:
    """Return a small collated batch of made-up records of these types and shapes."""
    shaped = Chunk(tuple(torch.zeros(1, *shape, dtype=getattr(torch, kind)) for kind, shape in fields), 1)
    return synthetic(shaped, _RECORDS, seed=0, scale=1.0, declared=False).arguments


def of_fields(model: nn.Module, loss: Any) -> Callable[..., Any]:
    """Return a loss as a function of the fields: a criterion compares the model's output with the last one."""
    if isinstance(loss, nn.Module):
        return lambda *fields: loss(model(*fields[:-1]), fields[-1])
    if "reduction" in inspect.signature(loss).parameters:
        return lambda *fields: loss(model(*fields[:-1]), fields[-1], reduction="none")
    return loss  # type: ignore[no-any-return]
