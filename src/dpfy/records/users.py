"""Users as the unit of privacy: which rows each owns, and which take part in a step.

A step draws users. Each drawn user draws at most ``rows_per_user`` of its own rows, by random
numbers of its own, and its loss is the mean over them. *Formal guarantee*: what a user adds to a
step depends on its own rows and its own random numbers only, however many rows it has and
regardless of the other users; adding or removing a user with all its rows therefore moves the
clipped sum by at most one bound. Proof in docs/proofs/user-level.md.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch

from dpfy import _validate
from dpfy.data.files import mapped_array
from dpfy.errors import InvalidArgument
from dpfy.gradients.chunk import Chunk
from dpfy.noise import SecureStream
from dpfy.records.records import LoadedChunk, Records
from dpfy.records.rows import Groups
from dpfy.types import Unit

Whole = npt.NDArray[np.int64]

_ROWS_PER_USER = 16
_SEED_WORDS = 4  # 256 bits
# bytes of a number that chooses a row: each of n rows has a probability within 2^-128 of 1/n
_DRAW = 16
_BLOCK = 2**20  # numbers of a file that are looked at in one piece
_STARTS = (
    "Expected starts to be whole numbers that begin with 0 and increase: the first row of each "
    "user, and at the end the number of rows. Sort the rows by user; `dpfy data index --users` "
    "does."
)
_EXPECTED = (
    "Expected unit_of to name the user of each row of the data set: a sequence with one whole "
    "number, text or bytes per row, a function from a row's index to one of these, or "
    "dpfy.Users.sorted(starts)."
)


def records_by_unit(
    data: Any,
    collate_fn: Callable[[list[Any]], Any] | None,
    num_workers: int,
    unit: Unit,
    unit_of: Any,
    rows_per_user: int | None,
    example: Chunk | None = None,
    stream: SecureStream | None = None,
) -> Records:
    """Return the private records in the units that a plan protects.

    Args:
        data: A map-style data set.
        collate_fn: The user's collate function, or None for torch's default.
        num_workers: The number of processes that load records.
        unit: The plan's unit of privacy.
        unit_of: The user id of each row, as a sequence or a function of a row's index, or
            :class:`Users`; None for record level.
        rows_per_user: The most rows of one user in a step; None for record level.
        example: The declared example; rows that do not fit it are left out.
        stream: The secret stream that keys are drawn from; by default a fresh one.

    Returns:
        The records, by user if the plan protects users.

    Raises:
        InvalidArgument: The ids and the plan's unit do not go together.
    """
    if unit is Unit.USER:
        if unit_of is None:
            raise InvalidArgument(
                f"The plan protects users, and nothing says whose the rows are. {_EXPECTED} If "
                "each item of the data set is all that one user has, give "
                "unit_of=range(len(data))."
            )
        return UserRecords(
            data,
            collate_fn,
            num_workers,
            unit_of,
            _ROWS_PER_USER if rows_per_user is None else rows_per_user,
            example,
            stream,
        )
    if unit_of is not None or rows_per_user is not None:
        raise InvalidArgument(
            "unit_of= and rows_per_user= belong to a plan that protects users; this one protects "
            "records. Make it with unit='user', where records= and batch_size= count users."
        )
    return Records(data, collate_fn, num_workers, example, stream)


@dataclass(frozen=True)
class Users:
    """The rows of each user. Sensitive: never printed.

    Made by :meth:`sorted`, or by :meth:`of` from the ``unit_of`` of a run. Users are numbered in
    the order of their ids, or of their rows where these are sorted by user: adding a user leaves
    the others in the same order.

    Args:
        rows: The rows user by user, each in the order of the data set; None where they are the rows
            of the data set as it is.
        starts: Where each user's rows begin, and where the last one's end.
        count: The number of rows of the data set.
    """

    rows: Whole | None
    starts: Whole
    count: int

    @classmethod
    def of(cls, unit_of: Any, rows: int) -> "Users":
        """Return the users of ``rows`` rows; a row without an id takes part in nothing.

        Args:
            unit_of: The user id of each row, as a sequence or a function of a row's index.
            rows: The number of rows.

        Returns:
            The users.

        Raises:
            InvalidArgument: There are no ids, or not as many as rows.

        >>> users = Users.of(["b", "a", "b", None], rows=4)
        >>> [users.rows_of(user).tolist() for user in range(len(users))]
        [[1], [0, 2]]
        """
        numbers = _numbers(unit_of, rows)
        order = np.argsort(numbers, kind="stable")
        order = order[np.count_nonzero(numbers < 0) :]
        starts = np.searchsorted(numbers[order], np.arange(numbers.max(initial=-1) + 2))
        return cls(order, starts, rows)

    @classmethod
    def sorted(cls, starts: Any) -> "Users":
        """Return the users of a data set whose rows are sorted by user.

        Nothing is kept in memory for a row: a file of starts is mapped, and read in parts. `dpfy
        data index --users` writes one.

        Args:
            starts: The first row of each user, in order, and at the end the number of rows: an
                array of whole numbers, or the path of one in a ``.npy`` file.

        Returns:
            The users, to be given as ``unit_of``.

        Raises:
            InvalidArgument: The starts are no whole numbers that begin with 0 and increase.
            DataError: The file is missing or holds something else.

        >>> users = Users.sorted([0, 2, 3])
        >>> [users.rows_of(user).tolist() for user in range(len(users))]
        [[0, 1], [2]]
        """
        path = Path(starts) if isinstance(starts, str | Path) else None
        found = np.asarray(starts) if path is None else mapped_array(path)
        if found.ndim != 1 or found.dtype.kind not in "iu" or not len(found) or found[0] != 0:
            raise InvalidArgument(_STARTS)
        for first in range(0, len(found) - 1, _BLOCK):
            if not (np.diff(found[first : first + _BLOCK + 1].astype(np.int64)) > 0).all():
                raise InvalidArgument(_STARTS)
        if path is not None:
            found = mapped_array(path)  # a fresh map, of which nothing is in memory
        return cls(None, found, int(found[-1]))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def rows_of(self, user: int) -> Whole:
        """Return the rows of one user.

        Args:
            user: The number of the user.

        Returns:
            The indices of its rows, in order.
        """
        first, last = int(self.starts[user]), int(self.starts[user + 1])
        return np.arange(first, last) if self.rows is None else self.rows[first:last]

    def digest(self) -> str:
        """Return a hash of who owns which rows, computed in parts. Sensitive.

        Returns:
            The hash; the same for the same users, whichever way they were made.
        """
        digest = hashlib.sha256(f"{self.count} {len(self)}".encode())
        total = int(self.starts[-1])
        for first in range(0, total, _BLOCK):
            last = min(first + _BLOCK, total)
            rows = np.arange(first, last) if self.rows is None else self.rows[first:last]
            digest.update(rows.astype("<i8").tobytes())
        for first in range(0, len(self.starts), _BLOCK):
            digest.update(self.starts[first : first + _BLOCK].astype("<i8").tobytes())
        return digest.hexdigest()

    def __repr__(self) -> str:
        return "Users(sensitive)"


class UserRecords(Records):
    """The private rows of a data set by user: its indices are those of users.

    A row that cannot be loaded or does not fit the declaration is left out of its user's rows, and
    so is one of another shape than most of this user's.
    """

    seed_words = _SEED_WORDS

    def __init__(
        self,
        data: Any,
        collate_fn: Callable[[list[Any]], Any] | None,
        num_workers: int,
        unit_of: Any,
        rows_per_user: int,
        example: Chunk | None = None,
        stream: SecureStream | None = None,
    ) -> None:
        super().__init__(data, collate_fn, num_workers, example, stream)
        self.rows_per_unit = _validate.count("rows_per_user", rows_per_user)
        self._users = unit_of if isinstance(unit_of, Users) else Users.of(unit_of, len(data))
        if self._users.count != len(data):
            raise InvalidArgument(
                "Expected the users of as many rows as the data set has. Make Users.sorted of the "
                "starts that were written with its files."
            )
        self._seeds: dict[int, bytes] | None = None

    def __len__(self) -> int:
        return len(self._users)

    @property
    def owners(self) -> str:
        """A hash of who owns which rows, and of the number of rows that take part."""
        return f"{self._users.digest()} {self.rows_per_unit}"

    def ids(self, unit_of: Any) -> list[Any] | None:
        """Return the id of each user, given the same ``unit_of``; None where rows are sorted.

        A function that fails for the first row of a user has the id None.
        """
        if isinstance(unit_of, Users):
            return None
        rows = [int(self._users.rows_of(user)[0]) for user in range(len(self))]
        if not callable(unit_of):
            known = unit_of.tolist() if hasattr(unit_of, "tolist") else list(unit_of)
            unit_of = known.__getitem__
        keys = (asked(lambda row: _key(unit_of(row)), row) for row in rows)
        return [None if key is None else key[1] for key in keys]

    def sample(self, indices: torch.Tensor, seeds: torch.Tensor) -> Self:
        """Return the same users, the drawn ones with rows chosen by their column of words."""
        drawn = self.fresh()
        drawn._seeds = dict(
            zip(indices.tolist(), map(bytes, seeds.t().contiguous().numpy()), strict=True)
        )
        return drawn

    def chunks(self, parts: Sequence[torch.Tensor]) -> Iterator[LoadedChunk]:
        """Yield the users of each part, those with equally many rows of one shape in a chunk."""
        users = [part.tolist() for part in parts if len(part)]
        for some, groups in zip(users, self._groups(self._rows(parts)), strict=True):
            lengths = [len(self._chosen(user)) for user in some]
            for chunk, places in by_unit(groups, lengths):
                yield LoadedChunk(chunk, tuple(some[place] for place in places))

    def _rows(self, parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the rows of the users of each part that has some."""
        return [
            torch.from_numpy(np.concatenate([self._chosen(user) for user in part.tolist()]))
            for part in parts
            if len(part)
        ]

    def alone(self, index: int) -> Chunk | None:
        """Return one user as a chunk, or None if none of its rows can be loaded and collated."""
        rows = self._chosen(index)
        return next((chunk for chunk, _ in by_unit(self._loaded(rows.tolist()), [len(rows)])), None)

    def witnesses(self, count: int) -> list[int]:
        """Return one row of each of a few users, so that no user with many rows decides alone."""
        return [int(self._users.rows_of(user)[0]) for user in self.spread(count)]

    def _chosen(self, user: int) -> Whole:
        """Return the rows with which a user takes part in the step; outside of one, its first."""
        rows = self._users.rows_of(user)
        if len(rows) <= self.rows_per_unit or self._seeds is None:
            return rows[: self.rows_per_unit]
        return rows[drawn_rows(len(rows), self.rows_per_unit, self._seeds[user])]


