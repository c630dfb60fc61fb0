"""Guided procedures for tuning private training, which state each step and its reason.

They train on public or proxy data only, as often as they like. On private data every look is a
release, and the procedures refuse it. Reference: Ponomareva et al. 2023, §5.4.1.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dpfy import _validate
from dpfy.errors import InvalidArgument
from dpfy.mechanisms.controllers import QuantileClipping
from dpfy.planning.solve import Sketch, solve
from dpfy.plans import Plan, dpsgd

BOUNDS = (0.01, 0.1, 1.0, 10.0)
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
_SLIGHTLY = 0.02  # the utility that clipping may cost without noise
_COUNTED = 0.99  # of the noise budget, for counts of norms: gradients are not used here


@dataclass(frozen=True)
class Trial:
    """The settings of one training run on public or proxy data.

    Args:
        batch_size: the expected batch size B.
        steps: the number of steps.
        learning_rate: the learning rate α.
        clip: the clip bound C; None trains without clipping.
        noise_multiplier: σ, the noise over the clip bound.
    """

    batch_size: float
    steps: int
    learning_rate: float
    clip: float | None = None
    noise_multiplier: float = 0.0

    @property
    def noise_in_mean(self) -> float:
        """σC/B, which determines accuracy where batches are large (McMahan et al. 2018)."""
        return self.noise_multiplier * (self.clip or 0.0) / self.batch_size


@dataclass(frozen=True)
class Step:
    """One step of a procedure: the action, its reason and its result."""

    title: str
    reason: str
    result: str = ""

    def __str__(self) -> str:
        return "\n".join(
            (
                self.title,
                f"  why: {self.reason}",
                *([f"  found: {self.result}"] if self.result else []),
            )
        )


@dataclass(frozen=True)
class Choice:
    """The recommendation of a procedure.

    Args:
        trial: the recommended settings.
        utility: the utility of these settings on public data.
        sketch: the cost of a run on private data, if a budget was given.
    """

    trial: Trial
    utility: float
    sketch: Sketch | None = None


Evaluate = Callable[[Trial], float]
"""Trains on public or proxy data and returns a utility, such as accuracy; larger is better."""
Tell = Callable[[Step], None]

SWEEP_CLIP = Step(
    "Sweep the clip bound C at noise 0, everything else fixed; take the smallest C that costs "
    "little.",
    "Without noise, clipping shows its own cost. Noise is in proportion to C, so a bound that "
    "clips most gradients is wanted; the learning rate makes up for what that costs.",
)
GRID = Step(
    "Train on a grid of C and learning rates α.",
    "While all gradients are clipped only C·α matters: the best cells form a diagonal. It ends "
    "where C exceeds the gradients, and noise alone grows.",
)
SCALE = Step(
    "Fix the most epochs and the largest batch that compute allows.",
    "Both help at equal ε. Compute is spent first, because noise follows from it.",
)
PLAIN = Step(
    "Tune the learning rate without privacy at that batch and those epochs.",
    "Whatever does not depend on noise is settled where runs are cheapest to judge.",
)
NOISE = Step(
    "Compute the noise multiplier from ε, δ, the rate and the steps.",
    "Nothing else decides about ε; in particular C does not.",
)
SWEEP_RATE = Step(
    "Sweep the learning rate with that noise and that clip bound.",
    "Clipping shortens steps and noise punishes long ones: the best rate has moved.",
)
MATCH = Step(
    "Take a small batch b, and the noise multiplier σ·b/B: the same noise in the mean gradient.",
    "For large batches accuracy depends on σC/B and hardly on σ and B alone, at equal steps.",
)
ONE_RUN = Step(
    "Train once with the large batch, its own σ and the tuned learning rate.",
    "The search was cheap, and only this run touches private records.",
)
CURVE = Step(
    "Vary noise at a small batch: utility over σC/b.",
    "The curve has a knee: below some noise the utility hardly changes.",
)
LEAST = Step(
    "Take the most noise that still reaches the utility wanted, and the smallest batch with less "
    "of it.",
    "At equal ε and steps the noise in the mean falls with the batch; compute is the price.",
)

STRATEGIES: dict[str, tuple[Step, ...]] = {
    "clip-search": (SWEEP_CLIP,),
    "grid": (GRID,),
    "compute": (SCALE, PLAIN, SWEEP_CLIP, NOISE, SWEEP_RATE),
    "small-batch": (SWEEP_CLIP, NOISE, MATCH, SWEEP_RATE, ONE_RUN),
    "accuracy": (SWEEP_CLIP, CURVE, LEAST),
}
"""The steps of each procedure, in order."""


def clip_search(
    evaluate: Evaluate,
    base: Trial,
    *,
    data: str,
    bounds: Sequence[float] = BOUNDS,
    slightly: float = _SLIGHTLY,
    tell: Tell = lambda step: None,
) -> Choice:
    """Return the smallest clip bound that costs at most ``slightly`` of utility at noise 0.

    Args:
        evaluate: trains with given settings and returns a utility; larger is better.
        base: the settings to vary.
        data: what ``evaluate`` trains on, "public" or "proxy".
        bounds: the clip bounds to try.
        slightly: the largest loss of utility against training without clipping.
        tell: is called with each step of the procedure and its result.

    Returns:
        The settings with the chosen bound; the best bound if none comes close.

    Raises:
        InvalidArgument: if ``data`` is "private".

    *Assumes* that ``data``, what ``evaluate`` trains on, is ``"public"`` or ``"proxy"``. At noise 0
    every run shows its records, so on private data the search is refused. There
    :func:`private_clip_plan` follows a quantile of the norms by released counts, which are charged.

    >>> chosen = clip_search(lambda trial: 0.9 if trial.clip is None or trial.clip >= 0.1 else 0.5,
    ...                      Trial(batch_size=64, steps=10, learning_rate=0.1), data="public")
    >>> chosen.trial.clip
    0.1

    Reference: Ponomareva et al. 2023, §5.4.1 (ClipSearch).
    """
    _require_public(data)
    bounds = sorted(_validate.positive("bounds", bound) for bound in bounds)
    plain = evaluate(replace(base, clip=None, noise_multiplier=0.0))
    found = {bound: evaluate(replace(base, clip=bound, noise_multiplier=0.0)) for bound in bounds}
    good = [bound for bound, utility in found.items() if utility >= plain - slightly]
    chosen = good[0] if good else max(found, key=lambda bound: (found[bound], -bound))
    listed = ", ".join(f"C = {bound:g}: {utility:.3f}" for bound, utility in found.items())
    note = (
        ""
        if good
        else " None comes close: the best is taken, and larger bounds or rates are worth a try."
    )
    tell(replace(SWEEP_CLIP, result=f"unclipped: {plain:.3f}, {listed}. C = {chosen:g}.{note}"))
    return Choice(replace(base, clip=chosen, noise_multiplier=0.0), found[chosen])


@dataclass(frozen=True)
class Grid:
    """Utilities over clip bounds (rows) and learning rates (columns) (the guide's Figure 2)."""

    clips: tuple[float, ...]
    learning_rates: tuple[float, ...]
    utilities: tuple[tuple[float, ...], ...]

    @property
    def best(self) -> tuple[float, float]:
        """The C and α of the best cell; among equal cells, the one with the smallest C."""
        places = [
            (row, column)
            for row in range(len(self.clips))
            for column in range(len(self.learning_rates))
        ]
        row, column = max(places, key=lambda place: (self.utilities[place[0]][place[1]], -place[0]))
        return self.clips[row], self.learning_rates[column]

    def __str__(self) -> str:
        head = "C \\ α".rjust(8) + "".join(f"{rate:>9.3g}" for rate in self.learning_rates)
        return "\n".join(
            [
                head,
                *(
                    f"{clip:>8.3g}" + "".join(f"{value:>9.3f}" for value in row)
                    for clip, row in zip(self.clips, self.utilities, strict=True)
                ),
            ]
        )


def clip_and_rate_grid(
    evaluate: Evaluate,
    base: Trial,
    *,
    data: str,
    clips: Sequence[float] = BOUNDS,
    learning_rates: Sequence[float] | None = None,
    tell: Tell = lambda step: None,
) -> Grid:
    """Train on a grid of clip bounds and learning rates, with the noise of ``base``.

    Args:
        evaluate: trains with given settings and returns a utility; larger is better.
        base: the settings to vary.
        data: what ``evaluate`` trains on, "public" or "proxy".
        clips: the clip bounds to try.
        learning_rates: the learning rates to try; by default a quarter to four times that of
            ``base``.
        tell: is called with each step of the procedure and its result.

    Returns:
        The utility of every cell.

    Raises:
        InvalidArgument: if ``data`` is "private".

    Reference: Ponomareva et al. 2023, Figure 2.
    """
    _require_public(data)
    clips = tuple(sorted(_validate.positive("clips", clip) for clip in clips))
    rates = tuple(learning_rates or (base.learning_rate * factor for factor in FACTORS))
    grid = Grid(
        clips,
        rates,
        tuple(
            tuple(evaluate(replace(base, clip=clip, learning_rate=rate)) for rate in rates)
            for clip in clips
        ),
    )
    clip, rate = grid.best
    tell(
        replace(
            GRID,
            result=f"best at C = {clip:g}, α = {rate:g}: keep C·α = {clip * rate:.3g}.\n{grid}",
        )
    )
    return grid


def given_compute(
    evaluate: Evaluate,
    *,
    data: str,
    records: int,
    epsilon: float,
    delta: float,
    batch_size: float,
    epochs: float,
    learning_rate: float,
    bounds: Sequence[float] = BOUNDS,
    tell: Tell = lambda step: None,
) -> Choice:
    """Return the best settings for a budget at a given number of epochs and batch size.

    Args:
        evaluate: trains with given settings and returns a utility; larger is better.
        data: what ``evaluate`` trains on, "public" or "proxy".
        records: the number of private records.
        epsilon: the ε not to exceed.
        delta: the δ of the claim, in (0, 1).
        batch_size: the largest batch that compute allows.
        epochs: the most epochs that compute allows.
        learning_rate: the learning rate to start from.
        bounds: the clip bounds to try.
        tell: is called with each step of the procedure and its result.

    Returns:
        The settings, their utility on public data, and the cost of the private run.

    Raises:
        InvalidArgument: if ``data`` is "private", or if a value is outside its range.

    Reference: Ponomareva et al. 2023, §5.4.1, "under computation and privacy constraints".
    """
    _require_public(data)
    sketch = solve(
        records=records, batch_size=batch_size, epochs=epochs, epsilon=epsilon, delta=delta
    )
    base = Trial(batch_size, sketch.steps, learning_rate)
    tell(
        replace(
            SCALE, result=f"{epochs:g} epochs, batches of {batch_size:g}: {sketch.steps:,} steps"
        )
    )
    base = _best_rate(evaluate, base, PLAIN, tell).trial
    clipped = clip_search(evaluate, base, data=data, bounds=bounds, tell=tell).trial
    noisy = replace(clipped, noise_multiplier=sketch.noise_multiplier)
    tell(replace(NOISE, result=_noise_text(sketch, noisy)))
    return replace(_best_rate(evaluate, noisy, SWEEP_RATE, tell), sketch=sketch)


def small_then_large(
    evaluate: Evaluate,
    *,
    data: str,
    records: int,
    epsilon: float,
    delta: float,
    batch_size: float,
    small_batch: float,
    steps: int,
    learning_rate: float,
    bounds: Sequence[float] = BOUNDS,
    tell: Tell = lambda step: None,
) -> Choice:
    """Return settings for one run with a large batch, tuned on a small batch.

    The small batch gets the same noise in the mean gradient.

    Args:
        evaluate: trains with given settings and returns a utility; larger is better.
        data: what ``evaluate`` trains on, "public" or "proxy".
        records: the number of private records.
        epsilon: the ε not to exceed.
        delta: the δ of the claim, in (0, 1).
        batch_size: the batch size of the private run.
        small_batch: the batch size of the search, at most ``batch_size``.
        steps: the number of steps of both.
        learning_rate: the learning rate to start from.
        bounds: the clip bounds to try.
        tell: is called with each step of the procedure and its result.

    Returns:
        The settings, their utility at the small batch, and the cost of the private run.

    Raises:
        InvalidArgument: if ``data`` is "private", or if a value is outside its range.

    Reference: Ponomareva et al. 2023, §5.4.1 and §5.4.2; Sander, Stock & Sablayrolles 2022.
    """
    _require_public(data)
    small_batch = _validate.real("small_batch", small_batch, 0, batch_size, open_low=True)
    clipped = clip_search(
        evaluate, Trial(small_batch, steps, learning_rate), data=data, bounds=bounds, tell=tell
    ).trial
    sketch = solve(
        records=records, batch_size=batch_size, steps=steps, epsilon=epsilon, delta=delta
    )
    large = replace(clipped, batch_size=batch_size, noise_multiplier=sketch.noise_multiplier)
    tell(replace(NOISE, result=_noise_text(sketch, large)))
    small = replace(clipped, noise_multiplier=sketch.noise_multiplier * small_batch / batch_size)
    tell(replace(MATCH, result=f"b = {small_batch:g}, σ = {small.noise_multiplier:.4g}"))
    tuned = _best_rate(evaluate, small, SWEEP_RATE, tell)
    large = replace(large, learning_rate=tuned.trial.learning_rate)
    tell(
        replace(
            ONE_RUN,
            result=f"B = {batch_size:g}, σ = {large.noise_multiplier:.4g}, C = {large.clip:g}, α = "
            f"{large.learning_rate:g}, {steps:,} steps",
        )
    )
    return Choice(large, tuned.utility, sketch)


def given_accuracy(
    evaluate: Evaluate,
    *,
    data: str,
    records: int,
    epsilon: float,
    delta: float,
    utility: float,
    small_batch: float,
    steps: int,
    learning_rate: float,
    bounds: Sequence[float] = BOUNDS,
    noises: Sequence[float] = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0),
    tell: Tell = lambda step: None,
) -> Choice:
    """Return the cheapest run for a budget and a wanted utility.

    It is the run with the smallest batch that has little enough noise.

    Args:
        evaluate: trains with given settings and returns a utility; larger is better.
        data: what ``evaluate`` trains on, "public" or "proxy".
        records: the number of private records.
        epsilon: the ε not to exceed.
        delta: the δ of the claim, in (0, 1).
        utility: the utility to reach.
        small_batch: the batch size of the search.
        steps: the number of steps.
        learning_rate: the learning rate.
        bounds: the clip bounds to try.
        noises: the noise multipliers to try at the small batch.
        tell: is called with each step of the procedure and its result.

    Returns:
        The settings, their utility at the small batch, and the cost of the private run.

    Raises:
        InvalidArgument: if ``data`` is "private", if no noise reaches the utility, or if no batch
            has little enough noise.

    Reference: Ponomareva et al. 2023, §5.4.1, "under privacy and accuracy constraints".
    """
    _require_public(data)
    clipped = clip_search(
        evaluate, Trial(small_batch, steps, learning_rate), data=data, bounds=bounds, tell=tell
    ).trial
    trials = [replace(clipped, noise_multiplier=noise) for noise in sorted(noises)]
    curve = [(trial, evaluate(trial)) for trial in trials]
    tell(
        replace(
            CURVE,
            result=", ".join(f"{trial.noise_in_mean:.4g}: {value:.3f}" for trial, value in curve),
        )
    )
    reached = [(trial, value) for trial, value in curve if value >= utility]
    if not reached:
        raise InvalidArgument(
            f"No noise that was tried leaves a utility of {utility:g}; the best was "
            f"{max(value for _, value in curve):.3f}. Ask for less, tune further, or try less "
            "noise."
        )
    trial, value = max(reached, key=lambda each: each[0].noise_in_mean)
    assert trial.clip is not None
    sketch = smallest_batch(
        records=records,
        epsilon=epsilon,
        delta=delta,
        steps=steps,
        noise_in_mean=trial.noise_in_mean,
        clip=trial.clip,
    )
    chosen = replace(
        trial, batch_size=sketch.batch_size or 0.0, noise_multiplier=sketch.noise_multiplier
    )
    tell(
        replace(
            LEAST,
            result=f"σC/B = {trial.noise_in_mean:.4g} needs B = {chosen.batch_size:g}, σ = "
            f"{sketch.noise_multiplier:.4g} ({sketch.epochs:.3g} epochs)",
        )
    )
    return Choice(chosen, value, sketch)


