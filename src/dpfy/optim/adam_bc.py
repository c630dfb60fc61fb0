"""Adam without the bias that noise adds to its second moments (DP-AdamBC)."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from dpfy import _validate
from dpfy.errors import InvalidArgument


class AdamBC(torch.optim.Optimizer):
    """Adam that subtracts the variance of the noise from its second moments.

    Released gradients are g + N(0, σ²), so the running mean v̂ of their squares exceeds that of g
    by φ̂, the same running mean of σ². Where noise dominates, √v̂ is about σ for every coordinate,
    and Adam is little more than momentum with a small step. AdamBC moves parameters by
    lr·m̂/√max(v̂ − φ̂, ``floor``).

    A run tells the optimizer the standard deviation of every gradient that it releases, so clip
    bounds, noise and groups may change from step to step. Outside of a run, call
    :meth:`expect_noise`.

    Args:
        params: parameters or parameter groups, as for any torch optimizer.
        lr: the learning rate, above 0.
        betas: decay rates of the first and the second moments, each in [0, 1).
        floor: the smallest second moment, in units of squared gradients; it limits a step to
            lr/√floor times m̂. It is the one number to tune: from 1e-8 to 1e-5, or some hundredths
            of σ² where noise dominates.

    *Formal guarantee*: post-processing of released gradients; the noise is public.

    >>> weight = torch.nn.Parameter(torch.zeros(1))
    >>> opt = AdamBC([weight], lr=0.1, floor=1e-8)
    >>> opt.expect_noise({weight: 0.8})
    >>> weight.grad = torch.ones(1)
    >>> opt.step()
    >>> round(weight.item(), 4)  # 0.1 · 1/√(1 − 0.64)
    -0.1667

    Reference: Q. Tang, F. Shpilevskiy & M. Lécuyer, DP-AdamBC, 2024, Algorithm 1.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        *,
        floor: float = 1e-6,
    ) -> None:
        _validate.positive("lr", lr)
        _validate.positive("floor", floor)
        for beta in betas:
            _validate.real("beta", beta, 0, 1, open_high=True)
        super().__init__(params, {"lr": lr, "betas": tuple(betas), "floor": floor})
        self._variances: dict[torch.Tensor, float | torch.Tensor] = {}

    def expect_noise(self, stddevs: Mapping[torch.Tensor, float | torch.Tensor]) -> None:
        """Take note of the noise of gradients that are about to be added to ``grad``.

        Variances add up where a gradient is already there.

        Args:
            stddevs: the standard deviation of the noise of each parameter's gradient.
        """
        for parameter, stddev in stddevs.items():
            empty = parameter.grad is None or not bool(parameter.grad.any())
            self._variances[parameter] = stddev**2 + (
                0.0 if empty else self._variances.get(parameter, 0.0)
            )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Move every parameter that has a gradient.

        Args:
            closure: computes the loss again, as for any torch optimizer.

        Returns:
            The result of the closure, or None.

        Raises:
            InvalidArgument: if the noise of a gradient is not known.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._move(parameter, group)
        return loss

    def _move(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        gradient, (beta1, beta2), state = parameter.grad, group["betas"], self.state[parameter]
        assert gradient is not None
        if parameter not in self._variances:
            raise InvalidArgument(
                "AdamBC was not told the noise of a gradient. Give the optimizer to dpfy.privatize "
                "and use run.backward, or call opt.expect_noise({parameter: stddev})."
            )
        if not state:
            state.update(
                step=0,
                mean=torch.zeros_like(parameter),
                square=torch.zeros_like(parameter),
                noise=torch.zeros((), dtype=parameter.dtype, device=parameter.device),
            )
        state["step"] += 1
        state["mean"].lerp_(gradient, 1 - beta1)
        state["square"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        # The same weights as those of the squares: clip bounds and noise may have changed.
        variance = torch.as_tensor(
            self._variances[parameter], dtype=parameter.dtype, device=parameter.device
        )
        state["noise"] = beta2 * state["noise"] + (1 - beta2) * variance
        first, second = 1 - beta1 ** state["step"], 1 - beta2 ** state["step"]
        signal = ((state["square"] - state["noise"]) / second).clamp_(min=group["floor"]).sqrt_()
        parameter.addcdiv_(state["mean"], signal, value=-group["lr"] / first)
