"""Box–Muller in as many digits as one rounding needs.

``U`` and ``V`` are uniform reals, known by a prefix of their binary expansions. When the prefix (or the arithmetic)
is too short to tell to which integer ``scale·√(-2 ln U)·cos 2πV`` rounds, more bits are drawn. Every rounding is
decided after finitely many bits with probability one, and what is decided is exact: see docs/proofs/lattice-noise.md.
"""

from dataclasses import dataclass
from decimal import Context, Decimal, localcontext
from functools import cache

from dpfy.mechanisms.noise.randomness import SecureStream


@dataclass
class Expansion:
    """A real number in ``[numerator, numerator + 1] / 2^bits``, of which more bits can be drawn."""

    numerator: int
    bits: int

    def extend(self, stream: SecureStream) -> None:
        """Draw the next 64 bits."""
        self.numerator = self.numerator << 64 | int(stream.words(1)[0])
        self.bits += 64


def rounded_pair(u: Expansion, v: Expansion, scale: float, stream: SecureStream) -> tuple[int, int]:
    """Return the integers nearest to ``scale·√(-2 ln U)`` times the cosine and the sine of ``2πV``."""
    while not u.numerator or (pair := _try_rounding(u, v, scale)) is None:
        u.extend(stream)
        v.extend(stream)
    return pair


def _try_rounding(u: Expansion, v: Expansion, scale: float) -> tuple[int, int] | None:
    """Return both roundings if the bits at hand decide them."""
    # 10^-digits stays below 2^-bits / 10^10, so the bounds below, which double the truncation error, cover the
    # decimal roundings too. Decimal.ln and Decimal.sqrt are correctly rounded.
    with localcontext(Context(prec=max(u.bits, v.bits) // 3 + 16)) as context:
        radius = (-2 * (Decimal(u.numerator) / 2**u.bits).ln()).sqrt()
        cosine, sine = _cosine_and_sine(2 * _pi(context.prec) * v.numerator / 2**v.bits, context.prec)
        error = Decimal(scale) * (4 / (u.numerator * radius) + 8 * radius / 2**v.bits)
        nearest = []
        for exact in (Decimal(scale) * radius * cosine, Decimal(scale) * radius * sine):
            integer = exact.to_integral_value()
            if abs(exact - integer) + error >= Decimal("0.5"):
                return None
            nearest.append(int(integer))
    return nearest[0], nearest[1]


def _cosine_and_sine(angle: Decimal, digits: int) -> tuple[Decimal, Decimal]:
    """Sum the exponential series of ``i·angle`` for |angle| ≤ π; the largest term is below 6, so nothing cancels."""
    by_power_of_i = [Decimal(0)] * 4
    term, order = Decimal(1), 0
    while term and term.adjusted() >= -digits:
        by_power_of_i[order % 4] += term
        order += 1
        term = term * angle / order
    return by_power_of_i[0] - by_power_of_i[2], by_power_of_i[1] - by_power_of_i[3]


@cache
def _pi(digits: int) -> Decimal:
    """π to ``digits`` digits by Machin's formula in integers."""
    one: int = 10 ** (digits + 8)

    def inverse_tangent_of_one_over(x: int) -> int:
        total, power, odd = 0, one // x, 1
        while power:
            total += power // odd if odd % 4 == 1 else -(power // odd)
            power, odd = power // (x * x), odd + 2
        return total

    with localcontext(Context(prec=digits)):
        return Decimal(16 * inverse_tangent_of_one_over(5) - 4 * inverse_tangent_of_one_over(239)) / one
