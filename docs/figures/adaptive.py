"""Draw docs/_static/adaptive.svg: what adapts over time, on the digits at ε = 3.

Run this file after controllers changed. The noise is drawn from a fixed test key, so that the
figure stays the same: these runs are not private."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import torch
import torch.nn.functional as F

import dpfy
from dpfy.data import digits
from dpfy.models import digits_mlp

matplotlib.use("svg")
from matplotlib import pyplot as plt

TARGET = Path(__file__).parents[1] / "_static" / "adaptive.svg"
COLORS = ("#0072b2", "#c24e00", "#3b8a3e", "#9b2f8f")
SOURCE = digits()


def planned(**options: Any) -> dpfy.Plan:
    """The plan of the examples, at ε = 3."""
    plan = dpfy.dpsgd(records=1437, batch_size=512, epochs=16, **options)
    return plan.calibrate(epsilon=3.0, delta=1e-5)


def trained(model: torch.nn.Module, plan: dpfy.Plan) -> list[tuple[dpfy.Released, Any]]:
    """Train, and return what every step released and what AdaClip had learnt, if it is there."""
    torch.manual_seed(0)
    x, y = SOURCE.test.tensors
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25, momentum=0.9)
    seen = []
    with dpfy.privatize(
        model, optimizer, SOURCE.train, plan, dpfy.Ledger.in_memory(), insecure_test_key=1
    ) as run:
        for batch in run:
            optimizer.zero_grad()
            released = run.backward(
                lambda x, y: F.cross_entropy(model(x), y, reduction="none"), batch
            )
            optimizer.step()
            seen.append((released, run.context.controllers.config(batch.step + 1).coordinates))
            if batch.step % plan.steps_per_epoch == 0:
                run.measured(float((model(x).argmax(1) == y).float().mean()))
    return seen


def model() -> torch.nn.Module:
    """The same initial weights every time."""
    torch.manual_seed(0)
    return digits_mlp()


def draw_schedules(axes: plt.Axes) -> None:
    """Schedules that are fixed in advance, all at the same budget."""
    for color, name in zip(
        COLORS, (None, "time:0.1", "exponential:0.1", "polynomial:1:16:0.3"), strict=True
    ):
        plan = planned(noise_schedule=name)
        axes.step(
            range(plan.steps),
            [plan.noise_at(step) for step in range(1, plan.steps + 1)],
            color=color,
            label=name or "constant",
        )
    axes.set(
        title="noise schedules, one budget",
        xlabel="step",
        ylabel="noise multiplier",
        ylim=(0, None),
    )


def draw_bounds(axes: plt.Axes) -> None:
    """Clip bounds that follow norms."""
    layers = dpfy.clip_groups(digits_mlp(), "layer")
    cases: Sequence[tuple[str, Any, Any]] = (
        ("median, flat", 1.0, dpfy.QuantileClipping()),
        ("median, per layer", layers, dpfy.QuantileClipping(share=0.05)),
        ("mean norm, per layer", layers, dpfy.MeanNormClipping()),
    )
    for color, (label, clip, controller) in zip(COLORS, cases, strict=False):
        seen = trained(model(), planned(clip=clip, controllers=[controller]))
        for number, name in enumerate(seen[0][0].bounds):
            axes.plot(
                [released.bounds[name] for released, _ in seen],
                ("-", "--")[number],
                color=color,
                label=label if not number else None,
            )
    axes.set(title="clip bounds", xlabel="step", ylabel="bound", yscale="log")


def draw_scales(axes: plt.Axes) -> None:
    """The spread of AdaClip's scales."""
    seen = trained(model(), planned(controllers=[dpfy.AdaClip()]))
    shares = torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64)
    scales = torch.stack(
        [
            torch.cat([place.scale.flatten() for place in coordinates.values()]).quantile(shares)
            for _, coordinates in seen
        ]
    )
    axes.fill_between(
        range(len(seen)), scales[:, 0], scales[:, 2], color=COLORS[0], alpha=0.3, label="5 to 95 %"
    )
    axes.plot(scales[:, 1], color=COLORS[0], label="median")
    axes.set(title="AdaClip's scales of coordinates", xlabel="step", ylabel="scale", yscale="log")


def draw_noise(axes: plt.Axes) -> None:
    """Noise that is chosen while training."""
    cases = (
        ("public validation", dpfy.ValidationDecay(0.8, 0.02, 2)),
        ("norm of the sum", dpfy.GradientNormNoise()),
    )
    for color, (label, controller) in zip(COLORS, cases, strict=False):
        seen = trained(model(), planned(controllers=[controller]))
        axes.step(
            range(len(seen)),
            [released.noise_multiplier for released, _ in seen],
            color=color,
            label=label,
        )
    axes.set(
        title="noise under a filter, to the end of its budget",
        xlabel="step",
        ylabel="noise multiplier",
        ylim=(0, None),
    )


def main() -> None:
    """Draw the four panels."""
    plt.rcParams.update({"svg.hashsalt": "dpfy", "svg.fonttype": "none", "font.size": 9})
    figure, axes = plt.subplots(2, 2, figsize=(9, 6), layout="constrained")
    for panel, draw in zip(
        axes.flat, (draw_schedules, draw_bounds, draw_scales, draw_noise), strict=True
    ):
        draw(panel)
        panel.legend(frameon=False, fontsize="small")
    figure.savefig(TARGET, metadata={"Date": None})


if __name__ == "__main__":
    main()
