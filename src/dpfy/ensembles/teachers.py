"""Train teachers on parts of the records, in parallel, and ask them all.

Everything here is as sensitive as the records: the teachers, their files and their answers. Only
noisy votes may leave (:mod:`dpfy.ensembles.pate`).
"""

import copy
import os
import pickle
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch

from dpfy import _validate
from dpfy.ensembles.bars import Tell, telling
from dpfy.ensembles.folder import Folder
from dpfy.ensembles.linear import LinearFormat
from dpfy.ensembles.parts import Indices, Partition
from dpfy.ensembles.predictors import Format, Predictor, as_predictor
from dpfy.errors import CheckpointError, InvalidArgument
from dpfy.noise import SecureStream
from dpfy.records.workers import RowIndices, Workers
from dpfy.sandbox.output import suppress_output
from dpfy.sandbox.rng_isolation import bookmark, fix_seed
from dpfy.types import Unit

TrainOne = Callable[[Any, int], Any]
"""Returns a predictor, given the records of one part and a public seed."""

_SEEDS = 2**32  # numpy takes no larger ones


class Teachers:
    """An ensemble of predictors, each of which has seen one part of the records.

    Make it by :meth:`fit` or :meth:`load`. Everything that it holds and answers is sensitive.

    Args:
        predictors: The predictor of each part, or None where a part has none.
        partition: How records were divided.
        seeds: The public seed of each part.
        key_source: Where the key of the parts is from.
        unit: What is in one part as a whole.

    >>> from sklearn.naive_bayes import GaussianNB
    >>> x = np.random.default_rng(0).normal(size=(400, 2))
    >>> def train_one(subset, seed):
    ...     inputs, labels = subset
    ...     return GaussianNB().fit(inputs, labels)
    >>> teachers = Teachers.fit(train_one, (x, (x[:, 0] > 0).astype(int)), parts=8)
    >>> teachers.parts, teachers.answers(x[:5]).shape
    (8, (8, 5))
    """

    def __init__(
        self,
        predictors: Sequence[Predictor | None],
        partition: Partition | int | None = None,
        seeds: Sequence[int] | None = None,
        key_source: str = "operating system",
        unit: Unit | str = Unit.RECORD,
    ) -> None:
        found = len(predictors) if partition is None else partition
        self.partition = found if isinstance(found, Partition) else Partition(found)
        if self.partition.teachers != len(predictors):
            raise InvalidArgument(
                f"Expected one predictor for each of {self.partition.teachers} parts, or None; got "
                f"{len(predictors)}."
            )
        self.key_source, self.unit = key_source, Unit(unit)
        self.seeds = _public_seeds(seeds or "public", self.parts)
        self._predictors = tuple(predictors)

    @property
    def parts(self) -> int:
        """The number of teachers, which is public."""
        return self.partition.teachers

    @classmethod
    def fit(
        cls,
        train_one: TrainOne,
        data: Any,
        parts: int | Mapping[str, int] | Partition = 250,
        *,
        seeds: Sequence[int] | str = "public",
        unit: Unit | str | None = None,
        unit_of: Sequence[Any] | None = None,
        group_of: Sequence[Any] | None = None,
        folder: str | os.PathLike[str] | None = None,
        format: Format | None = None,
        workers: int = 0,
        rehearsal: Any = None,
        progress: bool | Tell | None = None,
        insecure_test_key: int | bytes | None = None,
    ) -> Self:
        """Train one teacher on each part of the records.

        Every record draws its part by itself. A part whose training raises or ends its process, or
        that has no records, gets no teacher, silently: errors, logs and progress say nothing about
        parts. What ``train_one`` prints or warns of is dropped. So that you see its mistakes, pass
        public or made-up records as ``rehearsal``: on these it runs first, and may raise.

        With a ``folder``, every teacher is kept there as soon as it is trained, and a second call
        goes on where the first was interrupted. The folder is as sensitive as the records.

        *Formal guarantee*: one record added, removed or replaced changes the teachers of its own
        part alone, which is one, or as many as its group has copies. A user who is replaced by
        another one changes two: the part of each.

        *Assumes* that ``train_one`` is a function of its arguments, and keeps and changes nothing
        else: no tuning, scaling or stopping by other records, no state between calls. Generators of
        Python, numpy and torch begin from the seed. A call that goes on has the same records in the
        same order. Nobody measures how long a part takes. With ``workers=0``, ``train_one`` and
        the format do not end or interrupt the process, and write nothing below Python (to the file
        descriptors of stdout and stderr) or from threads of their own: only other processes are
        silenced as a whole, so that at least one is better.

        Args:
            train_one: Returns a predictor, given the records of a part and its public seed.
            data: The records: an array, a tuple of arrays, a sequence or a torch data set.
            parts: The number of teachers, or for each group's name the number of its own, or a
                :class:`~dpfy.ensembles.Partition`.
            seeds: The seed of each part, from 0 to 2³² − 1; "public" numbers the parts.
            unit: What one part has as a whole: ``"label"`` where features are public and
                ``train_one`` is a :func:`dpfy.labels.label_teacher`. Default: a record, or with
                ``unit_of`` a user.
            unit_of: The unit of each record, such as a user, where that is not the record itself.
            group_of: The name of each record's group, where parts have groups.
            folder: Where teachers are kept.
            format: How they are kept; by default as those of
                :func:`~dpfy.ensembles.train_linear` are.
            workers: The number of processes; 0 trains in this one. Take at least 1 for code that
                may crash or that prints from C.
            rehearsal: Public records of the same form.
            progress: Whether to show a bar, or a function that is told how many parts are done,
                and how many there are. Default: a bar on a terminal and in a notebook.
            insecure_test_key: A key that makes the parts reproducible, and nothing private.

        Returns:
            The teachers.

        Raises:
            InvalidArgument: If an argument is out of its range, before a record is read.
            CheckpointError: If the folder was begun for other parts, seeds or numbers of records,
                or cannot be written.
        """
        partition = parts if isinstance(parts, Partition) else Partition(parts)
        numbers = _public_seeds(seeds, partition.teachers)
        _validate.count("workers", workers, minimum=0)
        kept = None if folder is None else Folder(folder, format or LinearFormat())
        if rehearsal is not None:
            _rehearse(train_one, rehearsal, numbers[0], kept, workers)
        stream = SecureStream(insecure_test_key, "sampling")
        unit = _unit(unit, unit_of)
        key = stream.words(4).tobytes()
        records = _records(data)
        if kept is not None:
            declared = _declared(partition, numbers, stream.key_source, unit, records)
            key = kept.begin(declared, key)
        divided = partition.draw(records, key, unit_of=unit_of, group_of=group_of)
        train = _Training(train_one, data, divided, numbers, kept, workers)
        with telling(progress, "teachers") as tell:
            predictors = train.all(tell)
        return cls(predictors, partition, numbers, stream.key_source, unit)

    def answers(self, x: Any) -> npt.NDArray[np.float64]:
        """Return the answer of each teacher to each input: a sensitive array.

        A teacher that is missing, raises, or returns another shape or no numbers answers NaN.

        *Assumes* that ``predict`` does not end or interrupt the process, and that it writes nothing
        below Python or from threads of its own.

        Args:
            x: Public inputs, as the predictors take them.

        Returns:
            The answers, of the shape (parts, len(x)); NaN where there is none.
        """
        found = np.full((self.parts, len(x)), np.nan)
        for part, (predictor, seed) in enumerate(zip(self._predictors, self.seeds, strict=True)):
            if predictor is not None:
                own = copy.deepcopy(x)  # a flag against writing does not bind torch
                found[part] = _answers(predictor, own, len(x), seed)
        return found

    def save(self, folder: str | os.PathLike[str], format: Format | None = None) -> None:
        """Write the teachers to a new folder, which is then as sensitive as the records.

        A teacher that the format cannot keep is silently saved as a missing one: try the format on
        a teacher of public records first.

        Args:
            folder: The folder; it is made if it is missing.
            format: How a teacher is kept; by default as those of
                :func:`~dpfy.ensembles.train_linear` are.

        Raises:
            CheckpointError: If the folder holds teachers, or cannot be written.
        """
        kept = Folder(folder, format or LinearFormat())
        kept.begin_new(_declared(self.partition, self.seeds, self.key_source, self.unit))
        for part, (predictor, seed) in enumerate(zip(self._predictors, self.seeds, strict=True)):
            known = predictor is not None
            kept.write(part, _guarded(seed, kept.packed, predictor) if known else None)

    @classmethod
    def load(cls, folder: str | os.PathLike[str], format: Format | None = None) -> Self:
        """Read teachers that :meth:`save` or :meth:`fit` wrote.

        Args:
            folder: The folder.
            format: How they were kept; by default as those of
                :func:`~dpfy.ensembles.train_linear` are.

        Returns:
            The teachers.

        Raises:
            CheckpointError: If a file is missing or damaged, or training is not complete.
        """
        kept = Folder(folder, format or LinearFormat())
        facts = kept.facts()
        partition = Partition.from_json(facts["partition"])
        missing = sum(not kept.has(part) for part in range(partition.teachers))
        if missing:
            raise CheckpointError(
                f"{missing} of {partition.teachers} teachers in {folder} are not trained yet. Call "
                "Teachers.fit with this folder again."
            )
        predictors = [_restored(kept, part, seed) for part, seed in enumerate(facts["seeds"])]
        return cls(predictors, partition, facts["seeds"], facts["key_source"], facts["unit"])


