"""Pay for a run from the budget of its data set, which several runs share."""

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

plan = dpfy.dpsgd(records=1437, batch_size=512, epochs=8).calibrate(epsilon=3.0, delta=1e-5)
book = dpfy.BudgetBook.open("sqlite:///team.db")
book.create("digits-2026", unit="record", epsilon=8.0, delta=1e-5)  # a steward, once
grant = book.reserve("digits-2026", plan, purpose="an example")  # before a record is read
run = dpfy.privatize(model, opt, source.train, plan, ledger="team.dpl", grant=grant)


def loss_fn(x, y):
    """Return one loss for each record."""
    return F.cross_entropy(model(x), y, reduction="none")


for batch in run:
    opt.zero_grad()
    run.backward(loss_fn, batch)
    opt.step()

epsilon = math.ceil(run.spent(delta=1e-5).upper * 1000) / 1000  # a claim is rounded up
run.close()  # the book is told what was used, and frees the rest
try:
    while True:
        book.reserve("digits-2026", plan, purpose="one more")
except dpfy.errors.BudgetExhausted:
    shown = book.show("digits-2026")
    print(f"{shown.spent:.2f} of 8 are spent, {len(shown.grants) - 1} more such runs have room")
book.close()
x, y = source.test.tensors  # public records
with torch.no_grad():
    accuracy = (model(x).argmax(1) == y).float().mean()
print(f"{plan.steps} steps, epsilon {epsilon:.3f} at delta 1e-5, public accuracy {accuracy:.1%}")
