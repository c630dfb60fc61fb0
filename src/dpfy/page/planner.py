"""Plan a run in the browser, answered by the accountant itself."""

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import numpy as np

from dpfy import _validate
from dpfy.errors import DpfyError, InvalidArgument
from dpfy.page import words
from dpfy.page.charts import Axis, Line, Mark, chart
from dpfy.page.layout import tiles
from dpfy.page.words import text
from dpfy.planning import (
    Sketch,
    default_delta,
    diminishing_batch,
    noise_over_batch,
    noise_over_rate,
    solve,
)
from dpfy.reporting.numbers import delta_text, epsilon_text

_RATES = 11  # points of a contour
_MOST_STEPS = 10**6
_STOPS = {
    "epsilon": (0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 4, 5, 6, 8, 10, 16),
    "delta": (1e-10, 1e-9, 1e-8, 1e-7, 1e-6, 3e-6, 1e-5, 1e-4),
    "batch": (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 6000, 8192, 16384, 32768, 65536),
    "epochs": (0.5, 1, 2, 4, 8, 16, 30, 60, 128, 256, 512),
    "records": (1000, 3000, 10_000, 30_000, 60_000, 100_000, 300_000, 10**6, 10**7, 10**8),
}
_LABELS = {
    "epsilon": "Budget ε",
    "delta": "Failure probability δ",
    "batch": "Expected batch size",
    "epochs": "Epochs",
    "records": "Records",
}


@dataclass(frozen=True)
class Wish:
    """What is asked: a budget, a data set and a schedule.

    Args:
        epsilon: The ε not to exceed.
        delta: The δ of the claim.
        batch: The expected batch size.
        epochs: How often each record is seen in expectation.
        records: The declared number of records.
    """

    epsilon: float = 3.0
    delta: float = 1e-5
    batch: float = 6000.0
    epochs: float = 60.0
    records: int = 60_000

    @classmethod
    def of(cls, asked: Mapping[str, str]) -> Self:
        """Return the wish in the query of an address; what is left out has its default.

        Raises:
            InvalidArgument: If a value is no number or out of its range.
        """
        values = {name: _number(name, asked[name]) for name in _LABELS if asked.get(name)}
        records = values.pop("records", cls.records)
        if records != int(records) or not 1 <= records <= 10**12:
            raise InvalidArgument(
                f"Expected records={records:g} to be a whole number from 1 to 10^12, such as 60000."
            )
        found = cls(**{"delta": default_delta(int(records)), **values}, records=int(records))
        _validate.epsilon(found.epsilon)
        _validate.delta(found.delta)
        _validate.real("batch", found.batch, 0, found.records, open_low=True)
        _validate.positive("epochs", found.epochs)
        if found.epochs * found.records / found.batch > _MOST_STEPS:
            raise InvalidArgument(
                f"Expected at most {_MOST_STEPS:,} steps, got "
                f"{found.epochs * found.records / found.batch:,.0f}. Take larger batches or fewer "
                "epochs, or ask dpfy plan."
            )
        return found

    @property
    def command(self) -> str:
        """The command that gives the same answer."""
        flags = {
            "records": self.records,
            "batch-size": self.batch,
            "epochs": self.epochs,
            "epsilon": self.epsilon,
            "delta": self.delta,
        }
        given = (f"--{name} {shlex.quote(f'{value:.12g}')}" for name, value in flags.items())
        return f"dpfy plan {' '.join(given)}"


def planner(asked: Mapping[str, str]) -> str:
    """Return the content of the page: the sliders, the answer, and the place of the contours."""
    try:
        wish, answered = Wish.of(asked), answer(asked)
    except InvalidArgument:
        wish, answered = Wish(), answer(asked)
    fields = "".join(_field(name, getattr(wish, name)) for name in _LABELS)
    return (
        "<h1>What should I run?</h1>"
        '<p class="lead">DP-SGD with Poisson samples, for adding or removing one record; before '
        "any privacy is spent. The accountant of this installation answers.</p>"
        f'<form id="planner" class="planner" action="/plan" method="get">{fields}'
        '<p><button id="ask">Ask the accountant</button></p></form>'
        f'<section id="answer" aria-live="polite">{answered}</section>'
        '<section id="contours" class="figures" aria-label="Contours"></section>'
    )


