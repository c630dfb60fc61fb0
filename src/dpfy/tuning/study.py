"""A search on public data that workers share through a database of Optuna's, without a folder.

Tests: tests/tuning/test_study.py.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpfy.errors import CheckpointError, InvalidArgument
from dpfy.trainer.trainer import Trainer
from dpfy.tuning.config import TuneConfig
from dpfy.tuning.folder import Folder, TuningResult
from dpfy.tuning.proposals import check_storage, distributions, optuna_package, usable_storage
from dpfy.tuning.space import Scalar
from dpfy.tuning.trial import Outcome

_DECLARED, _ENDED = "dpfy", "dpfy_ended"  # attributes of a study


class StudyFolder(Folder):
    """A shared search whose declaration and trials are in a study, and whose result is in a folder.

    It is for searches on public data only: the database shows every trial, and keeps no models.

    Args:
        storage: The address of the database.
        name: The name of the study, and of the folder of the result.

    *Assumes* that the database gives numbers to trials one after the other, as Optuna's do: a trial
    whose number is beyond the declared ones is not run.
    """

    def __init__(self, storage: str, name: str) -> None:
        super().__init__(Path(name))
        self._optuna = optuna_package()
        self._storage = storage
        with usable_storage(storage):
            self._study = self._optuna.load_study(study_name=name, storage=storage)
        self._distributions: dict[str, Any] = {}
        self._asked: Any = None

    @classmethod
    def at(cls, address: str) -> "StudyFolder":
        """Return the search at ``storage#name``."""
        storage, _, name = address.rpartition("#")
        if not storage or not name:
            raise InvalidArgument(
                f"Expected the address of a shared search, such as sqlite:///study.db#wide, got "
                f"{address!r}."
            )
        return cls(storage, name)

    @classmethod
    def declare(cls, config: TuneConfig, name: str, noise_multiplier: float) -> "StudyFolder":
        """Declare a search in a new study."""
        assert config.storage is not None  # as share_tuning checks
        check_storage(config.storage, name)
        study = optuna_package().create_study(
            storage=config.storage, study_name=name, direction="maximize"
        )
        declared = replace(config, storage=None).to_json()  # its address may have a password
        study.set_user_attr(_DECLARED, {"search": declared, "noise_multiplier": noise_multiplier})
        return cls(config.storage, name)

    @property
    def address(self) -> str:
        """Where workers find the search."""
        return f"{self._storage}#{self._study.study_name}"

    def search(self) -> tuple[TuneConfig, float]:
        """Return the declared search, and the noise that was calibrated for it."""
        attributes = self._study.user_attrs
        if _ENDED in attributes:
            raise InvalidArgument(f"The search {self.path.name!r} has ended.")
        try:
            value = attributes[_DECLARED]
            config = TuneConfig.from_json(value["search"])
            noise_multiplier = float(value["noise_multiplier"])
        except (KeyError, TypeError, ValueError):
            raise CheckpointError(
                f"The study {self.path.name!r} is no shared search of dpfy's. Declare one with "
                "`dpfy tune --accounting public --share --storage …`."
            ) from None
        self.path = Path(config.base.out) / self.path.name
        return config, noise_multiplier

    @property
    def shared(self) -> bool:
        """Whether workers take the trials: always."""
        return True

    @property
    def begun(self) -> int:
        """The number of trials that workers have begun."""
        return len(self._study.get_trials(deepcopy=False))

    def claim(self, trials: int) -> int | None:
        """Take a trial that no worker has begun; return None if there is none left."""
        if self.begun >= trials:
            return None
        asked = self._study.ask(self._distributions)
        if asked.number >= trials:  # somebody else took the last one at the same time
            self._study.tell(asked, state=self._optuna.trial.TrialState.FAIL)
            return None
        self._asked = asked
        return int(asked.number) + 1

    def proposing(self, config: TuneConfig, seed: int) -> "StudyFolder":
        """Let trials be claimed with settings that the study proposes, and return what has them."""
        samplers = self._optuna.samplers
        kind = samplers.RandomSampler if config.proposals == "random" else samplers.TPESampler
        self._study.sampler = kind(seed=seed)
        self._distributions = distributions(config.space)
        return self

    def propose(self) -> dict[str, Scalar]:
        """Return the settings of the trial that was claimed last."""
        return dict(self._asked.params)

    def learn(self, settings: dict[str, Scalar], score: float) -> None:
        """Do nothing: :meth:`keep` tells the study."""

    def trials(self) -> list[dict[str, Any]]:
        """Return the finished trials; one that failed scores -inf."""
        states = self._optuna.trial.TrialState
        return [
            {
                "trial": found.number + 1,
                "settings": dict(found.params),
                "score": -math.inf if found.value is None else found.value,
                **found.user_attrs,
            }
            for found in self._study.get_trials(
                deepcopy=False, states=(states.COMPLETE, states.FAIL)
            )
            if "engine" in found.user_attrs  # others were begun by nobody
        ]

    def keep(self, outcome: Outcome, number: int) -> None:
        """Keep what a trial found, without its model."""
        for name in ("failure", "engine", "isolation"):
            self._asked.set_user_attr(name, getattr(outcome, name))
        failed = math.isinf(outcome.score)
        states = self._optuna.trial.TrialState
        self._study.tell(
            self._asked,
            None if failed else outcome.score,
            state=states.FAIL if failed else states.COMPLETE,
        )

    def release(self, *arguments: Any) -> TuningResult:
        """Write the release of the search into its folder, and end it."""
        if self.path.exists():
            raise InvalidArgument(f"{self.path} exists. Remove it, or call from another folder.")
        self.path.mkdir(parents=True)
        result = super().release(*arguments)
        self._study.set_user_attr(_ENDED, True)
        return result

    def best(self, rebuilt: Callable[[], Trainer]) -> Outcome | None:
        """Return the settings and the score of the best trial."""
        trials = self.trials()
        if not trials:
            return None
        found = max(trials, key=lambda trial: (trial["score"], -trial["trial"]))
        names = ("settings", "score", "engine", "isolation", "failure")
        return Outcome(**{name: found[name] for name in names})
