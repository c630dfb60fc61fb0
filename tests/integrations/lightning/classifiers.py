"""Modules that the tests train."""

import lightning.pytorch as pl
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import dpfy


def records(count: int = 120) -> TensorDataset:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(count, 6, generator=generator)
    return TensorDataset(x, (x[:, 0] > 0).long())


def plan(steps: int = 9, **options) -> dpfy.Plan:
    return dpfy.dpsgd(records=120, batch_size=30, steps=steps, noise_multiplier=1.0, **options)


class Classifier(pl.LightningModule):
    """A module as one has it for plain training, with per_example_loss beside training_step."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.body = nn.Linear(6, 8)
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        return self.head(torch.tanh(self.body(x)))

    def per_example_loss(self, x, y):
        return cross_entropy(self(x), y, reduction="none")

    def training_step(self, batch, index):
        raise AssertionError("would read records that were not paid for")

    def configure_optimizers(self):
        opt = torch.optim.SGD(self.parameters(), lr=0.5, momentum=0.5)
        schedule = torch.optim.lr_scheduler.LinearLR(opt, 1.0, 0.1, total_iters=9)
        return {"optimizer": opt, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Validated(Classifier):
    def validation_step(self, batch, index):
        self.log("seen", self.per_example_loss(*batch).mean())


def weights(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in module.state_dict().items()}
