"""Descend without a learning rate: a private search shortens steps until the loss falls.

A ledger belongs to one run: remove line_search.dpl* before you run it again.
"""

import math

import torch
import torch.nn.functional as F

import dpfy
from dpfy.data import digits
from dpfy.models import digits_mlp
from dpfy.recipes import Backtracking, RecipeControlled, line_search

torch.manual_seed(0)  # the initial weights; noise and samples come from a generator of their own
source = digits()
model = digits_mlp()
opt = torch.optim.SGD(model.parameters(), lr=1.0)  # says what is trained; it takes no step

plan = dpfy.dpsgd(records=1437, sampling="full", steps=15, controllers=[RecipeControlled()])
plan = plan.calibrate(epsilon=3.0, delta=1e-5)  # under a filter: noise follows outputs
run = dpfy.privatize(model, opt, source.train, plan, ledger="line_search.dpl")


def loss_fn(x, y):
    """Return one loss for each record."""
    return F.cross_entropy(model(x), y, reduction="none")


for taken in line_search(run, loss_fn, backtracking=Backtracking(first=4.0)):
    released = taken.released
    noise = released.noise_multiplier
    print(f"step {released.step}: length {taken.step_size:.2f}, noise {noise:.1f}")

epsilon = math.ceil(run.spent(delta=1e-5).upper * 1000) / 1000  # a claim is rounded up
run.close()
x, y = source.test.tensors  # public records
with torch.no_grad():
    accuracy = (model(x).argmax(1) == y).float().mean()
print(f"{run.steps_taken} gradients, epsilon {epsilon:.3f}, public accuracy {accuracy:.1%}")
