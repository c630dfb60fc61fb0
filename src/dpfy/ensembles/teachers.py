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
        unit_of: Sequence[Any] | None = None,
        group_of: Sequence[Any] | None = None,
        folder: str | os.PathLike[str] | None = None,
        format: Format | None = None,
        workers: int = 0,
        rehearsal: Any = None,
        progress: Callable[[int, int], None] | None = None,
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
        part alone, which is one, or as many as its group has copies.

        *Assumes* that ``train_one`` is a function of its arguments, and keeps and changes nothing
        else: no tuning, scaling or stopping by other records, no state between calls. Generators of
        Python, numpy and torch begin from the seed. A call that goes on has the same records in the
        same order. Nobody measures how long a part takes.

        Args:
            train_one: Returns a predictor, given the records of a part and its public seed.
            data: The records: an array, a tuple of arrays, a sequence or a torch data set.
            parts: The number of teachers, or for each group's name the number of its own, or a
                :class:`~dpfy.ensembles.Partition`.
            seeds: The seed of each part, from 0 to 2³² − 1; "public" numbers the parts.
            unit_of: The unit of each record, such as a user, where that is not the record itself.
            group_of: The name of each record's group, where parts have groups.
            folder: Where teachers are kept.
            format: How they are kept; by default as those of
                :func:`~dpfy.ensembles.train_linear` are.
            workers: The number of processes; 0 trains in this one.
            rehearsal: Public records of the same form.
            progress: A function that is told how many parts are done, and how many there are.
            insecure_test_key: A key that makes the parts reproducible, and nothing private.

        Returns:
            The teachers.

        Raises:
            InvalidArgument: If an argument is out of its range, before a record is read.
            CheckpointError: If the folder was begun for other parts or seeds.
        """
        partition = parts if isinstance(parts, Partition) else Partition(parts)
        numbers = _public_seeds(seeds, partition.teachers)
        _validate.count("workers", workers, minimum=0)
        kept = None if folder is None else Folder(folder, format or LinearFormat())
        if rehearsal is not None:
            _rehearse(train_one, rehearsal, numbers[0], kept, workers)
        stream = SecureStream(insecure_test_key, "sampling")
        unit = Unit.RECORD if unit_of is None else Unit.USER
        key = stream.words(4).tobytes()
        if kept is not None:
            key = kept.begin(partition, numbers, key, stream.key_source, unit)
        divided = partition.draw(_records(data), key, unit_of=unit_of, group_of=group_of)
        train = _Training(train_one, data, divided, numbers, kept)
        predictors = train.all(workers, progress)
        return cls(predictors, partition, numbers, stream.key_source, unit)

    def answers(self, x: Any) -> npt.NDArray[np.float64]:
        """Return the answer of each teacher to each input: a sensitive array.

        A teacher that is missing, raises, or returns another shape or no numbers answers NaN.

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
        """Write the teachers to a folder, which is then as sensitive as the records.

        Args:
            folder: The folder; it is made if it is missing.
            format: How a teacher is kept; by default as those of
                :func:`~dpfy.ensembles.train_linear` are.

        Raises:
            CheckpointError: If the folder holds other teachers, or cannot be written.
        """
        kept = Folder(folder, format or LinearFormat())
        kept.begin(self.partition, self.seeds, b"", self.key_source, self.unit)
        for part, predictor in enumerate(self._predictors):
            kept.write(part, None if predictor is None else kept.format.state(predictor))

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
        predictors = [kept.read(part) for part in range(partition.teachers)]
        return cls(predictors, partition, facts["seeds"], facts["key_source"], facts["unit"])


class _Training:
    """The training of all parts, each from its own records and seed alone."""

    def __init__(
        self,
        train_one: TrainOne,
        data: Any,
        divided: list[Indices],
        seeds: tuple[int, ...],
        kept: "Folder | None",
    ) -> None:
        self._train_one, self._data, self._divided = train_one, data, divided
        self._seeds, self._kept = seeds, kept

    def all(
        self, workers: int, progress: Callable[[int, int], None] | None
    ) -> list[Predictor | None]:
        """Return the predictor of each part, trained or read."""
        total = len(self._divided)
        tell = progress or (lambda done, parts: None)
        found: dict[int, Any] = {}
        missing = []
        for part in range(total):
            if self._kept is not None and self._kept.has(part):
                found[part] = self._kept.read(part)
            else:
                missing.append(part)
        tell(len(found), total)
        for part, state in zip(missing, self._trained(missing, workers), strict=True):
            if self._kept is not None:
                self._kept.write(part, state)
                state = self._kept.restored(state)
            found[part] = state
            tell(len(found), total)
        return [found[part] for part in range(total)]

    def _trained(self, parts: list[int], workers: int) -> Iterator[Any]:
        """Yield what is kept of each part: a state with a folder, else a predictor, or None."""
        if not workers:
            yield from (self._one(part) for part in parts)
            return
        team: Workers[Any] = Workers(workers, self._several, None)
        try:
            for results in team.begin(b"", [[part] for part in parts]):
                yield next((state for each in results for state in each), None)
        finally:
            team.close()

    def _several(self, key: bytes, parts: RowIndices) -> list[Any]:
        return [self._one(part) for part in parts if part is not None]

    def _one(self, part: int) -> Any:
        rows, seed = self._divided[part], self._seeds[part]
        if not len(rows):
            return None
        with _alone(seed):
            try:
                found = as_predictor(self._train_one(_taken(self._data, rows), seed))
                return found if self._kept is None else self._kept.format.state(found)
            except KeyboardInterrupt:
                raise
            except BaseException:  # an abort that one record can cause is an output
                return None


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


def _answers(
    predictor: Predictor, x: Any, inputs: int, seed: int
) -> npt.NDArray[np.float64] | float:
    """Return a teacher's answers, or NaN for all of them; it may do to its inputs what it likes."""
    with _alone(seed):
        try:
            found = predictor.predict(x)
            if isinstance(found, torch.Tensor):
                found = found.detach().cpu().numpy()
            numbers = np.asarray(found, dtype=np.float64)
        except KeyboardInterrupt:
            raise
        except BaseException:  # an abort that one record can cause is an output
            return np.nan
    return np.where(np.isfinite(numbers), numbers, np.nan) if numbers.shape == (inputs,) else np.nan


def _rehearse(
    train_one: TrainOne, records: Any, seed: int, kept: Folder | None, workers: int
) -> None:
    """Train, keep and ask one teacher on public records, and let its errors show."""
    back = bookmark()
    fix_seed(seed)
    try:
        found = as_predictor(train_one(_taken(records, np.arange(_records(records))), seed))
        if kept is not None:
            found = kept.format.restore(kept.format.state(found))
        elif workers:
            pickle.dumps(found)  # the way back from another process
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
