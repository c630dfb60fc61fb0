"""The groups of the review's Table 9: who is in which, and which ε each is promised."""

import numpy as np

from dpfy import _validate

NAMES = ("strict", "usual", "open")
_SHARES = (0.34, 0.43, 0.23)
_EPSILONS = {"1": (1.0, 2.0, 3.0), "2": (1.0, 10.0, 20.0), "3": (1.0, 2.0, 20.0)}
_SEED = 20240519  # of the public permutation that divides the records


def groups(case: str) -> dict[str, tuple[float, float]]:
    """Return the ε and the share of each group in a case of Table 9.

    >>> groups("1")["strict"]
    (1.0, 0.34)
    """
    epsilons = _EPSILONS[_validate.choice("case", case, tuple(_EPSILONS))]
    return dict(zip(NAMES, zip(epsilons, _SHARES, strict=True), strict=True))


def mean_epsilon(case: str) -> float:
    """Return the ε of a record on average, which is nobody's guarantee.

    >>> round(mean_epsilon("1"), 2)
    1.89
    """
    return sum(epsilon * share for epsilon, share in groups(case).values())


def members(records: int) -> list[str]:
    """Return the group of each record: chosen once, by place, from no record.

    >>> [members(100).count(name) for name in NAMES]
    [34, 43, 23]
    """
    ends = np.rint(np.cumsum(_SHARES) * records).astype(int)
    numbers = np.searchsorted(ends, np.arange(records), side="right")
    order = np.random.default_rng(_SEED).permutation(records)
    return [NAMES[number] for number in numbers[order]]
