"""Numbers as a reader may quote them: a privacy parameter is rounded up, its lower bound down."""

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

from dpfy.types import Interval

# A float has up to 309 digits before its point, and three more are shown.
_EXACT = Context(prec=400)
_PLACES = 3


def epsilon_text(value: float, *, lower: bool = False) -> str:
    """Return ε rounded up, or a ``lower`` bound rounded down, with three decimals.

    Small values keep three significant digits.

    >>> epsilon_text(2.99512), epsilon_text(2.99512, lower=True)
    ('2.996', '2.995')
    >>> epsilon_text(0.0123449), epsilon_text(math.inf)
    ('0.0124', '∞')
    """
    if math.isinf(value):
        return "∞"
    exact = Decimal(repr(float(value)))
    if exact == 0:
        return "0"
    if exact.adjusted() >= 6 or exact.adjusted() < -6:
        return _scientific(exact, ROUND_FLOOR if lower else ROUND_CEILING)
    places = max(_PLACES, _PLACES - 1 - exact.adjusted())
    return str(
        exact.quantize(Decimal(1).scaleb(-places), ROUND_FLOOR if lower else ROUND_CEILING, _EXACT)
    )


def delta_text(value: float) -> str:
    """Return δ in scientific notation with up to three digits, rounded up.

    >>> delta_text(1e-5), delta_text(60_000**-1.1), delta_text(0.0)
    ('1e-5', '5.55e-6', '0')
    """
    return _scientific(Decimal(repr(float(value))), ROUND_CEILING) if value else "0"


def percent_text(share: float) -> str:
    """Return a share as a percentage with one decimal, rounded up.

    >>> percent_text(0.6301)
    '63.1 %'
    """
    return f"{Decimal(100 * share).quantize(Decimal('0.1'), ROUND_CEILING)} %"


def most_text(share: float) -> str:
    """Return a bound on a share as a percentage with at least three digits, rounded up.

    >>> most_text(0.0150576)
    '1.506 %'
    """
    return f"{epsilon_text(100 * min(1.0, share))} %"


def share_text(share: float) -> str:
    """Return a share that was chosen as a percentage.

    >>> share_text(0.01)
    '1 %'
    """
    return f"{100 * share:g} %"


def bracket_text(interval: Interval) -> str:
    """Return a claim, with the interval that is certified for it.

    >>> bracket_text(Interval(2.99312, 2.99512))
    '2.996 [2.993, 2.996]'
    """
    upper, lower = epsilon_text(interval.upper), epsilon_text(interval.lower, lower=True)
    return upper if upper == "∞" or lower == "0" else f"{upper} [{lower}, {upper}]"


def plain(value: object) -> str:
    """Return a public constant as it was declared, without the error of binary fractions.

    >>> plain(0.1 + 0.2), plain(60_000), plain(True)
    ('0.3', '60000', 'yes')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def finite(value: float) -> float | None:
    """Return ``value`` for JSON, which has neither NaN nor infinity; None stands for these."""
    return value if math.isfinite(value) else None


def _scientific(exact: Decimal, rounding: str) -> str:
    rounded = exact.quantize(Decimal(1).scaleb(exact.adjusted() - _PLACES + 1), rounding, _EXACT)
    digits = str(rounded.scaleb(-rounded.adjusted(), _EXACT).normalize(_EXACT))
    return f"{digits}e{rounded.adjusted()}"
