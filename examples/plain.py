"""The loop without privacy, for comparison: the diff to base.py is what privacy changes."""

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

from dpfy.data import digits
from dpfy.models import digits_mlp

torch.manual_seed(0)  # the initial weights and the order of the records
source = digits()
model = digits_mlp()
opt = torch.optim.SGD(model.parameters(), lr=0.25, momentum=0.9)

loader = DataLoader(source.train, batch_size=512, shuffle=True)


def loss_fn(x, y):
    """Return one loss for each record."""
    return F.cross_entropy(model(x), y, reduction="none")


for _ in range(8):
    for x, y in loader:
        opt.zero_grad()
        loss_fn(x, y).mean().backward()
        opt.step()

x, y = source.test.tensors  # public records
with torch.no_grad():
    accuracy = (model(x).argmax(1) == y).float().mean()
print(f"no privacy, public accuracy {accuracy:.1%}")
