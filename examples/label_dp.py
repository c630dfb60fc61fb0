"""Protect labels alone: noisy ones are drawn once, and training on them is ordinary.

A ledger belongs to one run: remove label_dp.dpl* before you run it again.
"""

import math

import torch
import torch.nn.functional as F

import dpfy
from dpfy.data import digits
from dpfy.labels import randomized_response
from dpfy.models import digits_mlp

torch.manual_seed(0)  # the initial weights; noise comes from a generator of its own
source = digits()
model = digits_mlp()
opt = torch.optim.SGD(model.parameters(), lr=0.25, momentum=0.9)

x, y = source.train.tensors  # features are public, and only labels are private
noisy = randomized_response(y, classes=10, epsilon=3.0, ledger="label_dp.dpl")


def loss_fn(x, y):
    """Return one loss for each record."""
    return F.cross_entropy(model(x), y, reduction="none")


for _ in range(40):
    opt.zero_grad()
    loss_fn(x, noisy).mean().backward()
    opt.step()

epsilon = math.ceil(dpfy.account("label_dp.dpl").claim(1e-5) * 1000) / 1000  # rounded up
x, y = source.test.tensors  # public records
with torch.no_grad():
    accuracy = (model(x).argmax(1) == y).float().mean()
print(f"labels alone, epsilon {epsilon:.3f} at delta 1e-5, public accuracy {accuracy:.1%}")
