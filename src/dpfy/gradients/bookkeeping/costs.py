"""The cheapest form of a contribution, from shapes alone: the same on every machine and rank.

Tests: tests/checks/test_explain.py.
"""

from functools import lru_cache

from dpfy.gradients.bookkeeping.contributions import (
    LARGE_WEIGHT,
    Contribution,
    OuterProduct,
    Rematerialized,
)
from dpfy.gradients.bookkeeping.workspace import Workspace

# per record and parameter: 8 MB; beyond, gradients are not kept until the weights are known
_KEPT_NUMBERS = 2**21
_PASS = 36  # multiplications that take as long as the passes over a number that is kept
# multiplications in float64, its conversions included, of an entry of a Gram matrix and a feature
_GRAM = 5
_GRAM_ENTRY = 400  # of an entry by itself

BLOCK_NUMBERS = 2**22
"""The numbers that are written out at once where gradients are not kept."""


def outer_costs(steps: int, inputs: int, outputs: int) -> dict[str, float]:
    """Return the multiplications per record that each form costs beyond non-private training.

    >>> outer_costs(steps=1, inputs=1024, outputs=1024)["ghost"] < 0.01 * 1024 * 1024
    True
    """
    product, kept = steps * inputs * outputs, _PASS * inputs * outputs
    gram = steps**2 * (_GRAM * (inputs + outputs) + _GRAM_ENTRY)
    # the sum takes twice as long in float64
    again = 0 if inputs * outputs >= LARGE_WEIGHT else product
    ghost = inputs + outputs if steps == 1 else gram + again
    return {"ghost": ghost, "keep": kept, "blocks": product + kept}


@lru_cache(maxsize=1024)
def outer_rule(steps: int, inputs: int, outputs: int, keep: bool = True) -> str:
    """Return the cheapest way that fits into memory.

    >>> outer_rule(1, 1024, 1024), outer_rule(128, 256, 256), outer_rule(128, 256, 20_000)
    ('ghost', 'keep', 'blocks')
    """
    costs = outer_costs(steps, inputs, outputs)
    if not keep or inputs * outputs > _KEPT_NUMBERS:
        del costs["keep"]
    return min(costs, key=costs.__getitem__)


def cheapest_kept(outer: OuterProduct, memory: Workspace | None = None) -> Contribution:
    """Return the cheapest form of a product that is kept, in ``memory``, until it is summed."""
    return _in_form(outer, True, memory)


def cheapest_measured(outer: OuterProduct) -> Contribution:
    """Return the cheapest form of a product that is measured and then dropped."""
    return _in_form(outer, False)


def _in_form(outer: OuterProduct, keep: bool, memory: Workspace | None = None) -> Contribution:
    """Return the product in the cheapest form, kept until it is summed or not."""
    steps, inputs, outputs = outer.inputs.shape[1], outer.inputs.shape[2], outer.outputs.shape[2]
    match outer_rule(steps, inputs, outputs, keep):
        case "keep":
            return outer.instantiate(memory)
        case "blocks":
            return Rematerialized(
                outer.inputs,
                outer.outputs,
                records_at_once=max(1, BLOCK_NUMBERS // (inputs * outputs)),
            )
    return outer