def drawn_rows(count: int, wanted: int, seed: bytes) -> list[int]:
    """Return ``wanted`` of ``range(count)``, uniformly and without replacement, in order.

    *Formal guarantee*: with a uniform secret seed, every set has its probability up to 2⁻⁶⁰ in
    total variation, if ``wanted``·``count`` is below 2⁶⁸ and SHAKE-256 cannot be told from a random
    function.

    Reference: R. Floyd's algorithm; J. Bentley & R. Floyd, A sample of brilliance, CACM 30(9),
    1987.

    >>> drawn_rows(count=100, wanted=4, seed=bytes(32))
    [10, 14, 55, 89]
    """
    stream = hashlib.shake_256(b"dpfy rows:" + seed).digest(_DRAW * wanted)
    chosen: set[int] = set()
    for turn, last in enumerate(range(count - wanted, count)):
        number = int.from_bytes(stream[_DRAW * turn : _DRAW * (turn + 1)])
        place = number * (last + 1) >> 8 * _DRAW
        chosen.add(last if place in chosen else place)
    return sorted(chosen)


def by_unit(groups: Groups, lengths: Sequence[int]) -> Iterator[tuple[Chunk, list[int]]]:
    """Yield chunks of units and their numbers, from rows that are ordered unit by unit.

    ``groups`` are the rows that could be loaded, by their shapes, and ``lengths`` the number of
    rows that each unit asked for. A unit takes part with the most common shape of its rows, and in
    a tie with that of its earliest row. The choice must not depend on the order of ``groups``,
    which other units influence.
    """
    owners = np.repeat(np.arange(len(lengths)), lengths)
    found = [owners[positions] for _, positions in groups]
    counts = np.zeros((len(groups), len(lengths)), dtype=np.int64)
    first = np.full_like(counts, len(owners))
    for number, (_, positions) in enumerate(groups):
        np.add.at(counts[number], found[number], 1)
        np.minimum.at(first[number], found[number], positions)
    if not groups:
        return
    chosen = (counts * (len(owners) + 1) - first).argmax(0)
    for number, (chunk, _) in enumerate(groups):
        sizes = np.where(chosen == number, counts[number], 0)
        for rows in np.unique(sizes[sizes > 0]).tolist():
            places = np.flatnonzero(sizes[found[number]] == rows)
            yield (
                chunk.taken(torch.from_numpy(places), rows),
                np.flatnonzero(sizes == rows).tolist(),
            )