def _field(name: str, value: float) -> str:
    stops = " ".join(f"{stop:g}" for stop in _STOPS[name])
    return (
        f'<div><label for="{name}">{_LABELS[name]}</label>'
        f'<input type="number" id="{name}" name="{name}" value="{value:.12g}" step="any" min="0" '
        f'required><input type="range" aria-label="{_LABELS[name]}, slider" data-for="{name}" '
        f'data-stops="{stops}" min="0" max="{len(_STOPS[name]) - 1}" step="1" '
        f'value="{_nearest(name, value)}" hidden></div>'
    )


def _nearest(name: str, value: float) -> int:
    distances = [abs(math.log(stop / value)) if value > 0 else stop for stop in _STOPS[name]]
    return distances.index(min(distances))


def answer(asked: Mapping[str, str]) -> str:
    """Return the noise that is enough, and the command to copy; or why there is none."""
    try:
        wish = Wish.of(asked)
        found = _solved(wish)
    except DpfyError as error:
        return f'<p class="caution">{text(error)}</p>'
    mean = found.noise_in_mean(1.0)
    turn = diminishing_batch(wish.records, wish.epsilon, found.steps)
    facts = [
        ("Noise multiplier σ", f"{found.noise_multiplier:.6g}", "The least that is enough."),
        ("Steps", words.count(found.steps), f"At a sampling rate of {found.rate:.4g}."),
        (
            "What may be claimed",
            f"ε = {epsilon_text(found.epsilon)}",
            f"At δ = {delta_text(found.delta)}, by PLD.",
        ),
        (
            "Noise in the mean gradient",
            "–" if mean is None else f"{mean:.4g}",
            f"σC/B for C = 1. Batches beyond {turn:,.0f} bring less and less.",
        ),
    ]
    return (
        f'{tiles(facts)}<p id="command-says">The same by command:</p><pre class="command" '
        f'tabindex="0" aria-labelledby="command-says"><code>{text(wish.command)}</code></pre>'
    )


@lru_cache(maxsize=256)
def _solved(wish: Wish) -> Sketch:
    return solve(
        records=wish.records,
        epsilon=wish.epsilon,
        delta=wish.delta,
        batch_size=wish.batch,
        epochs=wish.epochs,
    )


def contours(asked: Mapping[str, str]) -> str:
    """Return the figures: noise over sampling rates, and noise in the mean over batch sizes."""
    try:
        return _contours(Wish.of(asked))
    except DpfyError:
        return ""  # the answer says why


@lru_cache(maxsize=64)
def _contours(wish: Wish) -> str:
    found = _solved(wish)
    low = max(1.0, min(wish.batch, wish.records / 1000), wish.epochs * wish.records / _MOST_STEPS)
    if low >= wish.records:
        return ""
    sizes = _between(low, wish.records, wish.batch)
    line = noise_over_rate(
        wish.epsilon,
        delta=wish.delta,
        epochs=wish.epochs,
        rates=[size / wish.records for size in sizes],
    )
    law = [(rate, line.root_law * math.sqrt(rate)) for rate in line.rates]
    first = chart(
        f"σ over the sampling rate for ε = {wish.epsilon:g} after {wish.epochs:g} epochs; dashed, "
        f"σ = {line.root_law:.3g}·√q",
        Axis("sampling rate q", log=True),
        Axis("noise multiplier σ", log=True),
        [
            Line("the accountant's", list(zip(line.rates, line.noise, strict=True))),
            Line("the law", law, "law"),
        ],
        Mark(found.rate, found.noise_multiplier),
    )
    curve = noise_over_batch(
        wish.epsilon,
        delta=wish.delta,
        records=wish.records,
        steps=found.steps,
        batch_sizes=sizes,
    )
    second = chart(
        f"σC/B over the batch size for {found.steps:,} steps and C = 1",
        Axis("batch size B", log=True),
        Axis("noise in the mean gradient", log=True),
        [Line("", list(zip(curve.batch_sizes, curve.noise_in_mean, strict=True)))],
        Mark(wish.batch, found.noise_multiplier / wish.batch),
    )
    return first + second


def _between(low: float, high: float, through: float) -> list[float]:
    """Return rising values from ``low`` to ``high``, one of which is ``through``."""
    spaced = [float(value) for value in np.geomspace(low, high, _RATES)]
    return sorted({low, float(high), through, *spaced[1:-1]})


def _number(name: str, value: str) -> float:
    try:
        found = float(value)
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise InvalidArgument(f"Expected {name}={value[:40]!r} to be a number.")
    return found
