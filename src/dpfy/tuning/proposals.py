"""Propose the settings of the next trial: at random, or from the scores of earlier ones.

Tests: tests/tuning/test_search.py.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from dpfy._extras import require
from dpfy.budgets.runs import without_password
from dpfy.errors import InvalidArgument
from dpfy.noise.random_stream import SecureStream
from dpfy.tuning.space import Choice, Scalar, Space, Uniform


class Proposals(Protocol):
    """Proposes settings, and may learn from their scores."""

    def propose(self) -> dict[str, Scalar]:
        """Return the settings of the next trial."""
        ...

    def learn(self, settings: dict[str, Scalar], score: float) -> None:
        """Take in the score of a trial: -inf if it failed."""
        ...


class AtRandom:
    """Independent draws; the only proposals that a selection may follow."""

    def __init__(self, space: Space, stream: SecureStream) -> None:
        self._space = space
        self._stream = stream

    def propose(self) -> dict[str, Scalar]:
        """Draw settings."""
        return self._space.draw(self._stream)

    def learn(self, settings: dict[str, Scalar], score: float) -> None:
        """Do nothing: the next draw is independent of this one."""


class Bayesian:
    """Proposals of Optuna's tree-structured Parzen estimator.

    *Assumes* that every trial is paid for by composition: the events of a trial are fixed in
    advance, and its settings may then depend on what earlier trials released.

    ``storage`` is a database of Optuna's in which the study is kept; without one it lives in
    memory.
    """

    def __init__(self, space: Space, seed: int, storage: str | None, name: str) -> None:
        self._optuna = optuna_package()
        self._kept = storage is not None
        self._distributions = distributions(space)
        self._study = self._optuna.create_study(
            storage=storage,
            study_name=name,
            direction="maximize",
            load_if_exists=True,
            sampler=self._optuna.samplers.TPESampler(seed=seed),
        )
        self._asked: Any = None

    def propose(self) -> dict[str, Scalar]:
        """Ask the study."""
        self._asked = self._study.ask(self._distributions)
        return dict(self._asked.params)

    def learn(self, settings: dict[str, Scalar], score: float) -> None:
        """Tell the study; trials of an earlier process are added, unless its storage has them."""
        states = self._optuna.trial.TrialState
        failed = math.isinf(score)
        if self._asked is not None:
            self._study.tell(
                self._asked,
                None if failed else score,
                state=states.FAIL if failed else states.COMPLETE,
            )
        elif not self._kept:
            self._study.add_trial(
                self._optuna.trial.create_trial(
                    params=settings,
                    distributions=self._distributions,
                    value=None if failed else score,
                    state=states.FAIL if failed else states.COMPLETE,
                )
            )


def distributions(space: Space) -> dict[str, Any]:
    """Return the distributions of a space as Optuna's."""
    kinds = optuna_package().distributions

    def of(each: Uniform | Choice) -> Any:
        if isinstance(each, Choice):
            return kinds.CategoricalDistribution(each.values)
        return kinds.FloatDistribution(each.low, each.high, log=each.log)

    return {setting: of(each) for setting, each in space.settings.items()}


def check_storage(storage: str, name: str) -> None:
    """Refuse a database that Optuna cannot open, or that has a study of this name.

    The ledger of the search would not have the trials of that study.
    """
    with usable_storage(storage):
        names = optuna_package().get_all_study_names(storage)
    if name in names:
        raise InvalidArgument(
            f"storage={without_password(storage)!r} has a study {name!r} of another search, whose "
            "trials this one does not count. Choose another name."
        )


@contextmanager
def usable_storage(storage: str) -> Iterator[None]:
    """Refuse a database that Optuna cannot use, without its password."""
    try:
        yield
    except Exception as error:  # of Optuna, or of the package that it uses for the database
        raise InvalidArgument(
            f"Optuna cannot use storage={without_password(storage)!r} ({type(error).__name__}). "
            "Expected the address of a database, such as 'sqlite:///study.db', and of a study that "
            "it has."
        ) from None


def optuna_package() -> Any:
    """Return Optuna, or say which extra has it."""
    require("optuna", "tune")
    import optuna  # type: ignore[import-not-found, unused-ignore]

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