def _numbers(unit_of: Any, rows: int) -> Whole:
    """Return the number of each row's user in the order of the ids, and -1 without an id."""
    if isinstance(unit_of, torch.Tensor):
        unit_of = unit_of.detach().cpu().numpy()
    if isinstance(unit_of, np.ndarray) and (unit_of.ndim != 1 or unit_of.dtype.kind not in "iuSUO"):
        raise InvalidArgument(
            f"{_EXPECTED} Got an array of {unit_of.dtype} with {unit_of.ndim} axes."
        )
    if callable(unit_of):
        keys = [asked(lambda row: _key(unit_of(row)), row) for row in range(rows)]
    elif isinstance(unit_of, str | bytes) or not (
        hasattr(unit_of, "__len__") and hasattr(unit_of, "__iter__")
    ):
        raise InvalidArgument(f"{_EXPECTED} Got a {type(unit_of).__name__}.")
    elif len(unit_of) != rows:
        raise InvalidArgument(f"{_EXPECTED} Its length is not that of the data set.")
    elif isinstance(unit_of, np.ndarray) and unit_of.dtype.kind != "O":
        return np.unique(unit_of, return_inverse=True)[1].astype(np.int64)
    else:
        keys = [_key(each) for each in unit_of]
    # this says of the data that it has no user at all
    if rows and all(key is None for key in keys):
        raise InvalidArgument(f"{_EXPECTED} No row has such an id.")
    known = {
        key: number for number, key in enumerate(sorted({key for key in keys if key is not None}))
    }
    return np.array([-1 if key is None else known[key] for key in keys], dtype=np.int64)


def asked(function: Callable[[Any], Any], unit: Any) -> Any:
    """Return what a user's function says of a unit, or None if it fails: none may stop a run."""
    try:
        return function(unit)
    except KeyboardInterrupt:
        raise
    except BaseException:
        return None


def _key(user: Any) -> tuple[int, Any] | None:
    """Return the sort key of an id: whole numbers, then texts, then bytes; None for others."""
    if isinstance(user, int | np.integer) and not isinstance(user, bool):
        return 0, int(user)
    if isinstance(user, str):
        return 1, str(user)
    return (2, bytes(user)) if isinstance(user, bytes) else None
