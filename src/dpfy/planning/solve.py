"""Solve for any one of ε, δ, noise, rate and steps from the other four."""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from dpfy import _validate
from dpfy.accounting import (
    Guarantee,
    account,
    calibrate_envelope,
    calibrate_noise,
    calibrate_rate,
    calibrate_steps,
)
from dpfy.errors import InvalidArgument
from dpfy.ledger.events import Poisson, Repeated, Sampled, SumQuery
from dpfy.plans import Plan, dpsgd
from dpfy.types import Relation

QUANTITIES = ("epsilon", "delta", "noise_multiplier", "rate", "steps")


@dataclass(frozen=True)
class Sketch:
    """Five numbers that fit together: a run of DP-SGD as its accountant sees it.

    Args:
        epsilon: the ε that the accountant claims, not the one that was asked for.
        delta: the δ of that claim.
        noise_multiplier: σ, the noise over the clip bound.
        rate: the sampling rate q.
        steps: the number of steps.
        solved: the name of the quantity that was left open.
        records: the declared number of records, or None.
        relation: the relation between neighbouring data sets.
        method: the accountant.
    """

    epsilon: float
    delta: float
    noise_multiplier: float
    rate: float
    steps: int
    solved: str
    records: int | None = None
    relation: Relation = Relation.ADD_OR_REMOVE_ONE
    method: str = "pld"

    @property
    def epochs(self) -> float:
        """The expected number of times that each record is seen."""
        return self.rate * self.steps

    @property
    def batch_size(self) -> float | None:
        """The expected batch size, or None if the number of records was not declared."""
        return None if self.records is None else self.rate * self.records

    def noise_in_mean(self, clip: float = 1.0) -> float | None:
        """Return σC/B, the noise in each coordinate of the mean gradient; None if B is unknown."""
        batch = self.batch_size
        return self.noise_multiplier * clip / batch if batch else None

    def plan(self, clip: float = 1.0) -> Plan:
        """Return the plan of this run, for :func:`dpfy.privatize`.

        Raises:
            InvalidArgument: if the number of records was not declared.
        """
        if self.records is None:
            raise InvalidArgument(
                "A plan divides by its batch size. Declare records= where you solve."
            )
        return dpsgd(
            records=self.records,
            rate=self.rate,
            steps=self.steps,
            clip=clip,
            noise_multiplier=self.noise_multiplier,
            relation=self.relation,
        )


def solve(
    *,
    records: int | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    noise_multiplier: float | None = None,
    rate: float | None = None,
    batch_size: float | None = None,
    steps: int | None = None,
    epochs: float | None = None,
    relation: Relation | str = Relation.ADD_OR_REMOVE_ONE,
    method: str = "pld",
) -> Sketch:
    """Solve for the one of ε, δ, noise, rate and steps that is left open.

    The result has the least ε, δ or noise, or the largest rate or number of steps. If ``records``
    is given, a solved rate is that of a whole batch. If ``epochs`` is given and the rate is open,
    smaller batches take more steps.

    Args:
        records: the declared number of records; needed with ``batch_size``.
        epsilon: the ε not to exceed.
        delta: the δ of the claim, in (0, 1).
        noise_multiplier: σ, the noise over the clip bound, above 0.
        rate: the sampling rate q, in (0, 1].
        batch_size: the expected batch size, instead of ``rate``.
        steps: the number of steps.
        epochs: how often each record is seen in expectation, instead of ``steps``.
        relation: the relation between neighbouring data sets.
        method: the accountant, "pld" or "rdp".

    Returns:
        All five quantities, and which of them was solved for.

    Raises:
        InvalidArgument: if not exactly one quantity is open, if a value is outside its range, or if
            no value of the open quantity keeps the budget.

    *Formal guarantee*: the returned ε and δ are claims of :func:`dpfy.account` for Poisson samples
    of that rate, and where ε and δ were given, the claim at that δ is at most that ε.

    >>> found = solve(records=60_000, batch_size=6_000, epochs=60, epsilon=3.0, delta=1e-5)
    >>> found.solved, found.steps, round(found.noise_multiplier, 2)
    ('noise_multiplier', 600, 3.53)
    >>> solve(records=60_000, epsilon=3.0, delta=1e-5, noise_multiplier=3.6, epochs=60).batch_size
    6233.0
    """
    asked = _Asked(
        records=records,
        rate=_one_rate(records, rate, batch_size),
        steps=steps,
        epochs=epochs,
        epsilon=epsilon,
        delta=delta,
        noise_multiplier=noise_multiplier,
        relation=Relation(_validate.choice("relation", relation, tuple(Relation))),
        method=method,
    )
    return _SOLVERS[asked.open()](asked)


def _one_rate(records: int | None, rate: float | None, batch_size: float | None) -> float | None:
    if records is not None:
        _validate.count("records", records)
    if batch_size is None:
        return None if rate is None else _validate.real("rate", rate, 0, 1, open_low=True)
    if rate is not None or records is None:
        raise InvalidArgument(
            f"Expected batch_size= with records= and without rate=, got {records=}, {rate=}."
        )
    return _validate.real("batch_size", batch_size, 0, records, open_low=True) / records


