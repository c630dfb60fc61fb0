"""Decide exactly whether a random point lies below the bell curve.

The coordinates are uniform reals, known by a prefix of their binary expansions. When the prefix (or
the arithmetic) is too short to tell, more bits are drawn. This ends with probability one, and the
verdict is exact: lemma 5 of docs/proofs/lattice-noise.md.
"""

from dataclasses import dataclass
from decimal import Context, Decimal, localcontext

from dpfy.noise.random_stream import KeyStream


@dataclass
class Expansion:
    """A random real in ``[numerator, numerator + 1] / 2^bits``; more bits can be drawn."""

    numerator: int
    bits: int

    def extend(self, stream: KeyStream) -> None:
        """Draw the next 64 bits."""
        self.numerator = self.numerator << 64 | int(stream.words(1)[0])
        self.bits += 64


def is_below(x: Expansion, y: Expansion, spread: float, height: float, stream: KeyStream) -> bool:
    """Return whether ``height·Y < exp(-(X/spread)²/2)``."""
    while (verdict := _try_comparing(x, y, spread, height)) is None:
        x.extend(stream)
        y.extend(stream)
    return verdict


def _try_comparing(x: Expansion, y: Expansion, spread: float, height: float) -> bool | None:
    """Return the verdict if the bits at hand decide it."""
    with localcontext(Context(prec=max(x.bits, y.bits) // 3 + 20)) as context:
        abscissa = Decimal(x.numerator) / 2**x.bits / Decimal(spread)
        curve = (-abscissa * abscissa / 2).exp()  # correctly rounded
        ordinate = Decimal(y.numerator) / 2**y.bits * Decimal(height)
        # The slope of the curve is below 1 / spread.
        truncation = 1 / Decimal(spread) / 2**x.bits + Decimal(height) / 2**y.bits
        if abs(ordinate - curve) <= truncation + Decimal(10) ** (2 - context.prec):
            return None
        return ordinate < curve
