"""Which group each unit of privacy is in, for plans in which groups have budgets of their own.

Labels are declared: they are public, or at least independent of the data. A unit whose label is no
group's takes part in nothing, silently.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dpfy.errors import InvalidArgument
from dpfy.ledger.events import Policy
from dpfy.ledger.individual import Individual
from dpfy.records.records import Records
from dpfy.records.users import UserRecords, asked

Numbers = npt.NDArray[np.int64]

_EXPECTED = (
    "Expected group_of to label each record: a sequence with one label per record, or a function "
    "or mapping from a record's index to its label. A label is the name of a group, or its "
    "position in the plan."
)
_EXPECTED_OF_USERS = (
    "Expected group_of to label each user: a function or mapping from a user's id, as unit_of "
    "gives it, to the name of a group, or its position in the plan. A sequence fits only where "
    "unit_of is dpfy.Users.sorted(starts), with one label per user in that order."
)


@dataclass(frozen=True)
class Membership:
    """The group of each unit of privacy. Sensitive: never printed.

    Args:
        numbers: The position of each unit's group in the plan; -1 for a unit of no group.
    """

    numbers: Numbers

    @classmethod
    def of(
        cls,
        group_of: Any,
        policy: Policy,
        records: Records,
        unit_of: Any = None,
        declared: int | None = None,
    ) -> "Membership | None":
        """Return who is in which group of a policy.

        Args:
            group_of: The label of each unit, as :func:`dpfy.privatize` takes it.
            policy: The plan's sampling policy.
            records: The private records; of them only the number and the users' ids are used.
            unit_of: Whose the rows are, where users are the unit.
            declared: The declared number of records, for an error's text.

        Returns:
            The groups; None for a policy that has none.

        Raises:
            InvalidArgument: The labels do not go with the policy or the records, or a group has
                nobody. No text depends on a record.

        >>> policy = Individual(("strict", "open"), (0.1, 0.2), (1.0, 1.0), (0.5, 0.5))
        >>> records = Records([1.0, 2.0, 3.0, 4.0], None, 0)
        >>> Membership.of(["open", "strict", "unheard of", 1], policy, records).numbers
        array([ 1,  0, -1,  1])
        """
        if not isinstance(policy, Individual):
            if group_of is not None:
                raise InvalidArgument(
                    f"group_of= belongs to a plan with groups of records; this one has "
                    f"{policy.tag} sampling of all alike. Make it with dpfy.idpsgd, or leave "
                    "group_of out."
                )
            return None
        expected = _EXPECTED_OF_USERS if isinstance(records, UserRecords) else _EXPECTED
        if group_of is None:
            raise InvalidArgument(
                f"The plan has the groups {', '.join(policy.names)}, and nothing says who is in "
                f"them. {expected}"
            )
        ids = records.ids(unit_of) if isinstance(records, UserRecords) else None
        labels = _labels(group_of, len(records), ids, declared, expected)
        numbers = _positions(labels, policy.names, expected)
        for group, name in enumerate(policy.names):
            if not (numbers == group).any():
                raise InvalidArgument(
                    f"No label of group_of says {name!r}, which is a group of the plan. Check the "
                    "spelling of labels, or make a plan without this group."
                )
        return cls(numbers)

    def digest(self) -> str:
        """Return a hash of who is in which group. Sensitive."""
        return hashlib.sha256(self.numbers.astype("<i8").tobytes()).hexdigest()

    def __repr__(self) -> str:
        return "Membership(sensitive)"


def _labels(
    group_of: Any, units: int, ids: list[Any] | None, declared: int | None, expected: str
) -> Any:
    """Return the label of each unit, which has its place or its id."""
    ask = group_of.get if isinstance(group_of, Mapping) else group_of
    if callable(ask):
        return [asked(ask, unit) for unit in (range(units) if ids is None else ids)]
    if ids is not None or isinstance(group_of, str | bytes) or not _is_sequence(group_of):
        raise InvalidArgument(f"{expected} Got a {type(group_of).__name__}.")
    if len(group_of) != units:
        plan = "" if declared is None else f"; the plan declares {declared} of them"
        raise InvalidArgument(f"{expected} {len(group_of)} labels do not fit the data set{plan}.")
    return group_of


def _positions(labels: Any, names: tuple[str, ...], expected: str) -> Numbers:
    """Return the number of the group of each label."""
    if isinstance(labels, torch.Tensor):
        labels = labels.detach().cpu().numpy()
    if not isinstance(labels, np.ndarray) or labels.dtype.kind == "O":
        if any(isinstance(label, int | np.integer) for label in labels):
            _check_positions(names)
        return np.array([_number(label, names) for label in labels], dtype=np.int64)
    if labels.ndim != 1 or labels.dtype.kind not in "iuU":
        raise InvalidArgument(f"{expected} Got an array of {labels.dtype} with {labels.ndim} axes.")
    if labels.dtype.kind == "U":
        found = np.full(len(labels), -1, dtype=np.int64)
        for group, name in enumerate(names):
            found[labels == name] = group
        return found
    _check_positions(names)
    return np.where((labels >= 0) & (labels < len(names)), labels, -1).astype(np.int64)


def _check_positions(names: tuple[str, ...]) -> None:
    """Refuse whole numbers as labels where a group has another position as its name."""
    for position, name in enumerate(names):
        if name.isdecimal() and int(name) != position:
            raise InvalidArgument(
                f"Labels that are whole numbers are positions of groups, and group {name!r} has "
                f"position {position}. Give names as texts, or groups other names."
            )


def _number(label: Any, names: tuple[str, ...]) -> int:
    """Return the number of the group that a label means, and -1 if it means none."""
    if isinstance(label, str):
        return names.index(label) if label in names else -1
    if isinstance(label, int | np.integer) and not isinstance(label, bool):
        return int(label) if 0 <= label < len(names) else -1
    return -1


def _is_sequence(value: Any) -> bool:
    return hasattr(value, "__len__") and hasattr(value, "__iter__")
