"""The folder of a search: the released model, its settings, the ledger and the report.

Tests: tests/tuning/test_search.py.
"""

import contextlib
import json
import math
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors.torch import load_model, save_model

from dpfy.accounting import account
from dpfy.errors import CheckpointError, InvalidArgument
from dpfy.ledger import Ledger
from dpfy.ledger.composite_events import Composed
from dpfy.plans import Plan
from dpfy.reporting import RunFacts, report
from dpfy.trainer.builders import accuracy_of
from dpfy.trainer.config import TrainConfig
from dpfy.trainer.trainer import LEDGER, MODEL, Trainer
from dpfy.tuning.config import TuneConfig
from dpfy.tuning.silence import silence
from dpfy.tuning.space import Scalar
from dpfy.tuning.trial import Outcome

SEARCH, TRIALS, RESULT, CLAIMS = "search.json", "trials.json", "tuning.json", "claims"


@dataclass(frozen=True)
class TuningResult:
    """The results of a search.

    Args:
        folder: The folder with the model, the ledger and the report.
        settings: The settings of the best trial, or None if there was no trial.
        failure: The reason why the best trial has no model, or None.
        accuracy: Its accuracy on public data, or None.
        final_run: The ε at ``delta`` that would hold had the settings been fixed in advance.
        with_tuning: The ε at ``delta`` of the trials, the choice and the model: the one to claim. A
            search on public data costs 0.
        delta: The δ of both.
        trials: The trials of a search that shows them; None for a selection, of which only the best
            is known.
    """

    folder: Path
    settings: dict[str, Scalar] | None
    failure: str | None
    accuracy: float | None
    final_run: float
    with_tuning: float
    delta: float
    trials: tuple[dict[str, Any], ...] | None

    def to_json(self) -> dict[str, Any]:
        """Return the results as plain JSON values, with what each guarantee covers.

        An infinite ε is null.
        """
        words = (
            (
                "the search, which looked at public data only: nothing is charged for it",
                "a run on private records with these settings",
            )
            if self.with_tuning == 0
            else (
                "the search and the released model",
                "the final run only, as if its settings had been fixed in advance",
            )
        )
        covers = [
            {"covers": what, "epsilon": _finite(epsilon), "delta": self.delta}
            for what, epsilon in zip(words, (self.with_tuning, self.final_run), strict=True)
        ]
        return {
            "settings": self.settings,
            "failure": self.failure,
            "accuracy_on_public_data": self.accuracy,
            "guarantees": covers,
            "trials": None if self.trials is None else list(self.trials),
        }


