"""Small problems for recipes, under filters that cost nothing to set up."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import dpfy
from dpfy.accounting import ZcdpFilter
from dpfy.recipes import RecipeControlled


class Descent:
    """A run on 40 records of least squares; the plan's steps cost ρ = 1/8 each."""

    def __init__(self, rho=100.0, steps=50, rate=1.0, data=None, controllers=None):
        torch.manual_seed(0)
        x = torch.randn(40, 2)
        self.data = data or TensorDataset(x, x @ torch.tensor([1.0, -2.0]))
        self.model = nn.Linear(2, 1, bias=False)
        nn.init.zeros_(self.model.weight)
        plan = dpfy.dpsgd(
            rate=rate,
            divisor=40 * rate,
            records=40,
            steps=steps,
            noise_multiplier=2.0,
            controllers=[RecipeControlled()] if controllers is None else controllers,
        )
        self.ledger = dpfy.Ledger.in_memory()
        optimizer = torch.optim.SGD(self.model.parameters(), lr=1.0)
        self.run = dpfy.privatize(
            self.model,
            optimizer,
            self.data,
            plan.under(ZcdpFilter(rho)),
            self.ledger,
            insecure_test_key=1,
        )

    def loss(self, x, y):
        return (self.model(x).squeeze(1) - y).square()
