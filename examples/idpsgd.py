"""Give groups of records an ε of their own each (IDP-SGD): cautious groups are drawn less often.

A ledger belongs to one run: remove idpsgd.dpl* before you run it again.
"""

import math
import random

import torch
import torch.nn.functional as F

import dpfy
from dpfy.data import digits
from dpfy.models import digits_mlp

torch.manual_seed(0)  # the initial weights; noise and samples come from a generator of their own
source = digits()
model = digits_mlp()
opt = torch.optim.SGD(model.parameters(), lr=0.25, momentum=0.9)

groups = {"strict": (1.0, 0.34), "usual": (2.0, 0.43), "open": (3.0, 0.23)}  # name: (ε, share)
labels = random.Random(0).choices(  # who chose what is public
    [*groups], [share for _, share in groups.values()], k=1437
)
plan = dpfy.idpsgd(
    records=1437, batch_size=512, epochs=8, groups=groups, method="sample", delta=1e-5
)
for name, rate in zip(plan.sampling.names, plan.sampling.rates, strict=True):
    print(f"{name}: epsilon at most {groups[name][0]}, in a step with probability {rate:.2f}")
run = dpfy.privatize(model, opt, source.train, plan, ledger="idpsgd.dpl", group_of=labels)


def loss_fn(x, y):
    """Return one loss for each record."""
    return F.cross_entropy(model(x), y, reduction="none")


for batch in run:
    opt.zero_grad()
    run.backward(loss_fn, batch)
    opt.step()

spent = run.spent(delta=1e-5).groups  # one for each group
run.close()
x, y = source.test.tensors  # public records
with torch.no_grad():
    accuracy = (model(x).argmax(1) == y).float().mean()
epsilon = ", ".join(f"{n} {math.ceil(e.upper * 1000) / 1000:.3f}" for n, e in spent.items())
print(f"{plan.steps} steps, epsilon {epsilon} at delta 1e-5, public accuracy {accuracy:.1%}")
