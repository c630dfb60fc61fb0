"""Train with clients that compute updates themselves; all that a client has is one unit."""

import math

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

import dpfy
from dpfy.data import digits
from dpfy.federated import Simulation
from dpfy.models import digits_mlp

torch.manual_seed(0)  # the initial weights; noise and samples come from a generator of their own
source = digits()
writers = [
    index // 3 for index in range(len(source.train))
]  # as if everybody had written three digits
model = digits_mlp()
opt = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)  # of the server

plan = dpfy.dpsgd(records=479, batch_size=171, epochs=3, clip=0.5, unit="user").calibrate(
    epsilon=3.0, delta=1e-5
)


def train(model, rows):
    """Train a client's copy of the model on its own rows, in place."""
    local = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in DataLoader(rows, batch_size=1, shuffle=True):
        local.zero_grad()
        F.cross_entropy(model(x), y).backward()
        local.step()


clients = Simulation(source.train, train, unit_of=writers)
server = dpfy.federate(model, opt, plan, ledger="federated.dpl", clients=clients.clients)
for cohort in server:
    clients.answer(cohort)
    server.step(cohort)

epsilon = math.ceil(server.spent(delta=1e-5).upper * 1000) / 1000  # a claim is rounded up
server.close()
x, y = source.test.tensors  # public records
with torch.no_grad():
    accuracy = (model(x).argmax(1) == y).float().mean()
print(f"{plan.steps} rounds, epsilon {epsilon:.3f} at delta 1e-5, public accuracy {accuracy:.1%}")
