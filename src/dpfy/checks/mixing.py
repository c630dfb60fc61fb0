"""Check whether ``data[i]`` depends on record i alone, as far as loading a few records shows.

A data set that mixes two images in ``__getitem__``, draws from a generator of its own or keeps a
running state lets one record change what others contribute, and no noise is scaled for that.
"""

import copy
import hashlib
import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils.data import Dataset

from dpfy.errors import DataError
from dpfy.gradients.chunk import Chunk
from dpfy.records.records import Records
from dpfy.records.rows import Loading, fetches_together
from dpfy.records.workers import RowIndices, Workers, packed
from dpfy.sandbox.record_keys import KEY_BYTES
from dpfy.sandbox.rng_isolation import bookmark

_WITNESSES = 16
_LEAST = 3  # witnesses, and at least half of those that load
_KEY = bytes(KEY_BYTES)  # known: what is loaded here is compared and thrown away
_DEPTH = 3  # of data sets and containers inside of each other
_LARGEST = 10**6  # items of a list that is copied to be watched
_ENTRIES = 64  # of a container that are looked into
_REDUCTIONS = frozenset(
    (
        "amax",
        "amin",
        "aminmax",
        "argmax",
        "argmin",
        "argsort",
        "cumsum",
        "logsumexp",
        "max",
        "mean",
        "median",
        "min",
        "norm",
        "quantile",
        "softmax",
        "sort",
        "std",
        "std_mean",
        "sum",
        "topk",
        "var",
        "var_mean",
    )
)

_CHANGES = (
    "gives another record when it is asked again, with torch's, numpy's and Python's generators in "
    "the same state. Keep nothing between calls, and draw from these generators (torch.rand, "
    "numpy.random, random) and not from one of its own: a run sets them to a secret state for "
    "every record"
)
_ELSEWHERE = "gives another record in a fresh process. Let it depend on the stored record alone"
_READS = (
    "reads other records than the one it is asked for, as mixup inside of __getitem__ does. Let "
    "data[i] depend on record i alone; what is combined with others has to be public"
)
_IN_COMPANY = (
    "gives another record by __getitems__, together with others, than by data[i], so that a run "
    "loads it one record at a time. Let __getitems__ treat every record alone, and pad to a public "
    "length"
)


def check_data_set(data: Any, collate_fn: Callable[[list[Any]], Any] | None = None) -> None:
    """Refuse a data set in which ``data[i]`` visibly depends on more than record i.

    A few records are loaded with the generators in a known state: twice, in another order with
    others in between, in a fresh process and, where the data set has ``__getitems__``, all at
    once. Reads of other records are observed.

    For the owner of the data: whether it raises may depend on a single record, and nothing is
    recorded. A run makes the same check before its first release, in a form that one record cannot
    trigger.

    Args:
        data: A map-style data set.
        collate_fn: The collate function of the run, or None for torch's default.

    Raises:
        DataError: data[i] changes from one call to the next or reads other records. The text says
            what
            to do.

    *Assumes*: this is a check of code on a few records and no proof. A data set that was
    standardised by its own mean before, or that reads other records by numpy or from files, is not
    noticed.

    >>> check_data_set(torch.utils.data.TensorDataset(torch.ones(4, 2)))
    """
    records = Records(data, collate_fn, 0)
    if not _runs_code(records):
        return
    looking = _Looking(records.loading)
    there = _in_a_worker(looking.fingerprints, records.witnesses(_WITNESSES))
    here, problems = looking.at(list(there))
    elsewhere = [_ELSEWHERE for row in here if problems[row] is None and here[row] != there[row]]
    found = [problem for problem in _followed(looking, problems).values() if problem] + elsewhere
    if found:
        raise _refusal(data, found[0])


