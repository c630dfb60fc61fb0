"""The gate: an optimizer applies released gradients or nothing."""

import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from dpfy.errors import UnreleasedGradient
from dpfy.gradients.sharded.rows import local
from dpfy.noise.native.kernels import kernels_for


class Gate:
    """Knows which gradient tensors a release produced, and stops every optimizer step on any other.

    A gradient counts as released while it is the very tensor that a release left there, with the
    same bits. The same tensor full of zeros, as ``zero_grad(set_to_none=False)`` leaves it, passes
    too. Optimizers that were not given to ``privatize`` are stopped as well, if they hold one of
    the run's parameters.
    """

    def __init__(
        self, optimizers: Iterable[torch.optim.Optimizer], parameters: dict[str, nn.Parameter]
    ) -> None:
        self._optimizers = tuple(optimizers)
        self._parameters = parameters
        self._names = {id(parameter): name for name, parameter in parameters.items()}
        self._released: dict[str, _Mark] = {}
        self._inside = ""
        self.mark_released()  # there are none, or zeros
        self._handles = [
            optimizer.register_step_pre_hook(self._before_step) for optimizer in self._optimizers
        ]
        self._handles.append(register_optimizer_step_pre_hook(_others(weakref.ref(self))))
        for earlier in [gate for gate in _live if not self._names.keys().isdisjoint(gate._names)]:
            earlier.close()  # a new run of the same parameters takes over
        _live.add(self)

    def mark_released(self) -> None:
        """Take the present gradients as released."""
        present = self._present()
        # of a device, the sums of bits stay there: nobody waits for them yet
        self._released = {
            name: _Mark(weakref.ref(gradient), _version_of(gradient), bits)
            for (name, gradient), bits in zip(
                present.items(), _bits([*present.values()]), strict=True
            )
        }

    def check(self, action: str) -> None:
        """Raise unless every gradient is released and no trainable parameter is new."""
        for optimizer in self._optimizers:
            for parameter in (p for group in optimizer.param_groups for p in group["params"]):
                if id(parameter) not in self._names and (
                    parameter.requires_grad or parameter.grad is not None
                ):
                    raise UnreleasedGradient(
                        f"Refused {action}: a parameter was unfrozen or added to the optimizer "
                        "after privatize, so no release covers it. Close this run and start "
                        "another with the parameters you want to train."
                    )
        if self._inside:
            raise UnreleasedGradient(
                f"Refused {action} inside of {self._inside}: what the block leaves in the "
                "gradients counts as released when it ends. Step after the block."
            )
        for name, known in self._known_gradients().items():
            if not known:
                raise UnreleasedGradient(f"Refused {action}: {self._fault(name)}")

    def _fault(self, name: str) -> str:
        """Say whether a gradient was never released or is a released one that was changed."""
        mark = self._released.get(name)
        if mark is None or mark.gradient() is not self._parameters[name].grad:
            return (
                f"the gradient of {name!r} was not released. Use run.backward(loss_fn, batch) "
                "instead of loss.backward(); wrap deliberate edits in run.postprocessing() and "
                "gradients of public data in run.public()."
            )
        return (
            f"the gradient of {name!r} was changed after its release, as clip_grad_norm_, a "
            "GradScaler or another loss.backward() do. Leave that out: run.backward has clipped "
            "every record and scaled nothing. Wrap deliberate edits in run.postprocessing(), and "
            "gradients of public data in run.public()."
        )

    @contextmanager
    def vouched(self, action: str) -> Iterator[None]:
        """Take what the block leaves in the gradients as released; what it finds there must be."""
        self.check(action)
        self._inside = action
        try:
            yield
        finally:
            self._inside = ""
        self.mark_released()

    def close(self) -> None:
        """Remove the gate from the optimizers."""
        for handle in self._handles:
            handle.remove()
        _live.discard(self)

    def holds(self, optimizer: torch.optim.Optimizer) -> bool:
        """Tell whether a foreign optimizer trains one of the run's parameters."""
        return optimizer not in self._optimizers and any(
            id(parameter) in self._names
            for group in optimizer.param_groups
            for parameter in group["params"]
        )

    def _present(self) -> dict[str, torch.Tensor]:
        """Return the gradients that there are, by name."""
        return {name: p.grad for name, p in self._parameters.items() if p.grad is not None}

    def _known_gradients(self) -> dict[str, bool]:
        """Return for each gradient whether it is released."""
        present = self._present()
        if not present:  # as after zero_grad
            return {}
        marks = {
            name: mark
            for name, gradient in present.items()
            if (mark := self._released.get(name)) and mark.gradient() is gradient
        }
        same = [name for name, mark in marks.items() if _version_of(present[name]) == mark.version]
        bits = dict(zip(same, _bits([present[name] for name in same]), strict=True))
        answers = [
            name in marks and marks[name].allows(gradient, bits.get(name))
            for name, gradient in present.items()
        ]
        return dict(zip(present, _known(answers), strict=True))

    def _before_step(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        self.check("opt.step()")
        closure = kwargs.get(
            "closure", args[1] if len(args) > 1 else None
        )  # args[0] is the optimizer itself
        if closure is None:
            return None
        return (args[0], self._checked(closure), *args[2:]), {
            k: v for k, v in kwargs.items() if k != "closure"
        }

    def _checked(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """The hook ran before the closure: look again after it, and refuse a second evaluation."""
        calls = 0

        def checked() -> Any:
            nonlocal calls
            calls += 1
            if calls > 1:
                raise UnreleasedGradient(
                    "The optimizer evaluates its closure more than once per step, but one batch "
                    "licenses one release. Use an optimizer that evaluates it once."
                )
            result = closure()
            self.check("opt.step(closure)")
            return result

        return checked


@dataclass(frozen=True)
class _Mark:
    """Remember how a release left one gradient.

    Edits through ``.data`` do not count in the version, hence the bits.
    """

    gradient: Callable[[], torch.Tensor | None]
    version: int
    bits: int | torch.Tensor

    def allows(
        self, gradient: torch.Tensor, bits: "int | torch.Tensor | None"
    ) -> "bool | torch.Tensor":
        """Whether it may be applied: a tensor of the device if only that can tell.

        Args:
            gradient: The very tensor that the mark is of.
            bits: The sum of its bits now; None if it was written to.
        """
        if bits is None:
            return _is_zero(gradient)
        if not gradient.is_cpu:
            return (bits == self.bits) | _is_zero(gradient)
        return bits == self.bits or _is_zero(gradient)


_live: weakref.WeakSet[Gate] = weakref.WeakSet()
_INTEGERS = {
    1: torch.int8,
    2: torch.int16,
}  # wider numbers as halves of 32 bits, whose sums cannot overflow


def _bits(gradients: Sequence[torch.Tensor]) -> "Sequence[int | torch.Tensor]":
    """Return the sums of all bit patterns, exact and independent of the number of threads.

    For a device they are tensors there, which nobody has waited for.
    """
    whole = [local(each.detach()).contiguous() for each in gradients]
    usual = [each for each in whole if _is_usual(each)]  # in one call
    sums = iter(kernels_for(sum(each.numel() for each in usual), shared=True).totals(usual))
    return [next(sums) if _is_usual(each) else _bits_of(each) for each in whole]


def _version_of(gradient: torch.Tensor) -> int:
    """Return a number that grows with every write to a tensor, or to the part that is here."""
    own = local(gradient)
    return gradient._version if own is gradient else gradient._version + own._version


def _is_usual(gradient: torch.Tensor) -> bool:
    """Whether a gradient is in main memory and consists of 32 bits, or twice as many."""
    return gradient.is_cpu and gradient.element_size() not in _INTEGERS


def _bits_of(gradient: torch.Tensor) -> "int | torch.Tensor":
    """Return the sum of the bit patterns of a contiguous gradient of any type, on any device."""
    patterns = gradient.view(-1).view(_INTEGERS.get(gradient.element_size(), torch.int32))
    if not patterns.is_cpu:
        return patterns.sum(dtype=torch.int64)
    return int(patterns.numpy().sum(dtype=np.int64))  # torch would make a wide copy first


def _is_zero(gradient: torch.Tensor) -> "bool | torch.Tensor":
    """Whether all values are zero; for a device a tensor there."""
    own = local(gradient.detach())
    if not own.numel():
        return True
    low, high = torch.aminmax(own)
    return (low == 0) & (high == 0) if not low.is_cpu else float(low) == float(high) == 0


def are_finite(tensors: Iterable[torch.Tensor]) -> bool:
    """Tell whether no value is infinite or NaN, at a fraction of ``isfinite().all()``'s cost."""
    found = [local(each.detach()) for each in tensors]
    values = [each for each in found if each.numel()]
    usual = [each for each in values if each.dtype == torch.float32 and _is_plain(each)]
    rest = [each for each in values if not (each.dtype == torch.float32 and _is_plain(each))]
    # the first step asks while the compiler works, and is judged meanwhile
    kernels = kernels_for(sum(each.numel() for each in usual), shared=True, wait=False)
    return kernels.are_finite(usual) and all(_known([_is_finite(each) for each in rest]))


def _is_plain(values: torch.Tensor) -> bool:
    """Whether values are in main memory, without gaps."""
    return values.is_cpu and values.is_contiguous()


def _is_finite(values: torch.Tensor) -> "bool | torch.Tensor":
    """Whether no value is infinite or NaN; for a device a tensor there."""
    low, high = torch.aminmax(values)  # both NaN if there is one
    if not low.is_cpu:
        return low.isfinite() & high.isfinite()
    return math.isfinite(float(low)) and math.isfinite(float(high))


def _known(answers: Sequence["bool | torch.Tensor"]) -> list[bool]:
    """Return answers as booleans, waiting once for each device if all that it has to say is yes."""
    waiting: dict[torch.device, list[torch.Tensor]] = {}
    for answer in answers:
        if isinstance(answer, torch.Tensor):
            waiting.setdefault(answer.device, []).append(answer)
    agreed = {device: bool(torch.stack(some).all()) for device, some in waiting.items()}
    return [
        agreed[answer.device] or bool(answer) if isinstance(answer, torch.Tensor) else answer
        for answer in answers
    ]


def _others(gate: "weakref.ref[Gate]") -> Callable[..., Any]:
    """The hook for optimizers that were not given to privatize."""

    def hook(
        optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        owner = gate()
        return (
            owner._before_step(optimizer, args, kwargs)
            if owner is not None and owner.holds(optimizer)
            else None
        )

    return hook
