"""A clip bound for every layer, each at a quantile of that layer's norms.

A ledger belongs to one run: remove layer_quantiles.dpl* before you run it again.
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

layers = dpfy.clip_groups(model, by="layer")
quantiles = dpfy.QuantileClipping(quantile=0.6, share=0.05)
plan = dpfy.dpsgd(records=1437, batch_size=512, epochs=8, clip=layers, controllers=[quantiles])
plan = plan.calibrate(epsilon=3.0, delta=1e-5)
run = dpfy.privatize(model, opt, source.train, plan, ledger="layer_quantiles.dpl")


def loss_fn(x, y):
    """Return one loss for each record."""
    return F.cross_entropy(model(x), y, reduction="none")


for batch in run:
    opt.zero_grad()
    released = run.backward(loss_fn, batch)
    opt.step()
print("bounds of the layers:", ", ".join(f"{bound:.2f}" for bound in released.bounds.values()))

epsilon = math.ceil(run.spent(delta=1e-5).upper * 1000) / 1000  # a claim is rounded up
run.close()
x, y = source.test.tensors  # public records
with torch.no_grad():
    accuracy = (model(x).argmax(1) == y).float().mean()
print(f"{plan.steps} steps, epsilon {epsilon:.3f} at delta 1e-5, public accuracy {accuracy:.1%}")
