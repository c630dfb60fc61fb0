"""Draw docs/_static/algorithms.svg: step sizes and noise that follow what was released, on the
digits.

Run this file after optimizers or recipes changed. The noise is drawn from a fixed test key, so that
the figure stays the same: these runs are not private."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import matplotlib
import torch
import torch.nn.functional as F

import dpfy
from dpfy.data import digits
from dpfy.models import digits_mlp
from dpfy.optim import ADADP, AdamBC
from dpfy.recipes import Backtracking, RecipeControlled, Taken, line_search, noisy_max

matplotlib.use("svg")
from matplotlib import pyplot as plt

TARGET = Path(__file__).parents[1] / "_static" / "algorithms.svg"
COLORS = ("#0072b2", "#c24e00", "#3b8a3e")
SOURCE = digits()


def started(
    make: Callable[[Any], torch.optim.Optimizer], **options: Any
) -> tuple[Any, Any, dpfy.Run]:
    """A run from the same initial weights every time, at ε = 3."""
    torch.manual_seed(0)
    model = digits_mlp()
    optimizer = make(model.parameters())
    plan = dpfy.dpsgd(records=1437, **options).calibrate(epsilon=3.0, delta=1e-5)
    run = dpfy.privatize(
        model, optimizer, SOURCE.train, plan, dpfy.Ledger.in_memory(), insecure_test_key=1
    )
    return optimizer, lambda x, y: F.cross_entropy(model(x), y, reduction="none"), run


def steps(optimizer: Any, loss_fn: Any, run: dpfy.Run) -> Iterator[None]:
    """Take the steps of a run."""
    with run:
        for batch in run:
            optimizer.zero_grad()
            run.backward(loss_fn, batch)
            optimizer.step()
            yield


def draw_adadp(axes: plt.Axes) -> None:
    """Learning rates from several beginnings."""
    for color, first in zip(COLORS, (0.05, 0.5, 20.0), strict=True):
        optimizer, loss_fn, run = started(
            lambda p, lr=first: ADADP(p, lr), batch_size=512, epochs=40
        )
        axes.plot(
            [optimizer.learning_rate for _ in steps(optimizer, loss_fn, run)],
            color=color,
            label=f"from {first}",
        )
    axes.set(title="ADADP", xlabel="release", ylabel="learning rate", yscale="log")


def draw_adam(axes: plt.Axes) -> None:
    """The divisor of the first layer's steps, with and without the variance of the noise."""
    optimizer, loss_fn, run = started(lambda p: AdamBC(p, 3e-3), batch_size=512, epochs=16)
    rows: list[list[float]] = []
    for taken, _ in enumerate(steps(optimizer, loss_fn, run), start=1):
        state = next(iter(optimizer.state.values()))
        square, noise = (state[name] / (1 - 0.999**taken) for name in ("square", "noise"))
        signal = (square - noise).clamp(min=1e-6)
        rows.append(
            [
                float(values.sqrt().quantile(share))
                for values in (square, signal)
                for share in (0.1, 0.5, 0.9)
            ]
        )
    columns = list(zip(*rows, strict=True))
    for color, first, label in ((COLORS[1], 0, "Adam"), (COLORS[0], 3, "AdamBC")):
        axes.fill_between(
            range(len(rows)), columns[first], columns[first + 2], color=color, alpha=0.3
        )
        axes.plot(columns[first + 1], color=color, label=f"{label}, 10 to 90 %")
    axes.set(
        title="what steps are divided by",
        xlabel="step",
        ylabel="root of second moment",
        yscale="log",
    )


def draw_recipe(
    axes: plt.Axes, title: str, recipe: Callable[..., Iterator[Taken]], **options: Any
) -> None:
    """Step sizes, and the noise that gradients had."""
    _, loss_fn, run = started(
        lambda p: torch.optim.SGD(p, lr=1.0),
        sampling="full",
        steps=30,
        controllers=[RecipeControlled()],
    )
    with run:
        taken = list(recipe(run, loss_fn, **options))
    axes.plot(
        [each.step_size for each in taken], "o-", markersize=3, color=COLORS[0], label="step size"
    )
    axes.set(title=title, xlabel="gradient", ylabel="step size", ylim=(0, None))
    noise = axes.twinx()
    noise.plot(
        [each.released.noise_multiplier for each in taken],
        "--",
        color=COLORS[1],
        label="noise multiplier",
    )
    noise.set(ylabel="noise multiplier", ylim=(0, None))
    noise.legend(frameon=False, fontsize="small", loc="lower right")


def main() -> None:
    """Draw the four panels."""
    plt.rcParams.update({"svg.hashsalt": "dpfy", "svg.fonttype": "none", "font.size": 9})
    figure, axes = plt.subplots(2, 2, figsize=(9, 6), layout="constrained")
    draw_adadp(axes[0, 0])
    draw_adam(axes[0, 1])
    draw_recipe(axes[1, 0], "noisy maximum", noisy_max, candidates=10)
    draw_recipe(axes[1, 1], "line search", line_search, backtracking=Backtracking(first=16.0))
    for panel in axes.flat:
        panel.legend(frameon=False, fontsize="small")
    figure.savefig(TARGET, metadata={"Date": None})


if __name__ == "__main__":
    main()
