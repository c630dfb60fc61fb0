"""Your own data set: records of different lengths, some of which do not load."""

import math

import torch
import torch.nn.functional as F
from torch.utils.data import Dataset

import dpfy
from dpfy.data import digits
from dpfy.models import digits_mlp

torch.manual_seed(0)  # the initial weights; noise and samples come from a generator of their own
source = digits()


class Scans(Dataset):
    """Pixels up to the last dark one; every hundredth file is damaged."""

    example_input = (
        torch.zeros(1, 1, 8, 8),
        torch.zeros(1, dtype=torch.long),
    )  # the public shape of a collated batch

    def __len__(self):
        return 1437

    def __getitem__(self, index):
        if index % 100 == 0:
            raise OSError("damaged")  # contributes zero to its step, and nobody is told
        image, label = source.train[index]
        return image.flatten()[: int(image.flatten().nonzero().max()) + 1], label


def collate(records):
    """Pad to 64, a public constant; the longest of the batch would be a fact about a neighbour."""
    pixels = torch.stack([F.pad(pixels, (0, 64 - len(pixels))) for pixels, _ in records])
    return pixels.view(-1, 1, 8, 8), torch.stack([label for _, label in records])


model = digits_mlp()
opt = torch.optim.SGD(model.parameters(), lr=0.25, momentum=0.9)

plan = dpfy.dpsgd(records=1437, batch_size=512, epochs=8).calibrate(epsilon=3.0, delta=1e-5)
run = dpfy.privatize(model, opt, Scans(), plan, ledger="own_dataset.dpl", collate_fn=collate)


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
