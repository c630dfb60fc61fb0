"""Small models whose gradients are known, and runs on them."""

import os

import torch
from torch import nn
from torch.utils.data import TensorDataset

import dpfy


class Dot(nn.Module):
    """One weight vector; with :func:`dot_loss` the gradient of a record is the record itself."""

    def __init__(self, dimension: int = 3) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(dimension))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


def chosen_device() -> str:
    """The device that ``DPFY_TEST_DEVICE`` names: ``cpu`` (default), ``pretend`` or ``cuda``."""
    name = os.environ.get("DPFY_TEST_DEVICE", "cpu")
    if name == "pretend":
        import pretend  # noqa: F401  # which makes the device known to torch
    return name


class Started:
    """A model, its optimizer and the run over them, with the data on the tested device."""

    def __init__(self, data, *, dimension=3, model=None, key=1, ledger=None, plan=None, **options):
        noise = options.pop("noise_multiplier", 0.0)
        steps = options.pop("steps", 5)
        clip = options.pop("clip", 1.0)
        rate = options.pop("rate", 1.0)
        microbatches = options.pop("microbatches", None)
        self.device = chosen_device()
        self.model = (model or Dot(dimension)).to(self.device)
        if type(data) is TensorDataset:
            data = TensorDataset(*(tensor.to(self.device) for tensor in data.tensors))
        self.opt = torch.optim.SGD(self.model.parameters(), lr=1.0)
        self.plan = plan or dpfy.dpsgd(
            rate=rate,
            divisor=1,
            steps=steps,
            clip=clip,
            noise_multiplier=noise,
            microbatches=microbatches,
        )
        if not isinstance(data, TensorDataset) and not hasattr(data, "example_input"):
            options.setdefault(
                "example_input", torch.zeros(1, dimension)
            )  # records are rows of numbers
        self.ledger = dpfy.Ledger.in_memory() if ledger is None else ledger
        self.run = dpfy.privatize(
            self.model, self.opt, data, self.plan, self.ledger, insecure_test_key=key, **options
        )

    def loss(self, x, *_):
        return self.model(x.to(self.device))

    def release(self, loss_fn=None):
        """The flat released gradient of the next batch."""
        released = self.run.release(loss_fn or self.loss, next(iter(self.run)))
        return torch.cat([gradient.flatten() for gradient in released.gradients.values()]).cpu()
