"""Functions that recipes share: gradients as vectors, and steps along them.

Tests: tests/recipes/test_line_search.py.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from dpfy.errors import InvalidArgument
from dpfy.run.released import Released
from dpfy.run.run import Run

Vector = Mapping[str, torch.Tensor]
"""A tensor for each trained parameter, by its name in the model."""


@dataclass(frozen=True)
class Taken:
    """The public outcome of one released gradient in a recipe.

    Args:
        released: The released gradient and statistics.
        step_size: The length of the step along it; 0 if the weights stayed.
    """

    released: Released
    step_size: float


def weights(run: Run) -> dict[str, torch.Tensor]:
    """Return a copy of the trained parameters."""
    return {name: parameter.detach().clone() for name, parameter in run.context.trained().items()}


def along(start: Vector, direction: Vector, step_size: float) -> dict[str, torch.Tensor]:
    """Return start − step_size·direction."""
    return {name: value - step_size * direction[name] for name, value in start.items()}


@torch.no_grad()
def go(run: Run, target: Vector) -> None:
    """Set the parameters to ``target``."""
    for name, parameter in run.context.trained().items():
        parameter.copy_(target[name])


def dot(a: Vector, b: Vector) -> float:
    """Return the inner product, in float64."""
    return math.fsum(float((a[name].double() * b[name].double()).sum()) for name in a)


def norm(vector: Vector) -> float:
    """Return the Euclidean norm."""
    return math.sqrt(dot(vector, vector))


def angle(a: Vector, b: Vector) -> float:
    """Return the angle between two vectors in radians, π/2 if either is zero."""
    lengths = norm(a) * norm(b)
    return math.acos(min(1.0, max(-1.0, dot(a, b) / lengths))) if lengths else math.pi / 2


def require_filter(run: Run, recipe: str) -> None:
    """Refuse a plan that cannot account for choices made from outputs."""
    if run.plan.filter is None:
        raise InvalidArgument(
            f"{recipe} chooses its noise and its last step from outputs, which a filter alone "
            "accounts. Give the plan controllers=[dpfy.recipes.RecipeControlled()], then calibrate "
            "it or put it under a filter."
        )