def refuse_mixing(records: Records) -> None:
    """Refuse a data set if at least three, and half, of up to 16 records that load show mixing.

    Where there are loading workers, one of them looks: a record may end the process that loads it.
    Records are loaded several at once, by ``__getitems__``, only if not a single one of these
    differs then from what it is alone. Whether they are cannot be seen in a release.
    """
    if not _runs_code(records):
        return
    looking, rows = _Looking(records.loading), records.witnesses(_WITNESSES)
    seen = _in_a_worker(looking.problems, rows) if records.num_workers else looking.at(rows)[1]
    if fetches_together(records.data) and not any(seen.values()):
        records.load_together()
    alone = {row: None if problem == _IN_COMPANY else problem for row, problem in seen.items()}
    problems = _followed(looking, alone)
    found = sorted(problem for problem in problems.values() if problem)
    if len(found) >= max(_LEAST, len(problems) / 2):
        raise _refusal(records.data, max(found, key=found.count))


def _followed(looking: "_Looking", problems: dict[int, str | None]) -> dict[int, str | None]:
    """Drop changes that follow from no state: two copies of this process differ in them, too.

    Randomness that the operating system gave for this very call is as secret as ours.
    """
    changed = [row for row, problem in problems.items() if problem == _CHANGES]
    if not changed:
        return problems
    one, other = (_in_a_worker(looking.fingerprints, changed) for _ in range(2))
    return {
        row: None if problem == _CHANGES and one.get(row) != other.get(row) else problem
        for row, problem in problems.items()
    }


def _runs_code(records: Records) -> bool:
    return records.loading.runs_code


def _refusal(data: Any, problem: str) -> DataError:
    return DataError(
        f"The data set ({type(data).__name__}) {problem}. Otherwise one record changes what others "
        "contribute, and no noise covers that."
    )


def _in_a_worker(look: Callable[[bytes, RowIndices], Any], rows: RowIndices) -> dict[int, Any]:
    """Return what is found about rows in a fresh process, without those that end it."""
    workers = Workers(1, look, None)
    try:
        (found,) = workers.begin(_KEY, [rows])
        return {row: each for some in found for row, each in some.items()}
    finally:
        workers.close()


class _Looking:
    """Loads a few records several times."""

    def __init__(self, loading: Loading) -> None:
        self.loading = copy.copy(loading)
        self.loading.together = fetches_together(loading.data)

    def fingerprints(self, key: bytes, rows: RowIndices) -> dict[int, str]:
        """Return a hash of each record that loads. Sensitive."""
        found = ((row, self._fingerprint(key, row)) for row in rows if row is not None)
        return {row: each for row, each in found if each is not None}

    def problems(self, key: bytes, rows: RowIndices) -> dict[int, str | None]:
        """Return what is wrong with each record that loads, or None."""
        return self._looked(key, rows)[1]

    def at(self, rows: RowIndices) -> tuple[dict[int, str], dict[int, str | None]]:
        """Return fingerprints and problems, found in this process."""
        back = bookmark()
        try:
            return self._looked(_KEY, rows)
        finally:
            back()

    def _looked(self, key: bytes, rows: RowIndices) -> tuple[dict[int, str], dict[int, str | None]]:
        first = self.fingerprints(key, rows)
        changed = {
            row
            for row in reversed(first)
            for _ in range(2)
            if self._fingerprint(key, row) != first[row]
        }
        company = self._in_company(key, [*reversed(first)]) if self.loading.together else first
        problems: dict[int, str | None] = {}
        for row in first:
            with _watching(self.loading.data) as reads:
                self._fingerprint(key, row)
            problems[row] = (
                _READS
                if reads.several
                else _CHANGES
                if row in changed
                else _IN_COMPANY
                if company.get(row) != first[row]
                else None
            )
        return first, problems

    def _fingerprint(self, key: bytes, row: int) -> str | None:
        return self._in_company(key, [row]).get(row)

    def _in_company(self, key: bytes, rows: list[int]) -> dict[int, str]:
        """Return the hashes of records that are loaded at once, as far as they load. Sensitive."""
        return {
            rows[place]: _hashed(chunk.record(position))
            for chunk, places in self.loading.groups(key, rows)
            for position, place in enumerate(places)
        }


def _hashed(chunk: Chunk) -> str:
    digest = hashlib.sha256()
    for leaf in chunk.leaves():
        plain = packed(leaf) if isinstance(leaf, torch.Tensor) else repr(leaf).encode()
        digest.update(plain)
    return digest.hexdigest()


