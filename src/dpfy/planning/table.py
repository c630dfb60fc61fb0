"""A table of the accountant's noise multipliers, from which the page with sliders reads.

The page cannot run the accountant, so its sliders stop at the points of this table only, and every
noise multiplier that it shows is one that the accountant found enough. Rates and epochs are powers
of two: a run of the same number of steps at another rate is then a point of the table too.

``python -m dpfy.planning.table`` writes ``table.json`` in about ten minutes. Its entries stay safe,
though not tight, if the accountant gets better; the tests compare them with the accountant.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import product
from pathlib import Path

from dpfy.accounting import account
from dpfy.errors import InvalidArgument
from dpfy.ledger.events import Poisson, Repeated, Sampled, SumQuery

EPSILONS = (0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 8.0, 16.0)
DELTAS = (1e-10, 1e-8, 1e-6, 1e-5)
RATES = tuple(2.0**-power for power in range(10, -1, -1))
EPOCHS = tuple(2.0**power for power in range(-1, 10))
_TIGHT = 0.99  # the least claim, over the target, of an entry that is not improved further
_DIGITS = 4


@dataclass(frozen=True)
class NoiseTable:
    """The noise multipliers at every combination of the stops, rounded up.

    *Formal guarantee*: the accountant's claim for Poisson samples of a stop's rate, for adding or
    removing one record, is at most the stop's ε at its δ. Noise falls in ε and δ and rises in the
    rate and the number of steps, so an entry is also enough for a larger ε or δ, a smaller rate
    and fewer steps.

    Args:
        noise: for each ε, δ, rate and number of epochs, in this order with the last one fastest.
    """

    noise: tuple[float, ...]

    def at(self, epsilon: int, delta: int, rate: int, epochs: int) -> float:
        """Return the noise multiplier at the positions of four stops."""
        place = (epsilon * len(DELTAS) + delta) * len(RATES) + rate
        return self.noise[place * len(EPOCHS) + epochs]


def load() -> NoiseTable:
    """Return the table that comes with the library."""
    text = files("dpfy.planning").joinpath("table.json").read_text(encoding="utf-8")
    return NoiseTable(tuple(json.loads(text)))


def stop_below(name: str, stops: Sequence[float], value: float) -> int:
    """Return the position of the largest stop that is at most ``value``.

    Raises:
        InvalidArgument: if all stops are larger.
    """
    found = [place for place, stop in enumerate(stops) if stop <= value * (1 + 1e-9)]
    if not found:
        raise InvalidArgument(
            f"Expected {name}={value!r} to be at least {stops[0]:g}, where the table of the page "
            "begins. Use dpfy plan without --plot."
        )
    return found[-1]


def stop_above(name: str, stops: Sequence[float], value: float) -> int:
    """Return the position of the smallest stop that is at least ``value``.

    Raises:
        InvalidArgument: if all stops are smaller.
    """
    found = [place for place, stop in enumerate(stops) if stop >= value * (1 - 1e-9)]
    if not found:
        raise InvalidArgument(
            f"Expected {name}={value!r} to be at most {stops[-1]:g}, where the table of the page "
            "ends. Use dpfy plan without --plot."
        )
    return found[0]


def steps_at(rate: int, epochs: int) -> int:
    """Return the steps of a run at two stops; at least one."""
    return max(1, math.ceil(EPOCHS[epochs] / RATES[rate]))


def claimed(noise: float, rate: float, steps: int, delta: float) -> float:
    """Return the accountant's ε of a run."""
    return account(Repeated(Sampled(Poisson(rate), (SumQuery(1.0, noise),)), steps)).claim(delta)


def least_noise(epsilon: float, delta: float, rate: float, steps: int, near: float) -> float:
    """Return a noise multiplier of few digits that is enough, and hardly more, by the accountant.

    The search begins at ``near`` and follows the slope of log ε over log σ.
    """
    enough, slope, last = math.inf, -1.2, None
    noise = _rounded_up(near)
    for _ in range(12):
        found = claimed(noise, rate, steps, delta)
        excess = math.log(max(found, 1e-12) / (epsilon * 0.996))
        if found <= epsilon:
            enough = min(enough, noise)
            if found >= _TIGHT * epsilon:
                break
        if last is not None and last[0] != noise:
            slope = min(-0.3, max(-6.0, (excess - last[1]) / math.log(noise / last[0])))
        last = noise, excess
        following = _rounded_up(noise * math.exp(max(-2.0, min(2.0, -excess / slope))))
        if following == noise:
            following = _rounded_up(noise * (1.001 if found > epsilon else 0.999))
        noise = following
    while math.isinf(enough):
        noise = _rounded_up(noise * 1.01)
        enough = noise if claimed(noise, rate, steps, delta) <= epsilon else enough
    return enough


def compute() -> NoiseTable:
    """Ask the accountant for every entry; each search begins where its neighbours suggest."""
    found: dict[tuple[int, int, int, int], float] = {}

    def known(*place: int) -> float:
        return found.get(place, 1.0)  # type: ignore[arg-type]

    for delta, rate, epochs, epsilon in product(
        range(len(DELTAS)), range(len(RATES)), range(len(EPOCHS)), range(len(EPSILONS))
    ):
        before = (delta, rate, epochs - 1) if epochs else (delta, rate - 1, epochs)
        steps = steps_at(rate, epochs)
        if epochs and steps == steps_at(rate, epochs - 1):  # less than a step: the same run
            found[delta, rate, epochs, epsilon] = found[*before, epsilon]
            continue
        change = known(delta, rate, epochs, epsilon - 1) / known(*before, epsilon - 1)
        near = known(*before, epsilon) * (change if epsilon else 1.2)
        found[delta, rate, epochs, epsilon] = least_noise(
            EPSILONS[epsilon], DELTAS[delta], RATES[rate], steps, near
        )
    return NoiseTable(
        tuple(
            found[delta, rate, epochs, epsilon]
            for epsilon, delta, rate, epochs in product(
                range(len(EPSILONS)), range(len(DELTAS)), range(len(RATES)), range(len(EPOCHS))
            )
        )
    )


def _rounded_up(noise: float) -> float:
    unit = 10.0 ** (math.floor(math.log10(noise)) - _DIGITS + 1)
    return float(f"{math.ceil(noise / unit - 1e-9) * unit:.{_DIGITS}g}")


if __name__ == "__main__":
    Path(__file__).with_name("table.json").write_text(
        json.dumps(compute().noise, separators=(",", ":")) + "\n", encoding="ascii"
    )