def smallest_batch(
    *,
    records: int,
    epsilon: float,
    delta: float,
    steps: int,
    noise_in_mean: float,
    clip: float = 1.0,
) -> Sketch:
    """Return the run with the smallest batch B whose σ = B·``noise_in_mean``/C keeps within ε.

    Args:
        records: the number of records.
        epsilon: the ε not to exceed.
        delta: the δ of the claim, in (0, 1).
        steps: the number of steps.
        noise_in_mean: the largest σC/B.
        clip: the clip bound C.

    Returns:
        The run, with its batch size solved for.

    Raises:
        InvalidArgument: if not even a batch of all records keeps within ε.

    >>> found = smallest_batch(
    ...     records=60_000, epsilon=3.0, delta=1e-5, steps=600, noise_in_mean=0.001
    ... )
    >>> found.batch_size, round(found.noise_multiplier, 2)
    (862.0, 0.86)
    """
    records = _validate.count("records", records)
    ratio = _validate.positive("noise_in_mean", noise_in_mean) / _validate.positive("clip", clip)

    def run(batch: int) -> Sketch:
        return solve(
            records=records,
            batch_size=batch,
            steps=steps,
            delta=delta,
            noise_multiplier=ratio * batch,
        )

    if run(records).epsilon > _validate.epsilon(epsilon):
        raise InvalidArgument(
            f"Not even all {records} records at once reach noise_in_mean={noise_in_mean!r} within "
            f"epsilon={epsilon!r}. Accept more noise, a larger epsilon or fewer steps, or find "
            "more data."
        )
    low, high = 0, records
    while high - low > 1:
        middle = max(low + 1, math.isqrt(max(1, low) * high)) if low else (low + high) // 2
        low, high = (low, middle) if run(middle).epsilon <= epsilon else (middle, high)
    return replace(run(high), solved="batch_size")


