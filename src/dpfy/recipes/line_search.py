"""Noisy backtracking line search (NoisyBTLS)."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from dpfy import _validate
from dpfy.gradients.base import LossFn
from dpfy.recipes.steps import Taken, Vector, along, angle, dot, go, require_filter, weights
from dpfy.run.loss_queries import FirstBelow, direct
from dpfy.run.run import Run


@dataclass(frozen=True)
class Backtracking:
    """How steps are shortened, and what happens when none is short enough.

    A step size η suffices if the loss falls by ``decrease``·η·‖g̃‖². After a failed search, an
    angle above ``wide`` times the mean angle raises the budget of gradients by ``growth`` and
    lowers both bounds by ``tightening``, once for each step; an angle below ``narrow`` times the
    mean raises the budget of searches.

    Args:
        first: The largest step size, positive.
        shrink: The factor between step sizes, in (0, 1).
        most: The number of step sizes, at least 1.
        decrease: The part c of the expected decrease that is asked for, in [0, 1).
        smoothing: The weight of the past in the mean angle, in (0, 1).
        wide: The factor of the mean angle above which gradients are too noisy, above 1.
        narrow: The factor of the mean angle below which searches are too noisy, in (0, 1).
        growth: The relative growth of a budget, positive.
        tightening: The relative decrease of both bounds, in [0, 1).
    """

    first: float = 1.0
    shrink: float = 0.6
    most: int = 12
    decrease: float = 1e-3
    smoothing: float = 0.9
    wide: float = 1.1
    narrow: float = 0.9
    growth: float = 0.1
    tightening: float = 0.05

    def __post_init__(self) -> None:
        for name in ("first", "growth"):
            _validate.positive(name, getattr(self, name))
        for name in ("shrink", "narrow", "smoothing"):
            _validate.real(name, getattr(self, name), 0, 1, open_low=True, open_high=True)
        _validate.count("most", self.most)
        _validate.real("decrease", self.decrease, 0, 1, open_high=True)
        _validate.real("wide", self.wide, 1, math.inf, open_low=True, open_high=True)
        _validate.real("tightening", self.tightening, 0, 1, open_high=True)

    @property
    def sizes(self) -> list[float]:
        """The step sizes in the order of the search."""
        return [self.first * self.shrink**place for place in range(self.most)]


def line_search(
    run: Run,
    loss_fn: LossFn,
    *,
    loss_bound: float = 3.0,
    share: float = 0.5,
    backtracking: Backtracking | None = None,
) -> Iterator[Taken]:
    """Descend along noisy gradients, with step sizes from a noisy search for a lower loss.

    A gradient g̃ is released, at first with the planned noise. A fresh sample of expected size B
    then answers which is the first step size η with Σ [clip(loss(w)) − clip(loss(w − ηg̃))] −
    c·η·B·‖g̃‖² above 0, losses clipped to [0, ``loss_bound``], by the sparse vector technique: its
    cost is that of one answer and is recorded before the search, however long that is. At first it
    is ``share`` of a gradient's on all records. If no step size suffices, a second gradient is
    released at the same weights, and its angle to the first says which of the two was too noisy:
    see :class:`Backtracking`.

    Args:
        run: A run whose plan has a filter and :class:`RecipeControlled` noise.
        loss_fn: A function from the fields of a batch to one loss per example.
        loss_bound: The bound that losses are clipped to, positive.
        share: The cost of the first search, relative to that of a gradient; positive.
        backtracking: How steps are shortened, or None for the defaults.

    Yields:
        The outcome of every gradient, until the plan ends or its filter has no room for another. A
            gradient whose search cannot be paid for is followed by the last step size.

    Raises:
        InvalidArgument: The plan has no filter, or an argument is out of range.

    *Formal guarantee*: that of the plan's filter, whose events are Gaussian sums and searches on
    samples of the plan, each recorded before it happens. The decrease that is asked for is
    computed from the released gradient; that of the records themselves has no bound.

    *Assumes* losses of at least zero.

    >>> import dpfy, torch
    >>> model = torch.nn.Linear(2, 1, bias=False)
    >>> data = torch.utils.data.TensorDataset(torch.randn(50, 2), torch.zeros(50))
    >>> controllers = [dpfy.recipes.RecipeControlled()]
    >>> plan = dpfy.dpsgd(records=50, batch_size=50, steps=8, controllers=controllers)
    >>> plan = plan.calibrate(epsilon=5.0, delta=1e-5)
    >>> opt = torch.optim.SGD(model.parameters(), lr=1.0)  # names the parameters; it never steps
    >>> with dpfy.privatize(model, opt, data, plan, dpfy.Ledger.in_memory()) as run:
    ...     taken = list(line_search(run, lambda x, y: (model(x).squeeze(1) - y).square()))
    >>> 1 <= len(taken) <= 8
    True

    Reference: C. Chen & J. Lee, Stochastic Adaptive Line Search for Differentially Private
    Optimization, 2020.
    """
    require_filter(run, "line_search")
    settings = backtracking or Backtracking()
    # ρ is 1/2z² for a Gaussian sum and at most ε²/2 for a search.
    state = _State(
        run,
        settings,
        loss_bound,
        math.sqrt(_validate.positive("share", share)) / run.plan.noise_at(1),
    )
    direct(run, 1.0)
    for batch in run:
        released = run.release(loss_fn, batch)
        state.follow(released.gradients)
        step_size = state.step(loss_fn, released.gradients)
        yield Taken(released, step_size)
        if step_size > 0:
            state.tightened = False
        elif (second := next(iter(run), None)) is not None:
            again = run.release(loss_fn, second)
            state.blame(angle(released.gradients, again.gradients))
            yield Taken(again, 0.0)


class _State:
    """Released values that a search remembers."""

    def __init__(self, run: Run, settings: Backtracking, bound: float, epsilon: float) -> None:
        self.run, self.settings = run, settings
        self.bound, self.epsilon = _validate.positive("loss_bound", bound), epsilon
        self.noise = self.bounds = 1.0  # of gradients, as factors of the planned
        self.mean_angle: float | None = None
        self.previous: Vector | None = None
        self.last = 0.0
        self.tightened = False  # since the last step

    def follow(self, gradient: Vector) -> None:
        """Add the angle between consecutive gradients to the mean."""
        if self.previous is not None:
            found, kept = angle(self.previous, gradient), self.settings.smoothing
            self.mean_angle = (
                found if self.mean_angle is None else kept * self.mean_angle + (1 - kept) * found
            )
        self.previous = gradient

    def step(self, loss_fn: LossFn, gradient: Vector) -> float:
        """Search along the gradient, step there, and return the step size; 0 if none suffices."""
        run, sizes, start = self.run, self.settings.sizes, weights(self.run)
        search = FirstBelow(run, self.bound * self.bounds, self.epsilon)
        if run.ledger.admits(search.event):
            asked = self.settings.decrease * run.plan.divisor * dot(gradient, gradient)
            found = search.of(
                loss_fn, start, ((along(start, gradient, size), asked * size) for size in sizes)
            )
            step_size = 0.0 if found is None else sizes[found]
        else:
            step_size = self.last
        if step_size > 0:
            go(run, along(start, gradient, step_size))
            self.last = step_size
        return step_size

    def blame(self, found: float) -> None:
        """Raise the budget of what was too noisy, by the angle of two gradients at one place."""
        settings, mean = self.settings, self.mean_angle
        if mean is None:
            return
        if found > settings.wide * mean:
            self.noise /= math.sqrt(1 + settings.growth)
            if not self.tightened:
                self.bounds *= 1 - settings.tightening
            self.tightened = True
            direct(self.run, self.noise, self.bounds)
        elif found < settings.narrow * mean:
            self.epsilon *= math.sqrt(1 + settings.growth)