class _Training:
    """The training of all parts, each from its own records and seed alone."""

    def __init__(
        self,
        train_one: TrainOne,
        data: Any,
        divided: list[Indices],
        seeds: tuple[int, ...],
        kept: Folder | None,
        workers: int,
    ) -> None:
        self._train_one, self._data, self._divided = train_one, data, divided
        self._seeds, self._kept, self._workers = seeds, kept, workers

    def all(self, tell: Callable[[int, int], None]) -> list[Predictor | None]:
        """Return the predictor of each part, trained or read."""
        total = len(self._divided)
        found: dict[int, Any] = {}
        missing = []
        for part in range(total):
            if self._kept is not None and self._kept.has(part):
                found[part] = _restored(self._kept, part, self._seeds[part])
            else:
                missing.append(part)
        tell(len(found), total)
        for part, packed in zip(missing, self._trained(missing), strict=True):
            found[part] = self._unpacked(part, packed)
            tell(len(found), total)
        return [found[part] for part in range(total)]

    def _trained(self, parts: list[int]) -> Iterator[Any]:
        """Yield what training gives of each part, packed, or None."""
        if not self._workers:
            yield from (self._one(part) for part in parts)
            return
        team: Workers[Any] = Workers(self._workers, self._several, None)
        try:
            for results in team.begin(b"", [[part] for part in parts]):
                yield next((packed for each in results for packed in each), None)
        finally:
            team.close()

    def _several(self, key: bytes, parts: RowIndices) -> list[Any]:
        return [self._one(part) for part in parts if part is not None]

    def _one(self, part: int) -> Any:
        rows, seed = self._divided[part], self._seeds[part]
        return _guarded(seed, self._packed, rows, seed) if len(rows) else None

    def _packed(self, rows: Indices, seed: int) -> Any:
        """Train on some records; return bytes for a folder or from another process."""
        found = as_predictor(self._train_one(_taken(self._data, rows), seed))
        if self._kept is not None:
            return self._kept.packed(found)
        return pickle.dumps(found) if self._workers else found

    def _unpacked(self, part: int, packed: Any) -> Any:
        """Return the predictor of a part, which is kept first if there is a folder."""
        seed = self._seeds[part]
        if self._kept is not None:
            self._kept.write(part, packed)
            return _restored(self._kept, part, seed)
        if packed is None or not self._workers:
            return packed
        return _guarded(seed, pickle.loads, packed)


