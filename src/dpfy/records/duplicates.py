"""Texts that several units have, for the owner of the data. These are private facts.

A guarantee is about one unit. A text that k units contain is protected only as k units together
are: by about k times the ε.
"""

import hashlib
import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dpfy.records.users import Users

_WORDS = re.compile(r"\w+")
_SHOWN = 100  # groups of rows that are kept, those in most units first


@dataclass(frozen=True)
class Shared:
    """How much of the data several units share. Sensitive.

    Args:
        texts: The number of texts that are in two or more units.
        units: The number of units that have one of them.
        most: The most units that have the same one; 0 if there is none.
        groups: The rows of such texts, those in most units first, a hundred groups at most.
    """

    texts: int
    units: int
    most: int
    groups: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Duplicates:
    """What units share to the letter, and what they share but for case, spaces and punctuation.

    Sensitive.

    Args:
        units: The number of units.
        exact: What is the same to the letter.
        similar: What is the same word for word.
    """

    units: int
    exact: Shared
    similar: Shared


def find_duplicates(data: Any, unit_of: Any = None, field: str | int | None = None) -> Duplicates:
    """Count the texts that several units of privacy have.

    The result is about single records: show it to the owner of the data only.

    Args:
        data: A map-style data set of texts, or of records with a text; tensors and other values are
            compared as they are.
        unit_of: The unit of each row, as for :func:`dpfy.privatize`. Default: every row is one.
        field: The name or the number of the field to compare. Default: the whole record.

    Returns:
        What is shared. A row that does not load, or has no unit, counts for nothing.

    >>> found = find_duplicates(["Call me.", "call me!", "Goodbye"])
    >>> found.exact.units, found.similar.units, found.similar.groups
    (0, 2, ((0, 1),))
    """
    units = _units(data, unit_of)
    exact: dict[bytes, list[int]] = {}
    similar: dict[bytes, list[int]] = {}
    for row in np.flatnonzero(units >= 0).tolist():
        try:
            value = data[row] if field is None else data[row][field]
        except Exception:
            continue  # an owner is told of such rows by dpfy inspect-data
        for found, change in ((exact, None), (similar, _words)):
            if content := _content(value, change):
                found.setdefault(hashlib.blake2b(content, digest_size=16).digest(), []).append(row)
    count = len(np.unique(units[units >= 0]))
    return Duplicates(count, _shared(exact, units), _shared(similar, units))


def _units(data: Any, unit_of: Any) -> np.ndarray:
    """Return the number of each row's unit, and -1 for rows without one."""
    if unit_of is None:
        return np.arange(len(data))
    users = unit_of if isinstance(unit_of, Users) else Users.of(unit_of, len(data))
    units = np.full(len(data), -1, dtype=np.int64)
    for user in range(len(users)):
        units[users.rows_of(user)] = user
    return units


def _words(text: str) -> str:
    """Return the words of a text, without case and what stands between them."""
    return " ".join(_WORDS.findall(unicodedata.normalize("NFKC", text).casefold()))


def _content(value: Any, change: Callable[[str], str] | None) -> bytes:
    """Return bytes that are the same for the same content; none for a text without words."""
    if isinstance(value, str):
        return (value if change is None else change(value)).encode("utf-8", "surrogatepass")
    if isinstance(value, bytes):
        return value
    if isinstance(value, Mapping):
        value = [part for item in sorted(value.items(), key=repr) for part in item]
    if isinstance(value, list | tuple):
        parts = [_content(part, change) for part in value]
        return b"".join(len(part).to_bytes(8, "big") + part for part in parts)
    if isinstance(value, torch.Tensor):
        whole = value.detach().cpu().reshape(-1).contiguous()
        return f"{value.dtype}{value.shape}".encode() + whole.view(torch.uint8).numpy().tobytes()
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape}".encode() + value.tobytes()
    return repr(value).encode()


def _shared(found: dict[bytes, list[int]], units: np.ndarray) -> Shared:
    """Return what is in more than one unit."""
    groups = [(len({int(units[row]) for row in rows}), tuple(rows)) for rows in found.values()]
    groups = sorted((each for each in groups if each[0] > 1), key=lambda each: (-each[0], each[1]))
    concerned = {int(units[row]) for _, rows in groups for row in rows}
    return Shared(
        len(groups),
        len(concerned),
        groups[0][0] if groups else 0,
        tuple(rows for _, rows in groups[:_SHOWN]),
    )
