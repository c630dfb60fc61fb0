"""Step sizes by noisy maximum, with gradients averaged until they are good enough (DP-AGD)."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from dpfy import _validate
from dpfy.errors import InvalidArgument
from dpfy.gradients.base import LossFn
from dpfy.recipes.steps import Taken, along, go, norm, require_filter, weights
from dpfy.run.loss_queries import PrivateArgmin, direct
from dpfy.run.run import Run


def noisy_max(
    run: Run,
    loss_fn: LossFn,
    *,
    loss_bound: float = 3.0,
    share: float = 0.2,
    candidates: int = 20,
    largest: float = 1.0,
    growth: float = 0.1,
    widening: float = 0.1,
    window: int = 10,
) -> Iterator[Taken]:
    """Descend on all records along noisy gradients, with privately chosen step sizes.

    Each gradient g̃, released with the cost ρ of a planned step, is a direction u = g̃/‖g̃‖. Of
    the step sizes α = 0 and ``candidates`` more, evenly up to ``largest``, one is chosen whose Σ
    clip(loss(w − αu), [0, ``loss_bound``]) is least, by the exponential mechanism at a cost of
    ``share``·ρ. If that is 0, g̃ is too noisy: ρ grows by the factor 1 + ``growth``, and the
    increase is spent on another draw at the same weights, averaged with g̃ by precision. After
    every ``window`` steps the largest step size becomes 1 + ``widening`` times the largest of
    them.

    Args:
        run: A run on all records whose plan has a filter and :class:`RecipeControlled` noise.
        loss_fn: A function from the fields of a batch to one loss per example.
        loss_bound: The bound that losses are clipped to, positive.
        share: The cost of a choice, relative to that of a gradient; positive.
        candidates: The number of positive step sizes to choose from.
        largest: The largest step size at first, positive.
        growth: The relative growth of ρ after a step size of 0, positive.
        widening: The relative growth of the largest step size, at least 0.
        window: The number of steps between changes of the largest step size.

    Yields:
        The outcome of each gradient, until the plan ends or its filter has no room for another. A
            gradient whose choice cannot be paid for is followed by the last step size.

    Raises:
        InvalidArgument: The plan has no filter or samples records, or an argument is out of range.

    *Formal guarantee*: that of the plan's filter, whose events are Gaussian sums and exponential
    choices on all records, each recorded before it happens. Averaging and directions are
    post-processing.

    *Assumes* losses of at least zero, and a loss without randomness of its own: with dropout two
    draws at the same weights are of different sums, and averaging them is less useful, though no
    less private.

    >>> import dpfy
    >>> model = torch.nn.Linear(2, 1, bias=False)
    >>> data = torch.utils.data.TensorDataset(torch.randn(50, 2), torch.zeros(50))
    >>> controllers = [dpfy.recipes.RecipeControlled()]
    >>> plan = dpfy.dpsgd(records=50, batch_size=50, steps=8, controllers=controllers)
    >>> plan = plan.calibrate(epsilon=5.0, delta=1e-5)
    >>> opt = torch.optim.SGD(model.parameters(), lr=1.0)  # names the parameters; it never steps
    >>> with dpfy.privatize(model, opt, data, plan, dpfy.Ledger.in_memory()) as run:
    ...     taken = list(noisy_max(run, lambda x, y: (model(x).squeeze(1) - y).square()))
    >>> 1 <= len(taken) <= 8
    True

    Reference: J. Lee & D. Kifer, Concentrated Differentially Private Gradient Descent with
    Adaptive per-Iteration Privacy Budget, 2018, Algorithm 1.
    """
    require_filter(run, "noisy_max")
    if run.plan.rate != 1:
        raise InvalidArgument(
            f"Expected all records in every step, got rate={run.plan.rate!r}: draws are averaged "
            "because they are of one and the same sum, and two samples have two. Use "
            "sampling='full'."
        )
    for name, value in (("share", share), ("growth", growth)):
        _validate.positive(name, value)
    sizes = _Sizes(
        _validate.count("candidates", candidates),
        _validate.positive("largest", largest),
        1 + _validate.real("widening", widening, 0, math.inf, open_high=True),
        _validate.count("window", window),
    )
    gradient = _Average()
    rho = 1.0  # of a gradient, in units of the planned
    # ρ is 1/2z² for a Gaussian sum and ε²/8 for an exponential choice.
    epsilon = math.sqrt(4 * share) / run.plan.noise_at(1)
    search = PrivateArgmin(run, loss_bound, epsilon)
    direct(run, 1.0)
    for batch in run:
        released = run.release(loss_fn, batch)
        gradient.add(released.gradients, rho - gradient.rho)
        start, direction = weights(run), gradient.direction
        if run.ledger.admits(search.event):
            step_size = sizes.all[
                search.of(loss_fn, (along(start, direction, size) for size in sizes.all))
            ]
        else:
            step_size = sizes.last
        if step_size > 0:
            go(run, along(start, direction, step_size))
            sizes.took(step_size)
            gradient = _Average()
        else:
            rho *= 1 + growth
        direct(run, 1 / math.sqrt(rho - gradient.rho))
        yield Taken(released, step_size)


@dataclass
class _Average:
    """Draws of one gradient, weighted by their precisions, which are in proportion to their ρ."""

    rho: float = 0.0
    mean: dict[str, torch.Tensor] = field(default_factory=dict)

    def add(self, gradient: dict[str, torch.Tensor], rho: float) -> None:
        """Add a draw of cost ``rho``."""
        self.mean = {
            name: (self.rho * self.mean[name] + rho * value) / (self.rho + rho)
            if self.mean
            else value
            for name, value in gradient.items()
        }
        self.rho += rho

    @property
    def direction(self) -> dict[str, torch.Tensor]:
        """The mean gradient over its norm."""
        length = norm(self.mean)
        return {name: value / length if length else value for name, value in self.mean.items()}


@dataclass
class _Sizes:
    """The step sizes to choose from, and those that were taken."""

    count: int
    largest: float
    widened: float
    window: int
    taken: list[float] = field(default_factory=list)

    @property
    def all(self) -> list[float]:
        """The step sizes to choose from."""
        return [self.largest * place / self.count for place in range(self.count + 1)]

    @property
    def last(self) -> float:
        """The last positive step size, 0 before the first."""
        return self.taken[-1] if self.taken else 0.0

    def took(self, step_size: float) -> None:
        """Note a step, and adapt the largest step size after every window."""
        self.taken.append(step_size)
        if len(self.taken) % self.window == 0:
            self.largest = self.widened * max(self.taken[-self.window :])
