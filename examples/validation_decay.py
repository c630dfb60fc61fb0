"""Lower the noise when the public accuracy stops rising, until the budget ends.

A ledger belongs to one run: remove validation_decay.dpl* before you run it again.
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

plan = dpfy.dpsgd(
    records=1437,
    batch_size=512,
    epochs=8,
    controllers=[dpfy.ValidationDecay(factor=0.8, threshold=0.02)],
)
plan = plan.calibrate(epsilon=3.0, delta=1e-5)  # under a filter: the noise is chosen from outputs
run = dpfy.privatize(model, opt, source.train, plan, ledger="validation_decay.dpl")


def loss_fn(x, y):
    """Return one loss for each record."""
    return F.cross_entropy(model(x), y, reduction="none")


x, y = source.test.tensors  # public records
for batch in run:
    opt.zero_grad()
    released = run.backward(loss_fn, batch)
    opt.step()
    if batch.step % plan.steps_per_epoch == 0:
        with torch.no_grad():
            accuracy = (model(x).argmax(1) == y).float().mean()
        run.measured(float(accuracy))
        noise = released.noise_multiplier
        print(f"step {batch.step}: accuracy {accuracy:.1%}, noise multiplier {noise:.2f}")

epsilon = math.ceil(run.spent(delta=1e-5).upper * 1000) / 1000  # a claim is rounded up
with torch.no_grad():
    accuracy = (model(x).argmax(1) == y).float().mean()
steps = run.steps_taken
run.close()
print(f"{steps} steps, epsilon {epsilon:.3f} at delta 1e-5, public accuracy {accuracy:.1%}")
