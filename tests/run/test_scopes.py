"""A run trains inside a scope as it does with a ledger of its own."""

import pytest
import torch
from torch.nn import functional as F

import dpfy
from dpfy.errors import LedgerMismatch
from dpfy.ledger.composite_events import Composed
from dpfy.ledger.scopes import Selection, composition
from dpfy.ledger.selection import NegativeBinomialTrials, Selected

PLAN = dpfy.dpsgd(records=32, batch_size=8, epochs=1, clip=1.0, noise_multiplier=1.0)
RUN = Composed.of(PLAN.envelope)


def train(ledger, plan=PLAN):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    data = torch.utils.data.TensorDataset(torch.randn(32, 3), torch.randint(0, 2, (32,)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    run = dpfy.privatize(model, optimizer, data, plan, ledger=ledger)
    for batch in run:
        optimizer.zero_grad()
        run.backward(lambda x, y: F.cross_entropy(model(x), y, reduction="none"), batch)
        optimizer.step()
    run.close()


def test_trials_of_a_selection_train_and_leave_no_line(tmp_path):
    """Fails if a trial writes to the outer ledger, or if the declared run is not the plan's."""
    path = tmp_path / "tuning.dpl"
    event = Selected(RUN, NegativeBinomialTrials.with_mean(3.0))
    with dpfy.Ledger.open(path) as ledger, Selection(ledger, event, draw=lambda: 2) as trials:
        for trial in trials:
            train(trial)
            assert trial.count == PLAN.steps
    outer = dpfy.Ledger.read(path)
    assert (outer.count, outer.lines) == (1, 4)
    assert dpfy.account(PLAN).claim(1e-5) < dpfy.account(outer).claim(1e-5) < float("inf")


def test_another_plan_is_refused_before_records_are_read():
    with dpfy.Ledger.in_memory() as ledger:
        other = dpfy.dpsgd(records=32, batch_size=8, epochs=1, clip=1.0, noise_multiplier=0.5)
        with pytest.raises(LedgerMismatch, match="declared"):
            train(composition(ledger, RUN), other)
