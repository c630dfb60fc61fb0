"""Which form of a contribution is cheapest, from shapes alone: the same choice on every machine and
rank.
"""

from dpfy.gradients.bookkeeping.contributions import Contribution, OuterProduct, Rematerialized

_KEPT_NUMBERS = (
    2**21
)  # per record and parameter: 8 MB; beyond, gradients are not kept until the weights are known
_PASS = 36  # multiplications that take as long as the passes over a number that is kept
# multiplications in float64, its conversions included, of an entry of a Gram matrix and a feature
_GRAM = 5
_GRAM_ENTRY = 400  # of an entry by itself

BLOCK_NUMBERS = 2**22
"""How many are written out at once when they are not kept."""


def outer_costs(steps: int, inputs: int, outputs: int) -> dict[str, float]:
    """Return the multiplications per record beyond one product of the non-private kind, for each
    way.

    >>> outer_costs(steps=1, inputs=1024, outputs=1024)["ghost"] < 0.01 * 1024 * 1024
    True
    """
    product, kept = steps * inputs * outputs, _PASS * inputs * outputs
    gram = steps**2 * (_GRAM * (inputs + outputs) + _GRAM_ENTRY)
    ghost = (
        inputs + outputs if steps == 1 else gram + product
    )  # the sum takes twice as long in float64
    return {"ghost": ghost, "keep": kept, "blocks": product + kept}


def outer_rule(steps: int, inputs: int, outputs: int, keep: bool = True) -> str:
    """Return the cheapest way that fits into memory.

    >>> outer_rule(1, 1024, 1024), outer_rule(128, 256, 256), outer_rule(128, 256, 20_000)
    ('ghost', 'keep', 'blocks')
    """
    costs = outer_costs(steps, inputs, outputs)
    if not keep or inputs * outputs > _KEPT_NUMBERS:
        del costs["keep"]
    return min(costs, key=costs.__getitem__)


def cheapest_kept(outer: OuterProduct) -> Contribution:
    """Return the cheapest form of what is kept until its weights are known, and then summed."""
    return _in_form(outer, keep=True)


def cheapest_measured(outer: OuterProduct) -> Contribution:
    """Return the cheapest form of what is measured and let go."""
    return _in_form(outer, keep=False)


def _in_form(outer: OuterProduct, keep: bool) -> Contribution:
    steps, inputs, outputs = outer.inputs.shape[1], outer.inputs.shape[2], outer.outputs.shape[2]
    match outer_rule(steps, inputs, outputs, keep):
        case "keep":
            return outer.instantiate()
        case "blocks":
            return Rematerialized(
                outer.inputs, outer.outputs, max(1, BLOCK_NUMBERS // (inputs * outputs))
            )
    return outer