@contextmanager
def _alone(seed: int) -> Iterator[None]:
    """Run a teacher's code from its seed, without output; generators outside stay as they were."""
    back = bookmark()
    with suppress_output(), warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        fix_seed(seed)
        try:
            yield
        finally:
            back()


def _guarded(seed: int, run: Callable[..., Any], *args: Any) -> Any:
    """Return what a teacher's code returns, or None if it raises anything."""
    with _alone(seed):
        try:
            return run(*args)
        except KeyboardInterrupt:
            raise KeyboardInterrupt from None  # without a text, which may quote a record
        except BaseException:  # an abort that one record can cause is an output
            return None


def _answers(
    predictor: Predictor, x: Any, inputs: int, seed: int
) -> npt.NDArray[np.float64] | float:
    """Return a teacher's answers, or NaN for all of them; it may do to its inputs what it likes."""

    def numbers() -> npt.NDArray[np.float64]:
        found = predictor.predict(x)
        if isinstance(found, torch.Tensor):
            found = found.detach().cpu().numpy()
        return np.asarray(found, dtype=np.float64)

    found = _guarded(seed, numbers)
    if found is None or found.shape != (inputs,):
        return np.nan
    return np.where(np.isfinite(found), found, np.nan)


def _restored(kept: Folder, part: int, seed: int) -> Any:
    """Return the predictor that a folder keeps of a part, or None."""
    state = kept.read(part)
    return None if state is None else _guarded(seed, kept.format.restore, state)


