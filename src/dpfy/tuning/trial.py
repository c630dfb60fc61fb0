"""Carry out one trial of a search: a silent run of the trainer, without files, in a paid ledger.

Tests: tests/tuning/test_search.py.
"""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from dpfy.errors import InvalidArgument, LedgerError
from dpfy.ledger import Ledger
from dpfy.plans import Plan
from dpfy.run.privatize import privatize
from dpfy.trainer.builders import accuracy_of
from dpfy.trainer.config import TrainConfig
from dpfy.trainer.objectives import TASKS
from dpfy.trainer.trainer import Trainer
from dpfy.tuning.space import Scalar


@dataclass(frozen=True)
class Objects:
    """Objects that replace those that the settings name; ``model`` makes a new one at each call."""

    model: Callable[[], nn.Module] | None = None
    train: Any = None
    test: Any = None
    unit_of: Any = None

    def fresh(self) -> dict[str, Any]:
        """Return them for one trainer, with a model of its own."""
        return {
            "model": self.model and self.model(),
            "train": self.train,
            "test": self.test,
            "unit_of": self.unit_of,
        }


@dataclass(frozen=True)
class Outcome:
    """The release of a trial: a model, or its failure, which is an outcome that scores lowest."""

    settings: dict[str, Scalar]
    score: float
    model: nn.Module | None = None
    engine: str = ""
    isolation: str = ""
    failure: str | None = None


class Trial(Trainer):
    """A trainer whose noise is that of the whole search."""

    def __init__(
        self, config: TrainConfig, objects: Objects, noise_multiplier: float | None = None
    ) -> None:
        self._noise_multiplier = noise_multiplier
        super().__init__(config, **objects.fresh())
        if self.objective is not TASKS["classification"]:
            raise InvalidArgument(
                "A search compares accuracies: expected task='classification', without a loss or a "
                "metric of your own."
            )

    def _make_plan(self) -> Plan:
        # The draft that is checked before the search is calibrated like a run, which settles δ; a
        # trial has the noise of the search.
        plan = super()._make_plan() if self._noise_multiplier is None else self._uncalibrated()
        return replace(plan, noise_multiplier=self._noise_multiplier, budget=None)

    def outcome(
        self,
        ledger: Ledger,
        settings: dict[str, Scalar],
        score: str,
        insecure_test_key: bytes | None = None,
    ) -> Outcome:
        """Take all steps and score what they released."""
        accuracies: deque[float] = deque(maxlen=self.plan.steps_per_epoch)
        with privatize(
            self.model,
            self.optimizer,
            self.data.train,
            self.plan,
            ledger,
            announce=False,
            insecure_test_key=insecure_test_key,
            **self._options(),
        ) as run:
            for released, _ in self._walk(run):
                if self.average is not None:
                    self.average.update_parameters(self.model)
                if score == "private":
                    accuracies.append(float(released.statistics["accuracy"]))
            model = self._evaluated_model()
            found = (
                math.fsum(accuracies) / len(accuracies)
                if accuracies
                else accuracy_of(model, self.data.test)
            )
            return Outcome(
                settings,
                found if math.isfinite(found) else -math.inf,
                model,
                run.engine,
                run.isolation,
            )


def try_settings(
    config: TrainConfig,
    settings: dict[str, Scalar],
    noise_multiplier: float,
    score: str,
    objects: Objects,
    ledger: Ledger,
    insecure_test_key: bytes | None = None,
) -> Outcome:
    """Carry out one trial; an error inside it is its outcome, and it is not repeated.

    A repeated trial would be one that is not counted. An error of the ledger is not the trial's: it
    ends the search.
    """
    try:
        trial = Trial(config.with_flags(settings), objects, noise_multiplier)
        return trial.outcome(ledger, settings, score, insecure_test_key)
    except LedgerError:
        raise
    except (Exception, SystemExit) as error:
        return Outcome(settings, -math.inf, failure=type(error).__name__)