def private_clip_plan(
    *,
    records: int,
    batch_size: float,
    steps: int,
    epsilon: float,
    delta: float,
    quantile: float = 0.5,
    start: float = 1.0,
) -> Plan:
    """Return a plan that finds a clip bound on private records, for a part of the budget.

    Run it on a model that stays frozen: release, and take no step of an optimizer. The ``bounds``
    of the last release are near the ``quantile`` of the gradients' norms. Nearly all of the budget
    goes to the counts.

    Args:
        records: the declared number of records.
        batch_size: the expected batch size.
        steps: the number of steps.
        epsilon: the ε not to exceed.
        delta: the δ of the claim, in (0, 1).
        quantile: the quantile of the norms to find, in (0, 1).
        start: the clip bound to start from.

    Returns:
        The calibrated plan.

    Raises:
        InvalidArgument: if a value is outside its range.

    *Formal guarantee*: that of :class:`dpfy.QuantileClipping`, (ε, δ) for all ``steps``. It adds to
    the training run's: record both in one ledger.

    >>> plan = private_clip_plan(records=10_000, batch_size=500, steps=40, epsilon=0.3, delta=1e-6)
    >>> plan.budget.epsilon, plan.controllers[0].quantile
    (0.3, 0.5)
    """
    controller = QuantileClipping(quantile, share=_COUNTED)
    return dpsgd(
        records=records, batch_size=batch_size, steps=steps, clip=start, controllers=[controller]
    ).calibrate(epsilon, delta)


def _require_public(data: str) -> None:
    if _validate.choice("data", data, ("public", "proxy", "private")) == "private":
        raise InvalidArgument(
            "This search looks at its data without accounting for it: use public or proxy data. On "
            "private data dpfy.planning.private_clip_plan follows the norms by QuantileClipping, "
            "which is charged; or keep the defaults."
        )


def _best_rate(evaluate: Evaluate, base: Trial, step: Step, tell: Tell) -> Choice:
    trials = [replace(base, learning_rate=base.learning_rate * factor) for factor in FACTORS]
    found = [Choice(trial, evaluate(trial)) for trial in trials]
    best = max(found, key=lambda choice: choice.utility)
    listed = ", ".join(
        f"α = {choice.trial.learning_rate:g}: {choice.utility:.3f}" for choice in found
    )
    tell(replace(step, result=f"{listed}. α = {best.trial.learning_rate:g}."))
    return best


def _noise_text(sketch: Sketch, trial: Trial) -> str:
    return (
        f"σ = {sketch.noise_multiplier:.4g} at rate {sketch.rate:.4g} over {sketch.steps:,} steps; "
        f"σC/B = {trial.noise_in_mean:.4g}"
    )
