"""Train a GAN on the digits (DP-GAN): the discriminator is private, so the generator is too.

For each digit the discriminator has a score of how real an image of it is. The generator learns
from these scores alone, which makes it post-processing: it has an optimizer of its own. A ledger
belongs to one run: remove gan.dpl* before you run it again.
"""

import math

import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression
from torch import nn

import dpfy
from dpfy.data import digits

NOISE, FAKES, CLASSES, PIXELS = 8, 16, 10, 64

torch.manual_seed(0)  # of the networks and of what the generator is given; not of private noise
source = digits()
discriminator = nn.Sequential(
    nn.Flatten(), nn.Linear(PIXELS, 64), nn.LeakyReLU(0.2), nn.Linear(64, CLASSES)
)
generator = nn.Sequential(
    nn.Linear(NOISE + CLASSES, 64), nn.ReLU(), nn.Linear(64, PIXELS), nn.Sigmoid()
)
private = torch.optim.Adam(discriminator.parameters(), lr=0.01, betas=(0.0, 0.9))
public = torch.optim.Adam(generator.parameters(), lr=0.002, betas=(0.0, 0.9))


def drawn(classes):
    """Return an image of each class that is named."""
    return generator(torch.cat([torch.randn(len(classes), NOISE), torch.eye(CLASSES)[classes]], 1))


def judged(images, classes):
    """Return the score of each image as one of its class."""
    return discriminator(images).gather(1, classes[:, None]).squeeze(1)


def loss_fn(x, y):
    """Return one loss for each record, which is real."""
    return F.softplus(-judged(x, y))


classes = torch.arange(CLASSES).repeat(FAKES)
plan = dpfy.dpsgd(records=1437, batch_size=256, epochs=60).calibrate(epsilon=3.0, delta=1e-5)
run = dpfy.privatize(discriminator, private, source.train, plan, ledger="gan.dpl")
for batch in run:
    private.zero_grad()
    run.backward(loss_fn, batch)
    with run.public():  # what the generator draws follows from released models
        F.softplus(judged(drawn(classes).detach(), classes)).mean().backward()
    private.step()
    public.zero_grad()
    F.softplus(-judged(drawn(classes), classes)).mean().backward(
        inputs=list(generator.parameters())  # the discriminator keeps no gradient of this
    )
    public.step()

epsilon = math.ceil(run.spent(delta=1e-5).upper * 1000) / 1000  # a claim is rounded up
run.close()
labels = torch.arange(CLASSES).repeat(100)
with torch.no_grad():
    images = drawn(labels)
student = LogisticRegression(max_iter=1000).fit(images, labels)
x, y = source.test.tensors  # public records
accuracy = student.score(x.flatten(1), y)
print(f"{plan.steps} steps, epsilon {epsilon:.3f} at delta 1e-5, public accuracy {accuracy:.1%}")
