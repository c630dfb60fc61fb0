"""Let every record pay by its own gradient, and leave when its own budget is used (individual
filter); on full batches, where costs are exact.

A ledger belongs to one run: remove individual.dpl* before you run it again.
"""

import math

import torch
import torch.nn.functional as F

import dpfy
from dpfy.accounting import IndividualFilter
from dpfy.data import digits
from dpfy.models import digits_mlp

torch.manual_seed(0)  # the initial weights; noise and samples come from a generator of their own
source = digits()
model = digits_mlp()
opt = torch.optim.SGD(model.parameters(), lr=0.25, momentum=0.9)

plan = dpfy.dpsgd(records=1437, sampling="full", steps=23).calibrate(epsilon=3.0, delta=1e-5)
rule = IndividualFilter.tuned(epsilon=3.0, delta=1e-5, to=plan.envelope, refresh_epochs=8)
plan = plan.under(rule)
run = dpfy.privatize(model, opt, source.train, plan, ledger="individual.dpl")


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
