"""Divide records among teachers: each record draws its part by itself."""

import hashlib
from bisect import insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from dpfy import _validate
from dpfy.errors import InvalidArgument
from dpfy.ledger.individual import check_names

Indices = npt.NDArray[np.int64]

KEY_BYTES = 32
_WORD = 8  # bytes; the remainder of a word by the number of parts is uniform up to parts/2⁶⁴


@dataclass(frozen=True)
class Partition:
    """A division of records among teachers.

    Plainly, every record is in one of ``parts``. Groups of records with budgets of their own have
    either teachers of their own, whose votes then have the group's weight, or the same teachers,
    and a record is in as many of them as its group has ``copies``.

    *Formal guarantee*: a record's parts are a function of a secret key and of the record's place
    (or of its unit), so that no record has an effect on the parts of another. Records of one unit
    are in the same part. Which numbers the function gives is of no importance for privacy.

    *Assumes* that a record's group is public or independent of the data, and that its unit and its
    group were read without regard to other records: in an array of one type, one text makes texts
    of all numbers. A list has no such type. A record of no known group is in no part.

    Args:
        parts: The number of teachers, at least 1; or for each group's name the number of its own.
        copies: For each group's name, in how many different parts a record is; by default in one.

    Raises:
        InvalidArgument: If a number is out of its range, or groups are given twice.

    Reference: Papernot et al. 2017, §2.1; with groups: Boenisch et al. 2022 (individualised PATE);
    docs/proofs/pate.md, Lemma 1.

    >>> divided = Partition(3).draw(5, key=bytes(32))
    >>> sorted(int(row) for rows in divided for row in rows)
    [0, 1, 2, 3, 4]
    """

    parts: int | Mapping[str, int]
    copies: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.parts, Mapping):
            check_names(tuple(self.parts))
            counts = {
                name: _validate.count(f"parts of group {name!r}", count)
                for name, count in self.parts.items()
            }
            object.__setattr__(self, "parts", counts)
            if self.copies:
                raise InvalidArgument(
                    "Expected groups with teachers of their own, by parts={name: number}, or with "
                    "copies={name: number} in the same teachers; got both."
                )
            return
        object.__setattr__(self, "parts", _validate.count("parts", self.parts))
        for name, count in self.copies.items():
            if _validate.count(f"copies of group {name!r}", count) > self.teachers:
                raise InvalidArgument(
                    f"Expected copies={count!r} of group {name!r} to be at most the "
                    f"{self.teachers} parts: a record is at most once in each."
                )
        object.__setattr__(self, "copies", dict(self.copies))

    @property
    def teachers(self) -> int:
        """The number of teachers."""
        return sum(self.parts.values()) if isinstance(self.parts, Mapping) else self.parts

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the groups, if there are any."""
        return tuple(self.parts if isinstance(self.parts, Mapping) else self.copies)

    @property
    def owners(self) -> tuple[str | None, ...]:
        """The group that each teacher belongs to, or None."""
        if not isinstance(self.parts, Mapping):
            return (None,) * self.parts
        return tuple(name for name, count in self.parts.items() for _ in range(count))

    def draw(
        self,
        records: int,
        key: bytes,
        *,
        unit_of: Sequence[Any] | None = None,
        group_of: Sequence[Any] | None = None,
    ) -> list[Indices]:
        """Return the indices of the records in each part.

        Args:
            records: The number of records.
            key: 32 secret bytes; the same key gives the same parts.
            unit_of: The unit of each record, such as a user's number or name; by default every
                record is one. Equal numbers, such as 1 and 1.0, are one unit.
            group_of: The name of each record's group, a text, for partitions with groups.

        Returns:
            One sorted array for each part.

        Raises:
            InvalidArgument: If groups or units do not fit the partition, or both are given.
        """
        self._check(records, key, unit_of, group_of)
        units = range(records) if unit_of is None else _entries(unit_of)
        groups = (None,) * records if group_of is None else _entries(group_of)
        choices = self._choices()
        found: list[list[int]] = [[] for _ in range(self.teachers)]
        for index, (unit, group) in enumerate(zip(units, groups, strict=True)):
            if (group_of is None or isinstance(group, str)) and group in choices:
                for part in _distinct(key, unit, *choices[group]):
                    found[part].append(index)
        return [np.array(rows, dtype=np.int64) for rows in found]

    def to_json(self) -> dict[str, Any]:
        """Return the partition as plain JSON values."""
        return {
            "parts": list(self.parts.items()) if isinstance(self.parts, Mapping) else self.parts,
            "copies": list(self.copies.items()),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Return the partition that :meth:`to_json` wrote."""
        parts = value["parts"]
        return cls(parts if isinstance(parts, int) else dict(parts), dict(value["copies"]))

    def _choices(self) -> dict[str | None, tuple[int, int, int]]:
        """Return the first part, the number of parts and the copies, for each group."""
        if not isinstance(self.parts, Mapping):
            if not self.copies:
                return {None: (0, self.parts, 1)}
            return {name: (0, self.parts, count) for name, count in self.copies.items()}
        first = accumulate(self.parts.values(), initial=0)
        return {
            name: (begin, count, 1)
            for (name, count), begin in zip(self.parts.items(), first, strict=False)
        }

    def _check(
        self,
        records: int,
        key: bytes,
        unit_of: Sequence[Any] | None,
        group_of: Sequence[Any] | None,
    ) -> None:
        if len(key) != KEY_BYTES:
            raise InvalidArgument(f"Expected a key of {KEY_BYTES} bytes, got {len(key)}.")
        if bool(self.names) != (group_of is not None):
            raise InvalidArgument(
                f"The partition has the groups {', '.join(map(repr, self.names))}: pass group_of=, "
                "the name of each record's group."
                if self.names
                else "group_of= belongs to a partition with groups; this one has none."
            )
        if unit_of is not None and group_of is not None:
            raise InvalidArgument(
                "unit_of= and group_of= cannot be combined: the records of one unit would have to "
                "be of one group, which nothing checks."
            )
        for name, given in (("unit_of", unit_of), ("group_of", group_of)):
            if given is not None and len(given) != records:
                raise InvalidArgument(f"Expected {name} to have one entry for each record.")


def _entries(column: Any) -> list[Any]:
    """Return the entries of a column one by one: none decides on the type of another."""
    given = column.tolist() if hasattr(column, "tolist") else column
    return [each.tolist() if hasattr(each, "tolist") else each for each in given]


def _name(unit: object) -> bytes:
    """Return the name of a unit; equal numbers have one name."""
    if isinstance(unit, int) or (isinstance(unit, float) and unit.is_integer()):
        return f"int:{int(unit)}".encode()
    return f"{type(unit).__name__}:{unit}".encode("utf-8", "surrogatepass")


def _distinct(key: bytes, unit: object, first: int, count: int, copies: int) -> list[int]:
    """Return ``copies`` different parts for a unit, of ``count`` that begin at ``first``."""
    try:
        name = _name(unit)
    except Exception:  # what has no name is in no part: an error would tell of a record
        return []
    words = hashlib.shake_256(b"dpfy part:" + key + name).digest(_WORD * copies)
    chosen: list[int] = []
    for taken in range(copies):
        word = int.from_bytes(words[_WORD * taken : _WORD * (taken + 1)], "little")
        place = word % (count - taken)
        for other in chosen:  # in order: skip those that are taken
            place += place >= other
        insort(chosen, place)
    return [first + place for place in chosen]
