"""Protect people who have several records each: all that one of them has is one unit."""

import math

import torch
import torch.nn.functional as F

import dpfy
from dpfy.accounting.group import group_epsilon
from dpfy.data import digits
from dpfy.models import digits_mlp

torch.manual_seed(0)  # the initial weights; noise and samples come from a generator of their own
source = digits()
writers = [
    index // 3 for index in range(len(source.train))
]  # as if everybody had written three digits
model = digits_mlp()
opt = torch.optim.SGD(model.parameters(), lr=0.25, momentum=0.9)

plan = dpfy.dpsgd(records=479, batch_size=171, epochs=8, unit="user").calibrate(
    epsilon=3.0, delta=1e-5
)
run = dpfy.privatize(
    model, opt, source.train, plan, ledger="user_level.dpl", unit_of=writers, rows_per_user=3
)


def loss_fn(x, y):
    """Return one loss for each record; a writer's loss is the mean over theirs."""
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
print(
    "steps of the same kind on records would protect a writer at epsilon "
    f"{group_epsilon(plan, 3, 1e-5):.1f}"
)
