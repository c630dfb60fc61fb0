"""One trial of a search: a run of the trainer's, in a ledger that is paid for, without files and
without a word.
"""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from dpfy.errors import LedgerError
from dpfy.ledger import Ledger
from dpfy.plans import Plan
from dpfy.run.privatize import privatize
from dpfy.trainer.builders import accuracy_of
from dpfy.trainer.config import TrainConfig
from dpfy.trainer.trainer import Trainer
from dpfy.tuning.space import Scalar


@dataclass(frozen=True)
class Objects:
    """What may be given as objects in the place of what the settings name; a model as the function
    that makes one.
    """

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
    """What a trial released: a model, or that it failed, which is an outcome like any other and
    scores lowest.
    """

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

    def _make_plan(self) -> Plan:
        # What is checked before the search is calibrated like a run, which settles δ; a trial has
        # its noise.
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
    """Carry out one trial; whatever goes wrong inside is its outcome, and it is not repeated.

    A trial that were drawn again would be a trial that is not counted. What goes wrong with the
    ledger is not the trial's: it ends the search.
    """
    try:
        trial = Trial(config.with_flags(settings), objects, noise_multiplier)
        return trial.outcome(ledger, settings, score, insecure_test_key)
    except LedgerError:
        raise
    except (Exception, SystemExit) as error:
        return Outcome(settings, -math.inf, failure=type(error).__name__)