@dataclass(frozen=True)
class _Asked:
    """The given quantities; None is open."""

    records: int | None
    rate: float | None
    steps: int | None
    epochs: float | None
    epsilon: float | None
    delta: float | None
    noise_multiplier: float | None
    relation: Relation
    method: str

    def open(self) -> str:
        """Check the given quantities; return the name of the open one."""
        if self.steps is not None and self.epochs is not None:
            raise InvalidArgument(
                f"Expected steps= or epochs=, not both; got {self.steps} and {self.epochs}."
            )
        if self.epsilon is not None:
            _validate.epsilon(self.epsilon)
        if self.delta is not None:
            _validate.delta(self.delta)
        if self.noise_multiplier is not None:
            _validate.positive("noise_multiplier", self.noise_multiplier)
        if self.epochs is not None:
            _validate.positive("epochs", self.epochs)
        if self.steps is not None:
            _validate.count("steps", self.steps)
        missing = [
            name
            for name in QUANTITIES
            if getattr(self, name) is None and not (name == "steps" and self.epochs is not None)
        ]
        if len(missing) != 1:
            raise InvalidArgument(
                f"Expected exactly one of {', '.join(QUANTITIES)} to be left open, and "
                f"{', '.join(missing) or 'none'} is. batch_size stands for rate, epochs for steps."
            )
        return missing[0]

    @property
    def target(self) -> dict[str, Any]:
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "relation": self.relation,
            "method": self.method,
        }

    def guarantee(self, noise_multiplier: float, rate: float, steps: int) -> Guarantee:
        return account(_run(noise_multiplier, rate, steps), self.method, self.relation)

    def sketch(
        self,
        solved: str,
        noise_multiplier: float,
        rate: float,
        steps: int,
        epsilon: float | None = None,
        delta: float | None = None,
    ) -> Sketch:
        """Return the sketch with the accountant's claim, unless ε or δ is known already."""
        delta = self.delta if delta is None else delta
        assert delta is not None
        epsilon = (
            self.guarantee(noise_multiplier, rate, steps).claim(delta)
            if epsilon is None
            else epsilon
        )
        return Sketch(
            epsilon,
            delta,
            noise_multiplier,
            rate,
            steps,
            solved,
            self.records,
            self.relation,
            self.method,
        )


def _run(noise_multiplier: float, rate: float, steps: int) -> Repeated:
    return Repeated(Sampled(Poisson(rate), (SumQuery(1.0, noise_multiplier),)), steps)


def steps_of(epochs: float, rate: float) -> int:
    """Return the steps that see each record ``epochs`` times in expectation.

    :func:`dpfy.dpsgd` counts them in the same way.

    >>> steps_of(60, 0.1)
    600
    """
    return math.ceil(
        Fraction(epochs).limit_denominator(10**6) / Fraction(rate).limit_denominator(10**12)
    )


def _given(asked: _Asked) -> tuple[float, float, int]:
    """Return noise, rate and steps, which were all given."""
    assert asked.noise_multiplier is not None
    return asked.noise_multiplier, *_schedule(asked)


def _schedule(asked: _Asked) -> tuple[float, int]:
    assert asked.rate is not None
    return asked.rate, asked.steps if asked.steps is not None else steps_of(
        asked.epochs or 0.0, asked.rate
    )


def _epsilon(asked: _Asked) -> Sketch:
    return asked.sketch("epsilon", *_given(asked))


def _delta(asked: _Asked) -> Sketch:
    assert asked.epsilon is not None
    found = asked.guarantee(*_given(asked)).delta(asked.epsilon).upper
    return asked.sketch("delta", *_given(asked), epsilon=asked.epsilon, delta=found)


def _noise(asked: _Asked) -> Sketch:
    rate, steps = _schedule(asked)
    return asked.sketch(
        "noise_multiplier", calibrate_noise(rate=rate, steps=steps, **asked.target), rate, steps
    )


def _steps(asked: _Asked) -> Sketch:
    assert asked.rate is not None and asked.noise_multiplier is not None
    found = calibrate_steps(
        rate=asked.rate, noise_multiplier=asked.noise_multiplier, **asked.target
    )
    if not found:
        raise InvalidArgument(
            f"A single step with noise_multiplier={asked.noise_multiplier!r} exceeds "
            f"epsilon={asked.epsilon!r}. Allow more noise, a larger epsilon, or a smaller rate."
        )
    return asked.sketch("steps", asked.noise_multiplier, asked.rate, found)


def _rate(asked: _Asked) -> Sketch:
    noise = asked.noise_multiplier
    assert noise is not None and asked.epsilon is not None and asked.delta is not None

    def steps_at(rate: float) -> int:
        return asked.steps if asked.steps is not None else steps_of(asked.epochs or 0.0, rate)

    if asked.steps is not None:
        rate = calibrate_rate(noise_multiplier=noise, steps=asked.steps, **asked.target)
    else:  # at fixed epochs a larger rate costs more, so 1/rate acts like noise
        inverse = calibrate_envelope(
            lambda z: (_run(noise, min(1.0, 1 / z), steps_at(min(1.0, 1 / z))),), **asked.target
        )
        rate = min(1.0, 1 / inverse)
    if asked.records is None:
        return asked.sketch("rate", noise, rate, steps_at(rate))
    # Nearly always the first batch size fits; it may not, because steps are whole numbers too.
    for batch in range(math.floor(rate * asked.records), 0, -1):
        found = asked.sketch("rate", noise, batch / asked.records, steps_at(batch / asked.records))
        if found.epsilon <= asked.epsilon:
            return found
    raise InvalidArgument(
        f"Not even one of {asked.records} records can be sampled within epsilon={asked.epsilon!r}. "
        "Allow more noise, a larger epsilon, or fewer steps."
    )


_SOLVERS = {
    "epsilon": _epsilon,
    "delta": _delta,
    "noise_multiplier": _noise,
    "rate": _rate,
    "steps": _steps,
}
