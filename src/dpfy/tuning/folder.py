"""What a search leaves behind: the released model, its settings, the ledger, the report, and what all of it covers."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_model, save_model

from dpfy.accounting import account
from dpfy.errors import CheckpointError, InvalidArgument
from dpfy.ledger.wrapping import Composed
from dpfy.plan import Plan
from dpfy.reporting import RunFacts, report
from dpfy.training.config import TrainConfig
from dpfy.training.parts import accuracy_of
from dpfy.training.trainer import LEDGER, MODEL, Trainer
from dpfy.tuning.config import TuneConfig
from dpfy.tuning.space import Scalar
from dpfy.tuning.trial import Outcome

SEARCH, TRIALS, RESULT = "search.json", "trials.json", "tuning.json"


@dataclass(frozen=True)
class TuningResult:
    """What a search released; ``final_run`` and ``with_tuning`` are ε at ``delta``.

    ``with_tuning`` covers the trials and the choice, and is the one to claim. ``final_run`` would hold had the settings
    been fixed in advance. ``settings`` is None if there was no trial, ``failure`` names why the best one has no model.
    ``trials`` are those of a composition; of a selection nothing is known but the best.
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
        """Return the result as plain JSON values, with what each guarantee covers; an infinite ε is null."""
        covers = [
            {"covers": "the search and the released model", "epsilon": _finite(self.with_tuning), "delta": self.delta},
            {"covers": "the final run only, as if its settings had been fixed in advance",
             "epsilon": _finite(self.final_run), "delta": self.delta}]
        return {"settings": self.settings, "failure": self.failure, "accuracy_on_public_data": self.accuracy,
                "guarantees": covers, "trials": None if self.trials is None else list(self.trials)}


class Folder:
    """The folder of one search."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ledger = path / LEDGER

    @classmethod
    def create(cls, path: Path, config: TuneConfig, noise_multiplier: float) -> "Folder":
        """Make the folder with the declared search in it, or refuse one that exists."""
        if path.exists():
            raise InvalidArgument(f"{path} exists. Choose another name, or go on with `dpfy tune --resume {path}`.")
        staged = path.with_name(f"{path.name}.new")
        staged.mkdir(parents=True, exist_ok=True)
        _write(staged / SEARCH, {"search": config.to_json(), "noise_multiplier": noise_multiplier})
        staged.rename(path)
        return cls(path)

    def search(self) -> tuple[TuneConfig, float]:
        """Return what was declared, and the noise that was calibrated for it."""
        if (self.path / RESULT).exists():
            raise InvalidArgument(f"The search in {self.path} has ended; its result is in {RESULT}.")
        try:
            value = json.loads((self.path / SEARCH).read_text(encoding="utf-8"))
            return TuneConfig.from_json(value["search"]), float(value["noise_multiplier"])
        except (OSError, ValueError, TypeError, KeyError):
            raise CheckpointError(f"{self.path} holds no search that could be resumed ({SEARCH} is missing or "
                                  "damaged).") from None

    def trials(self) -> list[dict[str, Any]]:
        """Return the finished trials of a composition; one that failed scores -inf."""
        try:
            found = json.loads((self.path / TRIALS).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return []
        return [{**trial, "score": -math.inf if trial["score"] is None else trial["score"]} for trial in found]

    def keep(self, outcome: Outcome, number: int, best: bool) -> None:
        """Make a finished trial of a composition durable, and its model if it is the best so far."""
        file = f"trial-{number}.safetensors" if best and outcome.model is not None else None
        if file is not None and outcome.model is not None:
            save_model(outcome.model, str(self.path / file))
        trials = [{**trial, "score": _finite(trial["score"]), "model": None if best else trial["model"]}
                  for trial in self.trials()]
        _write(self.path / TRIALS, [*trials, {
            "trial": number, "settings": outcome.settings, "score": _finite(outcome.score),
            "failure": outcome.failure, "model": file, "engine": outcome.engine, "isolation": outcome.isolation}])
        for other in self.path.glob("trial-*.safetensors"):
            if best and other.name != file:
                other.unlink()

    def best(self, rebuilt: Callable[[], Trainer]) -> Outcome | None:
        """Return the best of the trials that are kept, with its model."""
        trials = self.trials()
        if not trials:
            return None
        found = max(trials, key=lambda trial: trial["score"])  # the first of equals, as while running
        model = None
        if found["model"] is not None:
            model = rebuilt().model
            load_model(model, str(self.path / found["model"]))
        return Outcome(found["settings"], found["score"], model, found["engine"], found["isolation"], found["failure"])

    def release(self, best: Outcome | None, config: TuneConfig, base: TrainConfig, draft: Trainer, plan: Plan,
                delta: float) -> TuningResult:
        """Write what is released: a function of the best trial's output, of what was declared and of public data."""
        model = None if best is None else best.model
        accuracy = None
        if model is not None:
            save_model(model, str(self.path / MODEL))
            accuracy = None if draft.data.test is None else accuracy_of(model, draft.data.test)
        final_run = account(Composed.of(plan.envelope), relation=plan.relation).claim(delta)
        chosen = best.settings if best else {}
        statement = report(self.ledger, delta, _facts(self.path.name, config, base.with_flags(chosen), best, draft,
                                                      final_run, delta))
        interval = statement.costs.headline.interval
        trials = None if config.accounting == "select" else tuple(
            {**trial, "score": _finite(trial["score"])} for trial in self.trials())
        result = TuningResult(
            self.path, settings=best.settings if best else None, failure=best.failure if best else None,
            accuracy=accuracy, final_run=final_run, with_tuning=math.inf if interval is None else interval.upper,
            delta=delta, trials=trials)
        statement.write(self.path)
        _write(self.path / "settings.json", base.with_flags(chosen).to_mapping())
        _write(self.path / RESULT, result.to_json())
        for file in self.path.glob("trial-*.safetensors"):
            file.unlink()
        return result