class Folder:
    """The folder of one search.

    Args:
        path: The folder; :meth:`create` makes it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ledger = path / LEDGER

    @classmethod
    def create(
        cls, path: Path, config: TuneConfig, noise_multiplier: float, shared: bool = False
    ) -> "Folder":
        """Make the folder with the declared search in it, or refuse one that exists."""
        if path.exists():
            raise InvalidArgument(
                f"{path} exists. Choose another name, or go on with `dpfy tune --resume {path}`."
            )
        staged = path.with_name(f"{path.name}.new")
        if staged.exists():
            # A lost process left it, perhaps with claims: workers would skip those trials.
            shutil.rmtree(staged)
        staged.mkdir(parents=True)
        if shared:
            (staged / CLAIMS).mkdir()
        _write(staged / SEARCH, {"search": config.to_json(), "noise_multiplier": noise_multiplier})
        staged.rename(path)
        return cls(path)

    def search(self) -> tuple[TuneConfig, float]:
        """Return the declared search, and the noise that was calibrated for it."""
        if (self.path / RESULT).exists():
            raise InvalidArgument(
                f"The search in {self.path} has ended; its result is in {RESULT}."
            )
        try:
            value = json.loads((self.path / SEARCH).read_text(encoding="utf-8"))
            return TuneConfig.from_json(value["search"]), float(value["noise_multiplier"])
        except (OSError, ValueError, TypeError, KeyError):
            raise CheckpointError(
                f"{self.path} holds no search that could be resumed ({SEARCH} is missing or "
                "damaged)."
            ) from None

    @property
    def address(self) -> str:
        """How the command line names the search."""
        return str(self.path)

    @property
    def shared(self) -> bool:
        """Whether workers take the trials."""
        return (self.path / CLAIMS).is_dir()

    @property
    def begun(self) -> int:
        """The number of trials that workers have begun."""
        return len(os.listdir(self.path / CLAIMS))

    def claim(self, trials: int) -> int | None:
        """Take a trial that no worker has begun, durably; return None if there is none left.

        A file that must not exist before is made by one process only, also on a shared file system.
        """
        for number in range(1, trials + 1):
            try:
                file = os.open(
                    self.path / CLAIMS / str(number), os.O_CREAT | os.O_EXCL | os.O_WRONLY
                )
            except FileExistsError:
                continue
            directory = os.open(self.path / CLAIMS, os.O_RDONLY)
            try:
                os.fsync(file)
                os.fsync(directory)
            finally:
                os.close(file)
                os.close(directory)
            return number
        return None

    def trials(self) -> list[dict[str, Any]]:
        """Return the finished trials of a search that shows them; one that failed scores -inf."""
        found = [
            json.loads(text)
            for path in self.path.glob("trial-*.json")
            if (text := _read(path)) is not None
        ]
        return [
            {**trial, "score": -math.inf if trial["score"] is None else trial["score"]}
            for trial in sorted(found, key=lambda trial: int(trial["trial"]))
        ]

    def keep(self, outcome: Outcome, number: int) -> None:
        """Make a finished trial durable, with its model, and remove the models of worse ones."""
        model = self.path / f"trial-{number}.safetensors"
        if outcome.model is not None:
            save_model(outcome.model, str(model))
        _write(
            self.path / f"trial-{number}.json",
            {
                "trial": number,
                "settings": outcome.settings,
                "score": _finite(outcome.score),
                "failure": outcome.failure,
                "engine": outcome.engine,
                "isolation": outcome.isolation,
            },
        )
        trials = self.trials()
        for other in trials:  # each removes only models of which a better one is already there
            if other["trial"] != _best(trials)["trial"]:
                (self.path / f"trial-{other['trial']}.safetensors").unlink(missing_ok=True)
        if (self.path / RESULT).exists():  # the search ended meanwhile
            for file in self.path.glob(f"trial-{number}.*"):
                file.unlink(missing_ok=True)

    def best(self, rebuilt: Callable[[], Trainer]) -> Outcome | None:
        """Return the best of the trials that are kept, with its model."""
        missing = None
        while trials := self.trials():
            found, model = _best(trials), None
            if found["failure"] is None:
                model = rebuilt().model
                try:
                    load_model(model, str(self.path / f"trial-{found['trial']}.safetensors"))
                except FileNotFoundError:
                    if missing == found["trial"]:
                        raise CheckpointError(
                            f"The model of trial {missing}, the best one, is not in {self.path}. "
                            "Restore its file."
                        ) from None
                    # A worker has just kept a better one, and removed this.
                    missing = found["trial"]
                    continue
            return Outcome(
                found["settings"],
                found["score"],
                model,
                found["engine"],
                found["isolation"],
                found["failure"],
            )
        return None

    def release(
        self,
        best: Outcome | None,
        config: TuneConfig,
        base: TrainConfig,
        draft: Trainer,
        plan: Plan,
        delta: float,
        book: dict[str, Any] | None = None,
    ) -> TuningResult:
        """Write the release of the search, and return it.

        It is a function of the output of the best trial, of what was declared and of public data.
        """
        model = None if best is None else best.model
        accuracy = None
        if model is not None:
            save_model(model, str(self.path / MODEL))
            with silence():  # the model may print how often it was called
                accuracy = None if draft.data.test is None else accuracy_of(model, draft.data.test)
        final_run = account(Composed.of(plan.envelope), relation=plan.relation).claim(delta)
        chosen = base.with_flags(best.settings if best else {})
        trials = (
            None
            if config.accounting == "select"
            else tuple({**trial, "score": _finite(trial["score"])} for trial in self.trials())
        )
        with_tuning = self._report(config, chosen, best, draft, final_run, delta, book)
        result = TuningResult(
            self.path,
            settings=best.settings if best else None,
            failure=best.failure if best else None,
            accuracy=accuracy,
            final_run=final_run,
            with_tuning=with_tuning,
            delta=delta,
            trials=trials,
        )
        _write(self.path / "settings.json", chosen.to_mapping())
        if trials is not None:
            _write(self.path / TRIALS, list(trials))
        _write(self.path / RESULT, result.to_json())
        for file in self.path.glob("trial-*"):
            file.unlink(missing_ok=True)  # from a worker that came too late
        if config.accounting == "select":
            self._forget_times(config.base.anchor)
        return result

    def _forget_times(self, anchor: str | None) -> None:
        """Date every file back to the declaration: the duration of a search tells its trials."""
        declared = (self.path / SEARCH).stat().st_mtime_ns
        for place in (*self.path.iterdir(), *([] if anchor is None else [Path(anchor)]), self.path):
            with contextlib.suppress(OSError):  # an anchor may belong to another user
                os.utime(place, ns=(declared, declared))

    def _report(
        self,
        config: TuneConfig,
        chosen: TrainConfig,
        best: Outcome | None,
        draft: Trainer,
        final_run: float,
        delta: float,
        book: dict[str, Any] | None,
    ) -> float:
        """Write the report and return the ε of the search."""
        if config.accounting == "public":
            (self.path / "report.md").write_text(
                _PUBLIC.format(
                    name=self.path.name,
                    data=draft.data.description,
                    searched=_searched(config),
                    epsilon=_shown(final_run),
                    delta=delta,
                ),
                encoding="utf-8",
            )
            return 0.0
        statement = report(
            Ledger.read(self.ledger, config.base.anchor),
            delta,
            replace(
                _facts(self.path.name, config, chosen, best, draft, final_run, delta), book=book
            ),
        )
        statement.write(self.path)
        interval = statement.costs.headline.interval
        return math.inf if interval is None else interval.upper


_PUBLIC = """# Search on public data: {name}

