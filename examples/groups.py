"""Clip and noise every layer by itself: larger layers get larger bounds, and the noise follows the
dimensions.

A ledger belongs to one run: remove groups.dpl* before you run it again.
"""

import math

import torch
import torch.nn.functional as F

import dpfy
from dpfy.data import digits
from dpfy.models import digits_mlp

torch.manual_seed(0)  # the initial weights; noise and samples come from a generator of their own
source = digits()
model = digits_mlp()
opt = torch.optim.SGD(model.parameters(), lr=0.25, momentum=0.9)

groups = dpfy.clip_groups(model, by="layer", bounds="dimension", noise="dimension")
for group in groups:
    print(f"layer {group.name}: bound {group.bound:.3f}, parameters {', '.join(group.parameters)}")
plan = dpfy.dpsgd(records=1437, batch_size=512, epochs=8, clip=groups).calibrate(
    epsilon=3.0, delta=1e-5
)
run = dpfy.privatize(model, opt, source.train, plan, ledger="groups.dpl")


def loss_fn(x, y):
    """Return one loss for each record."""
    return F.cross_entropy(model(x), y, reduction="none")


for batch in run:
    opt.zero_grad()
    run.backward(loss_fn, batch)
    opt.step()

epsilon = math.ceil(run.spent(delta=1e-5).upper * 1000) / 1000  # a claim is rounded up
run.close()
x, y = source.test.tensors  # public records
with torch.no_grad():
    accuracy = (model(x).argmax(1) == y).float().mean()
print(f"{plan.steps} steps, epsilon {epsilon:.3f} at delta 1e-5, public accuracy {accuracy:.1%}")
