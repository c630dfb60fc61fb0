"""Train on the digits with batch normalisation whose statistics are released beside the gradient.

Diff it with base.py: BatchNorm is swapped before the optimizer is made, and the plan declares what
its layers release."""

import math

import torch
import torch.nn.functional as F
from torch import nn

import dpfy
from dpfy.data import digits

torch.manual_seed(0)  # the initial weights; noise and samples come from a generator of their own
source = digits()
model = nn.Sequential(
    nn.Flatten(), nn.Linear(64, 64), nn.BatchNorm1d(64, momentum=0.2), nn.ReLU(), nn.Linear(64, 10)
)
model = dpfy.fix(model, batchnorm="private")
opt = torch.optim.SGD(model.parameters(), lr=0.25, momentum=0.9)

plan = dpfy.dpsgd(
    records=1437, batch_size=512, epochs=8, statistics=dpfy.batchnorm_statistics(model)
).calibrate(epsilon=3.0, delta=1e-5)
run = dpfy.privatize(model, opt, source.train, plan, ledger="private_batchnorm.dpl")


def loss_fn(x, y):
    """Return one loss for each record."""
    return F.cross_entropy(model(x), y, reduction="none")


for batch in run:
    opt.zero_grad()
    run.backward(loss_fn, batch)  # the layers take in what it released of their inputs
    opt.step()

epsilon = math.ceil(run.spent(delta=1e-5).upper * 1000) / 1000  # a claim is rounded up
run.close()
x, y = source.test.tensors  # public records
with torch.no_grad():
    accuracy = (model(x).argmax(1) == y).float().mean()
print(f"{plan.steps} steps, epsilon {epsilon:.3f} at delta 1e-5, public accuracy {accuracy:.1%}")
