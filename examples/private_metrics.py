"""Watch accuracy, loss, classes and gradient norms of the private samples, released beside the
gradient.

A ledger belongs to one run: remove private_metrics.dpl* before you run it again.
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

statistics = [dpfy.Statistic("accuracy"), dpfy.Statistic("loss", bound=4.0)]
statistics += [dpfy.RecordNormsBelow(thresholds=(1.0, 2.0), every=4)]
plan = dpfy.dpsgd(records=1437, batch_size=512, epochs=8, statistics=statistics)
plan = plan.calibrate(epsilon=3.0, delta=1e-5)
run = dpfy.privatize(model, opt, source.train, plan, ledger="private_metrics.dpl")


def loss_fn(x, y):
    """Return one loss for each record, and what else each record has to say."""
    scores = model(x)
    loss = F.cross_entropy(scores, y, reduction="none")
    return dpfy.Losses(loss, stats={"accuracy": dpfy.soft_accuracy(scores, y), "loss": loss})


for batch in run:
    opt.zero_grad()
    released = run.backward(loss_fn, batch).statistics  # noisy sums over the expected batch size
    opt.step()
    if "norms below" in released:
        accuracy, loss, below = (
            released["accuracy"],
            released["loss"],
            0.5 + released["norms below"],
        )
        print(
            f"step {batch.step}: accuracy {accuracy:.0%}, loss {loss:.2f}, norms {below.tolist()}"
        )

epsilon = math.ceil(run.spent(delta=1e-5).upper * 1000) / 1000  # a claim is rounded up
run.close()
x, y = source.test.tensors  # public records
with torch.no_grad():
    accuracy = (model(x).argmax(1) == y).float().mean()
print(f"{plan.steps} steps, epsilon {epsilon:.3f} at delta 1e-5, public accuracy {accuracy:.1%}")
