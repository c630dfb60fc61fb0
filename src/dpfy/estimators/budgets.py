"""What several fits cost together, before any of them runs."""

from dpfy import _validate
from dpfy.accounting import account, calibrate_noise
from dpfy.ledger.events import Repeated

_SLACK = 1e-4  # what calibration leaves open of an ε


def cost_of_fits(fits: int, epsilon: float, delta: float) -> float:
    """Return the ε of several fits on the same rows together, at the δ that each of them has.

    *Formal guarantee*: for fits and summaries of Gaussian releases, which are all but those of
    ``solver="objective"``, and for setting one row to zero as for adding or removing one. However
    later fits were chosen, they cost no more, if their number and their ε were fixed before (Dong,
    Roth & Su 2022, Corollary 3.3).

    Args:
        fits: The number of fits: for cross-validation the number of folds, times settings that are
            tried, and 1 more for the model that is kept.
        epsilon: The ε of each fit.
        delta: The δ of each fit, and of all together.

    Returns:
        The ε of all fits together.

    Raises:
        InvalidArgument: If an argument is out of its range.

    >>> round(cost_of_fits(6, 0.5, 1e-5), 2)
    1.33
    """
    noise = calibrate_noise(epsilon=epsilon, delta=delta, rate=1.0, steps=1)
    return _claim(noise, _validate.count("fits", fits), delta)


def split_budget(fits: int, epsilon: float, delta: float) -> float:
    """Return the ε that each of several fits may have, so that all of them have a given one.

    A ledger of :func:`~dpfy.estimators.shared_ledger` with this ε and δ admits so many fits.

    *Formal guarantee*: as of :func:`cost_of_fits`.

    Args:
        fits: The number of fits.
        epsilon: The ε of all fits together.
        delta: The δ of all fits together, and of each.

    Returns:
        The ε of each fit.

    Raises:
        InvalidArgument: If an argument is out of its range.

    >>> round(split_budget(6, 1.0, 1e-5), 3)
    0.376
    """
    steps = _validate.count("fits", fits)
    noise = calibrate_noise(epsilon=epsilon, delta=delta, rate=1.0, steps=steps)
    return _claim(noise, 1, delta) * (1 - _SLACK)


def _claim(noise: float, times: int, delta: float) -> float:
    from dpfy.mechanisms.one_shot import Gaussian

    event = Repeated(Gaussian(1.0, noise).event, times)
    return account([event]).claim(delta)