class _Reads(TorchFunctionMode):
    """Notes which rows are read of a data set, of those inside it and of tensors of its length."""

    def __init__(self, data: Any) -> None:
        super().__init__()
        self._size = len(data)
        self.sets: dict[int, Any] = {}
        self.stored: list[
            tuple[Any, str, Any]
        ] = []  # lists and arrays of as many items, and where they are kept
        self._tensors: dict[int, torch.Tensor] = {}
        self._collect(data, _DEPTH)
        self._rows: dict[int, set[int]] = {}
        self._reduced = False

    @property
    def several(self) -> bool:
        """Whether more than one record was read."""
        return self._reduced or any(len(rows) > 1 for rows in self._rows.values())

    def note(self, source: Any, index: Any) -> None:
        """Note that rows of something were read."""
        if len(source) == self._size:
            self._rows.setdefault(id(source), set()).update(_rows(index, self._size))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if args and id(args[0]) in self._tensors:
            name = getattr(func, "__name__", "")
            if name in ("__getitem__", "take"):
                self.note(*args[:2])
            elif name in ("select", "index_select", "narrow") and args[1:2] == (0,):
                self.note(
                    args[0], args[2] if name != "narrow" else slice(args[2], args[2] + args[3])
                )
            self._reduced |= name in _REDUCTIONS
        return func(*args, **(kwargs or {}))

    def _collect(self, value: Any, depth: int) -> None:
        if isinstance(value, torch.Tensor):
            if value.ndim and len(value) == self._size:
                self._tensors[id(value)] = value
        elif isinstance(value, Mapping | list | tuple) and depth:
            items = list(value.values() if isinstance(value, Mapping) else value[:_ENTRIES])
            for item in items[:_ENTRIES]:
                self._collect(item, depth - 1)
        elif isinstance(value, Dataset) and depth:
            self.sets[id(value)] = value
            for name, item in vars(value).items():
                if type(item) in (list, np.ndarray) and len(item) == self._size <= _LARGEST:
                    self.stored.append((value, name, item))
                self._collect(item, depth - 1)


@contextmanager
def _watching(data: Any) -> Iterator[_Reads]:
    """Watch what is read of a data set while the block runs."""
    reads = _Reads(data)
    with ExitStack() as stack:
        for kind in {type(each) for each in reads.sets.values()}:
            stack.enter_context(_patched(kind, reads))
        for owner, name, item in reads.stored:
            stack.callback(vars(owner).__setitem__, name, item)
            vars(owner)[name] = _watched(item, reads)
        stack.enter_context(reads)
        yield reads


class _List(list[Any]):
    """A list whose items are noted when they are taken."""

    reads: _Reads

    def __getitem__(self, index: Any) -> Any:
        self.reads.note(self, index)
        return super().__getitem__(index)


class _Array(np.ndarray):
    """An array whose rows are noted when they are taken; what is taken is an ordinary array."""

    reads: _Reads

    def __getitem__(self, index: Any) -> Any:
        self.reads.note(self, index)
        return self.view(np.ndarray)[index]


def _watched(stored: Any, reads: _Reads) -> Any:
    watched: Any = _List(stored) if isinstance(stored, list) else stored.view(_Array)
    watched.reads = reads
    return watched


@contextmanager
def _patched(kind: Any, reads: _Reads) -> Iterator[None]:
    """Let every item that is taken from an object of a class be noted."""
    own, taken = vars(kind).get("__getitem__"), kind.__getitem__

    def noting(self: Any, index: Any) -> Any:
        if id(self) in reads.sets:
            reads.note(self, index)
        return taken(self, index)

    kind.__getitem__ = noting
    try:
        yield
    finally:
        if own is None:
            del kind.__getitem__
        else:
            kind.__getitem__ = own


def _rows(index: Any, size: int) -> set[int]:
    """The rows that an index takes; none where it is of a kind that is not known."""
    if isinstance(index, tuple) and index:
        return _rows(index[0], size)
    if isinstance(index, slice):
        return set(range(*index.indices(size)))
    if isinstance(index, list | np.ndarray | torch.Tensor):
        places = torch.as_tensor(index)
        places = places.nonzero() if places.dtype == torch.bool else places
        return {place % size for place in places.flatten().tolist()}
    try:
        return {operator.index(index) % size}
    except TypeError:
        return set()
