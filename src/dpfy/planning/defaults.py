"""Settings for a first run on a model that nobody has tuned.

They are constants that do not depend on the data: large samples with the noise that matches them, a
small clip bound with C·α fixed, momentum, and an average of weights (Dörmann et al. 2021;
Ponomareva et al. 2023, §5.4.1; De et al. 2022).
"""

import math
from dataclasses import dataclass

from dpfy import _validate

_STEPS = 300
_EPOCHS = 30.0
_EXAMPLES = 3e6  # per-example gradients: minutes for a small network on one core
_LARGEST_BATCH = 2**18
_CLIP, _LARGEST_CLIP = 0.1, 1.0
_PRODUCT = 0.5  # the largest C·α that suited a reference data set; for little noise
_PARAMETERS = 20_000  # of a small network
_MOMENTUM = 0.9
_DELTA = 1e-5  # by default, with fewer than _MANY records
_MANY = 100_000
_AVERAGED = 0.1  # fraction of the steps that the average of weights covers
_WORTH_AVERAGING = 100  # steps


@dataclass(frozen=True)
class FirstRun:
    """Settings of a first run; all of them are starting points.

    Args:
        epochs: how often each record is seen in expectation.
        batch_size: the expected batch size.
        clip: the clip bound C.
        learning_rate: the learning rate α.
        momentum: the momentum of SGD.
        ema: the decay of the average of weights; 0 for none.
    """

    epochs: float
    batch_size: int
    clip: float
    learning_rate: float
    momentum: float
    ema: float


def default_delta(records: int | None = None) -> float:
    """Return the default δ: 1e-5, or 1/records^1.1 from 100,000 records on.

    Args:
        records: the declared number of records, or None if it is not declared.

    Returns:
        The δ, in (0, 1).

    Raises:
        InvalidArgument: if ``records`` is no whole number of at least 1.

    *Formal guarantee*: it is below 1/records, whatever number is declared. At a δ of 1/records,
    publishing a record that was drawn at random would be private.

    >>> default_delta(), default_delta(60_000), default_delta(100_000) < 1e-5 / 3
    (1e-05, 1e-05, True)
    """
    if records is None or _validate.count("records", records) < _MANY:
        return _DELTA
    return float(records**-1.1)


def first_run(
    records: int,
    *,
    epsilon: float = 3.0,
    delta: float | None = None,
    epochs: float | None = None,
    batch_size: float | None = None,
    clip: float | None = None,
    learning_rate: float | None = None,
    optimizer: str = "sgd",
    parameters: int = _PARAMETERS,
) -> FirstRun:
    """Return settings for a number of records and a budget; given settings are kept.

    At a fixed number of epochs compute does not depend on the rate, and beyond a rate of about
    ε/epochs neither does the noise that a whole run adds up to: σ ≈ c·√q. So the rate is as large
    as a useful number of steps allows. Data sets with many records get fewer epochs.

    C·α is such that the noise of all steps moves the weights by about 10 in norm, with momentum and
    this number of ``parameters``. The settings that were found for the reference data sets do the
    same, within a factor of two.

    Args:
        records: the declared number of records.
        epsilon: the ε not to exceed.
        delta: the δ of the claim; None takes :func:`default_delta`.
        epochs: how often each record is seen in expectation; None chooses.
        batch_size: the expected batch size; None chooses.
        clip: the clip bound; None chooses.
        learning_rate: the learning rate; None chooses.
        optimizer: "sgd", or any other name for an adaptive optimizer, which starts at 1e-3.
        parameters: the number of trained parameters.

    Returns:
        The settings.

    Raises:
        InvalidArgument: if a value is outside its range.

    >>> first = first_run(60_000)
    >>> first.epochs, first.batch_size, first.clip, first.learning_rate
    (30.0, 6000, 0.1, 5.0)
    >>> first_run(60_000, clip=1.0).learning_rate
    0.5
    >>> first_run(1500).learning_rate  # few records, much noise: short steps
    0.21
    """
    records = _validate.count("records", records)
    epochs = (
        _validate.positive("epochs", epochs)
        if epochs is not None
        else float(f"{min(_EPOCHS, max(1.0, _EXAMPLES / records)):.3g}")
    )
    rate = min(1.0, epochs / _STEPS)
    batch = (
        batch_size if batch_size is not None else min(max(1, round(rate * records)), _LARGEST_BATCH)
    )
    steps = max(1, math.ceil(epochs * records / batch))
    product = _product(
        records, steps, epsilon, default_delta(records) if delta is None else delta, parameters
    )
    if clip is None:
        clip = (
            _CLIP
            if learning_rate is None or optimizer != "sgd"
            else min(_LARGEST_CLIP, product / learning_rate)
        )
    if learning_rate is None:
        learning_rate = product / clip if optimizer == "sgd" else 1e-3
    ema = round(1 - 1 / (_AVERAGED * steps), 3) if steps >= _WORTH_AVERAGING else 0.0
    return FirstRun(
        epochs, int(batch), float(f"{clip:.2g}"), float(f"{learning_rate:.2g}"), _MOMENTUM, ema
    )


def _product(records: int, steps: int, epsilon: float, delta: float, parameters: int) -> float:
    """Return the C·α for which α/(1 − momentum)·√T·σC/B·√parameters is 10.

    σ = q·√T/μ is the noise multiplier of a Gaussian mechanism over all steps. μ solves ε = μ²/2 +
    μ·√(2·log(1/δ)), the first conversion of Rényi divergences, which is accurate enough for a
    length.
    """
    log = 2 * math.log(1 / _validate.delta(delta))
    mu = math.sqrt(log + 2 * _validate.epsilon(epsilon)) - math.sqrt(log)
    return min(
        _PRODUCT, records * mu / (steps * math.sqrt(_validate.count("parameters", parameters)))
    )
