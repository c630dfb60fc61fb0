"""Gradient descent that adapts its learning rate by the error of its own steps (ADADP)."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch

from dpfy import _validate


class ADADP(torch.optim.Optimizer):
    """Gradient descent whose learning rate η follows the error of its own steps.

    Two calls of :meth:`step` are one iteration. The first call goes half a step, θ½ = θ − η/2·G₁;
    the second call, with the gradient G₂ of another sample at θ½, arrives at θ̂ = θ½ − η/2·G₂. One
    whole step would have arrived at θ¹ = θ − ηG₁, so ``err = ‖(θ¹ − θ̂)/max(1, |θ¹|)‖₂`` estimates
    the error of a step of this length. If err is at most ``tolerance``, θ̂ is kept; else the
    parameters go back to θ. In both cases η is multiplied by tolerance/err, limited to [``least``,
    ``most``].

    Args:
        params: parameters or parameter groups, as for any torch optimizer.
        lr: the initial η, above 0. A scheduler that changes ``lr`` scales the η that was found.
        tolerance: the largest err of an iteration that is kept, above 0.
        least: the smallest factor of η in one iteration, in (0, 1].
        most: the largest factor of η in one iteration, at least 1.

    *Formal guarantee*: post-processing of released gradients. An iteration is two releases, whether
    it is kept or not; the events are those of the plan.

    *Assumes* plain descent: momentum would make θ¹ and θ̂ differ for other reasons, so there is
    none. Every release in between replaces the gradient.

    >>> weight = torch.nn.Parameter(torch.tensor([4.0]))
    >>> opt = ADADP([weight], lr=0.5, tolerance=1.0)
    >>> for _ in range(2):  # half a step, and the other half
    ...     weight.grad = weight.detach().clone()  # of weight²/2
    ...     opt.step()
    >>> weight.item(), opt.learning_rate  # err is 0.5/2, so that η may grow
    (2.25, 0.55)

    Reference: A. Koskela & A. Honkela, Learning Rate Adaptation for Differentially Private
    Learning, 2020, Algorithm 1.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.1,
        *,
        tolerance: float = 1.0,
        least: float = 0.9,
        most: float = 1.1,
    ) -> None:
        _validate.positive("lr", lr)
        _validate.positive("tolerance", tolerance)
        _validate.real("least", least, 0, 1, open_low=True)
        _validate.real("most", most, 1, math.inf, open_high=True)
        super().__init__(
            params,
            {
                "lr": lr,
                "tolerance": tolerance,
                "least": least,
                "most": most,
                "found": 1.0,
                "halfway": False,
            },
        )

    @property
    def learning_rate(self) -> float:
        """The current η of the first parameter group."""
        group = self.param_groups[0]
        return float(group["lr"] * group["found"])

    @property
    def halfway(self) -> bool:
        """Whether the parameters are between the two half steps of an iteration."""
        return bool(self.param_groups[0]["halfway"])

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Go half a step; after the second half, keep or undo both and adapt the learning rate.

        Args:
            closure: computes the loss again, as for any torch optimizer.

        Returns:
            The result of the closure, or None.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        halfway = self.halfway
        if halfway:
            self._arrive()
        else:
            self._depart()
        for group in self.param_groups:
            group["halfway"] = not halfway
        return loss

    def _depart(self) -> None:
        """Remember where and how the iteration began, and go half a step."""
        for group in self.param_groups:
            rate = group["lr"] * group["found"]
            for parameter in group["params"]:
                gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                self.state[parameter] = {
                    "start": parameter.clone(),
                    "first": gradient.clone(),
                    "rate": rate,
                }
                parameter.sub_(gradient, alpha=rate / 2)

    def _arrive(self) -> None:
        """Go the other half, measure the error, keep or discard, and change the learning rate."""
        squares = 0.0
        for parameter, begun in self.state.items():
            second = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            whole = begun["start"] - begun["rate"] * begun["first"]
            error = (second - begun["first"]).double() * (begun["rate"] / 2)  # θ¹ − θ̂
            squares += float((error / whole.abs().clamp(min=1.0)).square().sum())
            parameter.sub_(second, alpha=begun["rate"] / 2)
        group = self.param_groups[0]
        factor, kept = self._judge(
            math.sqrt(squares), group["tolerance"], group["least"], group["most"]
        )
        for parameter, begun in self.state.items():
            if not kept:
                parameter.copy_(begun["start"])
        for group in self.param_groups:
            group["found"] *= factor
        self.state.clear()

    @staticmethod
    def _judge(error: float, tolerance: float, least: float, most: float) -> tuple[float, bool]:
        """Return the factor of the learning rate, and whether the iteration is kept.

        An error that is not a number counts as large.
        """
        if math.isnan(error):
            return least, False
        return min(max(tolerance / error if error else math.inf, least), most), error <= tolerance