def _declared(
    partition: Partition,
    seeds: tuple[int, ...],
    key_source: str,
    unit: Unit,
    records: int | None = None,
) -> dict[str, Any]:
    """Return what a folder of teachers says about them."""
    return {
        "partition": partition.to_json(),
        "seeds": list(seeds),
        "key_source": key_source,
        "unit": str(unit),
        "records": records,
    }


def _rehearse(
    train_one: TrainOne, records: Any, seed: int, kept: Folder | None, workers: int
) -> None:
    """Train, keep and ask one teacher on public records, and let its errors show."""
    back = bookmark()
    fix_seed(seed)
    try:
        found = as_predictor(train_one(_taken(records, np.arange(_records(records))), seed))
        if kept is not None:
            kept.packed(found)
            found = kept.format.restore(kept.format.state(found))
        elif workers:
            found = pickle.loads(pickle.dumps(found))  # the way back from another process
    finally:
        back()
    if not hasattr(found, "predict"):
        raise InvalidArgument(
            f"Expected train_one to return a torch module or an object with predict(x), got "
            f"{type(found).__name__}."
        )


def _public_seeds(seeds: Sequence[int] | str, parts: int) -> tuple[int, ...]:
    if isinstance(seeds, str):
        _validate.choice("seeds", seeds, ("public",))
        return tuple(range(parts))
    if len(seeds) != parts or not all(
        isinstance(seed, int) and 0 <= seed < _SEEDS for seed in seeds
    ):
        raise InvalidArgument(
            f"Expected one public seed from 0 to 2³² − 1 for each of {parts} parts, or 'public'."
        )
    return tuple(seeds)


def _records(data: Any) -> int:
    if not isinstance(data, tuple):
        return len(data)
    if not data or len({len(each) for each in data}) != 1:
        raise InvalidArgument("Expected arrays with one row for each record, all of one length.")
    return len(data[0])


def _taken(data: Any, rows: Indices) -> Any:
    """Return some of the records, in the form in which all were given."""
    if isinstance(data, tuple):
        return tuple(_taken(each, rows) for each in data)
    if isinstance(data, np.ndarray):
        return data[rows]
    if isinstance(data, torch.Tensor):
        return data[torch.from_numpy(rows)]
    if isinstance(data, torch.utils.data.Dataset):
        return torch.utils.data.Subset(data, rows.tolist())
    return [data[row] for row in rows.tolist()]


def _unit(unit: Unit | str | None, unit_of: Sequence[Any] | None) -> Unit:
    """Return the unit of the parts: users if, and only if, somebody says whose the rows are."""
    expected = Unit.RECORD if unit_of is None else Unit.USER
    found = expected if unit is None else Unit(_validate.choice("unit", unit, tuple(Unit)))
    if (found is Unit.USER) != (unit_of is not None):
        raise InvalidArgument(
            f"Expected unit_of= with unit='user' and with no other, got unit={str(found)!r}."
        )
    return found
