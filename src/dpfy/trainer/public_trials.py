"""Try settings on public or proxy data, where it costs no privacy."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from dpfy.errors import InvalidArgument
from dpfy.ledger import Ledger
from dpfy.planning.strategies import Trial
from dpfy.plans import dpsgd
from dpfy.run.privatize import privatize
from dpfy.trainer.builders import accuracy_of, load_data, make_model
from dpfy.trainer.config import TrainConfig

_UNCLIPPED = 1e4  # a bound that no sensible gradient reaches


@dataclass(frozen=True)
class Rehearsal:
    """Train a new classifier for each trial, with its clipping and noise, and measure it.

    *Assumes* that ``train`` and ``test`` are public or proxy data: the accuracy is not private, and
    no ledger is kept. Proxy data that are smaller than the batch are taken whole, with the same
    noise in the mean gradient.

    Args:
        model: Makes a new model at each call.
        train: The public data set to train on.
        test: The public data set to measure the accuracy on.
        momentum: The momentum of SGD, in [0, 1).
        seed: The seed of the initial weights.
        example_input: Declares the shape of a record; see :func:`dpfy.privatize`.
    """

    model: Callable[[], nn.Module]
    train: Any
    test: Any
    momentum: float = 0.9
    seed: int = 0
    example_input: Any = None

    @classmethod
    def named(cls, data: str, model: str | None = None, data_dir: str | None = None) -> "Rehearsal":
        """Return the rehearsal on a reference data set, or on ``module:loader`` of two sets."""
        # The number of records matters for private runs only.
        config = TrainConfig(data=data, model=model, data_dir=data_dir, records=1)
        loaded = load_data(config, None, None)
        if loaded.test is None:
            raise InvalidArgument(
                f"Expected {data} to return a pair of data sets: one to train on, one to measure "
                "on."
            )
        return cls(
            lambda: make_model(config, loaded),
            loaded.train,
            loaded.test,
            example_input=loaded.example,
        )

    def __call__(self, trial: Trial) -> float:
        """Train and measure; a run that diverges has accuracy 0."""
        torch.manual_seed(self.seed)
        model = self.model()
        optimizer = torch.optim.SGD(
            [p for p in model.parameters() if p.requires_grad],
            lr=trial.learning_rate,
            momentum=self.momentum,
        )
        records = len(self.train)
        batch = min(trial.batch_size, records)
        plan = dpsgd(
            records=records,
            batch_size=batch,
            steps=trial.steps,
            clip=trial.clip or _UNCLIPPED,
            noise_multiplier=trial.noise_multiplier * batch / trial.batch_size,
        )
        with privatize(
            model, optimizer, self.train, plan, Ledger.in_memory(), example_input=self.example_input
        ) as run:
            for step in run:
                optimizer.zero_grad()
                run.backward(lambda x, y: F.cross_entropy(model(x), y, reduction="none"), step)
                optimizer.step()
                if not all(bool(p.isfinite().all()) for p in model.parameters()):
                    return 0.0
        return accuracy_of(model, self.test)