Nothing was charged: all trials looked at public data only ({data}), as was declared. There is no
ledger, and the model of the best trial carries no guarantee, because it needs none.

Searched: {searched}. The settings in settings.json are for a run on private records that is
({epsilon}, {delta:g})-differentially private. Such a run may say that its settings were chosen on
public data.
"""


def _best(trials: list[dict[str, Any]]) -> dict[str, Any]:
    """The trial with the highest score, and the first of equals, as during the search."""
    return max(trials, key=lambda trial: (trial["score"], -trial["trial"]))


def _facts(
    name: str,
    config: TuneConfig,
    chosen: TrainConfig,
    best: Outcome | None,
    draft: Trainer,
    final_run: float,
    delta: float,
) -> RunFacts:
    shown = (
        "the models and scores of all trials"
        if config.accounting == "compose"
        else ("the model and the settings of the best trial, and nothing about the others")
    )
    score = (
        "for the scores of trials and for evaluation"
        if config.score == "public"
        else "for evaluation"
    )
    return RunFacts(
        name=name,
        title=f"Privacy report: {name}",
        dataset=draft.data.description,
        record=draft.data.unit,
        released=shown,
        engine=(best and best.engine) or "not known: the trial failed",
        isolation=(best and best.isolation) or "not known: the trial failed",
        model=f"{type(draft.model).__name__} with "
        f"{sum(p.numel() for p in draft.model.parameters()):,} parameters",
        hyperparameters=chosen.hyperparameters(),
        hyperparameter_selection=_selection(config, final_run, delta),
        public_data="none" if draft.data.test is None else f"the held-out test records, {score}",
    )


def _selection(config: TuneConfig, final_run: float, delta: float) -> str:
    if config.accounting == "select":
        how = (
            f"the best of a secret number of independent trials, drawn from a {config.law} law of "
            f"mean {config.trials:g}"
        )
    else:
        how = (
            f"the best of {config.trials:g} trials ({config.proposals} proposals), all of which "
            "are counted"
        )
    return (
        f"counted in this ledger: {_searched(config)} are those of {how}; the score is "
        f"{config.score}. The final run only, had its settings been fixed in advance, would be "
        f"({_shown(final_run)}, {delta:g})-DP"
    )


def _searched(config: TuneConfig) -> str:
    return ", ".join(config.space.settings)


def _shown(epsilon: float) -> str:
    return f"{math.ceil(epsilon * 1e4) / 1e4:.4f}"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _read(path: Path) -> str | None:
    """The text of a file, or None if it was removed since it was listed."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


def _write(path: Path, value: Any) -> None:
    """Replace a file at once, with one that a loss of power leaves whole."""
    draft = path.with_name(f"{path.name}.draft")
    with draft.open("w", encoding="utf-8") as file:
        file.write(json.dumps(value, indent=2, allow_nan=False) + "\n")
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
