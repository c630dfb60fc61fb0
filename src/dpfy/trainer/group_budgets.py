"""Settings of groups of records that have a budget of their own each, without torch."""

from typing import TYPE_CHECKING

from dpfy import _validate
from dpfy.errors import InvalidArgument
from dpfy.ledger.individual import check_names, check_shares

if TYPE_CHECKING:
    from dpfy.trainer.config import TrainConfig

METHODS = ("sample", "scale")
_FORM = "name=epsilon:share, separated by commas, such as strict=1:0.4,open=3:0.6"
_NOT_IN_GROUPS = {
    "epsilon": "each group has one in budgets",
    "sampling": "the records of a group are drawn by Poisson samples of its rate",
    "capacity": "it cuts a truncated_poisson sample",
    "noise_schedule": "groups are calibrated for steps of equal noise",
    "algorithm": "a recipe chooses its steps under a filter, and a filter knows no groups",
}
"""Settings that groups leave at their defaults, and why."""
_NOT_SCALED = {
    "groups": "a group's bound is proved for one norm of all parameters",
    "private_metrics": "what records add to a metric is bounded as for all",
}
"""Settings that clip bounds of groups leave at their defaults too, and why."""


def named_budgets(text: str) -> dict[str, tuple[float, float]]:
    """Return the ε and the share of the records that a text declares for each group.

    Raises:
        InvalidArgument: if the text is malformed, a group is named twice, a number is out of its
            range, or the shares do not add up to 1. The message names the group.

    >>> named_budgets("strict=1:.4, open=3:.6")
    {'strict': (1.0, 0.4), 'open': (3.0, 0.6)}
    """
    found: dict[str, tuple[float, float]] = {}
    for item in text.split(","):
        name, equals, numbers = (part.strip() for part in item.partition("="))
        epsilon, colon, share = (part.strip() for part in numbers.partition(":"))
        if not (name and equals and colon):
            whose = f" for group {name!r}" if name else ""
            raise InvalidArgument(f"Expected budgets as {_FORM}; got {item.strip()!r}{whose}.")
        if name in found:
            raise InvalidArgument(f"Expected one budget for each group, got two for {name!r}.")
        found[name] = (
            _validate.positive(f"epsilon of group {name!r}", _number(name, "epsilon", epsilon)),
            _validate.positive(f"share of group {name!r}", _number(name, "share", share)),
        )
    check_names(tuple(found))
    check_shares({name: share for name, (_, share) in found.items()})
    return found


def check_group_settings(config: "TrainConfig", changed: dict[str, object]) -> None:
    """Refuse settings without a meaning, or a proof, with or without groups of records.

    Args:
        config: the settings.
        changed: those that differ from their defaults.

    Raises:
        InvalidArgument: if a setting does not go with the others.
    """
    _validate.choice("individual", config.individual, METHODS)
    if config.budgets is None:
        for name in ("groups_of", "individual"):
            if name in changed:
                raise InvalidArgument(f"Expected budgets= with {name}={changed[name]!r}: {_FORM}.")
        return
    named_budgets(config.budgets)
    refused = _NOT_IN_GROUPS | (_NOT_SCALED if config.individual == "scale" else {})
    if name := next((name for name in refused if name in changed), ""):
        remedy = "" if name in _NOT_IN_GROUPS else ", or use individual='sample'"
        raise InvalidArgument(
            f"Expected no {name}={changed[name]!r} with budgets of groups: {refused[name]}. Leave "
            f"it out{remedy}."
        )


def _number(name: str, what: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidArgument(
            f"Expected the {what} of group {name!r} to be a number, got {text!r}. Budgets are "
            f"{_FORM}."
        ) from None