def _facts(name: str, config: TuneConfig, chosen: TrainConfig, best: Outcome | None, draft: Trainer, final_run: float,
           delta: float) -> RunFacts:
    shown = "the models and scores of all trials" if config.accounting == "compose" else (
        "the model and the settings of the best trial, and nothing about the others")
    score = "for the scores of trials and for evaluation" if config.score == "public" else "for evaluation"
    return RunFacts(
        name=name, title=f"Privacy report: {name}", dataset=draft.data.description, record=draft.data.unit,
        released=shown, engine=(best and best.engine) or "not known: the trial failed",
        isolation=(best and best.isolation) or "not known: the trial failed",
        model=f"{type(draft.model).__name__} with {sum(p.numel() for p in draft.model.parameters()):,} parameters",
        hyperparameters={key: value for key, value in chosen.to_mapping().items() if key != "data_dir"},
        hyperparameter_selection=_selection(config, final_run, delta),
        public_data="none" if draft.data.test is None else f"the held-out test records, {score}")


def _selection(config: TuneConfig, final_run: float, delta: float) -> str:
    searched = ", ".join(config.space.settings)
    if config.accounting == "select":
        how = (f"the best of a secret number of independent trials, drawn from a {config.law} law of mean "
               f"{config.trials:g}")
    else:
        how = f"the best of {config.trials:g} trials ({config.proposals} proposals), all of which are counted"
    return (f"counted in this ledger: {searched} are those of {how}; the score is {config.score}. The final run only, "
            f"had its settings been fixed in advance, would be ({math.ceil(final_run * 1e4) / 1e4:.4f}, {delta:g})-DP")


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _write(path: Path, value: Any) -> None:
    """Replace a file at once."""
    draft = path.with_name(f"{path.name}.draft")
    draft.write_text(json.dumps(value, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    draft.replace(path)
